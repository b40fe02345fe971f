"""`streamer compare`: recordings through several models or settings, one after the other."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from streamer.check import check_options
from streamer.commands.files import check_recordings, check_target, opened, read_spoken
from streamer.commands.invocation import Invocation
from streamer.commands.terminal import make_console
from streamer.commands.words import words
from streamer.errors import PeerError, UsageError
from streamer.plugins.compare.candidates import parse_candidates
from streamer.plugins.compare.compare import compare
from streamer.plugins.compare.runs import failed, played, transcribed
from streamer.plugins.compare.table import print_comparison
from streamer.settings.load import CONFIG_VARIABLE
from streamer.settings.registry import SETTINGS
from streamer.setup.progress import show_progress
from streamer.whisper.locate import find_or_pull


def compare_models(
    invocation: Invocation,
    files: Sequence[Path],
    *,
    models: Sequence[str],
    references: Sequence[Path] | None,
    streaming: bool,
    format: str,
    output: Path | None,
) -> int:
    """Compare models over recordings, and print or write the comparison.

    references : files with what is said in each of the recordings; or None
    streaming : whether they are played at real-time pace, as live captions

    Returns the exit code: 1 if a model could not transcribe everything. Raises StreamerError if none could.
    """
    texts = _check(files, references or (), output)
    candidates = parse_candidates(models)
    for name, own in candidates.items():
        _check_settings(name, own, invocation, streaming=streaming)
    # Before anything is measured: a slip in the last name should not cost the time of the others.
    unreached = {name: error for name, own in candidates.items() if (error := _pull(own["model.name"]))}
    paths = [path.absolute() for path in files]
    found = {}
    for name, own in candidates.items():
        if name in unreached:
            found[name] = failed(paths, unreached[name])
            continue
        with show_progress(name) as shown:
            shown.begin("playing at real-time pace" if streaming else "transcribing")
            found[name] = (played if streaming else transcribed)(paths, _environment(invocation, own))
    comparison = compare([path.name for path in files], texts, found)
    console = make_console()
    with opened(output) as stream:
        if format == "json":
            stream.write(comparison.to_json())
        else:
            print_comparison(comparison, Console(file=stream, width=console.width) if output else console)
    return 1 if any(row.error for row in comparison.rows) else 0


def _check(paths: Sequence[Path], references: Sequence[Path], output: Path | None) -> list[str]:
    """Return the references' texts. Raises UsageError or AudioFileError for what can be seen before anything is run."""
    if len(set(paths)) < len(paths):
        raise UsageError("the same recording is given twice: remove one")
    check_recordings(paths)
    check_target(output, "--output")
    if len(references) not in (0, len(paths)):
        raise UsageError(
            f"{len(references)} references for {len(paths)} recordings: expected one for each, in their order, or none"
        )
    texts = list(map(read_spoken, references))
    for path, text in zip(references, texts, strict=True):
        if not words([(0.0, text)]):
            raise UsageError(f"{path} has no words: expected what is said in the recording, as plain text")
    return texts


def _check_settings(name: str, own: Mapping[str, str], invocation: Invocation, *, streaming: bool) -> None:
    """Raise UsageError if the settings of a candidate are wrong."""
    try:
        settings = invocation.load(own)
        check_options(settings, streaming=streaming)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    if settings.decoding.task == "both":
        raise UsageError(
            "cannot compare with decoding.task both, which gives two texts: expected transcribe or translate"
        )


def _environment(invocation: Invocation, own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a candidate's process, which says all that this command's flags do."""
    # Its errors are read: they are lines of text, whatever our log is made of.
    settings = {**invocation.overrides, **own, "log.format": "text"}
    config = {CONFIG_VARIABLE: str(invocation.config)} if invocation.config is not None else {}
    return {**os.environ, **config, **{SETTINGS[name].variable: str(value) for name, value in settings.items()}}


def _pull(name: str) -> str:
    """Fetch a model unless it is here; return why that fails, or an empty text. Raises ModelError for unknown names."""
    try:
        with show_progress(name) as shown:
            find_or_pull(name, shown.fetched)
    except PeerError as error:
        return str(error)
    return ""
