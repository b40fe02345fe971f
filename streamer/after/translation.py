"""Translates finals into English, in the time that captions leave.

The unit is a passage: finals up to the end of a sentence, or of speech. Its audio is encoded on its own, in buffers of
its own, so that windows of captions wait for one call of a graph at most.
"""

import math
import time
from collections.abc import Callable

import msgspec

from streamer.after.correct.pipeline import ReadAudio
from streamer.arrays import Float32Array
from streamer.audio.mel import log_mel
from streamer.constants import CHUNK_LENGTH_S
from streamer.engine.decoder import WhisperDecoder, WhisperEncoder
from streamer.engine.engine import RETRY_S
from streamer.engine.eventlog import EventLog
from streamer.engine.yielding import WaitIdle, YieldToLive
from streamer.errors import StreamerError
from streamer.events import Event, Final, Gap, Speech, Translation
from streamer.health import Health
from streamer.session.task import Request
from streamer.session.words import SENTENCE_ENDS
from streamer.settings.table import Settings
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import is_conditioned
from streamer.worker import WorkQueue, once

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
LATE = StreamerError("captions leave no time for it: what is late is left out")
LOOP = StreamerError("the model repeats itself: that text is left out; a larger model does so less")


class Translations:
    """Translates for all sessions, one passage after another; the model is forked for the first."""

    def __init__(self, settings: Settings, model: WhisperModel, wait_idle: WaitIdle, health: Health) -> None:
        """Translate in the time that `wait_idle` leaves; report failures to `health`."""
        self.health = health
        # The two steps of a passage, each in a thread. The thread that publishes a final holds the lock of its session
        # and must not copy audio; the first of these does, before the audio is overwritten.
        self.copying = WorkQueue("copy for translation", MAX_WAITING, lambda owner: self.note_late())
        self.translating = WorkQueue("translate", MAX_WAITING, lambda owner: self.note_late())
        # Grammar, hot words and prompt are for the spoken language. Translations are less probable than transcripts:
        # only a loop is decoded again, and dropped if it stays one.
        self._decoding = msgspec.structs.replace(
            settings.decoding, grammar="", hotwords=(), initial_prompt="", logprob_threshold=None
        )
        self._conditioned = is_conditioned(settings.decoding, model)
        self._model = model
        # Used by the thread `translate`: lets captions go first; encodes and decodes.
        self._yield = YieldToLive(wait_idle)
        self._fork: tuple[WhisperEncoder, WhisperDecoder] | None = None

    def note_late(self) -> None:
        """Report that a passage is not translated."""
        self.health.failed(NAME, LATE)

    def translate(self, samples: Float32Array, language: str, before: str, until_s: float) -> str:
        """Return the English translation; empty if it is late, loops or fails. Called by the thread `translate`.

        samples : shape (n,), 30 s at most
        before : the previous translation
        until_s : deadline by the monotonic clock; infinity for a recording
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
        try:
            if self._fork is None:
                model = self._model.fork(self._model.runtime.windows_s)
                model.call_before(self._yield.wait)
                self._fork = WhisperEncoder(model), WhisperDecoder(model, self._decoding)
            encoder, decoder = self._fork
            encoded = encoder.encode(log_mel(samples, self._model.dims.n_mels), 0, len(samples))
            hypothesis = decoder.decode(encoded, request)
        except Exception as error:  # noqa: BLE001 - reported to `health`
            self.health.failed(NAME, LATE if isinstance(error, TimeoutError) else error)
            return ""
        if hypothesis.failed:
            self.health.failed(NAME, LOOP)
            return ""
        self.health.works(NAME)
        return "".join(word.text for word in hypothesis.words).strip()


class TranslatedSession:
    """Collects the finals of one session in passages, and publishes `translation` events."""

    def __init__(
        self, translations: Translations, log: EventLog, audio: ReadAudio, patience_s: Callable[[], float]
    ) -> None:
        """Follow a session; `patience_s` returns how long a translation may take, 0 for no translation."""
        self._translations = translations
        self._log = log
        self._audio = audio
        self._patience_s = patience_s
        # Finals of the open passage, and times at which speech ended that is not final yet.
        self._open: list[Final] = []
        self._ends_s: list[float] = []
        # Deadline of the newest passage.
        self._until_s = -math.inf
        # Used by the thread `translate`: the previous translation.
        self._said = ""
        log.subscribe(self._take)

    def finish(self, then: Callable[[], object]) -> None:
        """Call `then`, once, when all finals so far are translated, or too late."""
        self._close()
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            then()
            return
        translations = self._translations
        wait_s = left_s if left_s == math.inf else min(left_s, END_PATIENCE_S)
        end = once(then, wait_s, late=translations.note_late)
        translations.copying.put(self, lambda: translations.translating.put(self, end))

    def _take(self, event: Event) -> None:
        if isinstance(event, Speech) and event.state == "end":
            self._ends_s = [*self._ends_s[-MAX_WAITING:], event.time]
        elif isinstance(event, Gap):
            self._close()
        elif isinstance(event, Final):
            first = (self._open or [event])[0]
            if event.language != first.language or event.end - first.start > CHUNK_LENGTH_S:
                self._close()
            if event.text and event.language != ENGLISH and self._patience_s():
                self._open.append(event)
            if event.text.endswith(SENTENCE_ENDS) or any(end_s <= event.end for end_s in self._ends_s):
                self._close()
            self._ends_s = [end_s for end_s in self._ends_s if end_s > event.end]

    def _close(self) -> None:
        """Complete the open passage: translate it."""
        finals, self._open = self._open, []
        patience_s = self._patience_s()
        if not finals or not patience_s:
            return
        self._until_s = until_s = time.monotonic() + patience_s
        self._translations.copying.put(self, lambda: self._copy(finals, until_s))

    def _copy(self, finals: list[Final], until_s: float) -> None:
        if self._log.closed:
            return
        samples = self._audio(finals[0].start, min(finals[-1].end, finals[0].start + CHUNK_LENGTH_S))
        if samples is None:
            self._translations.note_late()
        else:
            self._translations.translating.put(self, lambda: self._translate(finals[-1], samples, until_s))

    def _translate(self, final: Final, samples: Float32Array, until_s: float) -> None:
        if self._log.closed:
            return
        text = self._translations.translate(samples, final.language, self._said, until_s)
        self._said = text[-PROMPT_CHARACTERS:]
        if text:
            self._log.append(Translation(of=final.seq, text=text, language=ENGLISH))
