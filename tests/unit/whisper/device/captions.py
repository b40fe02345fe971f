"""What a model makes of speech, in one window and as live captions, while its devices come and go."""

from collections.abc import Callable

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.mel import log_mel
from streamer.constants import SAMPLE_RATE
from streamer.daemon.sessions import SessionSource, open_session
from streamer.engine.decoder import WhisperDecoder, WhisperEncoder
from streamer.engine.engine import Engine
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.events import End, Event, Final, Gap
from streamer.session.task import Request
from streamer.settings.load import load_settings
from streamer.settings.table import DecodingSettings
from streamer.whisper.model import WhisperModel
from tests.fakes import Clock
from tests.promises import check_promises
from tests.unit.whisper.support import SPEECH, read

REQUEST = Request(prefix=(), prompt="", language="en", task="transcribe", n_samples=160_000)


def speech_mel() -> Float32Array:
    return log_mel(read(SPEECH), 80).astype(np.float32)


def decoded(model: WhisperModel, between: Callable[[], None] = lambda: None) -> str:
    """Return the text of the speech's first window; `between` is called when it is encoded and not decoded yet."""
    encoded = WhisperEncoder(model).encode(speech_mel(), 0)
    between()
    return "".join(word.text for word in WhisperDecoder(model, DecodingSettings()).decode(encoded, REQUEST).words)


class TickingClock(Clock):
    """A clock that is a millisecond later each time."""

    def __call__(self) -> float:
        self.advance(0.001)
        return self.now_s


def captions(
    model: WhisperModel,
    encoded: Callable[[int], None] = lambda n_windows: None,
    clock: Clock | None = None,
    times: int = 1,
) -> list[tuple[str, float, float]]:
    """Return text and times of the finals of live speech, which must keep all promises; the clock is moved by hand.

    encoded : receives how many windows are encoded, before the last one is decoded
    clock : if others move it, too
    times : how often the speech is said
    """
    clock, log, events = clock or TickingClock(), EventLog("live", 10_000), list[Event]()
    engine = Engine(WhisperEncoder(model), WhisperDecoder(model, DecodingSettings(), clock), clock=clock)
    settings = load_settings(None, {}, {"stream.max_delay_s": 10, "stream.pace_s": 0.5})
    session = open_session(settings, model, log, SessionSource(kind=AudioKind.LIVE))
    events += log.subscribe(events.append, after=0).backlog
    engine.add(session)
    samples, n_windows, n_written = np.tile(read(SPEECH), times), 0, 0
    while not isinstance(events[-1], End):
        clock.advance(0.1)
        while n_written < min(len(samples), clock.now_s * SAMPLE_RATE):
            session.write(samples[n_written : n_written + SAMPLE_RATE // 10])
            n_written += SAMPLE_RATE // 10
        if n_written >= len(samples):
            session.end()
        assert clock.now_s < 200
        engine.listen()
        if engine.encode():
            n_windows += 1
            encoded(n_windows)
        engine.decode()
    check_promises(events)
    # nano.en, which knows whole sentences only, finds no words in some that begin in the middle.
    assert not [event for event in events if isinstance(event, Gap) and event.reason != "unclear"]
    return [(event.text, event.start, event.end) for event in events if isinstance(event, Final)]
