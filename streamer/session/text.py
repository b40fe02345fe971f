"""The text of a session, as values: stable words, what the newest hypothesis says after them, and what was shown.

Words become stable when the policy takes them for sure. Every hypothesis is made to begin with the stable words of its
window, so that text published as stable stays. Long speech becomes final after a stable word. The window does not move
with that: it keeps earlier audio and its words while it has room, also over pauses, since the decoder transcribes new
audio better after them.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Self

import msgspec
from msgspec.structs import replace

from streamer.constants import SAMPLE_RATE
from streamer.events import Partial
from streamer.session.coverage import DetectedSpeech, Hole
from streamer.session.policy import Earlier, count_while
from streamer.session.settings import SessionSettings
from streamer.session.task import Request, Span, down_to_frame
from streamer.session.words import CLAUSE_ENDS, StableWords, ends_sentence, pause_before
from streamer.whisper.result import TimedWord, has_words, is_mark

# A mark this probable ends a sentence even if nothing follows it.
SENTENCE_PROBABILITY = 0.7

# Of an unreliable last text, only words this probable become final.
LIKELY_PROBABILITY = 0.5

# Passes in a row in which the decoder repeats itself or skips speech, after which the next window begins after the
# stable words. One is no reason: the next pass has more audio and often gets over it.
MAX_STUCK_PASSES = 2

# Stable tokens with which a window moves on, however short it is: half of the decoder's context is for text.
MAX_STABLE_TOKENS = 200

# Least seconds for further attempts at the text of speech that has no words, whatever else waits.
HOLE_RETRY_S = 2.0

# Text of earlier finals for the prompt, in characters; the decoder trims it to its context.
PROMPT_CHARACTERS = 1_000


class Tail(msgspec.Struct, frozen=True, array_like=True):
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
        continues = self.continues and start == 0 and bool(words)
        return replace(self, words=words, n_new=n_new, continues=continues)

    def likely(self, trusted: tuple[TimedWord, ...]) -> Self:
        """Return the part of an unreliable tail that may become final.

        For a loop, that is the last tail that could be trusted; else the words before the first improbable one.
        """
        if self.loops:
            return replace(self, words=trusted, n_new=len(trusted), continues=False)
        return self.kept(0, count_while(self.words, lambda word: word.likelihood >= LIKELY_PROBABILITY))


class Beginning(msgspec.Struct, frozen=True, array_like=True):
    """Where a window begins."""

    word: int = 0  # number of its first stable word
    position: int = 0  # a mel frame


class Said(msgspec.Struct, frozen=True, array_like=True):
    """What was said before the stable words, for prompts."""

    text: str = ""  # its end
    anything: bool = False  # whether any text has become final
    first_word: int = 0  # number of the first word that may be in a prompt, since a loop or a hole


class Search(msgspec.Struct, frozen=True, array_like=True):
    """Speech without words, which is decoded again: alone, then in the next likely language."""

    start: int = -1  # of that speech
    n_tries: int = 0
    language: str = ""  # that was chosen for it

    # What came after the stable words by the hypothesis before; it counts unless the next has more words.
    before: Tail | None = None

    def place_of(self, hole: Hole) -> int:
        """Return where the speech of a hole begins: where it did, unless it is another one."""
        return hole.start if self.is_other(hole) else self.start

    def is_other(self, hole: Hole) -> bool:
        """Return whether a hole is other speech than what was decoded again."""
        return hole.start >= self.start + SAMPLE_RATE


class Shown(msgspec.Struct, frozen=True, array_like=True):
    """The newest partial, its unstable words, and the number of stable words then, which belong to its segment."""

    partial: Partial | None = None
    words: tuple[str, ...] = ()
    n_stable: int = 0


class Text(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The text of an utterance, after earlier final words that its windows may begin with."""

    # The open segment: its number, and where it begins, at the end of the last final or the start of speech.
    segment: int = 1
    start: int = 0

    stable: StableWords = StableWords()
    tail: Tail = Tail()

    # Tail of the newest hypothesis that could be trusted, unless a word became stable or final since.
    trusted: tuple[TimedWord, ...] = ()
    hypotheses: Earlier = ()  # unstable words of the last hypotheses, oldest first, for the policy
    n_stuck: int = 0  # passes in a row without a new word although there is speech

    # Language of the utterance; empty while it is not sure. Those that were, the newest last.
    language: str = ""
    known_languages: tuple[str, ...] = ()

    # Where the next window begins; with earlier speech once the language is sure (None: it has it). Until then windows
    # have the utterance alone: earlier speech may be in another language.
    begins: Beginning = Beginning()
    earlier: Beginning | None = None

    said: Said = Said()
    search: Search = Search()
    shown: Shown = Shown()

    @property
    def first_needed(self) -> int:
        """Number of the first word that a window may begin with."""
        return (self.earlier or self.begins).word

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

    def window_from(self, word: int, position: int) -> Self:
        """Let the next window begin with a word, at a position, unless it begins later already."""
        position = max(self.begins.position, down_to_frame(position))
        return replace(self, begins=Beginning(word, position))

    def dropped_before(self, number: int) -> Self:
        """Keep the text of the words before a number only: no window begins with them any more."""
        stable = replace(self.stable, words=self.stable.since(number), first=max(self.stable.first, number))
        said = replace(self.said, text=self.said_before(number))
        return replace(self, stable=stable, said=said)

    def without_context(self) -> Self:
        """Let the next window begin with the open segment, and without a prompt of what was said until now."""
        text = self.dropped_before(self.stable.n_final)
        said = replace(text.said, text="", first_word=text.stable.end)
        text = replace(text, said=said, earlier=None)
        return text.window_from(max(text.begins.word, text.stable.n_final), text.start)

    def with_earlier(self) -> Self:
        """Let the next window begin with earlier words, in the language of the newest hypothesis."""
        assert self.earlier is not None, "earlier speech is kept"
        return replace(self, begins=self.earlier, earlier=None, language=self.tail.language)

    def without_earlier(self, settings: SessionSettings) -> Self:
        """Until the language is sure, let windows have the utterance alone."""
        if not self.undecided(settings) or self.begins.word >= self.stable.n_final:
            return self
        alone = self.window_from(self.stable.n_final, self.start)
        return replace(alone, earlier=self.begins)

    def with_stable(self, n_words: int) -> Self:
        """Let the first words of the tail become stable."""
        if not (new := self.tail.words[:n_words]):
            return self
        known = self.stable.words
        if self.tail.continues:
            # The decoder takes them for one word: no final may end within it.
            *begin, begun = known
            rest, *others = new
            whole = dataclasses.replace(
                rest,
                text=begun.text + rest.text,
                tokens=begun.tokens + rest.tokens,
                start_samples=begun.start_samples,
                log_prob=begun.log_prob + rest.log_prob,
            )
            known, new = tuple(begin), (whole, *others)
        stable = replace(self.stable, words=known + new)
        tail = self.tail.kept(n_words, len(self.tail.words))
        return replace(self, stable=stable, tail=tail, trusted=())

    def cleared(self) -> Self:
        """Forget what is not final. If a partial showed the segment, its number is not used again."""
        if self.shown.partial is None:
            return self
        shown = replace(self.shown, partial=None)
        return replace(self, segment=self.segment + 1, shown=shown)

    def undecided(self, settings: SessionSettings) -> bool:
        """Return whether it is not sure yet which language the utterance is in: no word becomes stable."""
        return settings.language == "auto" and not self.language

    def request(self, span: Span, settings: SessionSettings, *, retry_s: float) -> Request | None:
        """Return how to decode a span; None if one from a later word is needed."""
        prefix = tuple(token for word in self.stable.since(span.first_word) for token in word.tokens)
        crowded = len(prefix) > MAX_STABLE_TOKENS and span.first_word < self.begins.word
        if crowded or span.first_word < self.stable.first:
            return None
        conditioned = settings.condition_on_previous_text and not self.undecided(settings)
        automatic = settings.language == "auto"
        return Request(
            prefix=prefix,
            prompt=self.said_before(span.first_word) if conditioned else "",
            language=self.search.language or (settings.language if not automatic else self.language or "auto"),
            languages=settings.languages,
            known_languages=self.known_languages,
            chosen=automatic and not self.search.language,
            task=settings.task,
            n_samples=span.end - span.start,
            first=not self.said.anything,
            draft=tuple(token for word in self.tail.words for token in word.tokens),
            retry_s=max(retry_s, HOLE_RETRY_S) if self.search.n_tries else retry_s,
            options=settings.options,
        )

    def said_before(self, number: int) -> str:
        """Return the text before a word, for a prompt."""
        words = self.stable.between(max(self.stable.first, self.said.first_word), number)
        return (self.said.text + "".join(word.text for word in words))[-PROMPT_CHARACTERS:]

    def holes(self, detected: DetectedSpeech, end: int, tail: Tail | None = None) -> Iterator[Hole]:
        """Yield speech after the stable words, up to a position, that no word covers: `index` counts new words."""
        words, tail = self.stable.open, tail or self.tail
        for hole in detected.holes((*words, *tail.words[: tail.n_new]), self.start, end):
            if hole.index >= len(words):
                yield Hole(hole.index - len(words), hole.start, hole.end)

    def find_start(self, earliest: int, latest: int) -> tuple[int, int] | None:
        """Look for a stable word for a window to begin with, between two positions.

        Returns its number and a position before it: at the beginning of a sentence, or else after the widest gap.
        """
        words, places = self.stable.words, []
        for i in range(max(1, self.begins.word - self.stable.first), len(words)):
            end, start = pause_before(words, i)
            position = (end + start) // 2
            if earliest <= position <= latest and not is_mark(words[i].text):
                places.append((ends_sentence(words, i - 1), start - end, self.stable.first + i, position))
        return max(places)[2:] if places else None

    def find_cut(self, length: int, trim_after: int, pauses: Sequence[int]) -> tuple[int, int] | None:
        """Look for a cut after a stable word; the longer the segment, the less does it take.

        length : of the segment, in samples
        trim_after : length from which on it is long

        Returns the number of the first word after the cut and its position; None for not yet.
        """
        words, n_final = self.stable.open, self.stable.n_final
        # Published stable words belong to this segment. The decoder might still continue the last stable word.
        first = max(0, self.shown.n_stable - n_final - 1)
        candidates = [i for i in range(first, len(words) - 1) if not is_mark(words[i + 1].text)]
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
        return n_final + i + 1, sum(gaps[i]) // 2

    def spoken(self, words: Sequence[TimedWord], n_stable: int) -> tuple[Sequence[TimedWord], int]:
        """Return the words of the open segment to show, and how many of them are stable.

        Punctuation of the segment before is left out, and so are bare punctuation and notes, unless a partial has
        shown some of them as stable.
        """
        partial = self.shown.partial
        n_marks = count_while(words, lambda word: is_mark(word.text))
        spoken = words[n_marks:]
        if not (partial and partial.stable) and not has_words("".join(word.text for word in spoken)):
            return (), 0
        return spoken, max(0, n_stable - n_marks)
