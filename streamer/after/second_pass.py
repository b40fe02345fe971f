"""The second pass: consecutive finals are transcribed again together, as a recording is, and get new words.

Live captions decide on each word within a second or two. With all that follows, five beams, timestamps and fallback,
Whisper reads the same speech better: offline decoding is what live text is measured against. Of both texts that counts
which is likelier under the same sound.
"""

import difflib
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import msgspec

from streamer.after.passages import Passage
from streamer.arrays import Float32Array
from streamer.audio.mel import log_mel
from streamer.constants import N_SAMPLES
from streamer.engine.yielding import WaitIdle, YieldToLive
from streamer.errors import StreamerError
from streamer.events import Final, Word
from streamer.health import Health
from streamer.offline import transcribe
from streamer.session.settings import SessionSettings
from streamer.settings.table import AUTO, Settings
from streamer.setup.models import Known, Models, in_thread
from streamer.whisper.decode.likelihood import log_likelihood
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.loading import LoadOptions
from streamer.whisper.locate import find_model, find_or_pull
from streamer.whisper.model import WhisperModel, load_model
from streamer.whisper.options import decode_options

# The `by` of its revisions.
NAME = "second_pass"

# Longest passage: Whisper's window holds 30 s.
MAX_PASSAGE_S = 28.0


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

    def read(self, passage: Passage, samples: Float32Array, session: SessionSettings, until_s: float) -> Sequence[Word]:
        """Transcribe a passage again.

        samples : its audio, 16 kHz mono, shape (n,)
        until_s : deadline by the monotonic clock

        Returns words with times of the session; none while the model is being loaded, if it does not know the
        language, or if what was published is likelier. Raises TimeoutError at the deadline, StreamerError if the model
        fails.
        """
        if not self.model.done():
            return ()
        if error := self.model.exception():
            raise StreamerError(str(error))  # a new one each time: its traceback would grow
        model, language = self.model.result(), passage.finals[0].language
        decoding = msgspec.structs.replace(
            self._settings.decoding,
            language=language,
            task=session.task,
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
        if (chosen := session.options) is not None:
            decoding = msgspec.structs.replace(decoding, initial_prompt=chosen.initial_prompt, hotwords=chosen.hotwords)
        resolved = decode_options(decoding, model, self._settings.speech)
        self._yield.begin(until_s)
        words = [
            msgspec.structs.replace(word, start=passage.start_s + word.start, end=passage.start_s + word.end)
            for final in transcribe(model, samples, resolved)
            for word in final.words
        ]
        old = [word for final in passage.finals for word in final.words]
        if not words or len(samples) > N_SAMPLES or same_but_for_marks(words, old):
            return words
        before, after = _log_likelihoods(model, samples, (old, words), language=language, task=session.task)
        return words if after > before else ()

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


def _log_likelihoods(
    model: WhisperModel, samples: Float32Array, texts: Sequence[Sequence[Word]], *, language: str, task: str
) -> list[float]:
    """Return the log-likelihood of some texts of at most 30 s of sound."""
    mel = log_mel(samples, model.dims.n_mels)

    def compute(runtime: Runtime) -> list[float]:
        decoder, tokenizer = runtime.decoder_of(runtime.encode(mel, 0)), model.tokenizer
        spelt = ["".join(word.word for word in words) for words in texts]
        return [log_likelihood(decoder, tokenizer, text, language=language, task=task) for text in spelt]

    return model.run(compute)


def share_words(finals: Sequence[Final], words: Sequence[Word]) -> list[tuple[Word, ...]]:
    """Distribute new words of consecutive finals over these; return the words of each.

    A word goes to the final whose old word it is aligned with. One that is aligned with none goes to the final in whose
    time it lies, but not out of order.
    """
    old = [(_key(word), n) for n, final in enumerate(finals) for word in final.words]
    keys = [_key(word) for word in words]
    owners: list[int | None] = [None] * len(words)
    for block in difflib.SequenceMatcher(None, [key for key, _ in old], keys, autojunk=False).get_matching_blocks():
        for i in range(block.size):
            owners[block.b + i] = old[block.a + i][1]
    ends = [final.end for final in finals[:-1]]
    shares: list[list[Word]] = [[] for _ in finals]
    earliest = 0
    for i, word in enumerate(words):
        latest = next((owner for owner in owners[i:] if owner is not None), len(finals) - 1)
        by_time = bisect_left(ends, (word.start + word.end) / 2)
        earliest = min(max(by_time, earliest), latest)
        shares[earliest].append(_within(word, finals[earliest]))
    return [tuple(share) for share in shares]


def same_but_for_marks(words: Sequence[Word], others: Sequence[Word]) -> bool:
    """Return whether two texts differ in case and punctuation at most."""
    return "".join(map(_key, words)) == "".join(map(_key, others))


def _key(word: Word) -> str:
    """Return the letters and digits of a word; vowel signs and accents are marks in Unicode, and belong to them."""
    return "".join(character for character in word.word.casefold() if unicodedata.category(character)[0] in "LMN")


def _within(word: Word, final: Final) -> Word:
    """Return a word within its final, said by the speaker of the final's words at that time."""
    start, end = (round(min(max(time_s, final.start), final.end), 3) for time_s in (word.start, word.end))
    nearest = next((other for other in final.words if other.end > (start + end) / 2), final.words[-1])
    return msgspec.structs.replace(word, start=start, end=end, speaker=nearest.speaker)
