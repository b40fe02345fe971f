"""The second pass: what it reads, whom it lets go first, what becomes of its words, and the whole thing."""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from streamer import events
from streamer.after.correct.corrector import text_of
from streamer.after.passages import Passage
from streamer.after.postprocessing import PostProcessing
from streamer.after.second_pass import SecondPass, has_second_pass, same_but_for_marks, share_words
from streamer.arrays import Float32Array
from streamer.daemon.sessions import SessionSource, open_session
from streamer.engine.decoder import make_engine
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.errors import ModelError, StreamerError
from streamer.events import Final, Revision, Word
from streamer.health import Health
from streamer.settings.table import CorrectionSettings, DecodingSettings, ModelSettings, Settings
from streamer.whisper.model import WhisperModel
from tests import builders
from tests.builders import final
from tests.daemon import SAMPLE, pause_after, recording
from tests.promises import check_promises
from tests.unit.whisper.support import NANO, load_on_cpu
from tests.waiting import WAIT_S


@pytest.fixture(scope="module")
def own(cache_dir: Path) -> WhisperModel:
    return load_on_cpu(NANO, cache_dir)


def second_pass(own: WhisperModel, *, free: bool = True, **changes: object) -> SecondPass:
    correction = CorrectionSettings(**{"model": "nano.en", **changes})  # type: ignore[arg-type]
    settings = Settings(model=ModelSettings(name="nano.en"), correction=correction)
    return SecondPass(settings, own, lambda timeout_s, quiet_s: free, Health())


def read(
    reader: SecondPass,
    samples: Float32Array,
    language: str = "en",
    left_s: float = WAIT_S,
    published: tuple[Word, ...] = (),
) -> Sequence[Word]:
    """Return the words of a passage from second 7 on."""
    session = SimpleNamespace(task="transcribe", options=None)
    passage = Passage((final("so", start=7.0, end=9.0, words=published, language=language),))
    return reader.read(passage, samples, session, time.monotonic() + left_s)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "windows_s", "expected"),
    [("auto", (), True), ("auto", (5,), False), ("", (), False), ("tiny", (5,), True)],
)
def test_a_model_of_short_windows_reads_long_passages_only_if_it_is_named(
    name: str, windows_s: tuple[int, ...], expected: bool
) -> None:
    model: Any = SimpleNamespace(generation=SimpleNamespace(windows_s=windows_s))
    assert has_second_pass(Settings(correction=CorrectionSettings(model=name)), model) == expected


def test_a_passage_is_transcribed_with_times_of_the_session(own: WhisperModel) -> None:
    reader = second_pass(own)
    reader.model.result(WAIT_S)
    words = read(reader, recording(SAMPLE))
    assert "The Commission regards such" in "".join(word.word for word in words)
    assert words[0].start >= 7.0


@pytest.mark.parametrize(("published", "found", "expected"), [(0, 1, False), (1, 0, True)])
def test_of_what_was_published_and_what_is_found_the_likelier_counts(
    own: WhisperModel, monkeypatch: pytest.MonkeyPatch, published: int, found: int, expected: bool
) -> None:
    reader = second_pass(own)
    reader.model.result(WAIT_S)
    samples = recording(SAMPLE, 0.0, pause_after(2))
    right = tuple(read(reader, samples))
    texts = right, right[::-1]  # the same words in the wrong order
    monkeypatch.setattr("streamer.after.second_pass.transcribe", lambda *_: [final("so", words=texts[found])])
    words = read(reader, samples, published=texts[published])
    assert [word.word for word in words] == ([word.word for word in texts[found]] if expected else [])


def test_silence_has_no_words_and_an_unknown_language_is_left_alone(own: WhisperModel) -> None:
    reader = second_pass(own)
    reader.model.result(WAIT_S)
    assert list(read(reader, np.zeros(32_000, np.float32))) == []
    assert read(reader, recording(SAMPLE), "de") == ()


def test_live_captions_go_first_up_to_the_deadline(own: WhisperModel) -> None:
    reader = second_pass(own, free=False)
    reader.model.result(WAIT_S)
    with pytest.raises(TimeoutError):
        read(reader, recording(SAMPLE), left_s=0.05)


