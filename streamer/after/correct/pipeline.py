"""Runs finals through the second pass and the correctors, and publishes `revision` events.

Each final goes through the quick correctors at once. Then the slow ones follow, and the quick ones again on what these
found; with a second pass, they follow when a passage has been transcribed again. No caption waits for any of it: all
of this runs in two threads, and a final that is not done by its deadline stays as it is.
"""

import contextlib
import dataclasses
import difflib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from streamer.after import second_pass
from streamer.after.correct.corrector import Corrector, Draft, text_of
from streamer.after.passages import Passage, Passages
from streamer.after.queues import ModelQueue, QueuedFollower, attempt
from streamer.after.second_pass import SecondPass, same_but_for_marks, share_words
from streamer.after.speakers.diarization import Diarization
from streamer.arrays import Float32Array
from streamer.engine.eventlog import EventLog
from streamer.engine.live_session import LiveSession
from streamer.events import Edit, Event, Final, Revision, Speech, Word
from streamer.health import Health
from streamer.session.settings import SessionSettings

# Texts of earlier finals that a corrector sees.
N_BEFORE = 5

# Finals of a session whose words are kept.
N_KEPT = 64

# Finals of all sessions that wait for quick correctors, or for slow ones; passages, each with its audio. Beyond that
# some are given up.
MAX_WAITING = 200
MAX_PASSAGES = 50

# Silence after which a passage is transcribed again, however short it is.
IDLE_S = 2.0


class Corrections:
    """The correctors at work, for all sessions. Any thread may call any method."""

    def __init__(
        self,
        correctors: Sequence[Corrector],
        *,
        deadline_s: float,
        health: Health | None = None,
        reader: SecondPass | None = None,
    ) -> None:
        """Put correctors to work in their order.

        deadline_s : time after a final, or a passage, beyond which its correction is given up
        health : is given what does not work
        reader : the second pass, if there is one
        """
        self.quick = [corrector for corrector in correctors if not corrector.slow]
        self.slow = [corrector for corrector in correctors if corrector.slow]
        self.deadline_s = deadline_s
        self.health = health or Health()
        self.reader = reader
        # Corrects quickly, and publishes all revisions of a session in order; waits for models and endpoints.
        self.queue = ModelQueue("correction", MAX_WAITING, self.health)
        self.slow_queue = ModelQueue("slow correction", MAX_PASSAGES if reader else MAX_WAITING, self.health)

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
            with contextlib.suppress(TimeoutError):
                found = attempt(self.health, corrector.name, work)
                if found is not None and tuple(found) != words:
                    by.append(corrector.name)
                    words = tuple(found)
        return words, ",".join(by)


