"""The text of the speech that is being transcribed: what is settled, what is not, and where it is cut into finals.

Sans-I/O. It is told hypotheses and answers with partials and finals; which windows are decoded, and when, is no concern
of its own.

Words settle when the decoder is sure of them or successive hypotheses agree. The decoder is made to begin each
hypothesis with the settled words of its window, so that what has been said to be stable stays. Long speech is made
final behind a settled word. Finals do not move the window: it keeps their sound and their words for as long as it has
room, and over pauses, since the decoder reads what comes next better behind what came before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import msgspec

from streamer.audio.constants import SAMPLE_RATE
from streamer.events import Final, Partial, seconds
from streamer.stream.agreement import LocalAgreement
from streamer.stream.settings import SessionSettings
from streamer.stream.window import MAX_SILENCE_SAMPLES, Request, Window
from streamer.stream.words import (
    CLAUSE_ENDS,
    MIN_REREAD_WORDS,
    ends_sentence,
    event_words,
    find_reread,
    mean_log_prob,
    pause_before,
    placed,
)
from streamer.whisper.result import Hypothesis, TimedWord, has_words, is_mark

# Words that end nearer than this to the end of the audio may be cut off: they do not settle.
CUT_OFF_SAMPLES = SAMPLE_RATE // 5

# Unless they are this probable they are not shown either.
CUT_OFF_PROBABILITY = 0.95

# Where no word of a text is this probable and "no speech" is, nobody spoke: music makes for such words. And of a text
# that fails its thresholds to the end only words this probable become final.
LIKELY_PROBABILITY = 0.5

# A mark this probable ends a sentence even if nothing follows it.
SENTENCE_PROBABILITY = 0.7

# Words that begin nearer than this to the end of the audio were not heard: nobody says a word in a tenth of a second.
# The decoder makes them up when it writes on past the end, and takes them back in the next pass.
INVENTED_SAMPLES = SAMPLE_RATE // 10

# So much speech without a word behind the settled ones: given these, the decoder leaves out what follows.
MAX_SKIPPED_SAMPLES = 3 * SAMPLE_RATE

# Passes in a row that bring no new word, as the decoder reads again or leaves out what follows, until the next window
# begins behind the settled words. What the first reads again the second, which hears more, often does not.
MAX_STUCK_PASSES = 2

FORCED_MARGIN_SAMPLES = 2 * SAMPLE_RATE  # words that end so near to the end of a full window stay unsettled

# Settled tokens with which a window moves on, however short: half of the decoder's context is for a text.
MAX_SETTLED_TOKENS = 200

# Text of earlier finals that goes into the prompt, in characters; the decoder trims it to what its context allows.
PROMPT_CHARACTERS = 1_000

# A language is sure where it is likelier than all others together; one that is not is asked for again.
SURE_LANGUAGE_PROBABILITY = 0.5


@dataclass(slots=True)
class Text:
    """The text of a stretch of speech."""

    # Where the segment that is open begins: where the last final ended, or speech began.
    segment_start: int

    # Settled words, numbered from `n_forgotten` on; the first `n_final` (counted from the beginning) are final.
    words: list[TimedWord] = field(default_factory=list)
    n_forgotten: int = 0
    n_final: int = 0

    # Number of the first settled word that lies in the next window, and of the first that a prompt may show.
    first_word: int = 0
    prompt_from: int = 0

    # Unsettled words of the newest hypothesis.
    tail: list[TimedWord] = field(default_factory=list)

    # How many of these, from the first on, are new: those behind them the decoder read again, or went on from there.
    n_new: int = 0

    # Whether it read again, whether it leaves out speech, and how many passes in a row brought no new word for either.
    rereads: bool = False
    skips: bool = False
    n_stuck: int = 0

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

    # Unsettled words that it shows.
    shown: tuple[str, ...] = ()

    @property
    def n_settled(self) -> int:
        return self.n_forgotten + len(self.words)

    def settled_from(self, number: int) -> list[TimedWord]:
        """Return the settled words from a number on."""
        return self.words[max(0, number - self.n_forgotten) :]

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
        # The end of the text before the words that are kept, as far as the decoder may see it.
        self._said = ""
        # Whether any text has become final.
        self._anything_said = False
        self._text = Text(0)
        self.change(settings)

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

    def begin(self, start: int, *, window_start: int = 0, reach: int = 0) -> int:
        """Go on with speech that begins at a position; return where its first window begins.

        What was not final is forgotten. The window takes in final words before `start`, as far back as `reach`.

        window_start : where the next window would have begun
        """
        old, self._text = self._text, Text(start)
        self._agreement.reset()
        text = self._text
        text.words, text.n_forgotten = old.words[: old.n_final - old.n_forgotten], old.n_forgotten
        text.first_word, text.n_final = old.first_word, text.n_settled
        text.n_told_stable = text.n_final
        place: tuple[int, int] | None = None
        if reach and text.first_word < text.n_final and start - text.words[-1].end_samples <= MAX_SILENCE_SAMPLES:
            if window_start >= start - reach:
                place = text.first_word, window_start
            else:
                place = self._find_start(start - reach, start)
        text.first_word, position = place or (text.n_final, start)
        self._forget(text.first_word)
        return position

    def _find_start(self, earliest: int, latest: int) -> tuple[int, int] | None:
        """Look for a settled word for a window to begin with, between two positions.

        Returns its number and a position before it: at the beginning of a sentence, or else behind the widest gap.
        """
        text = self._text
        places = []
        for i in range(max(1, text.first_word - text.n_forgotten), len(text.words)):
            end, start = pause_before(text.words, i)
            position = (end + start) // 2
            if earliest <= position <= latest and not is_mark(text.words[i].text):
                rank = ends_sentence(text.words, i - 1), start - end
                places.append((rank, text.n_forgotten + i, position))
        return max(places)[1:] if places else None

    def _forget(self, n_words: int) -> None:
        """Let the words before a number go: no window reaches back to them."""
        text = self._text
        self._said = self._said_before(n_words)
        n_old = max(0, n_words - text.n_forgotten)
        del text.words[:n_old]
        text.n_forgotten += n_old

    def _said_before(self, n_words: int) -> str:
        """Return the text before the word of a number, as far as a prompt may show it."""
        text = self._text
        first = max(0, text.prompt_from - text.n_forgotten)
        left = text.words[first : max(0, n_words - text.n_forgotten)]
        return (self._said + "".join(word.text for word in left))[-PROMPT_CHARACTERS:]

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
        return Request(
            prefix=prefix,
            prompt=self._said_before(window.first_word) if self._settings.condition_on_previous_text else "",
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
        # Windows on their way are newer than this one and begin no earlier.
        self._forget(min(window.first_word, text.n_final))
        text.no_speech_prob = hypothesis.no_speech_prob
        text.avg_logprob = hypothesis.avg_logprob
        self._note_language(request, hypothesis)
        self._measure(window, request, hypothesis)
        self._find_new(window)
        # A window that was on its way when a newer one was made to begin further on may well read again.
        is_stuck = text.skips or (text.rereads and not text.n_new)
        text.n_stuck = text.n_stuck + 1 if is_stuck and newest else 0
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

    @property
    def complete(self) -> bool:
        """Whether the newest hypothesis probably ends with a sentence."""
        text = self._text
        if not (text.reliable and text.tail) or text.n_new < len(text.tail):
            return False
        words = [*text.words[-1:], *text.tail]
        return ends_sentence(words, len(words) - 1) and words[-1].likelihood >= SENTENCE_PROBABILITY

    def settle(self, window: Window) -> None:
        """Settle what the newest hypothesis, that of a window, has said for sure, or as those before it."""
        text = self._text
        new = text.tail[: text.n_new]
        limit = window.end - CUT_OFF_SAMPLES
        # Whisper ends the sentence at the end of the audio: marks there settle only when a word follows.
        while new and is_mark(new[-1].text):
            new.pop()
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
        """Whether the decoder reads the same again with each pass, or leaves out what follows."""
        return self._text.n_stuck >= MAX_STUCK_PASSES

    @property
    def skips(self) -> bool:
        """Whether the decoder leaves out speech behind the settled words."""
        return self._text.skips

    def begin_behind_settled(self, end: int) -> tuple[Final | None, int]:
        """Settle what is new; let the next window begin behind that, without known words: it cannot be read again.

        end : of the window's speech. Settled words that are open become final.

        Returns the final, if there is one, and where the next window begins.
        """
        text = self._text
        text.settle(text.n_new)
        # A word that is read twice is placed too early or too late; it was heard as far as the decoder looked for it.
        heard = [max(word.end_samples, word.attended_samples) for word in text.words[-1:]]
        position = min(max([text.segment_start, *heard]), end)
        text.tail, text.tail_writes_on, text.rereads, text.skips, text.n_stuck = [], False, False, False, 0
        self._agreement.reset()
        final = self._publish(text.n_settled, position) if text.n_settled > text.n_final else None
        text.first_word = text.n_settled
        return final, position

    def forget_before_segment(self) -> int:
        """Let the next window begin with the segment that is open, without what was said before; return where."""
        text = self._text
        self._said, text.prompt_from = "", text.n_final
        text.first_word = max(text.first_word, text.n_final)
        return text.segment_start

    def publish(self, window: Window, pauses: Sequence[int]) -> Final | None:
        """Make whole sentences before a pause final, and the beginning of long speech; None if it is not time yet.

        pauses : positions of silences in the current speech
        """
        text = self._text
        place = self._find_cut(window.end - text.segment_start, pauses)
        if place is None:
            return None
        n_final, position = place
        return self._publish(n_final, min(max(position, text.segment_start), window.end))

    @property
    def crowded(self) -> bool:
        """Whether a window holds as many words as the decoder can be given."""
        text = self._text
        return sum(len(word.tokens) for word in text.settled_from(text.first_word)) > MAX_SETTLED_TOKENS

    def move_on(self, window: Window, earliest: int, *, full: bool) -> int | None:
        """Let the next window begin at a later word, at `earliest`; return where, None if it cannot.

        full : whether the window has no room for more audio: unsettled words settle then, except the last
        """
        text = self._text
        place = self._find_start(earliest, (earliest + window.end) // 2) or self._find_start(earliest, window.end)
        if place is None and full:
            limit = window.end - FORCED_MARGIN_SAMPLES
            new = text.tail[: text.n_new]
            text.settle(next((i for i, word in enumerate(new) if word.end_samples > limit), len(new)))
            self._agreement.reset()
            behind = text.tail[0].start_samples if text.tail else limit
            ends = [word.end_samples for word in text.words[-1:]]
            place = self._find_start(earliest, window.end) or (text.n_settled, max([min(behind, limit), *ends]))
        if place is None:
            return None
        text.first_word, position = place
        return position

    def partial(self, window: Window, *, trusted: bool) -> Partial | None:
        """Return what the open segment reads; None where that is nothing new."""
        text = self._text
        settled = text.settled_from(text.n_final)
        previous = text.partial
        n_shown = min(text.n_new, self._count_shown(window, trusted))
        while n_shown and is_mark(text.tail[n_shown - 1].text):
            n_shown -= 1
        text.n_told_stable = text.n_settled
        words, n_stable = self._spoken(settled + text.tail[:n_shown], len(settled))
        if previous is None and not words:
            return None
        partial = Partial(
            segment=self.segment,
            start=seconds(text.segment_start),
            end=seconds(window.end),
            text="".join(word.text for word in words).lstrip(),
            # Without a space at its end: a final that ends there ends without it.
            stable=len("".join(word.text for word in words[:n_stable]).strip()),
            words=event_words(words, n_stable, text.segment_start, window.end),
        )
        text.shown = tuple(word.text for word in text.tail[:n_shown])
        if previous is not None and (previous.text, previous.stable) == (partial.text, partial.stable):
            return None
        text.partial = partial
        return partial

    def close(self, end: int) -> Final:
        """Make final all that the newest hypothesis says, as far as it can be relied on, up to a position."""
        text = self._text
        if not text.reliable:
            self._keep_likely()
        text.settle(len(text.tail))
        final = self._publish(text.n_settled, end)
        if not (final.text and text.reliable):
            text.first_word = text.n_settled  # nothing to go on from
        return final

    def abandon(self, end: int) -> Final | None:
        """Make final what is known of speech of which the rest is lost, from a position on; None where nothing is."""
        text = self._text
        text.settle(text.n_new)
        text.first_word = text.n_settled  # no window reaches back over what is lost
        return self._publish(text.n_settled, end) if text.n_settled > text.n_final or end > text.segment_start else None

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
        # Where in the prefix each settled word begins.
        places: dict[int, int] = {}
        n_prefix = 0
        for i in range(window.first_word - text.n_forgotten, len(text.words)):
            places[n_prefix] = i
            n_prefix += len(text.words[i].tokens)
        assert n_prefix == len(request.prefix), "another window was taken since the request"
        text.tail, text.tail_writes_on = [], False
        behind = 0  # tokens of the hypothesis that were looked at
        for timed in hypothesis.words:
            word = placed(timed, window)
            begin, behind = behind, behind + len(word.tokens)
            if begin >= n_prefix:
                text.tail.append(word)
                continue
            i = places.get(begin, -1)
            if i < max(0, text.n_final - text.n_forgotten):
                continue  # final: it stays as it is, and what is written on at it has come too late
            settled = text.words[i]
            if settled.tokens == word.tokens:
                text.words[i] = replace(word, attended_samples=settled.attended_samples)
            elif behind > n_prefix and word.text.startswith(settled.text):
                # The decoder wrote on at the last word: "President" has become "President's".
                rest, own = word.text[len(settled.text) :], word.tokens[n_prefix - begin :]
                log_prob = word.log_prob * len(own) / len(word.tokens)
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
        known = window.first_word < text.n_settled
        silent = all(is_mark(word.text) for word in text.tail)
        text.skips = known and silent and window.end - text.words[-1].end_samples >= MAX_SKIPPED_SAMPLES

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

    def _find_cut(self, length: int, pauses: Sequence[int]) -> tuple[int, int] | None:
        """Look for a cut behind a settled word, the less particular the longer the segment is.

        length : of the segment, in samples

        Returns after which settled word (its number) and at which position to cut, None for not yet.
        """
        text, trim_after = self._text, self._trim_after
        open_words = text.settled_from(text.n_final)
        # Stable words that were told belong to this segment. The decoder might still write on at the last settled one.
        candidates = [
            i
            for i in range(max(0, text.n_told_stable - text.n_final - 1), len(open_words) - 1)
            if not is_mark(open_words[i + 1].text)
        ]
        gaps = {i: pause_before(open_words, i + 1) for i in candidates}

        def cut(i: int) -> tuple[int, int]:
            return text.n_final + i + 1, sum(gaps[i]) // 2

        for i in reversed(candidates):
            # Words have a place that is good to some tenths of a second, and none ends within a silence.
            begin, end = open_words[i].start_samples - SAMPLE_RATE, open_words[i + 1].end_samples
            paused = any(begin < pause < end for pause in pauses)
            if ends_sentence(open_words, i) and (paused or length >= trim_after // 2):
                return cut(i)
        for i in reversed(candidates):
            if length >= trim_after * 3 // 4 and open_words[i].text.endswith(CLAUSE_ENDS):
                return cut(i)
        if candidates and length >= trim_after:
            return cut(max(candidates, key=lambda i: (gaps[i][1] - gaps[i][0], i)))
        if open_words and length >= trim_after * 3 // 2:
            # Nothing settles any more.
            last = open_words[-1]
            behind = text.tail[0].start_samples if text.tail else last.end_samples
            return text.n_settled, (last.end_samples + behind) // 2
        return None

    def _publish(self, n_final: int, end: int) -> Final:
        """Make everything before a settled word final, as a segment that ends at a position."""
        text = self._text
        if text.tail_writes_on and n_final == text.n_settled:
            # The beginning of its first word becomes final: what was written on has come too late.
            del text.tail[0]
            text.tail_writes_on = False
        final = self._final(text.words[text.n_final - text.n_forgotten : n_final - text.n_forgotten], end)
        text.n_final = text.n_told_stable = n_final
        text.segment_start = end
        return final

    def _spoken(self, words: Sequence[TimedWord], n_stable: int) -> tuple[list[TimedWord], int]:
        """Return the words to show of the open segment, and how many of them are stable.

        Punctuation that belongs to the segment before is left out, and so are bare punctuation and notes, unless some
        of them are stable already.
        """
        shown = self._text.partial
        n_marks = next((i for i, word in enumerate(words) if not is_mark(word.text)), len(words))
        spoken = list(words[n_marks:])
        if not (shown and shown.stable) and not has_words("".join(word.text for word in spoken)):
            return [], 0
        return spoken, max(0, n_stable - n_marks)

    def _final(self, settled: Sequence[TimedWord], end: int) -> Final:
        text = self._text
        words, _ = self._spoken(settled, len(settled))
        said = "".join(word.text for word in words)
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
        text.partial, text.shown = None, ()
        return final

    def _count_shown(self, window: Window, trusted: bool) -> int:
        """Count the unsettled words that will probably stay: the last are guessed; what is on screen stays there."""
        text = self._text
        if not self._settings.show_probability:
            return len(text.tail)
        seen = text.shown[text.n_settled - text.n_told_stable :]
        limit = window.end if window.pause else window.end - CUT_OFF_SAMPLES
        for i, word in enumerate(text.tail):
            least = self._settings.show_probability if word.end_samples <= limit else CUT_OFF_PROBABILITY
            likely = trusted and word.likelihood >= least
            if not likely and not (i < len(seen) and seen[i] == word.text):
                return i
        return len(text.tail)