def test_a_model_that_cannot_be_loaded_is_reported_and_one_that_is_not_there_yet_is_not(
    own: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Event()

    def load(self: SecondPass) -> WhisperModel:
        assert there.wait(WAIT_S)
        raise ModelError("no such model: fetch it")

    monkeypatch.setattr(SecondPass, "_load", load)
    reader = second_pass(own)
    assert read(reader, recording(SAMPLE)) == ()
    there.set()
    assert isinstance(reader.model.exception(WAIT_S), ModelError)
    with pytest.raises(StreamerError, match="no such model"):
        read(reader, recording(SAMPLE))


def words_of(text: str, start: float = 0.0, each_s: float = 0.5, speaker: str | None = None) -> tuple[Word, ...]:
    """Return words that follow each other."""
    return tuple(msgspec.structs.replace(word, speaker=speaker) for word in builders.words(text, start, step=each_s))


def spoken(text: str, start: float, end: float, *, language: str = "en", speaker: str | None = None) -> Final:
    words = words_of(text, start, (end - start) / max(1, len(text.split())), speaker)
    return builders.final(text, segment=1, start=start, end=end, words=words, language=language)


def test_words_go_to_the_finals_whose_words_they_replace_however_their_times_lie() -> None:
    finals = [spoken("the see of", 0.0, 1.5, speaker="S1"), spoken("Green what a day", 1.5, 3.5, speaker="S2")]
    # All times are half a second late: the text decides.
    shared = share_words(finals, words_of("The sea of green, what a lovely day.", 0.5))
    assert [text_of(words) for words in shared] == ["The sea of", "green, what a lovely day."]
    assert [word.speaker for word in shared[1]] == ["S2"] * 5
    assert all(
        each.start <= word.start <= word.end <= each.end for each, s in zip(finals, shared, strict=True) for word in s
    )


@pytest.mark.parametrize(
    ("text", "other", "same"),
    [("The sea.", "the sea", True), ("the sea", "the see", False), ("की", "का", False), ("が", "か", False)],
)
def test_texts_are_the_same_but_for_case_and_punctuation(text: str, other: str, same: bool) -> None:
    assert same_but_for_marks(words_of(text), words_of(other)) == same


def test_words_that_resemble_none_go_by_their_times() -> None:
    finals = [spoken("um", 0.0, 1.0), spoken("er", 1.0, 2.0), spoken("ah", 2.0, 3.0)]
    assert [text_of(words) for words in share_words(finals, words_of("quite another text"))] == [
        "quite another",
        "text",
        "",
    ]
    assert share_words(finals, ()) == [(), (), ()]


@pytest.mark.slow
def test_a_final_is_read_again_before_the_end_and_no_promise_breaks(own: WhisperModel) -> None:
    model = own
    # What captions compute stays as it was.
    assert (model.n_beams, model.fork(n_beams=5).n_beams) == (1, 5)
    correction = CorrectionSettings(model="nano.en", beam_size=5, deadline_s=WAIT_S)
    settings = Settings(model=ModelSettings(name="nano.en"), correction=correction)
    # Captions cannot write this word: so there is something to mend.
    (the,) = model.tokenizer.encode(" the")
    engine = make_engine(model, DecodingSettings(suppress_tokens=f"-1,{the}"))
    enrichment = PostProcessing(settings, model, engine)
    log = EventLog("abc", 10_000)
    told: list[events.Event] = []
    log.subscribe(told.append)
    over: Future[None] = Future()

    def end(event: events.Event) -> None:
        if isinstance(event, events.End):
            over.set_result(None)

    log.subscribe(end)
    live = open_session(settings, model, log, SessionSource(kind=AudioKind.RECORDED), enrichment=enrichment)
    engine.start()
    try:
        assert enrichment.second_pass is not None
        enrichment.second_pass.model.result(WAIT_S)
        engine.add(live)
        samples = recording(SAMPLE, pause_after(1), pause_after(2))
        live.write(samples)
        live.end()
        over.result(WAIT_S)
    finally:
        engine.stop()
    check_promises(told, duration_s=len(samples) / 16_000)
    revisions: Sequence[Revision] = [event for event in told if isinstance(event, Revision)]
    finals = " ".join(event.text for event in told if isinstance(event, Final))
    assert " the " not in finals
    assert any(" the " in revision.text and revision.by == "second_pass" for revision in revisions)
    assert str(enrichment.health) == ""
