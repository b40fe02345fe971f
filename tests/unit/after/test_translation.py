"""Finals translated beside the transcript: which are put together, in which order it is told, and who goes first."""

import math
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamer.after import translation
from streamer.after.translation import LOOP, TranslationFollower, Translations
from streamer.arrays import Float32Array
from streamer.constants import CHUNK_LENGTH_S, SAMPLE_RATE
from streamer.daemon.own_input import FLUSH_TIMEOUT_S
from streamer.daemon.sessions import session_settings
from streamer.engine import yielding
from streamer.errors import ConfigError
from streamer.events import End, Event, Final, Speech, Translation
from streamer.health import Health
from streamer.protocols.native import SessionOptions
from streamer.settings.table import DecodingSettings, Settings
from streamer.whisper.model import WhisperModel
from tests import builders
from tests.daemon import SAMPLE, pause_after, recording, running, transcribe
from tests.fakes import Clock
from tests.promises import check_promises
from tests.unit.after.live import Live

SECOND = np.zeros(SAMPLE_RATE, dtype=np.float32)


def final(text: str, start: float, end: float, language: str = "de") -> Final:
    return builders.final(text, start=start, end=end, words=(), language=language)


class Interpreter(Translations):
    """Says how many seconds it is given of which language, behind what."""

    def __init__(self) -> None:
        model = SimpleNamespace(generation=SimpleNamespace(prompted=True))
        super().__init__(Settings(), model, lambda timeout_s, quiet_s: True, Health())  # type: ignore[arg-type]
        # Called before it answers.
        self.meanwhile: Callable[[], object] = lambda: None

    def translate(self, samples: Float32Array, language: str, before: str, until_s: float) -> str:
        self.meanwhile()
        return f"{len(samples) / SAMPLE_RATE:g} s of {language}" + (" and more" if before else "")


def session_of(interpreter: Interpreter, **settings: Any) -> Live:  # noqa: ANN401
    """Return a session with a minute of audio that is translated."""
    live = Live(59.0, **settings)
    live.follow(TranslationFollower(interpreter, live.session, live.log))
    return live


def translations(*events: Event, **settings: Any) -> list[tuple[str, str]]:  # noqa: ANN401
    """Return which final each translation of a session names, and what it says."""
    live = session_of(Interpreter(), **settings)
    live.publish(*events)
    texts = {event.seq: event.text for event in live.finish() if isinstance(event, Final)}
    return [(texts[event.of], event.text) for event in live.events if isinstance(event, Translation)]


def test_a_translation_comes_behind_its_final_and_before_the_end() -> None:
    live = session_of(Interpreter())
    live.publish(final("Guten Tag.", 1.0, 3.0))
    assert [event.type for event in live.finish()] == ["final", "translation", "end"]
    assert live.events[1] == Translation(of=1, text="2 s of de", language="en", seq=2, session="abc")


def test_finals_of_one_sentence_are_translated_together_behind_the_one_before() -> None:
    spoken = (final("Guten", 0.0, 2.0), final("Tag.", 2.0, 3.0), final("Bis", 3.0, 4.0), final("dann!", 4.0, 8.0))
    assert translations(*spoken) == [("Tag.", "3 s of de"), ("dann!", "5 s of de and more")]


def test_what_is_in_another_language_is_translated_by_itself() -> None:
    assert translations(final("und", 0.0, 1.0), final("et.", 1.0, 2.0, "fr")) == [
        ("und", "1 s of de"),
        ("et.", "1 s of fr and more"),
    ]
    parted = final("und", 0.0, 1.0), final("and", 1.0, 2.0, "en"), final("oder", 2.0, 3.0)
    assert translations(*parted) == [("und", "1 s of de"), ("oder", "1 s of de and more")]


def test_the_end_of_english_speech_ends_no_sentence_of_what_follows() -> None:
    end = Speech(state="end", time=1.0)
    events = end, final("Yes.", 0.0, 1.0, "en"), final("Guten", 2.0, 3.0), final("Tag.", 3.0, 4.0)
    assert translations(*events) == [("Tag.", "2 s of de")]


@pytest.mark.parametrize("length_s", [CHUNK_LENGTH_S, CHUNK_LENGTH_S + 1])
def test_of_a_final_that_is_longer_than_a_window_its_beginning_is_translated(length_s: float) -> None:
    assert translations(final("und", 1.0, 1.0 + length_s)) == [("und", "30 s of de")]


def test_english_silence_and_sessions_that_do_not_ask_are_not_translated() -> None:
    assert translations(final("Good morning.", 0.0, 1.0, "en"), final("", 1.0, 2.0)) == []
    assert translations(final("Guten Tag.", 0.0, 1.0), translated=False) == []


