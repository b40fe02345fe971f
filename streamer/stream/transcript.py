"""The text of an utterance: which words are stable, and where it is cut into finals. Sans-I/O.

It takes hypotheses and returns partials and finals; which windows are decoded, and when, is decided elsewhere.

Words become stable when the decoder is sure of them or successive hypotheses agree. Every hypothesis is made to begin
with the stable words of its window, so that text published as stable stays. Long speech becomes final after a stable
word. The window does not move with that: it keeps earlier audio and its words while it has room, also over pauses,
since the decoder transcribes new audio better after them.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Self

from streamer.audio.constants import SAMPLE_RATE
from streamer.events import Final, Partial, seconds
from streamer.stream.agreement import Partners, agree
from streamer.stream.settings import SessionSettings
from streamer.stream.window import MAX_SILENCE_SAMPLES, Request, Window
from streamer.stream.words import (
    CLAUSE_ENDS,
    MIN_REPEATED_WORDS,
    ends_sentence,
    event_words,
    find_repeated,
    mean_log_prob,
    pause_before,
    placed,
)
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

# After this much speech without a new word the decoder is taken to skip it, led by wrong stable words.
MAX_SKIPPED_SAMPLES = 3 * SAMPLE_RATE

# Passes in a row without a new word, as the decoder repeats itself or skips speech, after which the next window begins
# after the stable words. One is no reason: the next pass has more audio and often gets over it.
MAX_STUCK_PASSES = 2

FORCED_MARGIN_SAMPLES = 2 * SAMPLE_RATE  # words that end so near to the end of a full window stay unstable

# Stable tokens with which a window moves on, however short it is: half of the decoder's context is for text.
MAX_STABLE_TOKENS = 200

# Text of earlier finals for the prompt, in characters; the decoder trims it to its context.
PROMPT_CHARACTERS = 1_000

# A language is sure if it is likelier than all others together; otherwise it is detected again.
SURE_LANGUAGE_PROBABILITY = 0.5


class Verdict(Enum):
    """What is to be done with a hypothesis."""

    # Its words may become stable.
    TRUST = auto()

    # Silence or a loop: no word of it becomes stable.
    DISTRUST = auto()

    # A loop after earlier text, which may have caused it: from now on, decode without that text.
    DROP_CONTEXT = auto()

    # Decode the window once more, with time for further attempts.
    REPEAT = auto()

    # The decoder repeated itself, or skipped speech: decode the audio after the stable words on its own.
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

    # How many of them are new: those after them are repeated, or follow on repeated ones.
    n_new: int = 0

    # Whether the first continues the last stable word: "President" has become "President's".
    continues: bool = False

    language: str = ""
    no_speech_prob: float = 0.0
    avg_logprob: float = 0.0

    # Whether it passes its thresholds, and whether it loops.
    reliable: bool = True
    loops: bool = False

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

    # Unstable words of the last hypotheses, which newer ones may agree with, oldest first.
    partners: Partners = ()

    # Passes in a row without a new word although there is speech.
    n_stuck: int = 0

    # Language of the utterance; empty while no word is stable and detection is not sure. The last that was sure.
    language: str = ""
    known_language: str = ""

    # The end of the text before the stable words, for prompts, and whether any text has become final.
    said: str = ""
    anything_said: bool = False

    # The newest partial, its unstable words, and the number of stable words then, which belong to its segment.
    partial: Partial | None = None
    shown: tuple[str, ...] = ()
    n_published: int = 0

    @property
    def open_words(self) -> tuple[TimedWord, ...]:
        """The stable words that are not final."""
        return self.stable.since(self.n_final)

    def make_stable(self, n_words: int) -> None:
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


class Transcript:
    """The text of a session, of which the current utterance is still open."""

    def __init__(self, settings: SessionSettings, state: TranscriptState | None = None) -> None:
        self._settings = settings
        self._text = TranscriptState() if state is None else replace(state)

    def change(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._text.partners = ()

    @property
    def state(self) -> TranscriptState:
        return replace(self._text)

    def begin(self, start: int, *, window_start: int = 0, reach: int = 0) -> int:
        """Begin an utterance at a position, without unfinished text; return where its first window begins.

        The window contains final words before `start`, as far back as `reach` samples.

        window_start : where the next window would have begun
        """
        old = self._text
        words = old.stable.between(old.stable.first, old.n_final)
        text = self._text = TranscriptState(
            start,
            old.segment,
            stable=replace(old.stable, words=words),
            n_final=old.n_final,
            n_published=old.n_final,
            first_word=old.first_word,
            known_language=old.known_language,
            said=old.said,
            anything_said=old.anything_said,
        )
        place: tuple[int, int] | None = None
        if reach and text.first_word < text.n_final and start - words[-1].end_samples <= MAX_SILENCE_SAMPLES:
            if window_start >= start - reach:
                place = text.first_word, window_start
            else:
                place = self._find_start(start - reach, start)
        text.first_word, position = place or (text.n_final, start)
        self._drop_before(text.first_word)
        return position

    @property
    def segment_start(self) -> int:
        return self._text.segment_start

    @property
    def first_word(self) -> int:
        """Number of the first stable word in the next window."""
        return self._text.first_word

    @property
    def language(self) -> str:
        """Language code that is set, or that of the utterance; `auto` while it is not known."""
        return self._settings.language if self._settings.language != "auto" else self._text.language or "auto"

    def request(self, window: Window, *, retry_s: float) -> Request | None:
        """Return how to decode a window; None if one from a later word is needed."""
        text = self._text
        prefix = tuple(token for word in text.stable.since(window.first_word) for token in word.tokens)
        crowded = len(prefix) > MAX_STABLE_TOKENS and window.first_word < text.first_word
        if crowded or window.first_word < text.stable.first:
            return None
        return Request(
            prefix=prefix,
            prompt=self._said_before(window.first_word) if self._settings.condition_on_previous_text else "",
            language=self.language,
            languages=self._settings.languages,
            known_language=text.known_language,
            task=self._settings.task,
            n_samples=window.end - window.start,
            first=not text.anything_said,
            draft=tuple(token for word in text.tail.words for token in word.tokens),
            retry_s=retry_s,
            options=self._settings.options,
        )

    def apply_hypothesis(
        self,
        window: Window,
        request: Request,
        hypothesis: Hypothesis,
        *,
        newest: bool,
        complete: bool,
        may_repeat: bool,
    ) -> Verdict:
        """Take the hypothesis of a window; return what is to be done with it.

        newest : whether the window begins where the next one would
        complete : whether it contains the rest of an utterance that has ended
        may_repeat : whether it may be decoded again if it is unreliable
        """
        text, settings = self._text, self._settings
        # Windows on their way are newer than this one and begin no earlier.
        self._drop_before(min(window.first_word, text.n_final))
        if request.language == "auto" and hypothesis.language_probability >= SURE_LANGUAGE_PROBABILITY:
            text.language = text.known_language = hypothesis.language

        words, continues = self._align(window, request, hypothesis)
        silence = self._is_silence(hypothesis)
        if silence:
            words = []
        last = text.stable.words[-1] if window.first_word < text.stable.end else None
        repeated = find_repeated(words, last.attended_samples if last else 0)
        repeats = len(repeated) >= MIN_REPEATED_WORDS  # it is too early to say of a single word
        if repeats and repeated.stop == len(words):
            del words[repeated.start :]
        went_on = repeats and repeated.start < len(words)
        silent = all(is_mark(word.text) for word in words)
        skips = last is not None and silent and window.end - last.end_samples >= MAX_SKIPPED_SAMPLES
        # A window that was issued before the next one was moved on may well repeat.
        is_stuck = skips or (repeats and repeated.start == 0)
        text.n_stuck = text.n_stuck + 1 if is_stuck and newest else 0

        loops = hypothesis.looped or hypothesis.compression_ratio > settings.compression_ratio_threshold
        improbable = bool(words) and hypothesis.avg_logprob < settings.logprob_threshold
        text.tail = Tail(
            tuple(words),
            n_new=repeated.start,
            continues=continues and bool(words),
            language=hypothesis.language,
            no_speech_prob=hypothesis.no_speech_prob,
            avg_logprob=hypothesis.avg_logprob,
            reliable=silence or not (loops or improbable),
            loops=loops,
        )
        trusted = not (silence or loops)
        if not trusted:
            text.partners = ()
        if loops and (request.prompt or window.start < text.segment_start):
            return Verdict.DROP_CONTEXT
        if may_repeat and not text.tail.reliable:
            return Verdict.REPEAT
        if (went_on and (complete or (window.pause and trusted))) or (complete and skips):
            return Verdict.RESUME
        return Verdict.TRUST if trusted else Verdict.DISTRUST

    @property
    def reliable(self) -> bool:
        """Whether the newest hypothesis passes its thresholds."""
        return self._text.tail.reliable

    @property
    def complete(self) -> bool:
        """Whether the newest hypothesis probably ends with a sentence."""
        text, tail = self._text, self._text.tail
        if not (tail.reliable and tail.words) or tail.n_new < len(tail.words):
            return False
        words = [*text.stable.words[-1:], *tail.words]
        return ends_sentence(words, len(words) - 1) and words[-1].likelihood >= SENTENCE_PROBABILITY

    @property
    def stuck(self) -> bool:
        """Whether pass after pass brings no new word although there is speech."""
        return self._text.n_stuck >= MAX_STUCK_PASSES

    @property
    def crowded(self) -> bool:
        """Whether the next window has as many words as the decoder can be given."""
        text = self._text
        return sum(len(word.tokens) for word in text.stable.since(text.first_word)) > MAX_STABLE_TOKENS

    def settle(self, window: Window) -> None:
        """Let words of the newest hypothesis, that of a window, become stable."""
        text = self._text
        new = list(text.tail.words[: text.tail.n_new])
        # Whisper ends the sentence at the end of the audio: marks there become stable only when a word follows.
        while new and is_mark(new[-1].text):
            new.pop()
        n_eligible = _count_while(new, lambda word: word.end_samples <= window.end - CUT_OFF_SAMPLES)
        words = [word.text for word in text.tail.words]
        n_certain = self._count_certain(new, window)
        n_stable, text.partners = agree(text.partners, words, self._settings.n_agreeing, n_eligible, n_certain)
        text.make_stable(n_stable)
        text.trusted = text.tail.words
        if text.stable.words and not text.language:
            text.language = text.tail.language

    def resume_after_stable(self, end: int) -> tuple[Final | None, int]:
        """Let new words become stable, and the next window begin after them, without known words to be repeated.

        end : end of speech in the newest window

        Returns a final of the stable words that were open, if any, and where the next window begins.
        """
        text = self._text
        text.make_stable(text.tail.n_new)
        # The end of a repeated word is uncertain; the decoder attended as far as this for it.
        reached = [max(word.end_samples, word.attended_samples) for word in text.stable.words[-1:]]
        position = min(max([text.segment_start, *reached]), end)
        text.tail, text.n_stuck = text.tail.kept(0, 0), 0
        text.partners = ()
        final = self._publish(text.stable.end, position) if text.open_words else None
        text.first_word = text.stable.end
        return final, position

    def drop_context(self) -> int:
        """Let the next window begin with the open segment, without earlier text; return where."""
        text = self._text
        self._drop_before(text.n_final)
        text.said, text.first_word = "", max(text.first_word, text.n_final)
        return text.segment_start

    def cut(self, window: Window, pauses: Sequence[int]) -> Final | None:
        """Make whole sentences before a pause final, and the beginning of long speech; None if it is not time yet.

        pauses : positions of silences in the current speech
        """
        text = self._text
        place = self._find_cut(window.end - text.segment_start, pauses)
        if place is None:
            return None
        n_final, position = place
        return self._publish(n_final, min(max(position, text.segment_start), window.end))

    def move_on(self, window: Window, earliest: int, *, full: bool) -> int | None:
        """Let the next window begin with a later word, at `earliest` or after; return where, None if it cannot.

        full : whether it must: then all words become stable except the last ones
        """
        text = self._text
        place = self._find_start(earliest, (earliest + window.end) // 2) or self._find_start(earliest, window.end)
        if place is None and full:
            limit = window.end - FORCED_MARGIN_SAMPLES
            new = text.tail.words[: text.tail.n_new]
            text.make_stable(_count_while(new, lambda word: word.end_samples <= limit))
            text.partners = ()
            behind = text.tail.words[0].start_samples if text.tail.words else limit
            ends = [word.end_samples for word in text.stable.words[-1:]]
            place = self._find_start(earliest, window.end) or (text.stable.end, max([min(behind, limit), *ends]))
        if place is None:
            return None
        text.first_word, position = place
        return position

    def partial(self, window: Window, *, trusted: bool) -> Partial | None:
        """Return the text of the open segment; None if it has not changed."""
        text = self._text
        previous = text.partial
        n_shown = min(text.tail.n_new, self._count_shown(window, trusted=trusted))
        while n_shown and is_mark(text.tail.words[n_shown - 1].text):
            n_shown -= 1
        text.n_published = text.stable.end
        shown = text.tail.words[:n_shown]
        words, n_stable = self._spoken(text.open_words + shown, len(text.open_words))
        if previous is None and not words:
            return None
        partial = Partial(
            segment=text.segment,
            start=seconds(text.segment_start),
            end=seconds(window.end),
            text="".join(word.text for word in words).lstrip(),
            # Without a space at its end: a final that ends there ends without it.
            stable=len("".join(word.text for word in words[:n_stable]).strip()),
            words=event_words(words, n_stable, text.segment_start, window.end),
        )
        text.shown = tuple(word.text for word in shown)
        if previous is not None and (previous.text, previous.stable) == (partial.text, partial.stable):
            return None
        text.partial = partial
        return partial

    def close(self, end: int) -> Final:
        """Make the newest hypothesis final up to a position, as far as it can be relied on."""
        text = self._text
        if not text.tail.reliable:
            text.tail = self._likely_tail()
        text.make_stable(len(text.tail.words))
        final = self._publish(text.stable.end, end)
        if not (final.text and text.tail.reliable):
            text.first_word = text.stable.end  # no context for what follows
        return final

    def abandon(self, end: int) -> Final | None:
        """Make known words final, up to a position from which on speech is lost; None if there are none."""
        text = self._text
        text.make_stable(text.tail.n_new)
        text.first_word = text.stable.end  # no window reaches back over the gap
        return self._publish(text.stable.end, end) if text.open_words or end > text.segment_start else None

    def clear(self) -> None:
        """Forget what is not final. If a partial showed the segment, its number is not used again."""
        if self._text.partial is not None:
            self._text.segment += 1
            self._text.partial = None

    def successor(self) -> "Transcript":
        """Return a transcript to continue with, without text that is not final."""
        self.clear()
        self.begin(0)
        return self

    def _align(self, window: Window, request: Request, hypothesis: Hypothesis) -> tuple[list[TimedWord], bool]:
        """Update the places of the stable words; return the words after them and whether the first continues one."""
        text = self._text
        stable = list(text.stable.words)
        # Indices of the stable words that begin at a token of the prefix.
        indices: dict[int, int] = {}
        n_prefix = 0
        for i in range(window.first_word - text.stable.first, len(stable)):
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
            i = indices.get(begin, -1)
            if i < max(0, text.n_final - text.stable.first):
                continue  # a final word stays as it is
            if stable[i].tokens == word.tokens:
                stable[i] = replace(word, attended_samples=stable[i].attended_samples)
            elif n_tokens > n_prefix and word.text.startswith(stable[i].text):
                rest, own = word.text[len(stable[i].text) :], word.tokens[n_prefix - begin :]
                log_prob = word.log_prob * len(own) / len(word.tokens)
                words.append(replace(word, text=rest, tokens=own, start_samples=word.end_samples, log_prob=log_prob))
                continues = True
        text.stable = replace(text.stable, words=tuple(stable))
        while words and words[-1].start_samples > window.end - INVENTED_SAMPLES:
            words.pop()
        return words, continues

    def _is_silence(self, hypothesis: Hypothesis) -> bool:
        """Return whether there was no speech: by openai-whisper's rule, or because no word is likely either."""
        if hypothesis.is_silence(self._settings.no_speech_threshold, self._settings.logprob_threshold):
            return True
        return hypothesis.no_speech_prob > self._settings.no_speech_threshold and all(
            word.likelihood < LIKELY_PROBABILITY for word in hypothesis.words
        )

    def _likely_tail(self) -> Tail:
        """Return the part of an unreliable tail that may become final.

        For a loop, that is the last tail that could be trusted; else the words before the first improbable one.
        """
        text = self._text
        if text.tail.loops:
            return replace(text.tail, words=text.trusted, n_new=len(text.trusted), continues=False)
        return text.tail.kept(0, _count_while(text.tail.words, lambda word: word.likelihood >= LIKELY_PROBABILITY))

    def _count_certain(self, words: Sequence[TimedWord], window: Window) -> int:
        """Count the first words that become stable whatever earlier hypotheses said."""
        settings = self._settings
        margin = 0 if window.pause else round(settings.attention_margin_s * SAMPLE_RATE)
        return _count_while(
            words,
            lambda word: (
                settings.policy == "alignatt"
                and max(word.attended_samples, word.end_samples) <= window.end - margin
                and word.likelihood >= settings.commit_probability
            ),
        )

    def _count_shown(self, window: Window, *, trusted: bool) -> int:
        """Count the first unstable words to show: those that will probably stay, and those that are on screen."""
        text, show_probability = self._text, self._settings.show_probability
        if not show_probability:
            return len(text.tail.words)
        seen = iter(text.shown[text.stable.end - text.n_published :])
        limit = window.end if window.pause else window.end - CUT_OFF_SAMPLES

        def shown(word: TimedWord) -> bool:
            least = show_probability if word.end_samples <= limit else CUT_OFF_PROBABILITY
            return next(seen, None) == word.text or (trusted and word.likelihood >= least)

        return _count_while(text.tail.words, shown)

    def _find_start(self, earliest: int, latest: int) -> tuple[int, int] | None:
        """Look for a stable word for a window to begin with, between two positions.

        Returns its number and a position before it: at the beginning of a sentence, or else after the widest gap.
        """
        text = self._text
        words, places = text.stable.words, []
        for i in range(max(1, text.first_word - text.stable.first), len(words)):
            end, start = pause_before(words, i)
            position = (end + start) // 2
            if earliest <= position <= latest and not is_mark(words[i].text):
                places.append((ends_sentence(words, i - 1), start - end, text.stable.first + i, position))
        return max(places)[2:] if places else None

    def _find_cut(self, length: int, pauses: Sequence[int]) -> tuple[int, int] | None:
        """Look for a cut after a stable word; the longer the segment, the less does it take.

        length : of the segment, in samples

        Returns the number of the first word after the cut and its position; None for not yet.
        """
        text, trim_after = self._text, round(self._settings.trim_after_s * SAMPLE_RATE)
        words = text.open_words
        # Published stable words belong to this segment. The decoder might still continue the last stable word.
        candidates = [
            i
            for i in range(max(0, text.n_published - text.n_final - 1), len(words) - 1)
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
            # No more words become stable.
            behind = text.tail.words[0].start_samples if text.tail.words else words[-1].end_samples
            return text.stable.end, (words[-1].end_samples + behind) // 2
        else:
            return None
        return text.n_final + i + 1, sum(gaps[i]) // 2

    def _drop_before(self, number: int) -> None:
        """Keep the text of the words before a number only: no window begins with them any more."""
        text = self._text
        text.said = self._said_before(number)
        text.stable = StableWords(text.stable.since(number), max(text.stable.first, number))

    def _said_before(self, number: int) -> str:
        """Return the text before a word for a prompt."""
        text = self._text
        words = text.stable.between(text.stable.first, number)
        return (text.said + "".join(word.text for word in words))[-PROMPT_CHARACTERS:]

    def _publish(self, n_final: int, end: int) -> Final:
        """Make all stable words before a number final, as a segment that ends at a position."""
        text = self._text
        if text.tail.continues and n_final == text.stable.end:
            # It continues a word that becomes final: too late.
            text.tail = text.tail.kept(1, len(text.tail.words))
        stable = text.stable.between(text.n_final, n_final)
        words, _ = self._spoken(stable, len(stable))
        said = "".join(word.text for word in words)
        text.anything_said |= bool(said)
        final = Final(
            segment=text.segment,
            start=seconds(text.segment_start),
            end=seconds(end),
            text=said.strip(),
            words=event_words(words, len(words), text.segment_start, end),
            language=text.language or text.tail.language or self.language,
            no_speech_prob=round(text.tail.no_speech_prob, 4),
            avg_logprob=round(min(0.0, mean_log_prob(words) if words else text.tail.avg_logprob), 4),
        )
        text.segment += 1
        text.partial, text.shown, text.trusted = None, (), ()
        text.n_final = text.n_published = n_final
        text.segment_start = end
        return final

    def _spoken(self, words: Sequence[TimedWord], n_stable: int) -> tuple[Sequence[TimedWord], int]:
        """Return the words of the open segment to show, and how many of them are stable.

        Punctuation of the segment before is left out, and so are bare punctuation and notes, unless a partial has
        shown some of them as stable.
        """
        shown = self._text.partial
        n_marks = _count_while(words, lambda word: is_mark(word.text))
        spoken = words[n_marks:]
        if not (shown and shown.stable) and not has_words("".join(word.text for word in spoken)):
            return (), 0
        return spoken, max(0, n_stable - n_marks)


def _count_while(words: Sequence[TimedWord], condition: Callable[[TimedWord], bool]) -> int:
    """Count the first words that meet a condition."""
    return sum(1 for _ in itertools.takewhile(condition, words))
