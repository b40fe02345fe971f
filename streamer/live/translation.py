"""Finals translated into English beside the transcript, in the time that captions leave.

What is translated is a passage: finals up to the end of a sentence, or of speech. Its audio is encoded by itself, with
a decoder and buffers of its own, so that windows of captions wait for one call of a graph at most.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from streamer.arrays import Float32Array
from streamer.audio.constants import CHUNK_LENGTH_S
from streamer.audio.mel import log_mel
from streamer.correct.pipeline import Lane, ReadAudio, once
from streamer.errors import StreamerError
from streamer.events import Event, Final, Gap, Speech, Translation
from streamer.live.decoder import WhisperDecoder, WhisperEncoder
from streamer.live.recordings import LOOK_S
from streamer.outside import printable
from streamer.settings.apply import is_conditioned
from streamer.settings.table import Settings
from streamer.stream.eventlog import EventLog
from streamer.stream.runner import RETRY_S
from streamer.stream.window import Request
from streamer.stream.words import SENTENCE_ENDS
from streamer.whisper.model import WhisperModel

logger = logging.getLogger(__name__)

# What Whisper translates into.
ENGLISH = "en"

# Passages of all sessions that wait, each with its audio; beyond that they are given up.
MAX_WAITING = 50

# A call for a recording, which nobody hears live, waits for captions no longer than this.
RECORDED_PATIENCE_S = 0.1

# Of the translation before, what the model sees.
PROMPT_CHARACTERS = 200


class LateError(Exception):
    """The deadline of a passage is over."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Finals of one language, and their audio."""

    finals: tuple[Final, ...]
    samples: Float32Array  # shape (n,), 30 s at most
    before: str  # the end of the translation of what was said before
    until_s: float  # by the monotonic clock; infinity where the audio is a recording


class Translations:
    """Translates for all sessions, one passage after another. Any thread may call what is public."""

    def __init__(self, settings: Settings, model: WhisperModel, is_live_busy: Callable[[], bool]) -> None:
        """Translate with a model, a call at a time when no window of a live session is due or at work.

        Nothing takes memory before the first passage.
        """
        # Why the newest passage was not translated, in a few words; empty while all is well.
        self.failing = ""
        self._n_late = 0
        # Begins what a session's passages go through, one after another.
        self.lane = Lane("translate", MAX_WAITING)
        # Grammar, words and prompt are of the language that is spoken.
        self._decoding = dataclasses.replace(settings.decoding, grammar="", hotwords=(), initial_prompt="", prefix="")
        self._is_conditioned = is_conditioned(settings.decoding, model)
        self._model = model
        self._is_live_busy = is_live_busy
        # The thread's own: deadline of the passage that is at work; what encodes and decodes it.
        self._until_s = math.inf
        self._twin: tuple[WhisperEncoder, WhisperDecoder] | None = None

    def translate(self, passage: Passage) -> str:
        """Return a passage in English, empty where that cannot be told; called in the lane's thread."""
        try:
            text = self._translate(passage)
        except LateError:
            self.give_up()
            return ""
        except StreamerError as error:
            if not self.failing:
                logger.warning("nothing is translated for now: %s", printable(str(error)))
            self.failing = str(error)
            return ""
        self.failing = ""
        return text

    def give_up(self) -> None:
        """A passage is left out: there is no time for it, or no room."""
        self.failing = "captions leave no time for it: what is late is left out"
        if not self._n_late:
            logger.warning("translation: %s", self.failing)  # once: it may come and go with each sentence
        self._n_late += 1

    def _translate(self, passage: Passage) -> str:
        self._until_s = passage.until_s
        self._give_way()
        if self._twin is None:
            model = self._model.twin(self._model.runtime.windows_s)
            model.call_before(self._give_way)
            self._twin = WhisperEncoder(model), WhisperDecoder(model, self._decoding)
        encoder, decoder = self._twin
        n_samples = len(passage.samples)
        request = Request(
            prefix=(),
            prompt=passage.before if self._is_conditioned else "",
            language=passage.finals[0].language,
            task="translate",
            n_samples=n_samples,
            retry_s=RETRY_S,
        )
        encoded = encoder.encode(log_mel(passage.samples, self._model.dims.n_mels), 0, n_samples)
        hypothesis = decoder.decode(encoded, request)
        return "" if hypothesis.failed else "".join(word.text for word in hypothesis.words).strip()

    def _give_way(self) -> None:
        """Let windows of captions go first; called before each call of a graph."""
        begin_s = time.monotonic()
        while self._is_live_busy():
            now_s = time.monotonic()
            if now_s >= self._until_s:
                raise LateError
            if self._until_s == math.inf and now_s >= begin_s + RECORDED_PATIENCE_S:
                return
            time.sleep(LOOK_S)


class TranslatedSession:
    """The finals of one session on their way to `translation` events."""

    def __init__(
        self, translations: Translations, log: EventLog, audio: ReadAudio, patience_s: Callable[[], float]
    ) -> None:
        """Translate from now on.

        patience_s : returns for how long a final's translation is waited for; 0 where none is wanted
        """
        self._translations = translations
        self._log = log
        self._audio = audio
        self._patience_s = patience_s
        # Finals of the passage that is open, and where speech ended of which no final has come.
        self._open: list[Final] = []
        self._ends_s: list[float] = []
        # Until when what was handed on is waited for, by the monotonic clock.
        self._until_s = -math.inf
        # The lane's own: the end of what was translated.
        self._said = ""
        log.subscribe(self._take)

    def finish(self, then: Callable[[], object]) -> None:
        """Call `then`, once, when all that was told is translated, or given up."""
        self._close()
        left_s = self._until_s - time.monotonic()
        end = once(then, left_s) if left_s > 0 else then
        if left_s <= 0 or not self._translations.lane.put(end):
            end()

    def _take(self, event: Event) -> None:
        match event:
            case Speech(state="end"):
                self._ends_s.append(event.time)
            case Gap():
                self._close()
            case Final():
                self._take_final(event)

    def _take_final(self, final: Final) -> None:
        ended = any(end_s <= final.end for end_s in self._ends_s)
        self._ends_s = [end_s for end_s in self._ends_s if end_s > final.end]
        first = self._open[0] if self._open else final
        if final.language != first.language or final.end - first.start > CHUNK_LENGTH_S:
            self._close()
        if final.text and final.language != ENGLISH and self._patience_s():
            self._open.append(final)
        if ended or final.text.endswith(SENTENCE_ENDS):
            self._close()

    def _close(self) -> None:
        """The passage that is open is complete: hand it on."""
        finals, self._open = tuple(self._open), []
        patience_s = self._patience_s()
        if not finals or not patience_s:
            return
        begin_s = finals[0].start
        samples = self._audio(begin_s, min(finals[-1].end, begin_s + CHUNK_LENGTH_S))
        self._until_s = until_s = time.monotonic() + patience_s
        if samples is None or not self._translations.lane.put(lambda: self._translate(finals, samples, until_s)):
            self._translations.give_up()

    def _translate(self, finals: tuple[Final, ...], samples: Float32Array, until_s: float) -> None:
        if self._log.closed:
            return
        self._said = text = self._translations.translate(Passage(finals, samples, self._said, until_s))
        self._said = self._said[-PROMPT_CHARACTERS:]
        if text:
            self._log.append(Translation(of=finals[-1].seq, text=text, language=ENGLISH))
