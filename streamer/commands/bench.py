"""`streamer bench`: how fast live captions are on this machine with this model, and what they cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from streamer.commands.files import check_recordings, check_target, find_recordings, opened, read_spoken
from streamer.commands.signature import MODEL, Arg, Flags
from streamer.commands.terminal import end_on_sigterm, make_console, notice
from streamer.errors import MissingExtraError, UsageError
from streamer.extras import requires
from streamer.settings.table import Settings
from streamer.whisper.shipped import SAMPLE_OF, speech


def bench(
    files: Annotated[
        Sequence[str],
        Arg("recording, or a folder of recordings (default: the sample that comes with nano.en)", "FILE"),
    ] = (),
    *,
    json: Annotated[Path | None, Arg("write all figures to a file as well", "FILE")] = None,
    settings: Annotated[Settings, Flags(MODEL, decoding="live")],
) -> int:
    """Measure delay, cost and memory of live captions on this machine.

    Plays recordings to the daemon's engine at real-time pace, and prints how soon words are seen and stable, the
    processor time and the memory that this takes, and how many sessions this machine would keep. If the text of each
    FILE.flac is in FILE.txt, word errors are counted too.

    Example: streamer bench --model base.en
    """
    from streamer.check import check_options
    from streamer.commands.figures import figures, languages, print_figures
    from streamer.commands.measure import measure, with_offline
    from streamer.setup.auto import choose_model

    end_on_sigterm()
    check_options(settings, streaming=True)
    paths = find_recordings(files) if files else [_sample()]
    check_recordings(paths)
    texts = _texts_beside(paths)
    check_target(json, "--json")
    settings = choose_model(settings, live=True)
    runs, facts, measured = measure(settings, paths)
    # Without the text of each recording no rate of errors is theirs.
    if len(texts) != len(paths):
        texts = []
    elif any(texts):
        runs = with_offline(runs, paths, settings)
    found = figures(runs, texts) | measured
    print_figures({str(facts["model"]): found}, make_console())
    _print_capacity(settings, facts)
    if json is not None:
        recordings = [{"name": path.name, **msgspec.to_builtins(run)} for path, run in zip(paths, runs, strict=True)]
        report = {**facts, "language": languages(runs), **found, "recordings": recordings}
        with opened(json, "--json") as stream:
            stream.write(msgspec.json.encode(report).decode() + "\n")
    return 0


def _print_capacity(settings: Settings, facts: Mapping[str, object]) -> None:
    """Print for how many sessions the machine would do, and whether the model was loaded as fast as it can be."""
    console = make_console()
    if (capacity := facts["sessions"]) is not None:
        some = "one session" if capacity == 1 else f"{capacity} sessions"
        pace = f"with a decoding pass every {settings.stream.max_pace_s:g} s"
        console.print(
            f"This machine would keep at most {some} of unbroken speech in real time, {pace}.", highlight=False
        )
    if not facts["from_cache"]:
        console.print("Not all graphs were in the cache: the next load takes less time.", highlight=False)


def _texts_beside(paths: Sequence[Path]) -> list[str]:
    """Return the texts in the files FILE.txt; none, with a notice, if word errors cannot be counted."""
    beside = [path.with_suffix(".txt") for path in paths]
    texts = [read_spoken(path) for path in beside if path.is_file() and path not in paths]
    try:
        if texts:
            requires("rapidfuzz", extra="compare", purpose="counting word errors")
    except MissingExtraError as error:
        notice(str(error))
        return []
    return texts


def _sample() -> Path:
    """Return the shipped model's sample. Raises UsageError if it is not there."""
    sample = speech()
    if sample is None:
        raise UsageError(f"the sample that comes with {SAMPLE_OF} is missing: name a file of speech to measure with")
    return sample
