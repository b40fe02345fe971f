"""The text of the speech that is being transcribed: what is settled, what is not, and where it is cut into finals.

Sans-I/O. It is told hypotheses and answers with partials and finals; which windows are decoded, and when, is no concern
of its own.

Words settle when the decoder is sure of them or successive hypotheses agree. The decoder is made to begin each
hypothesis with the settled words of its window, so that what has been said to be stable stays. Long speech is cut
behind a settled word; after a cut the window keeps the last few words of the final as *anchor*: the decoder is given
them too, and goes on behind them, so that nothing is lost or doubled at the join.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import msgspec

from streamer.audio.constants import N_SAMPLES, SAMPLE_RATE
from streamer.events import Final, Partial, seconds
from streamer.stream.agreement import LocalAgreement
from streamer.stream.settings import SessionSettings
from streamer.stream.window import Request, Window
from streamer.stream.words import (
    CLAUSE_ENDS,
    MIN_REREAD_WORDS,
    SENTENCE_ENDS,
    between,
    event_words,
    find_reread,
    mean_log_prob,
    placed,
)
from streamer.whisper.result import Hypothesis, TimedWord, has_words

# Words that end nearer than this to the end of the audio may be cut off: they do not settle.
CUT_OFF_SAMPLES = SAMPLE_RATE // 5

# Unless they are this probable they are not shown either.
CUT_OFF_PROBABILITY = 0.95

# Where no word of a text is this probable and "no speech" is, nobody spoke: music makes for such words. And of a text
# that fails its thresholds to the end only words this probable become final.
LIKELY_PROBABILITY = 0.5

# Words that begin nearer than this to the end of the audio were not heard: nobody says a word in a tenth of a second.
# The decoder makes them up when it writes on past the end, and takes them back in the next pass.
INVENTED_SAMPLES = SAMPLE_RATE // 10

# Passes in a row that bring no new word before the decoder reads again, until the next window begins behind that. What
# the first reads again the second, which hears more, often does not.
MAX_REREADING_PASSES = 2

N_ANCHOR_WORDS = 3  # of the last final that a window keeps after a cut: enough for the decoder to find its place

# Settled words that a window keeps which moves on within a segment: these may have been settled in haste.
N_KEPT_WORDS = 3
MAX_KEPT_WORDS = 6

MAX_ANCHOR_SAMPLES = 5 * SAMPLE_RATE  # further back, an anchor is no use: there was a pause, or a word was misplaced
MAX_ANCHOR_TOKENS = 50  # more are a loop, or text without spaces: they would leave little room for what follows
ANCHOR_MARGIN_SAMPLES = SAMPLE_RATE // 10  # audio kept before an anchor's first word, as good as word times are

MAX_WINDOW_SAMPLES = N_SAMPLES - 2 * SAMPLE_RATE  # is cut even where nothing was settled: it cannot grow beyond 30 s
FORCED_CUT_MARGIN_SAMPLES = 2 * SAMPLE_RATE  # words that end so near to the end of such a window stay unsettled

# Settled tokens with which a window is cut, however short: half of the decoder's context is for a text.
MAX_SETTLED_TOKENS = 200

# Text of earlier finals that goes into the prompt, in characters; the decoder trims it to what its context allows.
PROMPT_CHARACTERS = 1_000

# A language is sure where it is likelier than all others together; one that is not is asked for again.
SURE_LANGUAGE_PROBABILITY = 0.5


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a segment ends, and with which window what follows it is heard."""

    final: Final | None  # None where nothing was said since the last
    window_start: int  # where the next window begins: at the anchor, or at the cut


