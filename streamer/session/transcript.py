"""The text of an utterance: decides which words are stable, and cuts it into finals. Sans-I/O.

It takes hypotheses and returns partials and finals; which windows are decoded, and when, is decided elsewhere.

Words become stable when the decoder is sure of them or successive hypotheses agree. Every hypothesis is made to begin
with the stable words of its window, so that text published as stable stays. Long speech becomes final after a stable
word. The window does not move with that: it keeps earlier audio and its words while it has room, also over pauses,
since the decoder transcribes new audio better after them.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum, auto
from typing import Any, Self

from streamer.constants import SAMPLE_RATE
from streamer.events import Event, Final, Gap, Partial, seconds
from streamer.session.agreement import Partners, agree
from streamer.session.coverage import Hole
from streamer.session.schedule import WindowSchedule
from streamer.session.settings import SessionSettings
from streamer.session.task import MAX_SILENCE_SAMPLES, Request, Span, down_to_frame
from streamer.session.words import (
    CLAUSE_ENDS,
    MIN_REPEATED_WORDS,
    ends_sentence,
    event_words,
    find_repeated,
    mean_log_prob,
    pause_before,
    placed,
)
from streamer.whisper.plausible import can_be_spoken, repeats
from streamer.whisper.result import Hypothesis, TimedWord, has_words, is_mark

# Words that end nearer than this to the end of the audio may be cut off: they do not become stable, and are shown only
# if they are this probable.
CUT_OFF_SAMPLES = SAMPLE_RATE // 5
CUT_OFF_PROBABILITY = 0.95

# If no word is this probable, but "no speech" is, the text is hallucinated, from music for example. Of an unreliable
# last text, only words this probable become final.
LIKELY_PROBABILITY = 0.5

# A mark this probable ends a sentence even if nothing follows it.
SENTENCE_PROBABILITY = 0.7

# Words that begin nearer than this to the end of the audio are hallucinated: no word is that short.
INVENTED_SAMPLES = SAMPLE_RATE // 10

# A speaker may repeat words of the prompt; this many in a row are probably copied from it.
MIN_COPIED_WORDS = 5

# Time that words get beyond what is known of it, before they count as too many to be spoken.
SPARE_SAMPLES = SAMPLE_RATE // 2

# Passes in a row in which the decoder repeats itself or skips speech, after which the next window begins after the
# stable words. One is no reason: the next pass has more audio and often gets over it.
MAX_STUCK_PASSES = 2

# After this much speech in which no word is found, what begins the window is taken to be the reason: it moves on.
MAX_EMPTY_SAMPLES = 6 * SAMPLE_RATE

FORCED_MARGIN_SAMPLES = 2 * SAMPLE_RATE  # words that end so near to the end of a full window stay unstable

# In a session's first speech, text of less than this is shown only once its language is sure: it may be in any.
MIN_UNDECIDED_SAMPLES = SAMPLE_RATE

# Stable tokens with which a window moves on, however short it is: half of the decoder's context is for text.
MAX_STABLE_TOKENS = 200

# Least seconds for further attempts at the text of speech that has no words, whatever else waits.
HOLE_RETRY_S = 2.0

# Text of earlier finals for the prompt, in characters; the decoder trims it to its context.
PROMPT_CHARACTERS = 1_000


class Verdict(Enum):
    """What is to be done with a hypothesis."""

    # Its words may become stable.
    TRUST = auto()

    # Silence or a loop: no word of it becomes stable.
    DISTRUST = auto()

    # A loop, or a copy, of earlier text, which may have caused it: from now on, decode without that text.
    DROP_CONTEXT = auto()

    # Decode the window once more, with time for further attempts.
    REPEAT = auto()

    # The decoder repeated itself: decode the audio after the stable words on its own.
    RESUME = auto()


@dataclass(frozen=True, slots=True)
class StableWords:
    """Stable words, numbered from the beginning of the session; the oldest are dropped."""

    words: tuple[TimedWord, ...] = ()

    # Number of the first of them.
    first: int = 0

    @property
    def end(self) -> int:
        """Number of the next word to become stable."""
        return self.first + len(self.words)

    def between(self, start: int, end: int) -> tuple[TimedWord, ...]:
        """Return the words from one number to before another, as far as they are kept."""
        return self.words[max(0, start - self.first) : max(0, end - self.first)]

    def since(self, start: int) -> tuple[TimedWord, ...]:
        return self.between(start, self.end)


@dataclass(frozen=True, slots=True)
class Tail:
    """What the newest hypothesis says after the stable words, and how good it is."""

    words: tuple[TimedWord, ...] = ()
    n_new: int = 0  # how many of them are new: those after them are repeated, or follow on repeated ones
    continues: bool = False  # whether the first continues the last stable word: "President" has become "President's"

    language: str = ""
    no_speech_prob: float = 0.0
    avg_logprob: float = 0.0

    # Whether it passes its thresholds, whether it loops, and whether another language is spoken than it is in.
    reliable: bool = True
    loops: bool = False
    foreign: bool = False

    # Whether it was decoded without any text before it, and the next likely language of its window.
    alone: bool = False
    other_language: str = ""

    def kept(self, start: int, end: int) -> Self:
        """Return it with some of its words only."""
        words = self.words[start:end]
        n_new = min(max(0, self.n_new - start), len(words))
        return replace(self, words=words, n_new=n_new, continues=self.continues and start == 0 and bool(words))


@dataclass(slots=True)
class TranscriptState:
    """A transcript's memory: the text of an utterance, after earlier final words that its windows may begin with."""

    # Where the open segment begins, at the end of the last final or the start of speech; and its number.
    segment_start: int = 0
    segment: int = 1

    stable: StableWords = StableWords()
    tail: Tail = Tail()

    # Numbers of stable words: the first that is not final, and the first in the next window.
    n_final: int = 0
    first_word: int = 0

    # Tail of the newest hypothesis that could be trusted, unless a word became stable or final since.
    trusted: tuple[TimedWord, ...] = ()
    partners: Partners = ()  # unstable words of the last hypotheses, which newer ones may agree with, oldest first
    n_stuck: int = 0  # passes in a row without a new word although there is speech

    # Language of the utterance; empty while it is not sure. Those that were, the newest last.
    language: str = ""
    known_languages: tuple[str, ...] = ()

    # First word and beginning of the window with earlier speech that is decoded once the language is sure; None for
    # none. Until then windows have the utterance alone: earlier speech may be in another language.
    earlier: tuple[int, int] | None = None

    # The end of the text before the stable words, for prompts, and whether any text has become final.
    said: str = ""
    anything_said: bool = False

    # Number of the first word that may be in a prompt, since a loop or a hole.
    first_in_prompt: int = 0

    # Where speech without words was decoded again last, how often, and the language that was chosen for that; what
    # comes after the stable words by the hypothesis before, which counts unless the next has more words.
    hole_start: int = -1
    n_tries: int = 0
    trying: str = ""
    before: Tail | None = None

    # The newest partial, its unstable words, and the number of stable words then, which belong to its segment.
    published: Partial | None = None
    shown: tuple[str, ...] = ()
    n_published: int = 0


