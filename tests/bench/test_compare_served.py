"""Comparisons that requests ask for, with recordings that are transcribed in name only."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import pytest

from streamer.bench.compare_served import ServedComparison
from streamer.errors import (
    AudioFileError,
    BusyError,
    ConfigError,
    StoppingError,
    StreamerError,
    UnknownModelError,
    UsageError,
)
from streamer.events import Final
from streamer.protocols.recordings import ModelInfo, RecordedSegment, RecordingOptions

OWN = "nano.en"  # the daemon's own model


class Job:
    """A transcription that gives some texts, or fails."""

    def __init__(self, model: str, outcome: Sequence[str] | StreamerError) -> None:
        self.model = model
        self.duration_s = 0.0
        self.language = ""
        self.work_s = 0.0
        self.closed = False
        self._outcome = outcome

    async def __aiter__(self) -> AsyncIterator[RecordedSegment]:
        if isinstance(self._outcome, StreamerError):
            raise self._outcome
        self.duration_s, self.language = 10.0, "en"
        for number, text in enumerate(self._outcome):
            self.work_s += 1.0
            start = 2.0 * number
            final = Final(
                segment=number,
                start=start,
                end=start + 2.0,
                text=text,
                words=(),
                language="en",
                no_speech_prob=0.0,
                avg_logprob=0.0,
            )
            yield RecordedSegment(final=final, seek=0, tokens=(), temperature=0.0, compression_ratio=1.0)

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class FakeRecordings:
    """Models by name, each with what it hears."""

    def __init__(self, outcomes: Mapping[str, Sequence[str] | StreamerError]) -> None:
        self._outcomes = outcomes
        self.opened: list[tuple[str, RecordingOptions]] = []
        self.jobs: list[Job] = []

    def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo(name=name, created=0, loaded=True) for name in self._outcomes]

    def find(self, model: str) -> ModelInfo:
        if model not in (*self._outcomes, "whisper-1"):
            raise UnknownModelError(f"there is no model {model!r}")
        return ModelInfo(name=model, created=0, loaded=True)

    def open(self, path: Path, options: RecordingOptions, model: str = "") -> Job:
        self.opened.append((model, options))
        assert all(job.closed for job in self.jobs), "two at once"
        outcome = self._outcomes[OWN if model == "whisper-1" else model]
        if isinstance(outcome, BusyError):
            raise outcome
        self.jobs.append(Job(OWN if model == "whisper-1" else model, outcome))
        return self.jobs[-1]


async def compared(recordings: FakeRecordings, *models: str, reference: str | None = None) -> dict[str, object]:
    told = await ServedComparison(recordings).compare(Path("x"), "talk.wav", models, reference, "json")
    found: dict[str, object] = json.loads(told)
    return found


async def test_models_take_turns_each_with_its_options() -> None:
    recordings = FakeRecordings({OWN: ["yes sir", "no"], "tiny": ["yes", "no"]})
    told = await compared(recordings, f"{OWN},tiny@decoding.temperature=0.5@decoding.language=en", reference="Yes, no")
    assert recordings.opened == [
        (OWN, RecordingOptions()),
        ("tiny", RecordingOptions(temperature=0.5, language="en")),
    ]
    rows = told["models"]
    assert isinstance(rows, list)
    assert [row["wer"] for row in rows] == [0.5, 0.0]
    assert (rows[0]["audio_s"], rows[0]["first_text_s"], rows[0]["wall_s"]) == (10.0, 1.0, 2.0)
    assert (rows[0]["peak_rss_mb"], rows[0]["cpu_per_audio"]) == (None, None)


async def test_under_a_name_of_openais_it_is_told_which_model_answered() -> None:
    rows = (await compared(FakeRecordings({OWN: ["yes"]}), "whisper-1"))["models"]
    assert isinstance(rows, list)
    assert rows[0]["name"] == "whisper-1 (nano.en)"


async def test_one_that_fails_has_a_row_that_says_why() -> None:
    recordings = FakeRecordings({OWN: ["yes"], "tiny": ConfigError("no such language"), "base": BusyError("full")})
    rows = (await compared(recordings, f"{OWN},tiny,base"))["models"]
    assert isinstance(rows, list)
    assert [row["error"] for row in rows] == ["", "no such language", "full"]


@pytest.mark.parametrize(
    ("models", "error"),
    [
        ("tiny", ConfigError("no such language")),
        ("base", BusyError("full")),
        (f"{OWN},deaf", AudioFileError("not audio")),
        (f"{OWN},late", StoppingError("stops")),
        (f"{OWN},nothing", UnknownModelError("there is no model 'nothing'")),
    ],
)
async def test_what_nobody_can_do_is_an_error(models: str, error: StreamerError) -> None:
    outcomes = {"tiny": error, "base": error, "deaf": error, "late": error}
    with pytest.raises(type(error), match=str(error)):
        await compared(FakeRecordings({OWN: ["yes"], **outcomes}), models)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("", "no models are named"),
        (",".join(f"{OWN}@decoding.temperature=0.{n}" for n in range(9)), "9 models are named"),
        (f"{OWN}@decoding.grammar=/etc/passwd", "sets decoding.grammar: expected some of decoding.language"),
        (f"{OWN}@model.cache_dir=/", "sets model.cache_dir"),
        (f"{OWN}@decoding.beam_size=0", "expected a whole number"),
        (f"{OWN}@decoding.task=both", "expected transcribe or translate"),
    ],
)
async def test_slips_are_refused_before_any_work(models: str, message: str) -> None:
    recordings = FakeRecordings({OWN: ["yes"]})
    with pytest.raises(UsageError, match=message):
        await compared(recordings, models)
    with pytest.raises(UsageError, match="the reference has no words"):
        await compared(recordings, OWN, reference=" ")
    assert not recordings.opened
