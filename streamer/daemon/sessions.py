"""Sessions of a loaded model: their settings, how they are opened, and how audio is written to them."""

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from streamer.after.postprocessing import PostProcessing
from streamer.arrays import Float32Array
from streamer.audio.mel import LogMelStream
from streamer.constants import SAMPLE_RATE
from streamer.daemon.confidence import Confidence
from streamer.daemon.streams import MAX_WRITE_SAMPLES
from streamer.engine.eventlog import EventLog
from streamer.engine.follower import Follower
from streamer.engine.inlet import AudioKind, Input
from streamer.engine.journal import KeepAudio, no_audio
from streamer.engine.live_session import LiveSession
from streamer.errors import StreamerError
from streamer.events import Error, Ready
from streamer.protocols.native import SessionOptions
from streamer.session.settings import SessionSettings, when_stable
from streamer.session.state import SessionState
from streamer.settings.table import CLIENT_OPTIONS, Settings, StreamSettings
from streamer.whisper.model import SILENCE_S, WhisperModel
from streamer.whisper.options import check_decode_options, is_conditioned

logger = logging.getLogger(__name__)

# The options of a client that has none.
NO_OPTIONS = SessionOptions()


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
        log.append(ready_event(model, chosen.language))
    return live


def ready_event(model: WhisperModel, language: str) -> Ready:
    """Return the event that opens a session."""
    return Ready(model=model.name, device=dict(model.runtime.devices), sample_rate=SAMPLE_RATE, language=language)


# Least length of captions' windows, whatever short ones the model is compiled for.
SHORTEST_WINDOW_S = 3.0


def session_settings(settings: Settings, model: WhisperModel, options: SessionOptions = NO_OPTIONS) -> SessionSettings:
    """Return a session's settings: the daemon's, with what a client chose instead.

    Raises ConfigError if the model does not know a language, cannot translate, or cannot do what the options say.
    """
    named = {setting.name: getattr(options, name) for name, setting in CLIENT_OPTIONS.items()}
    settings = settings.having({name: value for name, value in named.items() if value is not None})
    decoding, stream = settings.decoding, settings.stream
    task, languages = decoding.task, options.languages or ()
    margin_s, probability, second_look_s = when_stable(stream)
    # A client that chooses how much silence ends speech means that it makes the text final, too.
    final_silence_s = 0.0 if options.min_silence_s is not None else stream.final_silence_s
    resolved = {
        **msgspec.structs.asdict(stream),
        "policy": stability_policy(stream, model),
        "attention_margin_s": margin_s,
        "commit_probability": probability,
        "second_look_s": second_look_s,
        "final_silence_s": max(final_silence_s, settings.speech.min_silence_s),
        "window_s": stream.window_s or _longest_window_s(model, whole=stream.captions == "exact"),
    }
    return SessionSettings(
        **resolved,
        gate=settings.speech,
        condition_on_previous_text=is_conditioned(decoding, model),
        no_speech_threshold=_or(decoding.no_speech_threshold, math.inf),
        logprob_threshold=_or(decoding.logprob_threshold, -math.inf),
        compression_ratio_threshold=_or(decoding.compression_ratio_threshold, math.inf),
        language=model.choose_language(decoding.language, task, languages),
        languages=languages,
        task="transcribe" if task == "both" else task,
        translated=task == "both",
        options=check_decode_options(decoding, model),
        words=options.words is not False,
    )


def stability_policy(stream: StreamSettings, model: WhisperModel) -> str:
    """Return what makes words stable with a model: `agreement`, or `alignatt`, which needs known alignment heads."""
    if stream.policy != "auto":
        return stream.policy
    if model.knows_heads:
        return "alignatt"
    _note_agreement(model.name)
    return "agreement"


@functools.cache  # said once, however many sessions ask for it
def _note_agreement(name: str) -> None:
    logger.info(
        "it is not known which attention heads of %s follow the audio: words become stable by agreement of passes"
        " (stream.policy: alignatt is the other way)",
        name,
    )


def _longest_window_s(model: WhisperModel, *, whole: bool) -> float:
    """Return the longest window of captions, behind which there is room for silence.

    whole : whether windows may be as long as the model's longest, and not only as its longest short one
    """
    *short, longest = model.runtime.windows_s
    if whole or not short:
        return longest - SILENCE_S
    return max(SHORTEST_WINDOW_S, short[-1] - (model.silence_s or SILENCE_S))


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


def _or(threshold: float | None, never: float) -> float:
    """Return a threshold, or one that nothing passes if it is None."""
    return never if threshold is None else threshold
