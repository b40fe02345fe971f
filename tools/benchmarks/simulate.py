"""A session in simulated time: the real model and decisions without waiting for the audio to be spoken.

An inference takes a given time of a simulated clock, while the session goes on receiving audio. The same recording and
settings give the same timeline each time, whatever else the machine does, so that settings can be compared quickly.
Only `stream` measures sockets, threads and the real cost of an inference.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from streamer.audio.mel import LogMelStream
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.constants import SAMPLE_RATE
from streamer.daemon.sessions import session_settings
from streamer.engine.decoder import WhisperDecoder, WhisperEncoder
from streamer.errors import UsageError
from streamer.events import Event
from streamer.session.session import Session
from streamer.session.settings import SessionSettings
from streamer.settings.load import load_settings
from streamer.settings.table import DecodingSettings, Settings
from streamer.setup.loading import load
from streamer.whisper.model import WhisperModel
from tools.benchmarks.recorder import Recorder
from tools.benchmarks.recordings import Recording
from tools.benchmarks.results import Folder
from tools.benchmarks.timeline import Timeline

# Seconds of audio in a chunk.
CHUNK_S = CHUNK_SAMPLES / SAMPLE_RATE


def points(settings: Sequence[str], named: Sequence[str]) -> dict[str, Settings]:
    """Return the settings to compare, by name: `simulated`, or the points that are named.

    settings : NAME=VALUE, of all points
    named : POINT:NAME=VALUE,NAME=VALUE

    Raises UsageError if a point is named wrongly or needs another model, ConfigError for a setting that is wrong.
    """
    common = _assigned(settings)
    found: dict[str, Settings] = {}
    for text in named or ["simulated"]:
        name, _, own = text.partition(":")
        if not re.fullmatch(r"\w[\w .+-]*", name) or name in found:
            raise UsageError(f"point {text!r:.80}: expected a name of its own, a colon and settings")
        found[name] = load_settings(None, {}, {**common, **_assigned(filter(None, own.split(",")))})
        first = next(iter(found.values()))
        if (found[name].model, found[name].decoding.beam_size) != (first.model, first.decoding.beam_size):
            raise UsageError(f"point {text!r:.80} has another model or beams: expected the same for all, from --set")
    return found


def _assigned(settings: Iterable[str]) -> Mapping[str, str]:
    return dict(setting.partition("=")[::2] for setting in settings)


def simulate(
    compared: Mapping[str, Settings], recordings: Sequence[Recording], folder: Folder, *, inference_s: float
) -> None:
    """Play recordings with each of some settings, which have one model, into a folder of timelines.

    inference_s : as in `Simulator`
    """
    first = next(iter(compared.values()))
    model = load(first.model, n_beams=first.decoding.beam_size)
    for name, settings in compared.items():
        simulator = Simulator(model, settings.decoding, inference_s=inference_s)
        for recording in recordings:
            timeline = simulator.play(recording.name, recording.samples(), session_settings(settings, model))
            folder.save(dataclasses.replace(timeline, system=name))


class Simulator:
    """One model, ready to play recordings through sessions."""

    def __init__(self, model: WhisperModel, decoding: DecodingSettings, *, inference_s: float = 0.1) -> None:
        """`inference_s` is the simulated duration of encoding and decoding a window."""
        self._encoder = WhisperEncoder(model)
        self._decoder = WhisperDecoder(model, decoding)
        self._n_mels = model.dims.n_mels
        self._inference_s = inference_s

    def play(self, name: str, samples: NDArray[np.float32], settings: SessionSettings) -> Timeline:
        """Play 16 kHz mono samples through a session; processor time and memory are not measured."""
        session = Session(settings)
        recorder = Recorder()
        mel = LogMelStream(self._n_mels)
        detector = SpeechDetector()
        n_encoded = n_calls = n_received = 0
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
            now_s += CHUNK_S
            receive()
            span = session.next_span(now_s)
            if span is None:
                continue
            n_encoded += 1
            spectrogram = mel.window(samples[span.start : span.end], span.start)
            encoded = self._encoder.encode(spectrogram, 0, span.end - span.start)
            now_s += self._inference_s
            receive()
            task = session.task(span, retry_s=math.inf)
            if task is not None:
                hypothesis = self._decoder.decode(encoded, task.request)
                n_calls += hypothesis.n_calls
                record(session.take(task, hypothesis, now_s))
        return recorder.timeline(
            "simulated",
            name,
            len(samples) / SAMPLE_RATE,
            cpu_s=0.0,
            peak_rss_mb=0.0,
            encoder_calls=n_encoded,
            decoder_calls=n_calls,
        )