class CorrectionFollower(QueuedFollower):
    """Publishes revisions of the finals of one session.

    The thread `correction` alone changes what is known of them, so that no revision is older than one before it.
    """

    def __init__(
        self, corrections: Corrections, live: LiveSession, log: EventLog, diarization: Diarization | None = None
    ) -> None:
        """With `diarization`, words have the labels of their speakers."""
        super().__init__(live, log)
        self._corrections, self._diarization = corrections, diarization
        # The words of the newest finals as published last, by the numbers of these.
        self._published: dict[int, tuple[Word, ...]] = {}
        # Finals that are to be transcribed again, and what waits for a pause to do that: a thread of its own.
        self._passages = Passages(second_pass.MAX_PASSAGE_S)
        self._pause: threading.Timer | None = None
        self._grouping = threading.Lock()

    def see(self, event: Event) -> None:
        match event:
            case Final(words=(_, *_), task=""):
                until_s = self._deadline_s()
                correct = partial(self._correct, event, language_of(event, self.live.settings), until_s)
                self._corrections.queue.put(self, correct, until_s)
            case Final():
                return
        if self._corrections.reader is not None:
            self._group(event)

    def relabel(self, finals: Iterable[Final]) -> None:
        """Publish finals once more, with the words that they have by now, if speakers are others than published."""
        self._corrections.queue.put(self, partial(self._relabel, finals))

    def finish(self, then: Callable[[], object]) -> None:
        self._end_passage()
        self.finish_within(self._corrections.deadline_s, then, late=self._corrections.slow_queue.note_late)

    def _deadline_s(self) -> float:
        return time.monotonic() + self._corrections.deadline_s

    def _group(self, event: Event) -> None:
        """Make passages of finals; end one if there is silence behind it."""
        with self._grouping:
            ended = self._passages.take(event)
            if self._pause is not None and (ended or isinstance(event, Final | Speech)):
                self._pause.cancel()
            self._begin(ended)
            if isinstance(event, Final) and not self._passages.speaking:
                # Weak: a session that is over is freed at once.
                self._pause = threading.Timer(IDLE_S, _call, (weakref.WeakMethod(self._end_passage),))
                self._pause.daemon = True
                self._pause.start()

    def _end_passage(self) -> None:
        with self._grouping:
            if self._pause is not None:
                self._pause.cancel()
            self._begin(self._passages.close())

    def _begin(self, passages: Iterable[Passage]) -> None:
        """Have passages transcribed again, behind what the quick correctors do with their finals."""
        for passage in passages:
            until_s = self._deadline_s()
            read = partial(self._read_again, passage, self.live.settings, until_s)
            copy = partial(self.put_with_audio, self._corrections.slow_queue, passage, read, until_s)
            self._corrections.queue.put(self, copy, until_s)

    def _correct(self, final: Final, language: str, until_s: float) -> None:
        corrections = self._corrections
        draft = Draft(final.words, language, _texts_before(final, self._published))
        self._note(final, final.words)
        words, by = corrections.correct(corrections.quick, draft, until_s)
        self._revise(final, words, by)
        if corrections.reader is None:
            self._go_on(final, dataclasses.replace(draft, words=words), until_s)

    def _read_again(self, passage: Passage, settings: SessionSettings, until_s: float, samples: Float32Array) -> None:
        """Transcribe a passage again; after that its finals go through the slow correctors."""
        corrections, reader = self._corrections, self._corrections.reader
        assert reader is not None
        again: Sequence[Word] | None = None
        with contextlib.suppress(TimeoutError):
            read = partial(reader.read, passage, samples, settings, until_s)
            again = attempt(corrections.health, second_pass.NAME, read)
        published = dict(self._published)
        before = _texts_before(passage.finals[0], published)
        for i, (final, words) in enumerate(zip(passage.finals, share_words(passage.finals, again or ()), strict=True)):
            old = published.get(final.seq, final.words)
            # A final of which nothing was found again keeps its words, and one that only has other marks keeps these.
            new = words if words and not same_but_for_marks(words, old) else old
            if i >= passage.n_known:
                draft = Draft(new, language_of(final, settings), before)
                self._go_on(final, draft, self._deadline_s(), second_pass.NAME if new is not old else "")
            before = (*before, text_of(new))[-N_BEFORE:]

    def _go_on(self, final: Final, draft: Draft, until_s: float, by: str = "") -> None:
        """Have a final corrected by the slow correctors, if there are any, and by the quick ones behind them."""
        corrections = self._corrections
        if corrections.slow:
            corrections.slow_queue.put(self, partial(self._correct_slowly, final, draft, until_s, by), until_s)
        elif by:
            corrections.queue.put(self, partial(self._correct_again, final, draft, by))

    def _correct_slowly(self, final: Final, draft: Draft, until_s: float, by: str) -> None:
        words, others = self._corrections.correct(self._corrections.slow, draft, until_s)
        if by := ",".join(filter(None, (by, others))):
            draft = dataclasses.replace(draft, words=words)
            self._corrections.queue.put(self, partial(self._correct_again, final, draft, by))

    def _correct_again(self, final: Final, draft: Draft, by: str) -> None:
        """Publish what was found slowly, in any case through the quick correctors: a masked word must not come back."""
        words, _ = self._corrections.correct(self._corrections.quick, draft, self._deadline_s())
        self._revise(final, words, by)

    def _relabel(self, finals: Iterable[Final]) -> None:
        for final in finals:
            self._revise(final, self._published.get(final.seq, final.words), "speakers")

    def _revise(self, final: Final, words: tuple[Word, ...], by: str) -> None:
        if self._diarization is not None:
            words = self._diarization.label(words)
        if by and _said(words) != _said(self._published.get(final.seq, final.words)):
            self._note(final, words)
            text = text_of(words)
            self.log.append(Revision(of=final.seq, by=by, text=text, words=words, edits=edits(final.text, text)))

    def _note(self, final: Final, words: tuple[Word, ...]) -> None:
        """Note the words of a final as they are published."""
        self._published[final.seq] = words
        if len(self._published) > N_KEPT:
            del self._published[min(self._published)]


def _call(method: "weakref.WeakMethod[Callable[[], None]]") -> None:
    if (alive := method()) is not None:
        alive()


def language_of(final: Final, settings: SessionSettings) -> str:
    """Return the language of a final's text, which a translation does not share with what was said."""
    return "en" if settings.task == "translate" else final.language


def _texts_before(final: Final, published: Mapping[int, tuple[Word, ...]]) -> tuple[str, ...]:
    earlier = sorted(number for number in published if number < final.seq)[-N_BEFORE:]
    return tuple(text_of(published[number]) for number in earlier)


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
