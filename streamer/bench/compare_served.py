"""Several models over a recording that a request brings, one after another, beside the daemon's live sessions.

They share the daemon's process, so that their memory and their processor time are not known.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamer.bench.compare import Candidate, Comparison, Run, Runs, check_reference, compare, parse_candidates
from streamer.bench.compare_page import page
from streamer.errors import AudioFileError, BusyError, StoppingError, StreamerError, UsageError
from streamer.outside import one_line
from streamer.protocols.recordings import RecordingOptions
from streamer.server.interfaces import Recordings
from streamer.settings.table import SETTINGS
from streamer.settings.values import checked, from_text

# In one request: each takes a while of the one thread that transcribes recordings.
MAX_CANDIDATES = 8

# Settings that a request may have its own of, by the option that says it.
OPTIONS = {
    "decoding.language": "language",
    "decoding.task": "task",
    "decoding.initial_prompt": "prompt",
    "decoding.hotwords": "hotwords",
    "decoding.temperature": "temperature",
    "decoding.beam_size": "beam_size",
}


class ServedComparison:
    """See `server.interfaces.Comparer`."""

    def __init__(self, recordings: Recordings) -> None:
        self._recordings = recordings

    async def compare(self, path: Path, name: str, models: Sequence[str], reference: str | None, format: str) -> str:
        """Transcribe a recording with each of the models that lists name, and tell of them in JSON or HTML.

        name : what the recording is called; may come from outside

        Raises UnknownModelError, UsageError for a slip, AudioFileError; BusyError or StoppingError; and where no model
        could transcribe it, what the first of them raised.
        """
        candidates = parse_candidates([one_line(text) for text in models])
        if len(candidates) > MAX_CANDIDATES:
            raise UsageError(f"{len(candidates)} models are named: expected at most {MAX_CANDIDATES} at a time")
        options = [_options(candidate) for candidate in candidates]
        said = [check_reference(reference, "the reference")] if reference is not None else []
        for candidate in candidates:
            self._recordings.find(candidate.settings["model.name"])  # before any work is done for the others
        found, failures = [], []
        for candidate, option in zip(candidates, options, strict=True):
            try:
                found.append(await self._run(path, candidate, option))
            except (AudioFileError, StoppingError):
                raise  # nor could the others
            except StreamerError as error:
                if isinstance(error, BusyError) and not found:
                    raise
                failures.append(error)
                found.append(Runs(name=candidate.name, runs=[Run(error=str(error))]))
        if len(failures) == len(candidates):
            raise failures[0]

        def tell() -> str:
            comparison: Comparison = compare([one_line(name) or "recording"], said, found)
            return page(comparison) if format == "html" else comparison.to_json()

        return await asyncio.to_thread(tell)

    async def _run(self, path: Path, candidate: Candidate, options: RecordingOptions) -> Runs:
        segments: list[tuple[float, str]] = []
        first_text_s = None
        model = candidate.settings["model.name"]
        with self._recordings.open(path, options, model) as job:
            async for segment in job:
                if first_text_s is None:
                    first_text_s = job.work_s
                segments.append((segment.final.start, segment.final.text))
            run = Run(
                segments=segments,
                language=job.language,
                audio_s=job.duration_s,
                first_text_s=first_text_s,
                wall_s=job.work_s,
            )
            # Under a name of OpenAI's the daemon's own model answers.
            shown = candidate.name if job.model == model else f"{candidate.name} ({job.model})"
        return Runs(name=shown, runs=[run])


def _options(candidate: Candidate) -> RecordingOptions:
    """Return how a candidate transcribes. Raises UsageError where it sets what a request may not."""
    options: dict[str, Any] = {}
    for name, text in candidate.settings.items():
        if name == "model.name":
            continue
        if name not in OPTIONS:
            raise UsageError(f"{candidate.name!r:.80} sets {name}: expected some of {', '.join(OPTIONS)}")
        value = checked(SETTINGS[name], from_text(SETTINGS[name], text), name)
        if value == "both":
            raise UsageError(
                f"{name} is both, and one text of each model is compared: expected transcribe or translate"
            )
        options[OPTIONS[name]] = value
    return RecordingOptions(**options)
