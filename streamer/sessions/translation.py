"""Finals translated into English beside the transcript, in the time that captions leave.

What is translated is a passage: finals up to the end of a sentence, or of speech. Its audio is encoded by itself, in
buffers of its own, so that windows of captions wait for one call of a graph at most.
"""

import dataclasses
import math
import time
from collections.abc import Callable

from streamer.arrays import Float32Array
from streamer.audio.constants import CHUNK_LENGTH_S
from streamer.audio.mel import log_mel
from streamer.correct.pipeline import ReadAudio
from streamer.engine.engine import RETRY_S
from streamer.engine.eventlog import EventLog
from streamer.engine.window import Request
from streamer.engine.words import SENTENCE_ENDS
from streamer.errors import StreamerError
from streamer.events import Event, Final, Gap, Speech, Translation
from streamer.health import Health
from streamer.sessions.decoder import WhisperDecoder, WhisperEncoder
from streamer.sessions.yielding import WaitIdle, YieldToLive
from streamer.settings.apply import is_conditioned
from streamer.settings.table import Settings
from streamer.whisper.model import WhisperModel
from streamer.worker import WorkQueue, once

# What Whisper translates into.
ENGLISH = "en"

# Passages of all sessions that wait, each with its audio; beyond that some are given up.
MAX_WAITING = 50

# Of the translation before, what the model sees.
PROMPT_CHARACTERS = 200

# How long after its final a live translation may come: captions leave little time during speech, and more in
# the next pause.
PATIENCE_S = 300.0

# How long the end of a live session waits for translations: less than a stop of the program waits for that end.
END_PATIENCE_S = 25.0

NAME = "translation"
LATE = StreamerError("captions leave no time for it: what is late is left out")
LOOP = StreamerError("the model repeats itself: that text is left out; a larger model does so less")


class Translations:
    """Translates for all sessions, one passage after another. Nothing takes memory before the first."""

    def __init__(self, settings: Settings, model: WhisperModel, wait_idle: WaitIdle, health: Health) -> None:
        """Translate in the time that captions leave; `health` is given why the newest passage was not translated."""
        self.health = health
        # What passages go through, each in a thread. Who publishes a final holds the lock of its session, and copies no
        # audio; the first thread does, before the audio is overwritten.
        self.copying = WorkQueue("copy for translation", MAX_WAITING, self.note_late)
        self.translating = WorkQueue("translate", MAX_WAITING, self.note_late)
        # Grammar, words and prompt are of the language that is spoken. Translations are less probable than transcripts:
        # only a loop is decoded again, and left out if it stays one.
        self._decoding = dataclasses.replace(
            settings.decoding, grammar="", hotwords=(), initial_prompt="", logprob_threshold=None
        )
        self._conditioned = is_conditioned(settings.decoding, model)
        self._model = model
        # The thread's own: what lets captions go first, and what encodes and decodes.
        self._yield = YieldToLive(wait_idle)
        self._fork: tuple[WhisperEncoder, WhisperDecoder] | None = None

    def note_late(self) -> None:
        """Report that a passage is not translated."""
        self.health.failed(NAME, LATE)

    def translate(self, samples: Float32Array, language: str, before: str, until_s: float) -> str:
        """Return what is said in English, empty if it is late, loops or fails. Called by the thread.

        samples : shape (n,), 30 s at most
        before : the translation before
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
        except Exception as error:  # noqa: BLE001 - reported there
            self.health.failed(NAME, LATE if isinstance(error, TimeoutError) else error)
            return ""
        if hypothesis.failed:
            self.health.failed(NAME, LOOP)
            return ""
        self.health.works(NAME)
        return "".join(word.text for word in hypothesis.words).strip()


class TranslatedSession:
    """The finals of one session on their way to `translation` events."""

    def __init__(
        self, translations: Translations, log: EventLog, audio: ReadAudio, patience_s: Callable[[], float]
    ) -> None:
        """Follow a session; `patience_s` says for how long a translation is waited for, 0 if none is wanted."""
        self._translations = translations
        self._log = log
        self._audio = audio
        self._patience_s = patience_s
        # Finals of the passage that is open, and where speech ended of which no final has come.
        self._open: list[Final] = []
        self._ends_s: list[float] = []
        # Until when what was handed on is waited for.
        self._until_s = -math.inf
        # The thread's own: what was translated last.
        self._said = ""
        log.subscribe(self._take)

    def finish(self, then: Callable[[], object]) -> None:
        """Call `then`, once, when all finals so far are translated, or given up."""
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
        """The passage that is open is complete: hand it on."""
        finals, self._open = self._open, []
        patience_s = self._patience_s()
        if not finals or not patience_s:
            return
        self._until_s = until_s = time.monotonic() + patience_s
        self._translations.copying.put(self, lambda: self._copy(finals, until_s))

    def _copy(self, finals: list[Final], until_s: float) -> None:
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
