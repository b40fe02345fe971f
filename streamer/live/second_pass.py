"""The models behind the second pass: one that reads finals again, and the daemon's own, which judges, too."""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from streamer.arrays import Float32Array
from streamer.audio.mel import log_mel
from streamer.correct.second_pass import Readers, Region, SecondPass
from streamer.events import Word, seconds
from streamer.live.decoder import WhisperDecoder, WhisperEncoder
from streamer.live.models import Known, Models
from streamer.live.turns import Turns
from streamer.settings.apply import is_conditioned
from streamer.settings.table import Settings
from streamer.stream.window import Request
from streamer.whisper.decode.window import FILE_BEAMS
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.device.runtime import EncodedWindow
from streamer.whisper.locate import find_model, find_or_pull
from streamer.whisper.model import WhisperModel, load_model


def second_pass(settings: Settings, own: WhisperModel, is_free_for: Callable[[float], bool]) -> SecondPass:
    """Return what reads finals again. Its model is loaded meanwhile, which captions do not wait for."""
    readers: Future[Readers] = Future()

    def load() -> None:
        try:
            readers.set_result(_readers(settings, own, is_free_for))
        except Exception as error:  # noqa: BLE001 - told where the readers are awaited
            readers.set_exception(error)

    threading.Thread(target=load, name="load second pass", daemon=True).start()
    return SecondPass(readers)


def beams_beside(settings: Settings) -> int:
    """Return the beams of the daemon's own model beside captions: for recordings, and for a second pass."""
    return max(settings.decoding.beam_size or FILE_BEAMS, settings.correction.beam_size if _is_own(settings) else 1)


def _is_own(settings: Settings) -> bool:
    """Tell whether the daemon's own model, where it computes, is the one that reads again."""
    name, own = settings.correction.model, settings.model
    if not name or settings.correction.device not in ("", own.device):
        return False
    path = find_model(name)
    return name == own.name or (path is not None and path == find_model(own.name))


def _readers(settings: Settings, own: WhisperModel, is_free_for: Callable[[float], bool]) -> Readers:
    correction = settings.correction
    first = _Reader(own.twin(own.runtime.windows_s, most_beams=True), settings, is_free_for)
    if _is_own(settings):
        return Readers(first.read, [first.score])
    devices = DeviceSettings(correction.device or settings.model.device, npu_through_cpu=settings.model.npu_through_cpu)
    cache_dir, n_beams = settings.model.cache_dir, correction.beam_size

    def load(name: str) -> WhisperModel:
        return load_model(name, devices, cache_dir=cache_dir, n_beams=n_beams, weights="auto", windows_s=None)

    path = find_or_pull(correction.model, lambda progress: None)
    model = Models(settings.model, load).get(Known(correction.model, path))
    # Devices of its own keep no caption waiting.
    shared = {*own.runtime.devices.values()} & {*model.runtime.devices.values()}
    second = _Reader(model, settings, is_free_for if shared else lambda duration_s: True)
    return Readers(second.read, [second.score, first.score])


class _Reader:
    """A model for regions of audio. Before each call of a graph it lets live sessions go first."""

    def __init__(self, model: WhisperModel, settings: Settings, is_free_for: Callable[[float], bool]) -> None:
        """Take a model that nobody else computes with."""
        self._model = model
        self._beam_size = min(settings.correction.beam_size, model.n_beams)
        decoding = dataclasses.replace(settings.decoding, beam_size=self._beam_size)
        self._is_conditioned = is_conditioned(decoding, model)
        self._encoder = WhisperEncoder(model)
        self._decoder = WhisperDecoder(model, decoding)
        # The audio at hand, with what it was encoded to.
        self._encoded: tuple[Float32Array, EncodedWindow] | None = None
        self._turns = Turns(is_free_for)
        model.call_before(self._turns.wait)

    def read(self, region: Region) -> Sequence[Word]:
        """See `Readers`."""
        request = self._request(region)
        languages, settings = self._model.tokenizer.known_languages, region.heard.settings
        if request.language not in languages or (request.task == "translate" and languages == ["en"]):
            return ()
        found = self._decoder.decode(self._encode(region), request)
        silent = settings is not None and found.is_silence(settings.no_speech_threshold, settings.logprob_threshold)
        if found.failed or found.looped or silent:
            return ()
        return [
            Word(
                word=word.text,
                start=seconds(word.start_samples),
                end=seconds(word.end_samples),
                probability=round(word.probability, 3),
                stable=True,
            )
            for word in found.words
        ]

    def score(self, region: Region, words: Sequence[Word]) -> float:
        """See `Readers`."""
        text = "".join(word.word for word in words)
        return self._decoder.score(self._encode(region), self._request(region), text)

    def _encode(self, region: Region) -> EncodedWindow:
        samples = region.samples
        if self._encoded is None or self._encoded[0] is not samples:
            self._encoded = None
            self._turns.begin(region.until_s)
            mel = log_mel(samples, self._model.dims.n_mels)
            self._encoded = samples, self._encoder.encode(mel, 0, len(samples))
        return self._encoded[1]

    def _request(self, region: Region) -> Request:
        heard = region.heard
        chosen = heard.settings.options if heard.settings is not None else None
        return Request(
            prefix=(),
            prompt=" ".join(heard.before) if self._is_conditioned else "",
            language=heard.final.language,
            task="translate" if heard.settings is not None and heard.settings.task == "translate" else "transcribe",
            n_samples=len(region.samples),
            retry_s=max(0.0, region.until_s - time.monotonic()),
            options=dataclasses.replace(chosen, beam_size=self._beam_size) if chosen is not None else None,
        )
