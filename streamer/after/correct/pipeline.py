"""Runs finals through the second pass and the correctors, and publishes `revision` events.

Each final goes through the quick correctors at once. Then the slow ones follow, and the quick ones again on what these
found; with a second pass, they follow when a passage has been transcribed again. No caption waits for any of it: all
of this runs in two threads, and a final that is not done by its deadline stays as it is.
"""

import dataclasses
import difflib
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from streamer.after.correct import second_pass
from streamer.after.correct.corrector import Corrector, Draft, text_of
from streamer.after.correct.second_pass import Passage, Passages, ReadAgain, same_but_for_marks, share_words
from streamer.arrays import Float32Array
from streamer.engine.eventlog import EventLog
from streamer.errors import StreamerError
from streamer.events import Edit, Event, Final, Revision, Word
from streamer.health import Health
from streamer.session.settings import SessionSettings
from streamer.worker import Work, WorkQueue, once

# Texts of earlier finals that a corrector sees.
N_BEFORE = 5

# Finals of a session whose words are kept: labels of the newest may change.
N_KEPT = 64

# Finals of all sessions that wait for quick correctors, or for slow ones; beyond that some are given up.
MAX_WAITING = 200

# What is reported then, or if the deadline of a final passes while it waits.
LATE = StreamerError("finals come faster than they are corrected, and some stay as they were: try a faster model")

# Returns the audio from one second of a session to another, shape (n,) at 16 kHz; None if it is no longer there.
ReadAudio = Callable[[float, float], Float32Array | None]

# Returns the settings that a session has now; None if it is over.
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
        # Corrects quickly, and publishes all revisions of a session in order; waits for models and endpoints.
        self.correcting = WorkQueue("correct", MAX_WAITING, lambda owner: self.health.failed("correction", LATE))
        self.waiting = WorkQueue("correct slowly", MAX_WAITING, lambda _: self.health.failed("slow correction", LATE))

    def follow(self, log: EventLog, audio: ReadAudio, settings: ReadSettings = lambda: None) -> "FinalsOfSession":
        """Correct the finals of a session from now on."""
        return FinalsOfSession(self, log, audio, settings)

    def in_time(self, name: str, until_s: float) -> bool:
        """Return whether there is time left for a final that has waited; report if not."""
        if time.monotonic() < until_s:
            self.health.works(name)
            return True
        self.health.failed(name, LATE)
        return False

    def correct(self, correctors: Sequence[Corrector], draft: Draft, until_s: float) -> tuple[tuple[Word, ...], str]:
        """Return the words that correctors make of a final, and the names of those that changed some."""
        words, by = draft.words, []
        for corrector in correctors:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            if corrector.slow and self.health.waits(corrector.name):
                continue
            work = partial(corrector.correct, dataclasses.replace(draft, words=words), left_s)
            found = self.attempt(corrector.name, work)
            if found is not None and found != words:
                by.append(corrector.name)
                words = found
        return words, ",".join(by)

    def attempt(self, name: str, work: Callable[[], Sequence[Word] | None]) -> tuple[Word, ...] | None:
        """Return the words that a part finds; None if it did not try, has no time, or fails, which is reported."""
        try:
            found = work()
        except TimeoutError:
            return None
        except Exception as error:  # noqa: BLE001 - reported there
            self.health.failed(name, error)
            return None
        if found is None:
            return None
        self.health.works(name)
        return tuple(found)


