"""A session in simulated time: the real model and decisions without waiting for the audio to be spoken.

An inference takes a given time of a simulated clock, while the session goes on receiving audio. The same recording and
settings give the same timeline each time, whatever else the machine does, so that settings can be compared quickly.
Only `stream` measures sockets, threads and the real cost of an inference.
"""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from streamer.audio.mel import LogMelStream
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.constants import SAMPLE_RATE
from streamer.engine.decoder import WhisperDecoder, WhisperEncoder
from streamer.errors import UsageError
from streamer.events import Event
from streamer.session.session import Session
from streamer.settings.load import load_settings
from streamer.settings.table import Settings
from streamer.setup.loading import load
from streamer.setup.session import session_settings
from streamer.whisper.model import WhisperModel
from tools.benchmarks.recordings import Recording
from tools.benchmarks.timeline import Recorder, Timeline


def points(settings: Sequence[str], named: Sequence[str]) -> dict[str, Settings]:
    """Return the settings to compare, by name: `simulated`, or the points that are named.

    settings : NAME=VALUE, of all points
    named : POINT:NAME=VALUE,NAME=VALUE

    Raises UsageError if a point is named wrongly or needs another model, ConfigError for a setting that is wrong.
    """
    found: dict[str, Settings] = {}
    for text in named or ["simulated"]:
        name, _, own = text.partition(":")
        if not re.fullmatch(r"\w[\w .+-]*", name) or name in found:
            raise UsageError(f"point {text!r:.80}: expected a name of its own, a colon and settings")
        found[name] = load_settings(None, {}, {**_assigned(settings), **_assigned(filter(None, own.split(",")))})
        first = next(iter(found.values()))
        if (found[name].model, found[name].decoding.beam_size) != (first.model, first.decoding.beam_size):
            raise UsageError(f"point {text!r:.80} has another model or beams: expected the same for all, from --set")
    return found


def _assigned(settings: Iterable[str]) -> Mapping[str, str]:
    return dict(setting.partition("=")[::2] for setting in settings)


def simulate(
    compared: Mapping[str, Settings], recordings: Sequence[Recording], *, inference_s: float
) -> list[Timeline]:
    """Play recordings with each of some settings, which have one model.

    inference_s : simulated duration of encoding and decoding a window
    """
    first = next(iter(compared.values()))
    model = load(first.model, n_beams=first.decoding.beam_size)
    return [
        play(model, settings, recording, name, inference_s=inference_s)
        for name, settings in compared.items()
        for recording in recordings
    ]


def play(model: WhisperModel, settings: Settings, recording: Recording, name: str, *, inference_s: float) -> Timeline:
    """Play a recording through a session; processor time and memory are not measured."""
    encoder, decoder = WhisperEncoder(model), WhisperDecoder(model, settings.decoding)
    session = Session(session_settings(settings, model))
    recorder = Recorder()
    samples, mel, detector = recording.samples(), LogMelStream(model.dims.n_mels), SpeechDetector()
    timeline = recorder.timeline
    timeline.system, timeline.recording, timeline.audio_s = name, recording.name, len(samples) / SAMPLE_RATE
    timeline.encoder_calls = timeline.decoder_calls = n_received = 0
    now_s, numbers = 0.0, itertools.count(1)

    def record(events: Sequence[Event]) -> None:
        for event in events:
            recorder.add(event.stamped(next(numbers), ""), now_s)

    def receive() -> None:
        """Pass on all audio that has been spoken by now."""
        nonlocal n_received
        spoken = min(round(now_s * SAMPLE_RATE), len(samples))
        while n_received < spoken and (n_received + CHUNK_SAMPLES <= spoken or spoken == len(samples)):
            chunk = samples[n_received : n_received + CHUNK_SAMPLES]
            n_received += len(chunk)
            (probability,) = detector.process(np.pad(chunk, (0, CHUNK_SAMPLES - len(chunk))))
            record(session.hear(n_received, probability, now_s))
        if n_received == len(samples) and not session.now.ended:
            record(session.finish(n_received))

    while not session.now.finished:
        now_s += CHUNK_SAMPLES / SAMPLE_RATE
        receive()
        span = session.next_span(now_s)
        if span is None:
            continue
        timeline.encoder_calls += 1
        encoded = encoder.encode(mel.window(samples[span.start : span.end], span.start), 0, span.end - span.start)
        now_s += inference_s
        receive()
        task = session.task(span, retry_s=math.inf)
        if task is not None:
            hypothesis = decoder.decode(encoded, task.request)
            timeline.decoder_calls += hypothesis.n_calls
            record(session.take(task, hypothesis, now_s))
    return timeline
