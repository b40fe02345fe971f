"""Recordings to text in a program of one's own: `streamer.load_model`, `streamer.transcribe`."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.arrays import Float32Array
from streamer.audio.pcm import PcmDecoder
from streamer.audio.sources.file import Recording
from streamer.check import check_options
from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioFileError, ConfigError
from streamer.events import Final, Word
from streamer.offline import transcribe as transcribe_recording
from streamer.settings.registry import SETTINGS
from streamer.settings.setting import Setting
from streamer.settings.table import AUTO, DecodingSettings, ModelSettings, Settings
from streamer.settings.values import checked
from streamer.setup.auto import choose_model
from streamer.setup.loading import load
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.loading import LoadOptions
from streamer.whisper.model import WhisperModel
from streamer.whisper.model import load_model as load_whisper
from streamer.whisper.option_checks import check_options_of_model
from streamer.whisper.options import decode_options

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Transcript:
    """What is said in a recording."""

    segments: tuple[Final, ...]  # segment by segment, in order, each with its times in seconds and its words
    duration_s: float  # of the recording

    @property
    def words(self) -> tuple[Word, ...]:
        """All words; each has its leading space, if its language writes one."""
        return tuple(word for segment in self.segments for word in segment.words)

    @property
    def text(self) -> str:
        """All that is said, in one line."""
        return "".join(word.word for word in self.words).strip()

    @property
    def language(self) -> str:
        """Code of the language, such as `en`; empty if nothing is said."""
        return self.segments[0].language if self.segments else ""


def load_model(
    name: str = AUTO,
    *,
    lora: str = "",
    device: str = "AUTO",
    beam_size: int | None = None,
    cache_dir: str = "",
    live: bool = False,
) -> WhisperModel:
    """Load a model, to transcribe with it more than once.

    One thread at a time may use it; any number of `LiveText` may, too.

    name : of a model that is here or on the Hugging Face Hub, which is fetched then; the path of one; or auto: the
        largest that is here, else base; for live text the largest that keeps pace with speech
    lora : a LoRA adapter of it, a directory or a name on the Hub; empty: none
    device : AUTO, NPU, GPU, CPU or a device's full name
    beam_size : as many beams as `transcribe` may be asked for; None: five; live as many as the model names
    cache_dir : directory of compiled models; empty: the program's own
    live : whether it is for `LiveText`, as the daemon loads it: tiny and base with weights in 8 bits, and graphs for
        less than 30 s

    Raises ModelError if there is no such model or it is broken; PeerError if it cannot be fetched; ConfigError if the
    device is not there; InferenceError if it cannot run the model.

        model = load_model("nano.en", device="CPU")
        for path in Path("talks").glob("*.flac"):
            print(transcribe(path, model).text)
    """
    settings = Settings(model=ModelSettings(name=name, lora=lora, device=device, cache_dir=cache_dir))
    settings = choose_model(settings, live=live)
    if live:
        return load(settings.model, n_beams=beam_size, at_once=True)
    devices, name = DeviceSettings(device=device), settings.model.name
    return load_whisper(name, LoadOptions(devices, lora=lora, cache_dir=cache_dir, n_beams=beam_size, live=False))


def transcribe(
    audio: str | Path | NDArray[Any],
    model: str | WhisperModel = AUTO,
    *,
    sample_rate: int = SAMPLE_RATE,
    **decoding: object,
) -> Transcript:
    """Transcribe a recording in this process, as `streamer transcribe` does.

    audio : the path of a file, or samples, shape (n,) or (n, channels): 16-bit integers, or floats from -1 to 1
    model : what `load_model` returns, or takes; by its name it is loaded for this one time
    sample_rate : of samples; a file says its own
    decoding : options of docs/options.md by their names, such as language="en", task="translate", beam_size=1

    Of a file that is cut off, what there is, is transcribed, and that is logged. In an asynchronous program:
    `await asyncio.to_thread(transcribe, "speech.wav", model)`.

    Raises AudioFileError or ProtocolError if there is no such audio, ConfigError if an option is unknown or the model
    cannot do what it asks for, InferenceError if the device fails, and what `load_model` raises.

        transcript = transcribe("speech.wav", "base.en", hotwords=["OpenVINO"])
        for segment in transcript.segments:
            print(segment.start, segment.text)
    """
    chosen = {name: option(SETTINGS.get(f"decoding.{name}"), name, value) for name, value in decoding.items()}
    options = DecodingSettings(**chosen)  # type: ignore[arg-type]
    name = model if isinstance(model, str) else model.name
    settings = Settings(decoding=options, model=ModelSettings(name=name))
    check_options(settings, streaming=False)
    n_samples = 0

    def count(position: int) -> None:
        nonlocal n_samples
        n_samples = position

    recording: Recording | None = None
    if isinstance(audio, np.ndarray):
        samples: Iterable[Float32Array] = [_samples(audio, sample_rate)]
    else:
        recording = Recording(audio)
        samples = recording.read()
    if isinstance(model, str):
        name = choose_model(settings, live=False).model.name
        model = load_model(name, beam_size=options.beam_size)
    check_options_of_model(options, model)
    segments = tuple(transcribe_recording(model, samples, decode_options(options, model), on_progress=count))
    if recording is not None and recording.truncated is not None:
        logger.warning("%s", recording.truncated)
    return Transcript(segments, n_samples / SAMPLE_RATE)


def option(setting: Setting | None, name: str, value: object) -> object:
    """Return an option as its setting's type. Raises ConfigError if there is no setting, or the value is invalid."""
    if setting is None:
        raise ConfigError(f"unknown option {name!r:.60}: `streamer docs options` lists all options")
    return None if value is None and setting.may_be_none else checked(setting, value, name)


def _samples(audio: NDArray[Any], sample_rate: int) -> Float32Array:
    """Return audio as it is transcribed: 16 kHz mono, shape (n,)."""
    frames = as_frames(audio)
    pcm = PcmDecoder("f32le", sample_rate, frames.shape[1])
    samples = np.concatenate([pcm.decode(frames.tobytes()), pcm.finish()])
    for _, message in pcm.take_problems():
        logger.warning("%s", message)
    return samples


def as_frames(audio: NDArray[Any]) -> Float32Array:
    """Return samples as little-endian floats from -1 to 1, shape (n, channels).

    audio : shape (n,) or (n, channels): 16-bit integers, or floats from -1 to 1

    Raises AudioFileError if they are something else.
    """
    audio = np.asarray(audio)
    is_int = audio.dtype == np.int16
    if audio.ndim not in (1, 2) or not (is_int or np.issubdtype(audio.dtype, np.floating)):
        raise AudioFileError(
            f"samples are {audio.dtype} of shape {audio.shape}: expected int16, or floats from -1 to 1, of shape (n,)"
            " or (n, channels)"
        )
    frames: Float32Array = (audio[:, np.newaxis] if audio.ndim == 1 else audio).astype("<f4", copy=False)
    return frames / np.float32(32768) if is_int else frames
