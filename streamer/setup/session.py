"""What the settings and what a client chose come to in a session of a loaded model."""

import functools
import logging
import math
from typing import Literal

from streamer.session.settings import SessionSettings, when_stable
from streamer.settings.options import NO_OPTIONS, SessionOptions, with_options
from streamer.settings.table import Settings, StreamSettings
from streamer.whisper.model import SILENCE_S, WhisperModel
from streamer.whisper.option_checks import check_decode_options
from streamer.whisper.options import is_conditioned

logger = logging.getLogger(__name__)

# Least length of captions' windows, whatever short ones the model is compiled for.
SHORTEST_WINDOW_S = 3.0


def session_settings(settings: Settings, model: WhisperModel, options: SessionOptions = NO_OPTIONS) -> SessionSettings:
    """Return a session's settings: the daemon's, with what a client chose instead.

    Raises ConfigError if the model does not know a language, cannot translate, or cannot do what the options say.
    """
    settings = with_options(settings, options)
    decoding, speech, stream = settings.decoding, settings.speech, settings.stream
    task, languages = decoding.task, options.languages or ()
    margin_s, probability, second_look_s = when_stable(stream)
    # A client that chooses how much silence ends speech means that it makes the text final, too.
    final_silence_s = 0.0 if options.min_silence_s is not None else stream.final_silence_s
    return SessionSettings(
        pace_s=stream.pace_s,
        max_pace_s=stream.max_pace_s,
        max_delay_s=stream.max_delay_s,
        captions=stream.captions,
        policy=stability_policy(stream, model),
        agreement=stream.agreement,
        attention_margin_s=margin_s,
        commit_probability=probability,
        second_look_s=second_look_s,
        show_probability=stream.show_probability,
        trim_after_s=stream.trim_after_s,
        final_silence_s=max(final_silence_s, speech.min_silence_s),
        window_s=stream.window_s or _longest_window_s(model, whole=stream.captions == "exact"),
        gate=speech,
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


def stability_policy(stream: StreamSettings, model: WhisperModel) -> Literal["agreement", "alignatt"]:
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


def _or(threshold: float | None, never: float) -> float:
    """Return a threshold, or one that nothing passes if it is None."""
    return never if threshold is None else threshold
