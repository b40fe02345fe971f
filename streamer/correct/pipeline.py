"""Runs finals through the second pass and the correctors, and publishes `revision` events.

Each final goes through the quick correctors at once. Then the slow ones follow, and the quick ones again on what these
found; with a second pass, they follow when a passage has been transcribed again. No caption waits for any of it: all
of this runs in threads of its own, and a final that is not done by its deadline stays as it is.
"""

import dataclasses
import difflib
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial

from streamer.arrays import Float32Array
from streamer.correct import second_pass
from streamer.correct.corrector import Corrector, Heard, text_of
from streamer.correct.second_pass import Passage, Passages, ReadAgain, same_but_for_marks, share_words
from streamer.errors import StreamerError
from streamer.events import Edit, Event, Final, Revision, Word
from streamer.health import Health
from streamer.stream.eventlog import EventLog
from streamer.stream.settings import SessionSettings
from streamer.worker import Worker, once

# Texts of earlier finals that a corrector sees.
N_BEFORE = 5

# Finals of a session whose words are kept: labels of the newest may change.
N_KEPT = 64

# Finals of all sessions that wait for quick correctors, or for slow ones; beyond that some are given up.
MAX_WAITING = 200

# What is reported then, or if the deadline of a final passes while it waits; by whether it waits for slow ones.
NAMES = "correction", "slow correction"
LATE = StreamerError("finals come faster than they are corrected, and some stay as they were: try a faster model")

# Returns the audio from one second of a session to another, shape (n,) at 16 kHz; None where it is no longer there.
ReadAudio = Callable[[float, float], Float32Array | None]

# Returns the settings that a session has now; None where it is over.
ReadSettings = Callable[[], SessionSettings | None]


class Corrections:
    """The correctors at work, for all sessions. Any thread may call any method."""

    def __init__(
        self,
        correctors: Sequence[Corrector],
        *,
        deadline_s: float,
        health: Health | None = None,
        read_again: ReadAgain | None = None,
    ) -> None:
        """Put correctors to work in their order.

        deadline_s : time after a final, or a passage, beyond which its correction is given up
        health : is given what does not work
        read_again : the second pass, if there is one
        """
        self.quick = [corrector for corrector in correctors if not corrector.slow]
        self.slow = [corrector for corrector in correctors if corrector.slow]
        self.deadline_s = deadline_s
        self.health = health or Health()
        self.read_again = read_again
        self._workers = (
            Worker("correct", MAX_WAITING, lambda: self._note_late(slow=False)),
            Worker("correct slowly", MAX_WAITING, lambda: self._note_late(slow=True)),
        )

    def follow(self, log: EventLog, audio: ReadAudio, settings: ReadSettings = lambda: None) -> "FinalsOfSession":
        """Correct the finals of a session from now on."""
        return FinalsOfSession(self, log, audio, settings)

    def put(self, owner: Hashable, work: Callable[[], object], *, slow: bool) -> None:
        """Do work of a session when its turn comes."""
        self._workers[slow].put(owner, work)

    def in_time(self, until_s: float, *, slow: bool) -> bool:
        """Return whether there is time left for a final that has waited; report if not."""
        if time.monotonic() < until_s:
            self.health.works(NAMES[slow])
            return True
        self._note_late(slow=slow)
        return False

    def _note_late(self, *, slow: bool) -> None:
        self.health.failed(NAMES[slow], LATE)

    def correct(self, correctors: Sequence[Corrector], heard: Heard, until_s: float) -> tuple[tuple[Word, ...], str]:
        """Return the words that correctors make of a final, and the names of those that changed some."""
        words, by = heard.words, []
        for corrector in correctors:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            if corrector.slow and self.health.waits(corrector.name):
                continue
            try:
                found = corrector.correct(dataclasses.replace(heard, words=words), left_s)
            except TimeoutError:
                break
            except Exception as error:  # noqa: BLE001 - reported there
                self.health.failed(corrector.name, error)
                continue
            if found is None:
                continue
            self.health.works(corrector.name)
            if tuple(found) != words:
                by.append(corrector.name)
            words = tuple(found)
        return words, ",".join(by)