class SessionTranscript(TranscriptState):
    """The text of a session, of which the current utterance is still open. It sets where the next window begins."""

    def __init__(self, settings: SessionSettings, state: TranscriptState, schedule: WindowSchedule) -> None:
        super().__init__(*_values(state))
        self.settings = settings
        self.schedule = schedule

    def change(self, settings: SessionSettings) -> None:
        self.settings, self.partners = settings, ()

    @property
    def state(self) -> TranscriptState:
        return TranscriptState(*_values(self))

    def begin(self, start: int, *, reach: int = 0) -> None:
        """Begin an utterance at a position, without unfinished text.

        Its first window contains final words before `start`, as far back as `reach` samples.
        """
        words = self.stable.between(self.stable.first, self.n_final)
        self.segment_start, self.stable, self.tail = start, replace(self.stable, words=words), Tail()
        self.trusted, self.partners, self.n_stuck, self.language = (), (), 0, ""
        self.hole_start, self.n_tries, self.trying, self.before = -1, 0, "", None
        self.published, self.shown, self.n_published = None, (), self.n_final
        place: tuple[int, int] | None = None
        if reach and self.first_word < self.n_final and start - words[-1].end_samples <= MAX_SILENCE_SAMPLES:
            if self.schedule.window_start >= start - reach:
                place = self.first_word, self.schedule.window_start
            else:
                place = self._find_start(start - reach, start)
        self.first_word, position = place or (self.n_final, start)
        self.earlier = None
        self.begin_window(position)
        self._drop_before(self._first_needed)

    @property
    def undecided(self) -> bool:
        """Whether it is not sure yet which language the utterance is in: no word becomes stable."""
        return self.settings.language == "auto" and not self.language

    def begin_window(self, position: int) -> None:
        """Let the next window begin at a position; until the language is sure, with the utterance alone."""
        if self.undecided and self.first_word < self.n_final:
            self.earlier = self.first_word, down_to_frame(position)
            self.first_word, position = self.n_final, self.segment_start
        self.schedule.move_on(position)

    @property
    def _first_needed(self) -> int:
        """Number of the first word that a window may begin with."""
        return self.first_word if self.earlier is None else self.earlier[0]

    def request(self, window: Span, *, retry_s: float) -> Request | None:
        """Return how to decode a window; None if one from a later word is needed."""
        prefix = tuple(token for word in self.stable.since(window.first_word) for token in word.tokens)
        crowded = len(prefix) > MAX_STABLE_TOKENS and window.first_word < self.first_word
        if crowded or window.first_word < self.stable.first:
            return None
        conditioned = self.settings.condition_on_previous_text and not self.undecided
        automatic = self.settings.language == "auto"
        return Request(
            prefix=prefix,
            prompt=self._said_before(window.first_word) if conditioned else "",
            language=self.trying or (self.settings.language if not automatic else self.language or "auto"),
            languages=self.settings.languages,
            known_languages=self.known_languages,
            chosen=automatic and not self.trying,
            task=self.settings.task,
            n_samples=window.end - window.start,
            first=not self.anything_said,
            draft=tuple(token for word in self.tail.words for token in word.tokens),
            retry_s=max(retry_s, HOLE_RETRY_S) if self.n_tries else retry_s,
            options=self.settings.options,
        )

    def apply_hypothesis(
        self,
        window: Span,
        request: Request,
        hypothesis: Hypothesis,
        *,
        complete: bool,
        may_repeat: bool,
    ) -> Verdict:
        """Take the hypothesis of a window; return what is to be done with it.

        complete : whether it contains the rest of an utterance that has ended
        may_repeat : whether it may be decoded again if it is unreliable
        """
        # Windows on their way are newer than this one and begin no earlier.
        self._drop_before(min(window.first_word, self._first_needed, self.n_final))
        words, continues = self._align(window, request, hypothesis)
        silence = self._is_silence(hypothesis)
        if silence:
            words = []
        known = self.stable.since(window.first_word)
        repeated = find_repeated(words, known)
        goes_back = len(repeated) >= MIN_REPEATED_WORDS  # it is too early to say of a single word
        if goes_back and repeated.stop == len(words):
            del words[repeated.start :]
        went_on = goes_back and repeated.start < len(words)
        # A window that was issued before the next one was moved on may well repeat.
        foreign = request.language != "auto" and not (hypothesis.language_sure or silence)
        text = "".join(word.text for word in words)
        # The last stable word may be timed late.
        spoken_from = max([self.segment_start, *(word.start_samples for word in known[-1:])]) - SPARE_SAMPLES
        loops = (
            hypothesis.looped
            or hypothesis.compression_ratio > self.settings.compression_ratio_threshold
            or not can_be_spoken(text, window.end - spoken_from)
        )
        copies = len(words) >= MIN_COPIED_WORDS and repeats(text, request.prompt)
        improbable = bool(words) and hypothesis.avg_logprob < self.settings.logprob_threshold
        self.tail = Tail(
            tuple(words),
            n_new=repeated.start,
            continues=continues and bool(words),
            language=hypothesis.language,
            no_speech_prob=hypothesis.no_speech_prob,
            avg_logprob=hypothesis.avg_logprob,
            reliable=silence or not (loops or improbable),
            loops=loops,
            foreign=foreign,
            alone=not (request.prefix or request.prompt),
            other_language=hypothesis.other_language,
        )
        if self.before is not None and complete:
            self._choose_tail(window.end)
        self.trying = ""
        newest = window.start == self.schedule.window_start
        hole = self.first_hole(window.end)
        # At the end of a window words may still come; alone, nothing else can be tried for them.
        skips = hole is not None and not (self.tail.alone and hole.index == self.tail.n_new)
        is_stuck = skips or foreign or (goes_back and repeated.start == 0)
        self.n_stuck = self.n_stuck + 1 if is_stuck and newest else 0
        trusted = not (silence or loops or foreign)
        if trusted and words and self.undecided and hypothesis.language_sure:
            self._decide(hypothesis.language)
        if not trusted:
            self.partners = ()
        # Windows begin at mel frames: one that begins within a frame before the segment has no earlier text.
        if copies or (loops and (request.prompt or window.start < down_to_frame(self.segment_start))):
            return Verdict.DROP_CONTEXT
        if may_repeat and not self.tail.reliable:
            return Verdict.REPEAT
        if (went_on and (complete or (window.pause and trusted))) or (complete and foreign):
            return Verdict.RESUME
        return Verdict.TRUST if trusted else Verdict.DISTRUST

    @property
    def complete(self) -> bool:
        """Whether the newest hypothesis probably ends with a sentence."""
        tail = self.tail
        if not (tail.reliable and tail.words) or tail.n_new < len(tail.words):
            return False
        words = [*self.stable.words[-1:], *tail.words]
        return ends_sentence(words, len(words) - 1) and words[-1].likelihood >= SENTENCE_PROBABILITY

    @property
    def stuck(self) -> bool:
        """Whether pass after pass brings no new word although there is speech."""
        return self.n_stuck >= MAX_STUCK_PASSES

    def commit(self, window: Span) -> None:
        """Let words of the newest hypothesis, that of a window, become stable."""
        new = list(self.tail.words[: self._n_before_hole(window.end)])
        # Whisper ends the sentence at the end of the audio: marks there become stable only when a word follows.
        while new and is_mark(new[-1].text):
            new.pop()
        n_eligible = _count_while(new, lambda word: word.end_samples <= window.end - CUT_OFF_SAMPLES)
        words = [word.text for word in self.tail.words]
        n_certain = self._count_certain(new, window)
        n_stable, self.partners = agree(self.partners, words, self.settings.agreement, n_eligible, n_certain)
        self._make_stable(n_stable)
        self.trusted = self.tail.words

    def _decide(self, language: str) -> None:
        """Take an utterance to be in a language. Text in another one would lead the decoder astray."""
        if language not in self.known_languages[-1:]:
            self.drop_context()
            self.known_languages = (*(known for known in self.known_languages if known != language), language)
        self.language = language

    def reach_back(self) -> bool:
        """Let the next window begin with earlier words, in the language of the newest; return whether it did not."""
        if self.earlier is None:
            return False
        self.language = self.tail.language
        (self.first_word, self.schedule.window_start), self.earlier = self.earlier, None
        return True

    def first_hole(self, end: int) -> Hole | None:
        """Return the first speech after the stable words, up to a position, that no word covers; None for none.

        Its `index` counts the new words before it.
        """
        return next(self._holes(self.tail, end), None)

    def _holes(self, tail: Tail, end: int) -> Iterator[Hole]:
        words = self._open_words
        for hole in self.schedule.speech.holes((*words, *tail.words[: tail.n_new]), self.segment_start, end):
            if hole.index >= len(words):
                yield replace(hole, index=hole.index - len(words))

    def _n_before_hole(self, end: int) -> int:
        """Return how many new words no hole precedes: those after it wait until it is filled, or is a gap."""
        hole = self.first_hole(end)
        return self.tail.n_new if hole is None else hole.index

    def look_again(self, end: int) -> list[Event] | None:
        """Prepare to decode speech without words once more: alone, then in the next likely language.

        end : of an utterance that has ended

        Returns what to publish of the words before it; None if there is no such speech, or nothing left to try.
        """
        hole, tail = self.first_hole(end), self.tail
        if hole is None:
            return None
        if hole.start >= self.hole_start + SAMPLE_RATE:  # another one
            self.hole_start, self.n_tries = hole.start, 0
        events: list[Event] = []
        begins = hole.index == 0 and not self._open_words
        if self.n_tries == 0 and not (begins and tail.alone and tail.reliable):
            trusted = tail.reliable and not tail.foreign
            start = (
                hole.start if trusted else max([self.segment_start, *(w.end_samples for w in self._open_words[-1:])])
            )
            self._make_stable(hole.index if trusted else 0)
            if self._open_words:
                events = self._publish(self.stable.end, start)
            self.before = self.tail if trusted else None
            self.drop_context()
            self.first_word = self.stable.end
            self.schedule.move_on(start)
            self.n_tries = 1
        elif self.n_tries <= 1 and self.settings.language == "auto" and tail.other_language:
            self.trying, self.before, self.n_tries = tail.other_language, tail, 2
        else:
            return None
        return events

    def _choose_tail(self, end: int) -> None:
        """Keep the tail from before unless the newest, of the same speech, leaves less of it without words."""
        before, newest = self.before, self.tail
        assert before is not None
        missing, still_missing = (
            sum(hole.end - hole.start for hole in self._holes(tail, end)) for tail in (before, newest)
        )
        if not newest.reliable or missing <= still_missing:
            # What can be tried next depends on how the newest was decoded.
            self.tail = replace(before, alone=newest.alone, other_language=newest.other_language)
        elif self.trying:
            self.language = self.trying
        self.before = None

    def skip_hole(self, end: int) -> list[Event]:
        """Give up speech that has no words although it was decoded alone: go on with the words after it."""
        hole = self.first_hole(end)
        if hole is None or not self.tail.alone or hole.index == self.tail.n_new:
            return []
        self._make_stable(hole.index)
        events: list[Event] = (
            [self._gap(hole.end)] if not self._open_words else self._publish(self.stable.end, hole.end)
        )
        self.first_word, self.n_stuck, self.partners = self.stable.end, 0, ()
        self.schedule.move_on(hole.end)
        return events

    def resume_after_stable(self, end: int) -> list[Event]:
        """Let new words become stable, and the next window begin after them, without known words to be repeated.

        end : end of speech in the newest window

        Returns a final of the stable words that were open, if any.
        """
        hole = self.first_hole(end)
        if self.tail.foreign:
            self.language = ""
        else:
            self._make_stable(self._n_before_hole(end))
        if hole is not None:  # what was said before may be the reason
            self.said, self.first_in_prompt = "", self.stable.end
        # The end of a repeated word is uncertain; the decoder attended as far as this for it.
        reached = [max(word.end_samples, word.attended_samples) for word in self.stable.words[-1:]]
        position = min(max([self.segment_start, *reached]), end)
        self.tail, self.n_stuck = self.tail.kept(0, 0), 0
        self.partners, self.earlier = (), None
        events = self._publish(self.stable.end, position) if self._open_words else []
        self.first_word = self.stable.end
        self.schedule.move_on(position)
        return events

    def drop_context(self) -> None:
        """Let the next window begin with the open segment, and without a prompt of what was said until now."""
        self._drop_before(self.n_final)
        self.said, self.first_word, self.earlier = "", max(self.first_word, self.n_final), None
        self.first_in_prompt = self.stable.end
        self.schedule.move_on(self.segment_start)

    def cut(self, window: Span, pauses: Sequence[int]) -> list[Event]:
        """Make whole sentences before a pause final, and the beginning of long speech; nothing if it is not time yet.

        pauses : positions of silences in the current speech
        """
        place = self._find_cut(window.end - self.segment_start, pauses)
        if place is None:
            return []
        n_final, position = place
        return self._publish(n_final, min(max(position, self.segment_start), window.end))

    def move_on(self, window: Span) -> None:
        """Let the next window begin with a later word if it would be too long, or have too many words or none at all.

        If the model has no room for it, all words become stable except the last ones.
        """
        empty = self.tail.alone and not (self._open_words or self.tail.words)
        if empty and self.schedule.speech.between(self.schedule.window_start, window.end) >= MAX_EMPTY_SAMPLES:
            self.schedule.move_on(window.end - FORCED_MARGIN_SAMPLES)
            return
        crowded = sum(len(word.tokens) for word in self.stable.since(self.first_word)) > MAX_STABLE_TOKENS
        if not crowded and not self.schedule.too_long(window.end):
            return
        earliest = window.end - self.schedule.reach
        if crowded:
            earliest = max(earliest, (self.schedule.window_start + window.end) // 2)
        place = self._find_start(earliest, (earliest + window.end) // 2) or self._find_start(earliest, window.end)
        if place is None and self.schedule.is_full(window.end):
            limit = window.end - FORCED_MARGIN_SAMPLES
            new = self.tail.words[: self._n_before_hole(window.end)]
            self._make_stable(_count_while(new, lambda word: word.end_samples <= limit))
            self.partners = ()
            behind = self.tail.words[0].start_samples if self.tail.words else limit
            ends = [word.end_samples for word in self.stable.words[-1:]]
            place = self._find_start(earliest, window.end) or (self.stable.end, max([min(behind, limit), *ends]))
        if place is not None:
            (self.first_word, position), self.earlier = place, None
            self.schedule.move_on(position)

    def partial(self, window: Span, *, trusted: bool) -> Partial | None:
        """Return the text of the open segment; None if it has not changed."""
        previous = self.published
        n_shown = min(self.tail.n_new, self._count_shown(window, trusted=trusted))
        while n_shown and is_mark(self.tail.words[n_shown - 1].text):
            n_shown -= 1
        self.n_published = self.stable.end
        shown = self.tail.words[:n_shown]
        words, n_stable = self._spoken(self._open_words + shown, len(self._open_words))
        if previous is None and not words:
            return None
        partial = Partial(
            segment=self.segment,
            start=seconds(self.segment_start),
            end=seconds(window.end),
            text="".join(word.text for word in words).lstrip(),
            # Without a space at its end: a final that ends there ends without it.
            stable=len("".join(word.text for word in words[:n_stable]).strip()),
            words=event_words(words, n_stable, self.segment_start, window.end),
        )
        self.shown = tuple(word.text for word in shown)
        if previous is not None and (previous.text, previous.stable) == (partial.text, partial.stable):
            return None
        self.published = partial
        return partial

    def close(self, end: int) -> list[Event]:
        """Make the newest hypothesis final up to a position, as far as it can be relied on."""
        if not self.tail.reliable:
            self.tail = self._likely_tail()
        self._make_stable(len(self.tail.words))
        events = self._publish(self.stable.end, end)
        last = events[-1]
        if not (isinstance(last, Final) and last.text and self.tail.reliable):
            self.first_word = self.stable.end  # no context for what follows
        return events

    def abandon(self, end: int) -> list[Event]:
        """Make known words final, up to a position after which speech is lost; nothing if nothing was decoded."""
        self._make_stable(self.tail.n_new)
        self.first_word = self.stable.end  # no window reaches back over the gap
        decoded = self._open_words or end > self.segment_start or self.published is not None
        return self._publish(self.stable.end, end) if decoded else []

    def clear(self) -> None:
        """Forget what is not final. If a partial showed the segment, its number is not used again."""
        if self.published is not None:
            self.segment += 1
            self.published = None

    def _align(self, window: Span, request: Request, hypothesis: Hypothesis) -> tuple[list[TimedWord], bool]:
        """Update the places of the stable words; return the words after them and whether the first continues one."""
        stable = list(self.stable.words)
        # Indices of the stable words that begin at a token of the prefix.
        indices: dict[int, int] = {}
        n_prefix = 0
        for i in range(window.first_word - self.stable.first, len(stable)):
            indices[n_prefix] = i
            n_prefix += len(stable[i].tokens)
        assert n_prefix == len(request.prefix), "another window was applied since the request"
        words: list[TimedWord] = []
        continues = False
        n_tokens = 0
        for timed in hypothesis.words:
            word = placed(timed, window)
            begin, n_tokens = n_tokens, n_tokens + len(word.tokens)
            if begin >= n_prefix:
                words.append(word)
                continue
            if n_tokens > n_prefix:
                # What is spelt behind the prefix; where words are split otherwise, the word may begin anywhere in it.
                rest, own = _behind(stable, word.text), word.tokens[n_prefix - begin :]
                goes_on = not rest[:1].isspace()
                if rest.strip() and not (goes_on and self.n_final == self.stable.end):  # a final word stays as it is
                    continues, start = goes_on, word.end_samples
                    log_prob = word.log_prob * len(own) / len(word.tokens)
                    words.append(replace(word, text=rest, tokens=own, start_samples=start, log_prob=log_prob))
                continue
            i = indices.get(begin, -1)
            if i >= max(0, self.n_final - self.stable.first) and stable[i].tokens == word.tokens:
                stable[i] = replace(word, attended_samples=stable[i].attended_samples)
        self.stable = replace(self.stable, words=tuple(stable))
        while words and words[-1].start_samples > window.end - INVENTED_SAMPLES:
            words.pop()
        return words, continues

    def _is_silence(self, hypothesis: Hypothesis) -> bool:
        """Return whether there was no speech: by openai-whisper's rule, or because no word is likely either."""
        if hypothesis.is_silence(self.settings.no_speech_threshold, self.settings.logprob_threshold):
            return True
        return hypothesis.no_speech_prob > self.settings.no_speech_threshold and all(
            word.likelihood < LIKELY_PROBABILITY for word in hypothesis.words
        )

    def _likely_tail(self) -> Tail:
        """Return the part of an unreliable tail that may become final.

        For a loop, that is the last tail that could be trusted; else the words before the first improbable one.
        """
        if self.tail.loops:
            return replace(self.tail, words=self.trusted, n_new=len(self.trusted), continues=False)
        return self.tail.kept(0, _count_while(self.tail.words, lambda word: word.likelihood >= LIKELY_PROBABILITY))

    def _count_certain(self, words: Sequence[TimedWord], window: Span) -> int:
        """Count the first words that become stable whatever earlier hypotheses said."""
        margin = 0 if window.pause else round(self.settings.attention_margin_s * SAMPLE_RATE)
        return _count_while(
            words,
            lambda word: (
                self.settings.policy == "alignatt"
                and max(word.attended_samples, word.end_samples) <= window.end - margin
                and word.likelihood >= self.settings.commit_probability
            ),
        )

    def _count_shown(self, window: Span, *, trusted: bool) -> int:
        """Count the first unstable words to show: those that will probably stay, and those that are on screen."""
        if self.undecided and not self.known_languages and window.end - window.start < MIN_UNDECIDED_SAMPLES:
            return 0
        if not self.settings.show_probability:
            return len(self.tail.words)
        seen = iter(self.shown[self.stable.end - self.n_published :])
        limit = window.end if window.pause else window.end - CUT_OFF_SAMPLES

        def shown(word: TimedWord) -> bool:
            least = self.settings.show_probability if word.end_samples <= limit else CUT_OFF_PROBABILITY
            return next(seen, None) == word.text or (trusted and word.likelihood >= least)

        return _count_while(self.tail.words, shown)

    def _find_start(self, earliest: int, latest: int) -> tuple[int, int] | None:
        """Look for a stable word for a window to begin with, between two positions.

        Returns its number and a position before it: at the beginning of a sentence, or else after the widest gap.
        """
        words, places = self.stable.words, []
        for i in range(max(1, self.first_word - self.stable.first), len(words)):
            end, start = pause_before(words, i)
            position = (end + start) // 2
            if earliest <= position <= latest and not is_mark(words[i].text):
                places.append((ends_sentence(words, i - 1), start - end, self.stable.first + i, position))
        return max(places)[2:] if places else None

    def _find_cut(self, length: int, pauses: Sequence[int]) -> tuple[int, int] | None:
        """Look for a cut after a stable word; the longer the segment, the less does it take.

        length : of the segment, in samples

        Returns the number of the first word after the cut and its position; None for not yet.
        """
        trim_after = round(self.settings.trim_after_s * SAMPLE_RATE)
        words = self._open_words
        # Published stable words belong to this segment. The decoder might still continue the last stable word.
        candidates = [
            i
            for i in range(max(0, self.n_published - self.n_final - 1), len(words) - 1)
            if not is_mark(words[i + 1].text)
        ]
        gaps = {i: pause_before(words, i + 1) for i in candidates}

        def pauses_after(i: int) -> bool:
            # Word times are good to some tenths of a second, and no word ends within a silence.
            return any(words[i].start_samples - SAMPLE_RATE < pause < words[i + 1].end_samples for pause in pauses)

        sentences = [
            i for i in candidates if ends_sentence(words, i) and (length >= trim_after // 2 or pauses_after(i))
        ]
        clauses = [i for i in candidates if length >= trim_after * 3 // 4 and words[i].text.endswith(CLAUSE_ENDS)]
        if sentences or clauses:
            i = (sentences or clauses)[-1]
        elif candidates and length >= trim_after:
            i = max(candidates, key=lambda i: (gaps[i][1] - gaps[i][0], i))
        elif words and length >= trim_after * 3 // 2:
            # Words have stopped becoming stable.
            behind = self.tail.words[0].start_samples if self.tail.words else words[-1].end_samples
            return self.stable.end, (words[-1].end_samples + behind) // 2
        else:
            return None
        return self.n_final + i + 1, sum(gaps[i]) // 2

    def _drop_before(self, number: int) -> None:
        """Keep the text of the words before a number only: no window begins with them any more."""
        self.said = self._said_before(number)
        self.stable = StableWords(self.stable.since(number), max(self.stable.first, number))

    def _said_before(self, number: int) -> str:
        """Return the text before a word for a prompt."""
        words = self.stable.between(max(self.stable.first, self.first_in_prompt), number)
        return (self.said + "".join(word.text for word in words))[-PROMPT_CHARACTERS:]

    def _publish(self, n_final: int, end: int) -> list[Event]:
        """Make all stable words before a number final, up to a position.

        Speech without words is a gap, before, between or after finals; it cannot be between words of a stable prefix.
        """
        events: list[Event] = []
        first = self.n_final
        for hole in self.schedule.speech.holes(self.stable.between(first, n_final), self.segment_start, end):
            if (number := first + hole.index) < self.n_published:
                continue
            is_last = number == n_final
            if number > self.n_final or (is_last and self.published is not None):
                events.append(self._final(number, hole.start))
            events.append(self._gap(end if is_last else hole.end))
        if self.segment_start < end or self.n_final < n_final or not events:
            events.append(self._final(n_final, end))
        return events

    def _gap(self, end: int) -> Gap:
        """Give up speech without words, up to a position at which the segment begins then."""
        gap = Gap(start=seconds(self.segment_start), end=seconds(end), reason="unclear")
        self.segment_start = end
        return gap

    def _final(self, n_final: int, end: int) -> Final:
        """Make all stable words before a number final, as a segment that ends at a position."""
        if self.tail.continues and n_final == self.stable.end:
            # It continues a word that becomes final: too late.
            self.tail = self.tail.kept(1, len(self.tail.words))
        stable = self.stable.between(self.n_final, n_final)
        words, _ = self._spoken(stable, len(stable))
        said = "".join(word.text for word in words)
        self.anything_said |= bool(said)
        final = Final(
            segment=self.segment,
            start=seconds(self.segment_start),
            end=seconds(end),
            text=said.strip(),
            words=event_words(words, len(words), self.segment_start, end),
            language=self.language or self.tail.language or self.settings.language,
            no_speech_prob=round(self.tail.no_speech_prob, 4),
            avg_logprob=round(min(0.0, mean_log_prob(words) if words else self.tail.avg_logprob), 4),
        )
        self.segment += 1
        self.published, self.shown, self.trusted = None, (), ()
        self.n_final = self.n_published = n_final
        self.segment_start = end
        return final

    def _spoken(self, words: Sequence[TimedWord], n_stable: int) -> tuple[Sequence[TimedWord], int]:
        """Return the words of the open segment to show, and how many of them are stable.

        Punctuation of the segment before is left out, and so are bare punctuation and notes, unless a partial has
        shown some of them as stable.
        """
        shown = self.published
        n_marks = _count_while(words, lambda word: is_mark(word.text))
        spoken = words[n_marks:]
        if not (shown and shown.stable) and not has_words("".join(word.text for word in spoken)):
            return (), 0
        return spoken, max(0, n_stable - n_marks)

    @property
    def _open_words(self) -> tuple[TimedWord, ...]:
        """The stable words that are not final."""
        return self.stable.since(self.n_final)

    def _make_stable(self, n_words: int) -> None:
        """Let the first words of the tail become stable."""
        if not (new := self.tail.words[:n_words]):
            return
        known = self.stable.words
        if self.tail.continues:
            # The decoder takes them for one word: no final may end within it.
            *begin, begun = known
            rest, *others = new
            whole = replace(
                rest,
                text=begun.text + rest.text,
                tokens=begun.tokens + rest.tokens,
                start_samples=begun.start_samples,
                log_prob=begun.log_prob + rest.log_prob,
            )
            known, new = tuple(begin), (whole, *others)
        self.stable = replace(self.stable, words=known + new)
        self.tail = self.tail.kept(n_words, len(self.tail.words))
        self.trusted = ()


def _count_while(words: Sequence[TimedWord], condition: Callable[[TimedWord], bool]) -> int:
    """Count the first words that meet a condition."""
    return sum(1 for _ in itertools.takewhile(condition, words))


def _behind(words: Sequence[TimedWord], text: str) -> str:
    """Return what of a text is behind the end of words that overlaps its beginning; empty if they do not overlap."""
    said = "".join(word.text for word in words[-len(text) :])
    overlaps = (n for n in range(len(text), 0, -1) if said.endswith(text[:n]))
    return text[next(overlaps, len(text)) :]


def _values(state: TranscriptState) -> Iterator[Any]:
    return (getattr(state, field.name) for field in fields(TranscriptState))
