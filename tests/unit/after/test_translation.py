"""Finals translated beside the transcript: which are put together, in which order they come, and who goes first."""

import math
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamer.after import translation
from streamer.after.translation import TranslationFollower, Translations
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.daemon.own_input import FLUSH_TIMEOUT_S
from streamer.engine import yielding
from streamer.events import Event, Final, Translation
from streamer.health import Health
from streamer.settings.table import DecodingSettings, Settings
from tests.fakes import Clock
from tests.unit.after.live import Hanging, Live, check_freed, finals_of, patience


class Interpreter(Translations):
    """Says how many seconds it is given of which language, behind what."""

    def __init__(self) -> None:
        model = SimpleNamespace(generation=SimpleNamespace(prompted=True))
        super().__init__(Settings(), model, lambda timeout_s, quiet_s: True, Health())  # type: ignore[arg-type]
        self.meanwhile: Callable[[], object] = lambda: None  # called before it answers

    def translate(self, samples: Float32Array, language: str, before: str, until_s: float) -> str:
        self.meanwhile()
        return f"{len(samples) / SAMPLE_RATE:g} s of {language}" + (" and more" if before else "")


def session_of(interpreter: Interpreter, **settings: Any) -> Live:  # noqa: ANN401
    """Return a session with a minute of audio that is translated."""
    live = Live(59.0, **settings)
    live.follow(TranslationFollower(interpreter, live.session, live.log))
    return live


def translated(*events: Event, **settings: Any) -> list[tuple[str, str]]:  # noqa: ANN401
    """Return which final each translation of a session names, and what it says."""
    live = session_of(Interpreter(), **settings)
    live.publish(*events)
    texts = {event.seq: event.text for event in live.finish() if isinstance(event, Final)}
    return [(texts[event.of], event.text) for event in live.events if isinstance(event, Translation)]


def test_a_translation_comes_behind_its_final_and_before_the_end() -> None:
    live = session_of(Interpreter())
    live.publish(*finals_of("Tag. 1.0 3.0 de"))
    assert [event.type for event in live.finish()] == ["final", "translation", "end"]
    assert live.events[1] == Translation(of=1, text="2 s of de", language="en", seq=2, session="abc")


@pytest.mark.parametrize(
    ("spoken", "found"),
    [
        # By sentence, behind the one before; by language; not English.
        (
            "Guten 0 2, Tag. 2 3, Bis 3 4, dann! 4 8",
            [("Tag.", "3 s of de"), ("dann!", "5 s of de and more")],
        ),
        (
            "et. 0 1 fr, und 1 2, and 2 3 en, oder 3 4",
            [("et.", "1 s of fr"), ("und", "1 s of de and more"), ("oder", "1 s of de and more")],
        ),
        # Of what is longer than a window, the beginning.
        ("und 1 32", [("und", "30 s of de")]),
    ],
)
def test_what_is_translated_together(spoken: str, found: list[tuple[str, str]]) -> None:
    assert translated(*finals_of(spoken, "de")) == found


def test_a_session_that_does_not_ask_is_not_translated() -> None:
    assert translated(*finals_of("Tag. 0.0 1.0 de"), translated=False) == []