@dataclass(slots=True)
class Text:
    """The text of a stretch of speech."""

    # Where the segment that is open begins: where the last final ended, or speech began.
    segment_start: int

    # Settled words, numbered from `n_forgotten` on; the first `n_final` (counted from the beginning) are final.
    words: list[TimedWord] = field(default_factory=list)
    n_forgotten: int = 0
    n_final: int = 0

    # Number of the first settled word that lies in the next window.
    first_word: int = 0

    # Unsettled words of the newest hypothesis.
    tail: list[TimedWord] = field(default_factory=list)

    # How many of these, from the first on, are new: those behind them the decoder read again, or went on from there.
    n_new: int = 0

    # Whether it read again, and how many passes in a row brought no new word before that.
    rereads: bool = False
    n_rereading: int = 0

    # Whether the tail begins in the middle of a word, whose beginning is the last settled word.
    tail_writes_on: bool = False

    # Language of what is said, empty while nothing is settled and detection is not sure; that of the newest hypothesis.
    language: str = ""
    newest_language: str = ""

    # What else the newest hypothesis said, and whether it passes its thresholds.
    no_speech_prob: float = 0.0
    avg_logprob: float = 0.0
    reliable: bool = True
    loops: bool = False

    # The tail of the newest hypothesis that could be trusted, and of how many settled and final words it was the tail.
    trusted_tail: tuple[TimedWord, ...] = ()
    trusted_at: tuple[int, int] = (0, 0)

    # The newest partial, so that the same is not said twice, and how many words had settled by then: the segment
    # that it belongs to cannot end before them.
    partial: Partial | None = None
    n_told_stable: int = 0

    @property
    def n_settled(self) -> int:
        return self.n_forgotten + len(self.words)

    def settled_from(self, number: int) -> list[TimedWord]:
        """Return the settled words from a number on."""
        return self.words[max(0, number - self.n_forgotten) :]

    def anchor_start(self, first: int, end: int, position: int) -> int | None:
        """Return where a window begins that keeps settled words from a number to another, which ends at a position.

        None where they are no use: far-away words would keep the window from moving on, endless ones the decoder.
        """
        anchor = self.settled_from(first)[: max(0, end - first)]
        begin = anchor[0].start_samples - ANCHOR_MARGIN_SAMPLES if anchor else position
        n_tokens = sum(len(word.tokens) for word in anchor)
        return None if position - begin > MAX_ANCHOR_SAMPLES or n_tokens > MAX_ANCHOR_TOKENS else begin

    def settle(self, n_words: int) -> None:
        """Settle the first words of the tail."""
        settled = self.tail[:n_words]
        del self.tail[:n_words]
        self.n_new = max(0, self.n_new - n_words)
        if settled and self.tail_writes_on:
            # One word for the decoder is one word here, so that no final ends within a word.
            begun, rest = self.words.pop(), settled[0]
            settled[0] = replace(
                rest,
                text=begun.text + rest.text,
                tokens=begun.tokens + rest.tokens,
                start_samples=begun.start_samples,
                log_prob=begun.log_prob + rest.log_prob,
            )
            self.tail_writes_on = False
        self.words += settled


class TranscriptState(msgspec.Struct, frozen=True, array_like=True):
    """A transcript's memory, to go on with elsewhere."""

    segment: int
    known_language: str
    said: str
    anything_said: bool
    text: Text
    partners: tuple[tuple[str, ...], ...]


