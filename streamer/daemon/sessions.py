"""Sessions of a loaded model: how they are opened, and how audio is written to them."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamer.after.postprocessing import PostProcessing
from streamer.arrays import Float32Array
from streamer.audio.mel import LogMelStream
from streamer.constants import SAMPLE_RATE
from streamer.daemon.confidence import Confidence
from streamer.daemon.streams import MAX_WRITE_SAMPLES
from streamer.engine.eventlog import EventLog
from streamer.engine.follower import Follower
from streamer.engine.inlet import AudioKind, Input
from streamer.engine.journal import Journal, KeepAudio, no_audio
from streamer.engine.live_session import LiveSession
from streamer.errors import StreamerError
from streamer.events import Error, Ready
from streamer.history.writer import History
from streamer.session.state import SessionState
from streamer.settings.options import NO_OPTIONS, SessionOptions
from streamer.settings.table import ServerSettings, Settings
from streamer.setup.session import session_settings
from streamer.whisper.model import WhisperModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSource:
    """What sends a session its audio."""

    kind: AudioKind
    options: SessionOptions = NO_OPTIONS  # what a client chose

    followers: Sequence[Follower] = ()  # add what only the source knows

    # See `Input`.
    reserved: bool = False
    live_from: int = 0
    keep: KeepAudio = no_audio

    # Of a session that goes on from where another was, which has been ready before.
    state: SessionState | None = None


def open_log(
    name: str, settings: ServerSettings, history: History | None = None, *, source: str = "", own: bool = True
) -> tuple[EventLog, KeepAudio]:
    """Return the log of a session's events, and what keeps its audio: nothing is kept without a history.

    source : what the history says it was
    own : whether it is the daemon's own input
    """
    if history is None:
        return EventLog(name, settings.history_events), no_audio
    log = Journal(name, settings.history_events, history.keeper(source=source, own=own))
    keep_audio = own or settings.history_audio == "all"
    return log, history.audio_keeper(name) if keep_audio else no_audio


def open_session(
    settings: Settings,
    model: WhisperModel,
    log: EventLog,
    source: SessionSource,
    *,
    enrichment: PostProcessing | None = None,
) -> LiveSession:
    """Return a session that publishes to a log, `ready` first; `Engine.add` sets it to work.

    enrichment : post-processing of its events

    Raises ConfigError if the model cannot do what a client chose.
    """
    chosen = session_settings(settings, model, source.options)
    live = LiveSession(
        chosen,
        Input(
            kind=source.kind,
            capacity_samples=round(settings.input.buffer_s * SAMPLE_RATE),
            max_delay_s=settings.stream.max_delay_s,
            reserved=source.reserved,
            live_from=source.live_from,
            keep=source.keep,
        ),
        log,
        mel=LogMelStream(model.dims.n_mels),
        state=source.state,
    )
    followers = [*(enrichment.followers(live, log) if enrichment is not None else ()), *source.followers]
    if chosen.task == "transcribe":  # translations are less probable by nature
        followers.append(Confidence(model, live.logger.warning))
    live.followers = followers
    if source.state is None:
        log.append(ready_event(model, chosen.language, enrichment))
    return live


def ready_event(model: WhisperModel, language: str, enrichment: PostProcessing | None = None) -> Ready:
    """Return the event that opens a session."""
    known = ("languages", "translation") if model.tokenizer.known_languages != ["en"] else ()
    return Ready(
        model=model.name,
        device=dict(model.runtime.devices),
        sample_rate=SAMPLE_RATE,
        language=language,
        capabilities=known + (enrichment.capabilities if enrichment is not None else ()),
    )


def write_all(live: LiveSession, samples: Float32Array, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Write to a session's buffer, waiting for room; what is left when the session is over or cancelled is dropped."""
    for first in range(0, len(samples), MAX_WRITE_SAMPLES):
        piece = samples[first : first + MAX_WRITE_SAMPLES]
        while not live.ring.wait_for_room(len(piece), 0.5):
            if live.over or cancelled():
                return
        live.write(piece)


def tell_error(log: EventLog, error: StreamerError) -> None:
    """Log what is wrong with a session's audio, and publish it."""
    logger.warning("%s", error)
    log.append(Error(code=error.code, message=str(error), fatal=False))
