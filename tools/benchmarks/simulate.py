"""A session in simulated time: the real model and decisions, but nobody waits for the audio to be spoken.

The clock is simulated; a pass takes a given time, during which the session goes on hearing. The same recording and
settings give the same timeline each time, whatever else the machine does, so that settings can be compared quickly.
What it cannot show is what `stream` measures: sockets, threads and the true price of a pass.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import N_SAMPLES, SAMPLE_RATE
from streamer.audio.mel import LogMelStream
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.engine.arrivals import Arrivals
from streamer.engine.session import Session
from streamer.engine.settings import SessionSettings
from streamer.engine.window import Request
from streamer.events import Event
from streamer.sessions.decoder import WhisperDecoder, WhisperEncoder
from streamer.settings.table import DecodingSettings
from streamer.whisper.model import WhisperModel
from tools.benchmarks.recorder import Recorder
from tools.benchmarks.timeline import Timeline

# Seconds of audio in a chunk.
CHUNK_S = CHUNK_SAMPLES / SAMPLE_RATE


class Simulator:
    """One model, ready to play recordings through sessions."""

    def __init__(self, model: WhisperModel, decoding: DecodingSettings, *, pass_s: float = 0.1) -> None:
        """`pass_s` is what encoding and decoding a window is taken to cost."""
        self._encoder = WhisperEncoder(model)
        self._decoder = WhisperDecoder(model, decoding)
        self._n_mels = model.dims.n_mels
        self._pass_s = pass_s

    def play(
        self,
        name: str,
        samples: NDArray[np.float32],
        settings: SessionSettings,
        *,
        pace: float = 1.0,
        on_event: Callable[[Event], object] = lambda event: None,
    ) -> Timeline:
        """Play 16 kHz mono samples through a session; processor time and memory are not measured.

        pace : seconds of audio that come in a second; 0: all are there at once. As in the engine, a session whose audio
            runs ahead of the clock is a recording: it hears on only while no window is due and none is being decoded.
        on_event : is given each event
        """
        session = Session(settings)
        recorder = Recorder(settings.gate.min_silence_s)
        mel = LogMelStream(self._n_mels)
        detector = SpeechDetector()
        arrivals = Arrivals(keep_s=0.0)
        n_passes = n_calls = n_found = n_settled = 0
        heard = 0
        now_s = 0.0

        def hear(*, in_flight: bool) -> None:
            """Hear what has come by now."""
            nonlocal heard
            come = len(samples) if pace == 0 else min(round(now_s * pace * SAMPLE_RATE), len(samples))
            arrivals.note(come, now_s)
            patient = pace == 0 or arrivals.recorded(heard)
            while heard < come and (heard + CHUNK_SAMPLES <= come or come == len(samples)):
                if patient and (in_flight or session.next_window_due()):
                    return
                chunk = samples[heard : heard + CHUNK_SAMPLES]
                heard += len(chunk)
                (probability,) = detector.process(np.pad(chunk, (0, CHUNK_SAMPLES - len(chunk))))
                tell(session.advance(heard, probability, now_s))
            if heard == len(samples) and not session.ended:
                tell(session.finish(heard))

        def tell(events: Sequence[Event]) -> None:
            # Of audio that comes faster than it was spoken a delay is what had to be heard.
            told_s = now_s if pace == 1 else heard / SAMPLE_RATE
            for event in events:
                recorder.take(event, told_s)
                on_event(event)

        while not session.finished:
            now_s += CHUNK_S / max(1.0, pace)
            hear(in_flight=False)
            window = session.next_window(now_s)
            if window is None:
                continue
            n_passes += 1
            spectrogram = mel.window(samples[window.start : window.end], window.start)
            encoded = self._encoder.encode(spectrogram, 0, window.end - window.start)
            now_s += self._pass_s
            hear(in_flight=True)
            request = session.request(window, retry_s=math.inf)
            if request is not None:
                hypothesis = self._decoder.decode(encoded, request)
                n_calls += hypothesis.n_calls
                n_found += hypothesis.n_sampled
                n_settled += hypothesis.n_begins_with
                tell(session.apply_hypothesis(window, request, hypothesis, now_s))
        return recorder.timeline(
            "simulated",
            name,
            len(samples) / SAMPLE_RATE,
            cpu_s=0.0,
            peak_rss_mb=0.0,
            encoder_calls=n_passes,
            decoder_calls=n_calls,
            decoder_tokens=n_found + n_settled,
            settled_tokens=n_settled,
        )

    def transcribe(self, samples: NDArray[np.float32], settings: SessionSettings) -> str:
        """Return what the model makes of up to 30 s of audio in one piece, of which nothing is known."""
        assert len(samples) <= N_SAMPLES
        encoded = self._encoder.encode(LogMelStream(self._n_mels).window(samples, 0), 0, len(samples))
        request = Request(
            prefix=(), prompt="", language=settings.language, task=settings.task, n_samples=len(samples), first=True
        )
        return "".join(word.text for word in self._decoder.decode(encoded, request).words)