class FinalsOfSession:
    """The finals of one session on their way through the correctors."""

    def __init__(self, corrections: Corrections, log: EventLog, audio: ReadAudio, settings: ReadSettings) -> None:
        self._corrections = corrections
        self._log = log
        self._audio = audio
        self._settings = settings
        # Says who says a word of a revision, where that is asked.
        self.label: Callable[[Word], Word] = lambda word: word
        # The newest finals by their numbers, oldest first, and their words as they were told last.
        self._told: dict[int, tuple[Final, tuple[Word, ...]]] = {}
        self._lock = threading.Lock()
        # Held while a revision is told, so that none is older than one before it. No listener takes it.
        self._telling = threading.Lock()
        self._passages = Passages(self._put_passage) if corrections.read_again is not None else None
        log.subscribe(self._take)

    def finish(self, then: Callable[[], object]) -> None:
        """Call `then`, once, when all finals that were told are corrected, or given up."""
        if self._passages is not None:
            self._passages.close()
        end = once(then, self._corrections.deadline_s)
        self._put((lambda: self._put(end, slow=True)) if self._corrections.slow or self._passages else end, slow=False)

    def _put(self, work: Callable[[], object], *, slow: bool) -> None:
        self._corrections.put(self, work, slow=slow)

    def _take(self, event: Event) -> None:
        self._correct(event)
        if self._passages is not None:
            self._passages.take(event)

    def _correct(self, event: Event) -> None:
        if not isinstance(event, Final) or not event.words or event.task:
            return
        until_s = time.monotonic() + self._corrections.deadline_s
        with self._lock:
            before = tuple(text_of(words) for _, words in tuple(self._told.values())[-N_BEFORE:])
            self._told[event.seq] = event, event.words
            if len(self._told) > N_KEPT:
                del self._told[next(iter(self._told))]
        heard = Heard(event, event.words, before, lambda: self._audio(event.start, event.end), self._settings())
        self._put(lambda: self._correct_quickly(heard, until_s), slow=False)

    def _correct_quickly(self, heard: Heard, until_s: float) -> None:
        corrections = self._corrections
        if not corrections.in_time(until_s, slow=False):
            return
        words, by = corrections.correct(corrections.quick, heard, until_s)
        self._tell(heard, heard.words, words, by)
        if corrections.slow and self._passages is None:
            self._put(lambda: self._correct_slowly(heard, words, until_s), slow=True)

    def _correct_slowly(self, heard: Heard, told: tuple[Word, ...], until_s: float, by: str = "") -> None:
        corrections = self._corrections
        if not corrections.in_time(until_s, slow=True):
            return
        words, others = corrections.correct(corrections.slow, heard, until_s)
        if by := ",".join(filter(None, (by, others))):
            # In any case: a word that is masked must not come back.
            until_s = time.monotonic() + corrections.deadline_s
            words, _ = corrections.correct(corrections.quick, dataclasses.replace(heard, words=words), until_s)
            self._tell(heard, told, words, by)

    def _put_passage(self, finals: tuple[Final, ...], n_known: int) -> None:
        until_s = time.monotonic() + self._corrections.deadline_s
        self._put(lambda: self._read_again(finals, n_known, until_s), slow=True)

    def _read_again(self, finals: tuple[Final, ...], n_known: int, until_s: float) -> None:
        """Transcribe a passage again; after that its finals go through the slow correctors."""
        with self._lock:
            words_now = {seq: words for seq, (_, words) in self._told.items()}
        texts = [text_of(words) for seq, words in words_now.items() if seq < finals[0].seq]
        found = share_words(finals, self._words_again(finals, " ".join(texts[-N_BEFORE:]), until_s))
        for i, (final, words) in enumerate(zip(finals, found, strict=True)):
            published = words_now.get(final.seq, final.words)
            # A final of which nothing was found again keeps its words, and one that only has other marks keeps these.
            new = words if words and not same_but_for_marks(words, published) else published
            if i >= n_known:
                heard = Heard(
                    final, new, tuple(texts[-N_BEFORE:]), partial(self._audio, final.start, final.end), self._settings()
                )
                by = second_pass.NAME if new is not published else ""
                self._correct_slowly(heard, published, time.monotonic() + self._corrections.deadline_s, by)
            texts.append(text_of(new))

    def _words_again(self, finals: tuple[Final, ...], prompt: str, until_s: float) -> Sequence[Word]:
        """Return the words of a passage that is transcribed again; none if that cannot be."""
        read_again, health = self._corrections.read_again, self._corrections.health
        samples = self._audio(finals[0].start, finals[-1].end)
        if samples is None or read_again is None:
            return ()
        try:
            words = read_again(Passage(finals, samples, prompt, self._settings(), until_s))
        except TimeoutError:
            return ()
        except Exception as error:  # noqa: BLE001 - reported there
            health.failed(second_pass.NAME, error)
            return ()
        health.works(second_pass.NAME)
        return words

    def relabel(self, number: int) -> None:
        """Tell a final once more, as it reads by now, where somebody else says a word than was told."""
        with self._telling:
            with self._lock:
                told = self._told.get(number)
            if told is not None:
                self._revise(told[0], told[1], "speakers")

    def _tell(self, heard: Heard, told: tuple[Word, ...], words: tuple[Word, ...], by: str) -> None:
        if _said(words) != _said(told):
            with self._telling:
                self._revise(heard.final, words, by)

    def _revise(self, final: Final, words: tuple[Word, ...], by: str) -> None:
        words = tuple(self.label(word) for word in words)
        with self._lock:
            if self._log.closed or (final.seq in self._told and _said(self._told[final.seq][1]) == _said(words)):
                return
            if final.seq in self._told:
                self._told[final.seq] = final, words
        text = text_of(words)
        self._log.append(Revision(of=final.seq, by=by, text=text, words=words, edits=edits(final.text, text)))


def _said(words: Sequence[Word]) -> list[tuple[str, str | None]]:
    return [(word.word, word.speaker) for word in words]


def edits(before: str, after: str) -> tuple[Edit, ...]:
    """Return the places where one text reads otherwise than another, by whole words."""
    old, new = _pieces(before), _pieces(after)
    begins = [0]
    for piece in old:
        begins.append(begins[-1] + len(piece))
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return tuple(
        Edit(start=begins[a], end=begins[b], text="".join(new[c:d])) for tag, a, b, c, d in codes if tag != "equal"
    )


def _pieces(text: str) -> list[str]:
    """Cut a text at its spaces, which stay with the word behind them; one that has none, at each character."""
    first, *others = text.split(" ")
    return [first, *(f" {word}" for word in others)] if others or text.isascii() else list(text)
