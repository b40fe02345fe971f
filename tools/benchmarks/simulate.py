"""A session in simulated time: the real model and decisions, but nobody waits for the audio to be spoken.

The clock is the position in the audio; a pass takes a given time, during which the session goes on hearing. The same
recording and settings give the same timeline each time, whatever else the machine does, so that settings can be
compared quickly. What it cannot show is what `stream` measures: sockets, threads and the true price of a pass.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.mel import LogMelStream
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.bench.recorder import Recorder
from streamer.bench.timeline import Timeline
from streamer.config import DecodingSettings
from streamer.events import Event
from streamer.live import WhisperDecoder, WhisperEncoder
from streamer.stream.session import Session
from streamer.stream.settings import SessionSettings
from streamer.whisper.model import WhisperModel


class Simulator:
    """One model, ready to play recordings through sessions."""

    def __init__(self, model: WhisperModel, decoding: DecodingSettings, *, pass_s: float = 0.1) -> None:
        """`pass_s` is what encoding and decoding a window is taken to cost."""
        self._encoder = WhisperEncoder(model)
        self._decoder = WhisperDecoder(model, decoding)
        self._n_mels = model.dims.n_mels
        self._pass_s = pass_s

    def play(self, name: str, samples: NDArray[np.float32], settings: SessionSettings) -> Timeline:
        """Play 16 kHz mono samples through a session; processor time and memory are not measured."""
        session = Session(settings)
        recorder = Recorder(settings.gate.min_silence_s)
        mel = LogMelStream(self._n_mels)
        detector = SpeechDetector()
        n_passes = n_calls = n_found = n_settled = 0
        heard = 0

        def hear(until: int) -> list[Event]:
            """Hear what has been spoken by a position."""
            nonlocal heard
            events: list[Event] = []
            while heard < len(samples) and heard + CHUNK_SAMPLES <= until:
                chunk = samples[heard : heard + CHUNK_SAMPLES]
                heard += len(chunk)
                (probability,) = detector.process(np.pad(chunk, (0, CHUNK_SAMPLES - len(chunk))))
                events += session.advance(heard, probability, heard / SAMPLE_RATE)
            if heard >= len(samples) and not session.ended:
                events += session.finish(len(samples))
            return events

        def tell(events: Sequence[Event]) -> None:
            for event in events:
                recorder.take(event, now / SAMPLE_RATE)

        now = 0
        while not session.finished:
            now += CHUNK_SAMPLES
            tell(hear(now))
            window = session.next_window(now / SAMPLE_RATE)
            if window is None:
                continue
            n_passes += 1
            spectrogram = mel.window(samples[window.start : window.end], window.start)
            encoded = self._encoder.encode(spectrogram, 0, window.end - window.start)
            now += round(self._pass_s * SAMPLE_RATE)
            tell(hear(now))
            request = session.request(window)
            if request is not None:
                hypothesis = self._decoder.decode(encoded, request)
                n_calls += hypothesis.n_calls
                n_found += hypothesis.n_sampled
                n_settled += hypothesis.n_begins_with
                tell(session.apply_hypothesis(window, request, hypothesis, now / SAMPLE_RATE))
        return recorder.timeline(
            "simulated",
            name,
            len(samples) / SAMPLE_RATE,
            cpu_s=float("nan"),
            peak_rss_mb=float("nan"),
            encoder_calls=n_passes,
            decoder_calls=n_calls,
            decoder_tokens=n_found + n_settled,
            settled_tokens=n_settled,
        )