def test_audio_is_not_copied_by_the_thread_that_publishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the lock of the session, and of the event log."""
    live, copied_by = session_of(Interpreter()), []
    read = live.ring.read

    def note(start: int, end: int) -> Float32Array:
        copied_by.append(threading.current_thread())
        return read(start, end)

    monkeypatch.setattr(live.ring, "read", note)
    live.publish(*finals_of("Tag. 0.0 1.0 de"))
    live.finish()
    assert len(copied_by) == 1
    assert threading.current_thread() not in copied_by


def test_the_end_of_a_recording_waits_for_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "END_PATIENCE_S", 0.0)
    monkeypatch.setattr(translation, "PATIENCE_S", 0.0)
    interpreter = Interpreter()
    interpreter.meanwhile = lambda: threading.Event().wait(0.1)
    live = session_of(interpreter)
    live.recorded = True
    live.publish(*finals_of("Tag. 0.0 1.0 de"))
    assert [event.type for event in live.finish()] == ["final", "translation", "end"]


def test_a_model_that_hangs_keeps_no_session_from_its_end_nor_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_s, interpreter = patience(monkeypatch), Interpreter()
    interpreter.meanwhile = hanging = Hanging()

    def make() -> Live:
        live = session_of(interpreter)
        live.publish(*finals_of("Tag. 0.0 1.0 de"))
        return live

    with hanging.session(make()) as events:
        assert [event.type for event in events] == ["final", "end"]
    assert waited_s == [pytest.approx(translation.END_PATIENCE_S, abs=1.0)]
    assert waited_s[0] < FLUSH_TIMEOUT_S, "a stop of the program waits for it"
    hanging.begun.clear()
    check_freed(make, hanging.begun.is_set)


def test_a_call_waits_until_captions_leave_as_much_time_as_the_last_took(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, needed_s, free = Clock(), list[float](), [False, False, False]
    monkeypatch.setattr(yielding, "time", SimpleNamespace(monotonic=clock))

    def wait_idle(timeout_s: float, quiet_s: float) -> bool:
        needed_s.append(quiet_s)
        clock.advance(timeout_s if free else 0.0)
        return not free or free.pop()

    turns = yielding.YieldToLive(wait_idle)
    n_calls = 0
    for _ in range(2):
        turns.begin(clock() + 100.0)
        for _ in range(4):
            turns.wait()
            n_calls += 1
            clock.advance(0.1 * n_calls)
    # Three times more at the first; calls of cross-KV and decoder take as long as the last.
    assert needed_s[:7] == pytest.approx([0.0] * 5 + [0.2, 0.3])
    # One slow call is not the last.
    assert needed_s[7:] == pytest.approx([0.1, 0.3, yielding.MAX_NEEDED_S, yielding.MAX_NEEDED_S])


class Machine:
    """A model whose texts are improbable, as translations of small models are, and may be loops."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.looped, self.health = True, False, Health()
        self.before: Callable[[], None] = lambda: None
        self.requests: list[Any] = []
        model = SimpleNamespace(
            dims=SimpleNamespace(n_mels=80),
            generation=SimpleNamespace(prompted=True),
            runtime=SimpleNamespace(windows_s=(5, 30)),
            fork={(5, 30): SimpleNamespace(call_before=lambda before: setattr(self, "before", before))}.__getitem__,
        )
        monkeypatch.setattr(translation, "WhisperEncoder", lambda model: SimpleNamespace(encode=self.encode))
        monkeypatch.setattr(translation, "WhisperDecoder", self.new_decoder)
        idle: Any = lambda timeout_s, quiet_s: self.free  # noqa: E731
        self.translations = Translations(Settings(), model, idle, self.health)  # type: ignore[arg-type]

    def translate(self, until_s: float = math.inf) -> str:
        second = np.zeros(SAMPLE_RATE, dtype=np.float32)
        return self.translations.translate(second, "de", "Hello.", until_s)

    def encode(self, *_: object) -> None:
        self.before()

    def new_decoder(self, _: object, decoding: DecodingSettings) -> object:
        def decode(_: object, request: object) -> object:
            self.requests.append(request)
            failed = self.looped or decoding.logprob_threshold is not None
            return SimpleNamespace(failed=failed, words=[SimpleNamespace(text=" Good"), SimpleNamespace(text=" day.")])

        return SimpleNamespace(decode=decode)


def test_only_a_loop_is_left_out_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.looped = True
    assert machine.translate() == ""
    assert machine.health.why.keys() == {"translation"}
    machine.looped = False
    assert (machine.translate(), machine.health.why) == ("Good day.", {})
    request = machine.requests[0]
    assert (request.task, request.language, request.prompt, request.n_samples) == ("translate", "de", "Hello.", 16_000)


def test_what_is_late_is_left_out_and_a_recording_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.free = False
    with pytest.raises(TimeoutError):
        machine.translate(0.0)
    assert machine.requests == []
    monkeypatch.setattr(yielding, "PATIENCE_S", 0.0)
    assert machine.translate() == "Good day."