def test_audio_is_not_copied_by_the_thread_that_publishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the lock of the session, and of the event log."""
    live, copied_by = session_of(Interpreter()), []
    read = live.ring.read

    def note(start: int, end: int) -> Float32Array:
        copied_by.append(threading.current_thread())
        return read(start, end)

    monkeypatch.setattr(live.ring, "read", note)
    live.publish(final("Guten Tag.", 0.0, 1.0))
    live.finish()
    (copied,) = copied_by
    assert copied != threading.current_thread()


def test_the_end_of_live_audio_waits_less_long_than_a_stop_of_the_program() -> None:
    assert translation.END_PATIENCE_S < FLUSH_TIMEOUT_S


def test_the_end_of_a_recording_waits_for_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "END_PATIENCE_S", 0.0)
    monkeypatch.setattr(translation, "PATIENCE_S", 0.0)
    interpreter = Interpreter()
    interpreter.meanwhile = lambda: threading.Event().wait(0.1)
    live = session_of(interpreter)
    live.recorded = True
    live.publish(final("Guten Tag.", 0.0, 1.0))
    assert [event.type for event in live.finish()] == ["final", "translation", "end"]


class Machine:
    """A model of which each call takes longer than the one before, and captions that leave no time at first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_busy: float = 0) -> None:
        self.clock = Clock()
        monkeypatch.setattr(yielding, "time", SimpleNamespace(monotonic=self.clock))
        self.n_busy = n_busy
        self.n_calls = 0
        self.before: Callable[[], None] = lambda: None
        self.asked: list[Any] = []
        self.decodings: list[DecodingSettings] = []
        self.looped = False
        # For how long captions were asked to leave time.
        self.needed_s: list[float] = []
        self.dims, self.generation = SimpleNamespace(n_mels=80), SimpleNamespace(prompted=True)
        self.runtime = SimpleNamespace(windows_s=(5, 30))
        monkeypatch.setattr(translation, "WhisperEncoder", lambda model: SimpleNamespace(encode=self.call))
        monkeypatch.setattr(translation, "WhisperDecoder", self.new_decoder)
        self.translations = Translations(Settings(), self, self.wait_idle, Health())  # type: ignore[arg-type]

    def translate(self, within_s: float) -> str:
        return self.translations.translate(SECOND, "de", "", self.clock() + within_s)

    def wait_idle(self, timeout_s: float, quiet_s: float) -> bool:
        self.needed_s.append(quiet_s)
        self.n_busy -= 1
        if self.n_busy >= 0:
            self.clock.advance(timeout_s)
        return self.n_busy < 0

    def fork(self, windows_s: tuple[int, ...]) -> "Machine":
        assert windows_s == (5, 30)
        return self

    def call_before(self, before: Callable[[], None]) -> None:
        self.before = before

    def call(self, *_: object) -> None:
        self.before()
        self.n_calls += 1
        self.clock.advance(0.1 * self.n_calls)

    def new_decoder(self, _: object, decoding: DecodingSettings) -> object:
        self.decodings.append(decoding)
        return SimpleNamespace(decode=self.decode)

    def decode(self, _: object, request: object) -> object:
        """Return an improbable text, as translations of small models are."""
        for _ in range(3):
            self.call()
        self.asked.append(request)
        failed = self.looped or self.decodings[0].logprob_threshold is not None
        return SimpleNamespace(failed=failed, words=[SimpleNamespace(text=" Good"), SimpleNamespace(text=" day.")])


def test_a_call_waits_until_captions_leave_as_much_time_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, n_busy=3)
    assert machine.translate(100.0) == "Good day."
    assert (machine.asked[0].task, machine.asked[0].language) == ("translate", "de")
    # Three times more at the first; calls of cross-KV and decoder take as long as the last.
    assert machine.needed_s == pytest.approx([0.0] * 5 + [0.2, 0.3])
    assert machine.translate(100.0) == "Good day."
    # One slow call is not the last.
    assert machine.needed_s[7:] == pytest.approx([0.1, 0.3, yielding.MAX_NEEDED_S, yielding.MAX_NEEDED_S])


def test_a_loop_is_left_out_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(monkeypatch)
    machine.looped = True
    for _ in range(2):
        assert machine.translate(100.0) == ""
    assert [record.getMessage() for record in caplog.records] == [f"translation does not work for now: {LOOP}"]


def test_what_is_late_is_left_out_and_a_recording_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, n_busy=math.inf)
    with pytest.raises(TimeoutError):
        machine.translate(1.0)
    assert machine.n_calls == 0
    assert machine.translate(math.inf) == "Good day."


def test_a_model_that_knows_english_only_is_refused(model: WhisperModel) -> None:
    """nano.en, whose vocabulary has the token for the task."""
    settings = Settings()
    with pytest.raises(ConfigError, match=r"task is both, and \S+ knows English only: choose a multilingual model"):
        session_settings(settings, model, SessionOptions(task="both"))
    assert not session_settings(settings, model).translated


@pytest.mark.slow
async def test_a_client_is_told_what_was_said_and_its_translation(tmp_path: Path) -> None:
    """nano.en under another language's name: what it reads where it is told to translate is English, too."""
    german = shutil.copytree(SAMPLE.parent, tmp_path / "german")
    for file in german.glob("*.json"):
        file.write_text(file.read_text(encoding="utf-8").replace("<|en|>", "<|de|>"), encoding="utf-8")
    with running("--model", german, "--input", "none") as daemon:
        received = await transcribe(daemon, recording(SAMPLE, 0.0, pause_after(2)), start={"task": "both"})
    events = received.events
    check_promises(events)
    finals = [event for event in events if isinstance(event, Final) and event.text]
    found = [event for event in events if isinstance(event, Translation)]
    assert isinstance(events[-1], End)
    assert finals[-1].seq == found[-1].of
    assert {event.language for event in finals} == {"de"}
    assert {event.language for event in found} == {"en"}
    assert "Secret Service" in " ".join(event.text for event in found)
