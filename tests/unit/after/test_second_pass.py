"""The second pass: what it reads, whom it lets go first, and to which finals its words go."""

import time
from collections.abc import Sequence
from threading import Event
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from streamer.after import second_pass
from streamer.after.correct.corrector import text_of
from streamer.after.passages import Passage
from streamer.after.second_pass import SecondPass, has_second_pass, same_but_for_marks, share_words
from streamer.arrays import Float32Array
from streamer.errors import ModelError, StreamerError
from streamer.events import Final, Word
from streamer.health import Health
from streamer.settings.table import CorrectionSettings, ModelSettings, Settings
from streamer.whisper.decode.options import DecodeOptions
from streamer.whisper.model import WhisperModel
from tests.builders import final, words
from tests.daemon import SAMPLE, pause_after, recording, sample_text
from tests.waiting import WAIT_S, wait_until

SENTENCE = recording(SAMPLE, 0.0, pause_after(1))
RIGHT = words(sample_text(0.0, pause_after(1)))
WRONG = RIGHT[::-1]  # the same words in the wrong order


def reader_of(model: WhisperModel, *, free: bool = True) -> SecondPass:
    """Return a second pass by the session's own model, whose captions leave time or do not."""
    settings = Settings(model=ModelSettings(name="nano.en"), correction=CorrectionSettings(model="nano.en"))
    reader = SecondPass(settings, model, lambda timeout_s, quiet_s: free, Health())
    reader.model.result(WAIT_S)
    return reader


def read(
    reader: SecondPass,
    samples: Float32Array = SENTENCE,
    *,
    language: str = "en",
    left_s: float = WAIT_S,
    published: tuple[Word, ...] = (),
    **session: object,
) -> Sequence[Word]:
    """Return the words of a passage from second 7 on."""
    chosen: Any = SimpleNamespace(**{"task": "transcribe", "options": None, **session})
    passage = Passage((final("so", start=7.0, end=9.0, words=published, language=language),))
    return reader.read(passage, samples, chosen, time.monotonic() + left_s)


@pytest.mark.parametrize(
    ("name", "windows_s", "expected"),
    [("auto", (), True), ("auto", (5,), False), ("", (), False), ("tiny", (5,), True)],
)
def test_a_model_of_short_windows_has_to_be_named(name: str, windows_s: tuple[int, ...], expected: bool) -> None:
    model: Any = SimpleNamespace(generation=SimpleNamespace(windows_s=windows_s))
    assert has_second_pass(Settings(correction=CorrectionSettings(model=name)), model) == expected


def test_a_passage_is_transcribed_with_times_of_the_session_and_silence_has_no_words(model: WhisperModel) -> None:
    reader = reader_of(model)
    found = read(reader)
    assert text_of(found).startswith("The Commission regards such")
    assert 7.0 <= found[0].start < found[-1].end <= 7.1 + len(SENTENCE) / 16_000
    assert list(read(reader, np.zeros(32_000, np.float32))) == []


@pytest.mark.parametrize(("published", "found", "expected"), [(RIGHT, WRONG, ()), (WRONG, RIGHT, RIGHT)])
def test_of_what_was_published_and_what_is_found_the_likelier_counts(
    model: WhisperModel,
    monkeypatch: pytest.MonkeyPatch,
    published: tuple[Word, ...],
    found: tuple[Word, ...],
    expected: tuple[Word, ...],
) -> None:
    monkeypatch.setattr(second_pass, "transcribe", lambda *_: [final("so", words=found)])
    assert text_of(read(reader_of(model), published=published)) == text_of(expected)


def test_it_is_asked_in_languages_that_it_knows(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, tuple[str, ...]]] = []

    def transcribe(_: object, __: object, options: DecodeOptions) -> list[Final]:
        asked.append((options.settings.task, options.settings.initial_prompt, tuple(options.settings.hotwords)))
        return []

    monkeypatch.setattr(second_pass, "transcribe", transcribe)
    reader = reader_of(model)
    assert read(reader, language="de") == read(reader, task="translate") == ()
    assert asked == []
    read(reader)
    read(reader, options=SimpleNamespace(initial_prompt="In Brussels.", hotwords=("Katarzyna",)))
    assert asked == [("transcribe", "", ()), ("transcribe", "In Brussels.", ("Katarzyna",))]


def test_live_captions_go_first_up_to_the_deadline(model: WhisperModel) -> None:
    with pytest.raises(TimeoutError):
        read(reader_of(model, free=False), left_s=0.05)


def test_only_a_model_that_fails_is_reported(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    there, health = Event(), Health()

    def load(self: SecondPass) -> WhisperModel:
        assert there.wait(WAIT_S)
        raise ModelError("no such model")

    monkeypatch.setattr(SecondPass, "_load", load)
    reader = SecondPass(Settings(), model, lambda timeout_s, quiet_s: True, health)
    assert read(reader) == ()
    there.set()
    assert isinstance(reader.model.exception(WAIT_S), ModelError)
    with pytest.raises(StreamerError):
        read(reader)
    wait_until(lambda: health.why == {"second_pass": "no such model"})  # noted a moment after the model has failed


def spoken(text: str, start: float, end: float, speaker: str | None = None) -> Final:
    said = words(text, start, step=(end - start) / len(text.split()))
    labelled = tuple(msgspec.structs.replace(word, speaker=speaker) for word in said)
    return final(text, start=start, end=end, words=labelled)


def test_words_go_to_the_finals_whose_words_they_replace_however_their_times_lie() -> None:
    finals = [spoken("the see of", 0.0, 1.5, "S1"), spoken("Green what a day", 1.5, 3.5, "S2")]
    # All times are half a second late: the text decides.
    shared = share_words(finals, words("The sea of green, what a lovely day.", 0.5, step=0.5))
    assert [text_of(each) for each in shared] == ["The sea of", "green, what a lovely day."]
    assert [word.speaker for word in shared[1]] == ["S2"] * 5
    for each, share in zip(finals, shared, strict=True):
        assert all(each.start <= word.start <= word.end <= each.end for word in share)


def test_words_that_resemble_none_go_by_their_times() -> None:
    finals = [spoken("um", 0.0, 1.0), spoken("er", 1.0, 2.0), spoken("ah", 2.0, 3.0)]
    shared = share_words(finals, words("quite another text", step=0.5))
    assert [text_of(each) for each in shared] == ["quite another", "text", ""]
    assert share_words(finals, ()) == [(), (), ()]


@pytest.mark.parametrize(
    ("text", "other", "same"),
    [("The sea.", "the sea", True), ("the sea", "the see", False), ("की", "का", False), ("が", "か", False)],
)
def test_texts_are_the_same_but_for_case_and_punctuation(text: str, other: str, same: bool) -> None:
    assert same_but_for_marks(words(text), words(other)) == same
