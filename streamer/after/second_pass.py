"""The model of the second pass: the daemon's own, or another one."""

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import msgspec

from streamer.after.correct.second_pass import NAME, Passage
from streamer.arrays import Float32Array
from streamer.engine.yielding import WaitIdle, YieldToLive
from streamer.errors import StreamerError
from streamer.events import Word
from streamer.health import Health
from streamer.offline import transcribe
from streamer.settings.table import AUTO, Settings
from streamer.setup.models import Known, Models, in_thread
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.locate import find_model, find_or_pull
from streamer.whisper.model import LoadOptions, WhisperModel, load_model
from streamer.whisper.options import resolve_decoding


def has_second_pass(settings: Settings, own: WhisperModel) -> bool:
    """Return whether finals are transcribed again.

    By default they are not if a model was trained on short windows: it transcribes long ones worse than live ones.
    """
    name = settings.correction.model
    return not own.generation.windows_s if name == AUTO else bool(name)


def _is_own(settings: Settings) -> bool:
    """Return whether the second pass uses the daemon's own model, on its device."""
    name, own = settings.correction.model, settings.model
    if not name or settings.correction.device not in ("", own.device):
        return False
    if name in (AUTO, own.name):
        return True
    path = find_model(name)
    return path is not None and path == find_model(own.name)


class SecondPass:
    """Transcribes passages again, in one thread. Each call of a graph lets live captions go first."""

    def __init__(self, settings: Settings, own: WhisperModel, wait_idle: WaitIdle, health: Health) -> None:
        """Load the model in the background; note in `health` if that fails."""
        self._settings = settings
        self._own = own
        self._yield = YieldToLive(wait_idle)
        self.model: Future[WhisperModel] = in_thread("load second pass", self._load)

        def note(loaded: Future[WhisperModel]) -> None:
            if isinstance(error := loaded.exception(), Exception):
                health.failed(NAME, error)

        self.model.add_done_callback(note)

    def read(self, passage: Passage, samples: Float32Array) -> Sequence[Word]:
        """Transcribe a passage again (see `ReadAgain`).

        Returns no words while the model is being loaded, or if it does not know the language.
        """
        if not self.model.done():
            return ()
        if error := self.model.exception():
            raise StreamerError(str(error))  # a new one each time: its traceback would grow
        model, session = self.model.result(), passage.settings
        language = passage.finals[0].language
        decoding = msgspec.structs.replace(
            self._settings.decoding,
            language=language,
            task="translate" if session is not None and session.task == "translate" else "transcribe",
            beam_size=min(self._settings.correction.beam_size, model.n_beams),
            # These are for whole files.
            batch_size=1,
            clip_timestamps="0",
            without_timestamps=False,
            prefix="",
        )
        known = model.tokenizer.known_languages
        if language not in known or (decoding.task == "translate" and known == ["en"]):
            return ()
        if session is not None and session.options is not None:
            chosen = session.options
            decoding = msgspec.structs.replace(decoding, initial_prompt=chosen.initial_prompt, hotwords=chosen.hotwords)
        resolved = resolve_decoding(decoding, model, self._settings.speech)
        self._yield.begin(passage.until_s)
        start_s = passage.finals[0].start
        return [
            msgspec.structs.replace(word, start=start_s + word.start, end=start_s + word.end)
            for final in transcribe(model, samples, resolved)
            for word in final.words
        ]

    def unload(self) -> None:
        """Free the model if it is another than the daemon's own, until it is needed again."""
        if self.model.done() and self.model.exception() is None:
            self.model.result().unload()

    def _load(self) -> WhisperModel:
        settings, correction = self._settings, self._settings.correction
        if _is_own(settings):
            model = self._own.fork(n_beams=correction.beam_size)
            model.call_before(self._yield.wait)
            return model
        devices = DeviceSettings(
            correction.device or settings.model.device, npu_through_cpu=settings.model.npu_through_cpu
        )
        cache_dir, n_beams = settings.model.cache_dir, correction.beam_size

        def load(name: str) -> WhisperModel:
            return load_model(name, LoadOptions(devices, cache_dir=cache_dir, n_beams=n_beams, weights="auto"))

        name = self._own.name if correction.model == AUTO else correction.model
        model = Models(settings.model, load).get(Known(name, find_or_pull(name, lambda progress: None)))
        model.call_before(partial(self._wait, model))
        return model

    def _wait(self, model: WhisperModel) -> None:
        """Let captions go first, unless the model has a device of its own, which delays none."""
        if {*self._own.runtime.devices.values()} & {*model.runtime.devices.values()}:
            self._yield.wait()