class Transcript:
    """What has been said in a session, of which the newest stretch of speech is still open."""

    def __init__(self, settings: SessionSettings) -> None:
        # Number of the segment that is open.
        self.segment = 1
        # Language that was spoken last, as far as it is known for sure.
        self.known_language = ""
        # The end of the text that is final, as far as the decoder may see it.
        self._said = ""
        # Whether any text has become final.
        self._anything_said = False
        self.change(settings)
        self.begin(0)

    def change(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._margin = round(settings.attention_margin_s * SAMPLE_RATE)
        self._trim_after = round(settings.trim_after_s * SAMPLE_RATE)
        self._agreement = LocalAgreement(settings.n_agreeing)

    @property
    def state(self) -> TranscriptState:
        known, partners = self._text, self._agreement.partners
        n_new = min(known.n_new, len(known.tail))  # of a text that is final, more may be left over
        text = replace(known, words=list(known.words), tail=list(known.tail), n_new=n_new)
        return TranscriptState(self.segment, self.known_language, self._said, self._anything_said, text, partners)

    @classmethod
    def restored(cls, settings: SessionSettings, state: TranscriptState) -> Self:
        transcript = cls(settings)
        transcript.segment, transcript.known_language = state.segment, state.known_language
        transcript._said, transcript._anything_said = state.said, state.anything_said
        transcript._text = replace(state.text, words=list(state.text.words), tail=list(state.text.tail))
        transcript._agreement.remember(state.partners)
        return transcript

    def begin(self, start: int) -> None:
        """Go on with speech that begins at a position; what was not final of the last is forgotten."""
        self._text = Text(start)
        self._agreement.reset()

    @property
    def segment_start(self) -> int:
        return self._text.segment_start

    @property
    def first_word(self) -> int:
        """Number of the first settled word that lies in the next window."""
        return self._text.first_word

    @property
    def language(self) -> str:
        """Language code of what is being said, or what is set; `auto` while it is not known."""
        return self._settings.language if self._settings.language != "auto" else self._text.language or "auto"

    def request(self, window: Window, *, retry_s: float) -> Request | None:
        """Return how to decode a window; None where it begins before words that no decoder has room for."""
        text = self._text
        words = text.settled_from(window.first_word)
        prefix = tuple(token for word in words for token in word.tokens)
        if len(prefix) > MAX_SETTLED_TOKENS and window.first_word < text.first_word:
            return None
        n_anchor = max(0, text.n_final - window.first_word)
        anchor = sum(len(word.text) for word in words[:n_anchor])
        said = self._said[: max(0, len(self._said) - anchor)]
        # Words of the open segment that the window has left behind.
        left = text.settled_from(text.n_final)[: max(0, window.first_word - text.n_final)]
        said = (said + "".join(word.text for word in left))[-PROMPT_CHARACTERS:]
        return Request(
            prefix=prefix,
            prompt=said if self._settings.condition_on_previous_text else "",
            language=self.language,
            languages=self._settings.languages,
            known_language=self.known_language,
            task=self._settings.task,
            n_samples=window.end - window.start,
            first=not self._anything_said,
            draft=tuple(token for word in text.tail for token in word.tokens),
            retry_s=retry_s,
            options=self._settings.options,
        )

    def apply_hypothesis(self, window: Window, request: Request, hypothesis: Hypothesis, *, newest: bool) -> bool:
        """Place the settled words anew, and keep what the hypothesis says behind them; return whether to trust it.

        newest : whether the window begins where the next one would

        A hypothesis that loops, compresses too well or looks like silence is no partner for agreement.
        """
        text = self._text
        text.no_speech_prob = hypothesis.no_speech_prob
        text.avg_logprob = hypothesis.avg_logprob
        self._note_language(request, hypothesis)
        self._measure(window, request, hypothesis)
        self._find_new(window)
        # A window that was on its way when a newer one was made to begin further on may well read again.
        text.n_rereading = text.n_rereading + 1 if text.rereads and not text.n_new and newest else 0
        silence = self._is_silence(hypothesis)
        text.loops = hypothesis.looped or hypothesis.compression_ratio > self._settings.compression_ratio_threshold
        improbable = bool(text.tail) and hypothesis.avg_logprob < self._settings.logprob_threshold
        text.reliable = silence or not (text.loops or improbable)
        if silence or text.loops:
            self._agreement.reset()
        return not (silence or text.loops)

    @property
    def reliable(self) -> bool:
        return self._text.reliable

    @property
    def loops(self) -> bool:
        return self._text.loops

    def settle(self, window: Window) -> None:
        """Settle what the newest hypothesis, that of a window, has said for sure, or as those before it."""
        text = self._text
        new = text.tail[: text.n_new]
        limit = window.end - CUT_OFF_SAMPLES
        n_eligible = next((i for i, word in enumerate(new) if word.end_samples > limit), len(new))
        words = [word.text for word in text.tail]
        text.settle(self._agreement.update(words, n_eligible, self._count_certain(new, window)))
        text.trusted_tail, text.trusted_at = tuple(text.tail), (text.n_settled, text.n_final)
        if text.words and not text.language:
            text.language = text.newest_language

    @property
    def went_on_behind_reread(self) -> bool:
        """Whether the decoder read something again and then went on."""
        return self._text.rereads and self._text.n_new < len(self._text.tail)

    @property
    def stuck(self) -> bool:
        """Whether the decoder reads the same again with each pass."""
        return self._text.n_rereading >= MAX_REREADING_PASSES

    def begin_behind_settled(self, window: Window, end: int) -> Cut:
        """Settle what is new; let the next window begin behind that, without an anchor: it cannot be read again.

        end : of the window's speech. Settled words that are open become final.
        """
        text = self._text
        text.settle(text.n_new)
        # A word that is read twice is placed too early or too late; it was heard as far as the decoder looked for it.
        heard = [max(word.end_samples, word.attended_samples) for word in text.words[-1:]]
        position = min(max([text.segment_start, *heard]), end)
        text.tail, text.tail_writes_on, text.rereads, text.n_rereading = [], False, False, 0
        self._agreement.reset()
        final = self._cut(window, text.n_settled, position).final if text.n_settled > text.n_final else None
        text.first_word = text.n_settled
        return Cut(final, position)

    def forget_prompt(self) -> None:
        self._said = ""

    def cut(self, window: Window, window_start: int, cost: int) -> Cut | None:
        """Make the beginning of long speech final; None where it is not time yet.

        window_start : where the next window would begin
        cost : of the last pass, in samples: where passes cost much, a window is full that could not hold what is said
            until the next
        """
        text = self._text
        length = window.end - window_start
        full = length >= MAX_WINDOW_SAMPLES or (length >= self._trim_after and length + cost >= MAX_WINDOW_SAMPLES)
        n_tokens = sum(len(word.tokens) for word in text.settled_from(text.first_word))
        place = self._find_cut(length, full=full, crowded=n_tokens > MAX_SETTLED_TOKENS)
        # Unless much is cut off, a full window would not move on.
        middle = window_start + length // 2
        if full and (place is None or place[1] < middle):
            place = self._force_cut(window, middle)
        if place is None:
            return None
        n_final, position = place
        position = min(max(position, text.segment_start), window.end)
        return self._cut(window, n_final, position)

    def move_on(self) -> int | None:
        """Let the next window keep the last few settled words alone; return where it begins, None for where it does."""
        text = self._text
        words, first = text.words, text.first_word - text.n_forgotten
        places = range(max(first + 1, len(words) - MAX_KEPT_WORDS), len(words) - N_KEPT_WORDS + 1)
        if not places:
            return None
        # At the widest gap: a window that begins within speech is harder to read.
        first = text.n_forgotten + max(places, key=lambda i: (words[i].start_samples - words[i - 1].end_samples, i))
        start = text.anchor_start(first, text.n_settled, text.words[-1].end_samples)
        if start is not None:
            text.first_word = first
        return start

    def partial(self, window: Window, *, trusted: bool) -> Partial | None:
        """Return what the open segment reads; None where that is nothing new."""
        text = self._text
        settled = text.settled_from(text.n_final)
        previous = text.partial
        text.n_told_stable = text.n_settled
        words = self._spoken(settled + text.tail[: min(text.n_new, self._count_shown(window, len(settled), trusted))])
        if previous is None and not words:
            return None
        partial = Partial(
            segment=self.segment,
            start=seconds(text.segment_start),
            end=seconds(window.end),
            text="".join(word.text for word in words).lstrip(),
            # Without a space at its end: a final that ends there ends without it.
            stable=len("".join(word.text for word in words[: len(settled)]).strip()),
            words=event_words(words, len(settled), text.segment_start, window.end),
        )
        if previous is not None and (previous.text, previous.stable) == (partial.text, partial.stable):
            return None
        text.partial = partial
        return partial

    def close(self, end: int) -> Final:
        """Make final all that the newest hypothesis says, as far as it can be relied on, up to a position."""
        text = self._text
        if not text.reliable:
            self._keep_likely()
        return self._final(text.settled_from(text.n_final) + text.tail, end)

    def abandon(self, end: int) -> Final | None:
        """Make final what is known of speech of which the rest is lost, from a position on; None where nothing is."""
        text = self._text
        words = text.settled_from(text.n_final) + text.tail[: text.n_new]
        return self._final(words, end) if words or end > text.segment_start else None

    def clear(self) -> None:
        """Forget what is not final. Its segment's number is not used again, since some of it may have been shown."""
        if self._text.partial is not None:
            self.segment += 1
            self._text.partial = None

    def successor(self) -> "Transcript":
        """Return a transcript of what follows, where what is not final of this one is given up."""
        self.clear()
        self.begin(0)
        return self

    def _keep_likely(self) -> None:
        """Of a text that becomes final though it fails its thresholds, keep what can be relied on.

        A loop is nobody's words: what was said last that could be trusted stays. Of an improbable text, the words up to
        the first that is.
        """
        text = self._text
        if text.loops:
            known = text.trusted_at == (text.n_settled, text.n_final)
            text.tail, text.tail_writes_on = list(text.trusted_tail) if known else [], False
            text.n_new, text.rereads = len(text.tail), False
            return
        n_likely = next((i for i, word in enumerate(text.tail) if word.likelihood < LIKELY_PROBABILITY), len(text.tail))
        del text.tail[n_likely:]

    def _note_language(self, request: Request, hypothesis: Hypothesis) -> None:
        text = self._text
        text.newest_language = hypothesis.language
        if request.language == "auto" and hypothesis.language_probability >= SURE_LANGUAGE_PROBABILITY:
            text.language = self.known_language = hypothesis.language

    def _measure(self, window: Window, request: Request, hypothesis: Hypothesis) -> None:
        text = self._text
        first, first_open = window.first_word - text.n_forgotten, text.n_final - text.n_forgotten
        # For each token of the prefix, the index of the settled word that it belongs to.
        owners = [i for i in range(first, len(text.words)) for _ in text.words[i].tokens]
        tokens = tuple(token for word in hypothesis.words for token in word.tokens)
        assert len(owners) == len(request.prefix), "another window was taken since the request"
        assert tokens[: len(owners)] == request.prefix, "the decoder left the prefix that it was given"
        text.tail, text.tail_writes_on = [], False
        position = 0  # tokens of the hypothesis that were looked at
        for timed in hypothesis.words:
            word = placed(timed, window)
            owned = owners[position : position + len(word.tokens)]
            position += len(word.tokens)
            if not owned:
                text.tail.append(word)
                continue
            if owned[-1] < first_open:
                continue  # final: it stays as it is, and what is written on at it has come too late
            known = "".join(text.words[i].text for i in range(owned[0], owned[-1] + 1))
            settled = text.words[owned[0]]
            text.words[owned[0]] = replace(
                settled,
                start_samples=word.start_samples,
                end_samples=word.end_samples,
                probability=word.probability,
                log_prob=word.log_prob * len(settled.tokens) / len(word.tokens),
            )
            if len(owned) < len(word.tokens) and word.text.startswith(known):
                # The decoder wrote on at the last word: "President" has become "President's".
                rest, n_rest = word.text[len(known) :], len(word.tokens) - len(owned)
                log_prob = word.log_prob * n_rest / len(word.tokens)
                own = word.tokens[-n_rest:]
                text.tail.append(
                    replace(word, text=rest, tokens=own, start_samples=word.end_samples, log_prob=log_prob)
                )
                text.tail_writes_on = True
        while text.tail and text.tail[-1].start_samples > window.end - INVENTED_SAMPLES:
            text.tail.pop()
        if self._is_silence(hypothesis):
            text.tail = []
        text.tail_writes_on = text.tail_writes_on and bool(text.tail)

    def _find_new(self, window: Window) -> None:
        """Tell new words of the tail from those that the decoder read again, which do not settle, and at its end go."""
        text = self._text
        # What the settled words were heard by counts from when they settled.
        reach = text.words[-1].attended_samples if text.words and window.first_word < text.n_settled else 0
        stretch = find_reread(text.tail, reach)
        text.n_new = stretch.start
        # Of one word it is not known before the next comes.
        text.rereads = len(stretch) >= MIN_REREAD_WORDS
        if text.rereads and stretch.stop == len(text.tail):
            del text.tail[text.n_new :]
            text.tail_writes_on = text.tail_writes_on and bool(text.tail)

    def _is_silence(self, hypothesis: Hypothesis) -> bool:
        """Say whether nobody spoke: by openai-whisper's rule, or where none of the words is likely either."""
        if hypothesis.is_silence(self._settings.no_speech_threshold, self._settings.logprob_threshold):
            return True
        return hypothesis.no_speech_prob > self._settings.no_speech_threshold and all(
            word.likelihood < LIKELY_PROBABILITY for word in hypothesis.words
        )

    def _count_certain(self, words: Sequence[TimedWord], window: Window) -> int:
        """Count the first words that settle at once, whatever was said before."""
        if self._settings.policy != "alignatt":
            return 0
        limit = window.end if window.pause else window.end - self._margin
        for i, word in enumerate(words):
            if (
                max(word.attended_samples, word.end_samples) > limit
                or word.likelihood < self._settings.commit_probability
            ):
                return i
        return len(words)

    def _find_cut(self, length: int, *, full: bool, crowded: bool) -> tuple[int, int] | None:
        """Look for a cut behind a settled word, the less particular the longer the window is.

        length : of the window, in samples
        full : whether it cannot grow
        crowded : whether it holds as many words as the decoder can be given

        Returns after which settled word (its number) and at which position to cut, None for not yet.
        """
        text, trim_after = self._text, self._trim_after
        open_words = text.settled_from(text.n_final)
        # Stable words that were told belong to this segment. The decoder might still write on at the last settled one.
        candidates = range(max(0, text.n_told_stable - text.n_final - 1), len(open_words) - 1)
        if crowded and candidates:
            i = candidates[-1]
            return text.n_final + i + 1, between(open_words[i], open_words[i + 1])
        for ends, from_samples in ((SENTENCE_ENDS, trim_after // 2), (CLAUSE_ENDS, trim_after * 3 // 4)):
            for i in reversed(candidates):
                if length >= from_samples and open_words[i].text.endswith(ends):
                    return text.n_final + i + 1, between(open_words[i], open_words[i + 1])
        if candidates and (full or length >= trim_after):
            i = max(candidates, key=lambda i: (open_words[i + 1].start_samples - open_words[i].end_samples, i))
            return text.n_final + i + 1, between(open_words[i], open_words[i + 1])
        if open_words and (full or crowded or length >= trim_after * 3 // 2):
            # Nothing settles any more. A shorter window is easier to agree on.
            last = open_words[-1]
            return text.n_settled, between(last, text.tail[0]) if text.tail else last.end_samples
        return None

    def _force_cut(self, window: Window, middle: int) -> tuple[int, int]:
        """Settle what the newest hypothesis says, all but its end, and cut behind it, beyond `middle`."""
        text = self._text
        limit = window.end - FORCED_CUT_MARGIN_SAMPLES
        text.settle(next((i for i, word in enumerate(text.tail[: text.n_new]) if word.end_samples > limit), text.n_new))
        self._agreement.reset()
        if text.n_settled > text.n_final and text.words[-1].end_samples >= middle:
            return text.n_settled, text.words[-1].end_samples
        # Nothing was heard for long.
        following = text.tail[0].start_samples if text.tail else limit
        return text.n_settled, max(middle, min(following, limit))

    def _cut(self, window: Window, n_final: int, position: int) -> Cut:
        """Make everything before a settled word final, and let the next window begin at the anchor."""
        text = self._text
        if text.tail_writes_on and n_final == text.n_settled:
            # The beginning of its first word becomes final: what was written on has come too late.
            del text.tail[0]
            text.tail_writes_on = False
        final = self._final(text.words[text.n_final - text.n_forgotten : n_final - text.n_forgotten], position)
        text.n_final = text.n_told_stable = n_final
        text.segment_start = position
        text.first_word = max(text.first_word, n_final - N_ANCHOR_WORDS)
        begin = text.anchor_start(text.first_word, n_final, position)
        if begin is None:
            text.first_word, begin = n_final, position
        # Windows on their way are newer than this one and begin no earlier.
        n_old = min(window.first_word, n_final) - text.n_forgotten
        del text.words[:n_old]
        text.n_forgotten += n_old
        return Cut(final, min(begin, position))

    def _spoken(self, words: list[TimedWord]) -> list[TimedWord]:
        """Return the words of the open segment; none if they are bare punctuation or notes, and none is stable yet."""
        shown = self._text.partial
        return words if (shown and shown.stable) or has_words("".join(word.text for word in words)) else []

    def _final(self, words: list[TimedWord], end: int) -> Final:
        text, words = self._text, self._spoken(words)
        said = "".join(word.text for word in words)
        self._said = (self._said + said)[-PROMPT_CHARACTERS:]
        self._anything_said |= bool(said)
        final = Final(
            segment=self.segment,
            start=seconds(text.segment_start),
            end=seconds(end),
            text=said.strip(),
            words=event_words(words, len(words), text.segment_start, end),
            language=text.language or text.newest_language or self.language,
            no_speech_prob=round(text.no_speech_prob, 4),
            avg_logprob=round(min(0.0, mean_log_prob(words) if words else text.avg_logprob), 4),
        )
        self.segment += 1
        text.partial = None
        return final

    def _count_shown(self, window: Window, n_settled: int, trusted: bool) -> int:
        """Count the unsettled words that will probably stay: the last are guessed; what is on screen stays there."""
        text = self._text
        if not self._settings.show_probability:
            return len(text.tail)
        seen = text.partial.words[n_settled:] if text.partial is not None else ()
        limit = window.end if window.pause else window.end - CUT_OFF_SAMPLES
        for i, word in enumerate(text.tail):
            least = self._settings.show_probability if word.end_samples <= limit else CUT_OFF_PROBABILITY
            likely = trusted and word.likelihood >= least
            if not likely and not (i < len(seen) and seen[i].word == word.text):
                return i
        return len(text.tail)
