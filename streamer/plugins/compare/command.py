"""`streamer compare`: recordings through several models or settings, one after the other."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from streamer.commands.files import (
    STANDARD_STREAM,
    Output,
    check_recordings,
    check_target,
    opened,
    read_spoken,
)
from streamer.commands.invocation import Invocation
from streamer.commands.signature import MODEL_FILES, Arg, Flags, needs
from streamer.commands.terminal import end_on_sigterm, make_console
from streamer.errors import PeerError, UsageError
from streamer.plugins.compare.candidates import parse_candidates
from streamer.settings.load import CONFIG_VARIABLE
from streamer.settings.registry import SETTINGS

if TYPE_CHECKING:
    from streamer.plugins.compare.runs import Runs


@needs("rapidfuzz", extra="compare")
def compare(
    files: Annotated[Sequence[Path], Arg("recording", "FILE")],
    *,
    models: Annotated[
        Sequence[str],
        Arg(
            "models with commas between them, each with settings of its own if MODEL@SECTION.KEY=VALUE is written, such"
            " as base.en,base.en@decoding.beam_size=5; in double quotes if a comma is in it",
            "M,M",
        ),
    ],
    reference: Annotated[
        Sequence[Path],
        Arg("what is said in the recording; again for each further one, in their order", "FILE.txt"),
    ] = (),
    stream: Annotated[bool, Arg("as live captions, at real-time pace: delays are measured")] = False,
    format: Annotated[Literal["table", "json"], Arg("what to write")] = "table",
    output: Output = STANDARD_STREAM,
    invocation: Annotated[Invocation, Flags(MODEL_FILES, decoding="all")],
) -> int:
    """Recordings through several models or settings, side by side.

    Each transcribes in a process of its own. Shows their errors against a reference, else how far they disagree, word
    by word; their speed, their delays and their memory. The exit code is 1 if one of them could not transcribe
    everything.

    Example: streamer compare talk.wav --models tiny.en,base.en
    """
    # Late, as the command line itself needs none of them.
    from streamer.plugins.compare.compare import compare as compare_runs
    from streamer.plugins.compare.table import print_comparison

    invocation.settings()  # begins to log
    end_on_sigterm()
    texts = _check(files, reference, output)
    candidates = parse_candidates(models)
    for name, own in candidates.items():
        _check_settings(name, own, invocation, streaming=stream)
    found = compare_runs([path.name for path in files], texts, _measured(candidates, files, invocation, live=stream))
    with opened(output) as text:
        if format == "json":
            text.write(found.to_json())
        else:
            print_comparison(found, make_console(text))
    return 1 if any(row.error for row in found.rows) else 0


def _check(paths: Sequence[Path], references: Sequence[Path], output: Path) -> list[str]:
    """Return the references' texts. Raises UsageError or AudioFileError for what can be seen before anything is run."""
    from streamer.commands.words import words

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
    from streamer.check import check_options

    try:
        settings = invocation.load(own)
        check_options(settings, streaming=streaming)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    if settings.decoding.task == "both":
        raise UsageError(
            "cannot compare with decoding.task both, which gives two texts: expected transcribe or translate"
        )


def _measured(
    candidates: Mapping[str, Mapping[str, str]], files: Sequence[Path], invocation: Invocation, *, live: bool
) -> "dict[str, Runs]":
    """Return what each candidate makes of recordings, played at real-time pace if they are measured `live`."""
    from streamer.plugins.compare.runs import failed, played, transcribed
    from streamer.setup.progress import show_progress

    # Before anything is measured: a slip in the last name should not cost the time of the others.
    unreached = {name: error for name, own in candidates.items() if (error := _pull(own["model.name"]))}
    paths = [path.absolute() for path in files]
    found = {name: failed(paths, error) for name, error in unreached.items()}
    for name, own in candidates.items():
        if name not in unreached:
            with show_progress(name) as shown:
                shown.begin("playing at real-time pace" if live else "transcribing")
                found[name] = (played if live else transcribed)(paths, _environment(invocation, own))
    return {name: found[name] for name in candidates}


def _environment(invocation: Invocation, own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a candidate's process, which says all that this command's flags do."""
    # Its errors are read: they are lines of text, whatever our log is made of.
    settings = {**invocation.overrides, **own, "log.format": "text"}
    config = {CONFIG_VARIABLE: str(invocation.config)} if invocation.config is not None else {}
    return {**os.environ, **config, **{SETTINGS[name].variable: str(value) for name, value in settings.items()}}


def _pull(name: str) -> str:
    """Fetch a model unless it is here; return why that fails, or an empty text. Raises ModelError for unknown names."""
    from streamer.setup.progress import show_progress
    from streamer.whisper.locate import find_or_pull

    try:
        with show_progress(name) as shown:
            find_or_pull(name, shown.fetched)
    except PeerError as error:
        return str(error)
    return ""
