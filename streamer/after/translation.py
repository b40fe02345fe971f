"""Translates finals into English, in the time that captions leave.

The unit is a passage: finals up to the end of a sentence, or of speech. Its audio is encoded on its own, in buffers of
its own, so that windows of captions wait for one call of a graph at most.
"""

import math
import time
from collections.abc import Callable
from functools import partial

import msgspec

from streamer.after.passages import Passage, Passages
from streamer.after.queues import ModelQueue, QueuedFollower, attempt
from streamer.arrays import Float32Array
from streamer.audio.mel import log_mel
from streamer.constants import CHUNK_LENGTH_S, N_SAMPLES
from streamer.engine.decoder import WhisperDecoder, WhisperEncoder
from streamer.engine.engine import RETRY_S
from streamer.engine.eventlog import EventLog
from streamer.engine.live_session import LiveSession
from streamer.engine.yielding import WaitIdle, YieldToLive
from streamer.errors import StreamerError
from streamer.events import Event, Final, Translation
from streamer.health import Health
from streamer.session.task import Request
from streamer.settings.table import Settings
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import is_conditioned

# The language that Whisper translates into.
ENGLISH = "en"

# Most passages of all sessions that wait, each with its audio; beyond that the oldest are dropped.
MAX_WAITING = 50

# Characters of the previous translation for the prompt.
PROMPT_CHARACTERS = 200

# How long after its final a live translation may be published: captions leave little time during speech, and more in
# the next pause.
PATIENCE_S = 300.0

# How long the end of a live session waits for translations: less than a stop of the program waits for that end.
END_PATIENCE_S = 25.0

NAME = "translation"
LOOP = "the model repeats itself: that text is left out; a larger model does so less"


class Translations:
    """Translates for all sessions, one passage after another; the model is forked for the first."""

    def __init__(self, settings: Settings, model: WhisperModel, wait_idle: WaitIdle, health: Health) -> None:
        """Translate in the time that `wait_idle` leaves; report failures to `health`."""
        # The two steps of a passage, each in a thread. The thread that publishes a final holds the lock of its session
        # and must not copy audio; the first of these does, before the audio is overwritten.
        self.copying = ModelQueue("copy for translation", MAX_WAITING)
        self.queue = ModelQueue(NAME, MAX_WAITING, health)
        self._health = health
        # Grammar, hot words and prompt are for the spoken language. Translations are less probable than transcripts:
        # only a loop is decoded again, and dropped if it stays one.
        self._decoding = msgspec.structs.replace(
            settings.decoding, grammar="", hotwords=(), initial_prompt="", logprob_threshold=None
        )
        self._conditioned = is_conditioned(settings.decoding, model)
        self._model = model
        # Used by the thread `translation`: lets captions go first; encodes and decodes.
        self._yield = YieldToLive(wait_idle)
        self._fork: tuple[WhisperEncoder, WhisperDecoder] | None = None

    def translate(self, samples: Float32Array, language: str, before: str, until_s: float) -> str:
        """Return the English translation; empty if it loops or fails. Called by the thread `translation`.

        samples : shape (n,), 30 s at most
        before : the previous translation
        until_s : deadline by the monotonic clock; infinity for a recording

        Raises TimeoutError at the deadline.
        """
        self._yield.begin(until_s)
        request = Request(
            prefix=(),
            prompt=before if self._conditioned else "",
            language=language,
            task="translate",
            n_samples=len(samples),
            retry_s=RETRY_S,
        )
        return attempt(self._health, NAME, partial(self._decode, samples, request)) or ""

    def _decode(self, samples: Float32Array, request: Request) -> str:
        if self._fork is None:
            model = self._model.fork(self._model.runtime.windows_s)
            model.call_before(self._yield.wait)
            self._fork = WhisperEncoder(model), WhisperDecoder(model, self._decoding)
        encoder, decoder = self._fork
        encoded = encoder.encode(log_mel(samples, self._model.dims.n_mels), 0, len(samples))
        hypothesis = decoder.decode(encoded, request)
        if hypothesis.failed:
            raise StreamerError(LOOP)
        return "".join(word.text for word in hypothesis.words).strip()


class TranslationFollower(QueuedFollower):
    """Publishes translations of the finals of one session."""

    def __init__(self, translations: Translations, live: LiveSession, log: EventLog) -> None:
        super().__init__(live, log)
        self._translations = translations
        self._passages = Passages(CHUNK_LENGTH_S, by_sentence=True)
        # Deadline of the newest passage.
        self._until_s = -math.inf
        # Used by the thread `translation`: the previous translation.
        self._said = ""

    def see(self, event: Event) -> None:
        for passage in self._passages.take(event):
            self._begin(passage)

    def finish(self, then: Callable[[], object]) -> None:
        for passage in self._passages.close():
            self._begin(passage)
        left_s = self._until_s - time.monotonic()
        patience_s = left_s if left_s == math.inf else min(left_s, END_PATIENCE_S)
        self.finish_within(max(0.0, patience_s), then, late=self._translations.queue.note_late)

    def _begin(self, passage: Passage) -> None:
        if not self.live.settings.translated or passage.finals[0].language == ENGLISH:
            return
        self._until_s = until_s = math.inf if self.live.recorded else time.monotonic() + PATIENCE_S
        translate = partial(self._translate, passage.finals[-1], until_s)
        copy = partial(self.put_with_audio, self._translations.queue, passage, translate, until_s)
        self._translations.copying.put(self, copy)

    def _translate(self, final: Final, until_s: float, samples: Float32Array) -> None:
        said, self._said = self._said, ""
        text = self._translations.translate(samples[:N_SAMPLES], final.language, said, until_s)
        self._said = text[-PROMPT_CHARACTERS:]
        if text:
            self.log.append(Translation(of=final.seq, text=text, language=ENGLISH))