class FinalsOfSession:
    """The finals of one session on their way through the correctors.

    The thread "correct" alone knows what was published, so that no revision is older than one before it.
    """

    def __init__(self, corrections: Corrections, log: EventLog, audio: ReadAudio, settings: ReadSettings) -> None:
        self._corrections = corrections
        self._log = log
        self._audio = audio
        self._settings = settings
        # Returns a word with the label of its speaker, if that is asked for.
        self.label: Callable[[Word], Word] = lambda word: word
        # The newest finals by their numbers, oldest first, and their words as published last.
        self._published: dict[int, tuple[Final, tuple[Word, ...]]] = {}
        # Weak: a session that is over is freed at once, with its audio, and not by the next garbage collection.
        finals = weakref.ref(self)
        self._passages = Passages(partial(_take_passage, finals)) if corrections.read_again is not None else None
        log.subscribe(self._take)

    def _put(self, work: Work) -> None:
        """Have quick work done, unless the client has left by then."""
        self._corrections.correcting.put(self, lambda: self._log.closed or work())

    def _put_slow(self, work: Work) -> None:
        """Have slow work done, unless the client has left by then."""
        self._corrections.waiting.put(self, lambda: self._log.closed or work())

    def finish(self, then: Callable[[], object]) -> None:
        """Call `then`, once, when all finals so far are corrected, or given up."""
        if self._passages is not None:
            self._passages.close()
        end = once(then, self._corrections.deadline_s)
        quick, slow = self._corrections.correcting, self._corrections.waiting
        quick.put(self, lambda: slow.put(self, lambda: quick.put(self, end)))

    def relabel(self, numbers: Iterable[int]) -> None:
        """Publish finals once more, with the words that they have by now, if speakers are others than published."""
        self._put(lambda: self._relabel(numbers))

    def _take(self, event: Event) -> None:
        if isinstance(event, Final) and event.words and not event.task:
            settings = self._settings()
            until_s = time.monotonic() + self._corrections.deadline_s
            self._put(lambda: self._correct(event, language_of(event, settings), until_s))
        if self._passages is not None:
            self._passages.take(event)

    def _correct(self, final: Final, language: str, until_s: float) -> None:
        corrections = self._corrections
        draft = Draft(final.words, language, self._texts_before(final))
        self._published[final.seq] = final, final.words
        if len(self._published) > N_KEPT:
            del self._published[next(iter(self._published))]
        if not corrections.in_time("correction", until_s):
            return
        words, by = corrections.correct(corrections.quick, draft, until_s)
        self._revise(final, words, by)
        if corrections.slow and self._passages is None:
            self._put_slow(lambda: self._correct_slowly(final, dataclasses.replace(draft, words=words), until_s))

    def _correct_slowly(self, final: Final, draft: Draft, until_s: float, by: str = "") -> None:
        corrections = self._corrections
        # A client may have left while the passage was transcribed, or another of its finals corrected.
        if self._log.closed or not corrections.in_time("slow correction", until_s):
            return
        words, others = corrections.correct(corrections.slow, draft, until_s)
        if by := ",".join(filter(None, (by, others))):
            self._put(lambda: self._correct_again(final, dataclasses.replace(draft, words=words), by))

    def _correct_again(self, final: Final, draft: Draft, by: str) -> None:
        """Publish what slow correctors found, in any case through the quick ones: a masked word must not come back."""
        until_s = time.monotonic() + self._corrections.deadline_s
        words, _ = self._corrections.correct(self._corrections.quick, draft, until_s)
        self._revise(final, words, by)

    def take_passage(self, finals: tuple[Final, ...], n_known: int) -> None:
        passage = Passage(finals, n_known, self._settings(), time.monotonic() + self._corrections.deadline_s)
        self._put(lambda: self._begin_passage(passage))

    def _begin_passage(self, passage: Passage) -> None:
        published = [self._words(final) for final in passage.finals]
        before = self._texts_before(passage.finals[0])
        self._put_slow(lambda: self._read_again(passage, published, before))

    def _read_again(self, passage: Passage, published: Sequence[tuple[Word, ...]], before: tuple[str, ...]) -> None:
        """Transcribe a passage again; after that its finals go through the slow correctors."""
        read_again = self._corrections.read_again
        samples = self._audio(passage.finals[0].start, passage.finals[-1].end)
        again = None
        if samples is not None and read_again is not None:
            again = self._corrections.attempt(second_pass.NAME, lambda: read_again(passage, samples))
        found = share_words(passage.finals, again or ())
        for i, (final, words, old) in enumerate(zip(passage.finals, found, published, strict=True)):
            # A final of which nothing was found again keeps its words, and one that only has other marks keeps these.
            new = words if words and not same_but_for_marks(words, old) else old
            if i >= passage.n_known:
                draft = Draft(new, language_of(final, passage.settings), before)
                until_s = time.monotonic() + self._corrections.deadline_s
                self._correct_slowly(final, draft, until_s, second_pass.NAME if new is not old else "")
            before = (*before, text_of(new))[-N_BEFORE:]

    def _relabel(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self._published:
                self._revise(*self._published[number], "speakers")

    def _revise(self, final: Final, words: tuple[Word, ...], by: str) -> None:
        words = tuple(self.label(word) for word in words)
        if not by or _said(words) == _said(self._words(final)):
            return
        if final.seq in self._published:
            self._published[final.seq] = final, words
        text = text_of(words)
        self._log.append(Revision(of=final.seq, by=by, text=text, words=words, edits=edits(final.text, text)))

    def _words(self, final: Final) -> tuple[Word, ...]:
        """Return the words of a final as published last."""
        return self._published.get(final.seq, (final, final.words))[1]

    def _texts_before(self, final: Final) -> tuple[str, ...]:
        earlier = [words for seq, (_, words) in self._published.items() if seq < final.seq]
        return tuple(map(text_of, earlier[-N_BEFORE:]))


def _take_passage(finals: "weakref.ref[FinalsOfSession]", passage: tuple[Final, ...], n_known: int) -> None:
    if (alive := finals()) is not None:
        alive.take_passage(passage, n_known)


def language_of(final: Final, settings: SessionSettings | None) -> str:
    """Return the language of a final's text, which a translation does not share with what was said."""
    task = final.task or (settings.task if settings is not None else "")
    return "en" if task == "translate" else final.language


def _said(words: Sequence[Word]) -> list[tuple[str, str | None]]:
    return [(word.word, word.speaker) for word in words]


def edits(before: str, after: str) -> tuple[Edit, ...]:
    """Return the edits that make one text of another, by whole words."""
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
