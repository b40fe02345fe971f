"""How a text changes, and what is published of it: words become stable, are shown, and become final."""

from collections.abc import Sequence

from msgspec.structs import replace

from streamer.constants import SAMPLE_RATE
from streamer.events import Event, Final, Gap, Partial, seconds
from streamer.session.coverage import DetectedSpeech, Hole
from streamer.session.policy import CUT_OFF_SAMPLES, Audio, count_while, policy_of
from streamer.session.reading import Reading
from streamer.session.settings import SessionSettings
from streamer.session.task import Span
from streamer.session.text import MAX_STABLE_TOKENS, Shown, Tail, Text
from streamer.session.windows import MAX_SILENCE_SAMPLES, Pace
from streamer.session.words import event_words, mean_log_prob
from streamer.whisper.result import TimedWord, is_mark

# Words that end near the end of the audio are shown only if they are this probable.
CUT_OFF_PROBABILITY = 0.95

# After this much speech in which no word is found, what begins the window is taken to be the reason: it moves on.
MAX_EMPTY_SAMPLES = 6 * SAMPLE_RATE

FORCED_MARGIN_SAMPLES = 2 * SAMPLE_RATE  # words that end so near to the end of a full window stay unstable

# In a session's first speech, text of less than this is shown only once its language is sure: it may be in any.
MIN_UNDECIDED_SAMPLES = SAMPLE_RATE


class Transcript:
    """A text in the hands of one decision: a working copy, and the events that follow."""

    def __init__(self, text: Text, settings: SessionSettings, detected: DetectedSpeech, pace: Pace) -> None:
        """`detected` is the speech since the newest final or gap."""
        self.text = text
        self.events: list[Event] = []
        self.pace = pace
        self._settings, self._detected = settings, detected

    def begin(self, start: int, *, reach: int = 0) -> None:
        """Begin an utterance at a position, without unfinished text.

        Its first window contains final words before `start`, as far back as `reach` samples.
        """
        old, n_final = self.text, self.text.stable.n_final
        words = old.stable.between(old.stable.first, n_final)
        text = Text(
            segment=old.segment,
            start=start,
            stable=replace(old.stable, words=words),
            known_languages=old.known_languages,
            begins=old.begins,
            said=old.said,
            shown=Shown(n_stable=n_final),
        )
        place: tuple[int, int] | None = None
        if reach and old.begins.word < n_final and start - words[-1].end_samples <= MAX_SILENCE_SAMPLES:
            if old.begins.position >= start - reach:
                place = old.begins.word, old.begins.position
            else:
                place = text.find_start(start - reach, start)
        text = text.window_from(*(place or (n_final, start))).without_earlier(self._settings)
        self.text = text.dropped_before(text.first_needed)

    def keep(self, reading: Reading, span: Span, *, complete: bool) -> None:
        """Take what was read for the newest; `complete` as in `Pass`."""
        text = self.text
        # Windows on their way are newer than this one and begin no earlier.
        self._set(stable=reading.stable, tail=reading.tail)
        self.text = self.text.dropped_before(min(span.first_word, text.first_needed, text.stable.n_final))
        if text.search.before is not None and complete:
            self._choose_tail(text.search.before, span.end)
        self._set(search=replace(self.text.search, language=""))
        hole, tail = self.first_hole(span.end), self.text.tail
        # At the end of a window words may still come; alone, nothing else can be tried for them.
        skips = hole is not None and not (tail.alone and hole.index == tail.n_new)
        is_stuck = skips or reading.tail.foreign or reading.repeats
        # A window that was issued before the next one was moved on may well repeat.
        newest = span.start == text.begins.position
        self._set(n_stuck=text.n_stuck + 1 if is_stuck and newest else 0)
        if not reading.trusted:
            self._set(hypotheses=())
        elif reading.tail.words and reading.language_sure and self.text.undecided(self._settings):
            self._decide(reading.tail.language)

    def commit(self, span: Span) -> None:
        """Let words of the newest hypothesis, that of a span, become stable."""
        text, policy = self.text, policy_of(self._settings)
        new = list(text.tail.words[: self._n_before_hole(span.end)])
        # Whisper ends the sentence at the end of the audio: marks there become stable only when a word follows.
        while new and is_mark(new[-1].text):
            new.pop()
        n_stable = policy.count(new, text.hypotheses, Audio(span.end, span.pause))
        newest = (*text.hypotheses, tuple(word.text for word in text.tail.words))
        kept = newest[max(0, len(newest) - policy.n_earlier) :]
        self.text = text.with_stable(n_stable)
        self._set(hypotheses=tuple(words[n_stable:] for words in kept), trusted=self.text.tail.words)

    def first_hole(self, end: int) -> Hole | None:
        """Return the first speech after the stable words, up to a position, that no word covers; None for none."""
        return next(self.text.holes(self._detected, end), None)

    def cut(self, span: Span, pauses: Sequence[int]) -> bool:
        """Make whole sentences before a pause final, and the beginning of long speech; return whether it was time.

        pauses : positions of silences in the current speech
        """
        start = self.text.start
        place = self.text.find_cut(span.end - start, round(self._settings.trim_after_s * SAMPLE_RATE), pauses)
        if place is None:
            return False
        n_final, position = place
        self.publish(n_final, min(max(position, start), span.end))
        return True

    def move_on(self, span: Span) -> None:
        """Let the next window begin with a later word if it would be too long, or have too many words or none at all.

        If the model has no room for it, all words become stable except the last ones.
        """
        text, end, pace = self.text, span.end, self.pace
        begin = text.begins.position
        empty = text.tail.alone and not (text.stable.open or text.tail.words)
        if empty and self._detected.between(begin, end) >= MAX_EMPTY_SAMPLES:
            self.text = text.window_from(text.begins.word, end - FORCED_MARGIN_SAMPLES)
            return
        crowded = sum(len(word.tokens) for word in text.stable.since(text.begins.word)) > MAX_STABLE_TOKENS
        if not crowded and not pace.too_long(end - begin):
            return
        earliest = end - pace.reach
        if crowded:
            earliest = max(earliest, (begin + end) // 2)
        place = text.find_start(earliest, (earliest + end) // 2) or text.find_start(earliest, end)
        if place is None and pace.is_full(end - begin):
            limit = end - FORCED_MARGIN_SAMPLES
            new = text.tail.words[: self._n_before_hole(end)]
            text = text.with_stable(count_while(new, lambda word: word.end_samples <= limit))
            text = replace(text, hypotheses=())
            behind = text.tail.words[0].start_samples if text.tail.words else limit
            ends = [word.end_samples for word in text.stable.words[-1:]]
            place = text.find_start(earliest, end) or (text.stable.end, max([min(behind, limit), *ends]))
        if place is not None:
            text = replace(text.window_from(*place), earlier=None)
        self.text = text

    def show(self, span: Span, *, trusted: bool) -> None:
        """Publish the text of the open segment as a partial, if it has changed."""
        text, previous = self.text, self.text.shown.partial
        n_shown = min(text.tail.n_new, self._count_shown(span, trusted=trusted))
        while n_shown and is_mark(text.tail.words[n_shown - 1].text):
            n_shown -= 1
        new, known = text.tail.words[:n_shown], text.stable.open
        words, n_stable = text.spoken(known + new, len(known))
        if previous is None and not words:
            self._set(shown=replace(text.shown, n_stable=text.stable.end))
            return
        partial = Partial(
            segment=text.segment,
            start=seconds(text.start),
            end=seconds(span.end),
            text="".join(word.text for word in words).lstrip(),
            # Without a space at its end: a final that ends there ends without it.
            stable=len("".join(word.text for word in words[:n_stable]).strip()),
            words=event_words(words, n_stable, text.start, span.end),
        )
        if previous is not None and (previous.text, previous.stable) == (partial.text, partial.stable):
            partial = previous
        else:
            self.events.append(partial)
        self._set(shown=Shown(partial, tuple(word.text for word in new), text.stable.end))

    def close(self, end: int) -> None:
        """Make the newest hypothesis final up to a position, as far as it can be relied on."""
        if not self.text.tail.reliable:
            self._set(tail=self.text.tail.likely(self.text.trusted))
        self.text = self.text.with_stable(len(self.text.tail.words))
        self.publish(self.text.stable.end, end)
        last = self.events[-1]
        if not (isinstance(last, Final) and last.text and self.text.tail.reliable):
            self.text = self.text.window_from(self.text.stable.end, 0)  # no context for what follows

    def abandon(self, end: int) -> None:
        """Make known words final, up to a position after which speech is lost; nothing if nothing was decoded."""
        text = self.text.with_stable(self.text.tail.n_new)
        self.text = text.window_from(text.stable.end, 0)  # no window reaches back over the gap
        if text.stable.open or end > text.start or text.shown.partial is not None:
            self.publish(text.stable.end, end)

    def _set(self, **changes: object) -> None:
        self.text = replace(self.text, **changes)

    def _decide(self, language: str) -> None:
        """Take an utterance to be in a language. Text in another one would lead the decoder astray."""
        known = self.text.known_languages
        if language not in known[-1:]:
            self.text = self.text.without_context()
            known = (*(other for other in known if other != language), language)
        self._set(language=language, known_languages=known)

    def _n_before_hole(self, end: int) -> int:
        """Return how many new words no hole precedes: those after it wait until it is filled, or is a gap."""
        hole = self.first_hole(end)
        return self.text.tail.n_new if hole is None else hole.index

    def _choose_tail(self, before: Tail, end: int) -> None:
        """Keep the tail from before unless the newest, of the same speech, leaves less of it without words."""
        text, newest = self.text, self.text.tail
        missing, still_missing = (
            sum(hole.end - hole.start for hole in text.holes(self._detected, end, tail)) for tail in (before, newest)
        )
        if not newest.reliable or missing <= still_missing:
            # What can be tried next depends on how the newest was decoded.
            kept = replace(before, alone=newest.alone, other_language=newest.other_language)
            self._set(tail=kept)
        elif text.search.language:
            self._set(language=text.search.language)
        self._set(search=replace(text.search, before=None))

    def _count_shown(self, span: Span, *, trusted: bool) -> int:
        """Count the first unstable words to show: those that will probably stay, and those that are on screen."""
        text, least = self.text, self._settings.show_probability
        words = text.tail.words
        undecided = text.undecided(self._settings) and not text.known_languages
        if undecided and span.end - span.start < MIN_UNDECIDED_SAMPLES:
            return 0
        if not least:
            return len(words)
        seen = iter(text.shown.words[text.stable.end - text.shown.n_stable :])
        limit = span.end if span.pause else span.end - CUT_OFF_SAMPLES

        def shown(word: TimedWord) -> bool:
            needed = least if word.end_samples <= limit else CUT_OFF_PROBABILITY
            return next(seen, None) == word.text or (trusted and word.likelihood >= needed)

        return count_while(words, shown)

    def publish(self, n_final: int, end: int) -> None:
        """Make all stable words before a number final, up to a position.

        Speech without words is a gap, before, between or after finals; it cannot be between words of a stable prefix.
        """
        begin, n_events, first = self.text.start, len(self.events), self.text.stable.n_final
        for hole in self._detected.holes(self.text.stable.between(first, n_final), begin, end):
            if (number := first + hole.index) < self.text.shown.n_stable:
                continue
            is_last = number == n_final
            if number > self.text.stable.n_final or (is_last and self.text.shown.partial is not None):
                self._finalize(number, hole.start)
            self.give_up_until(end if is_last else hole.end)
        text = self.text
        if text.start < end or text.stable.n_final < n_final or len(self.events) == n_events:
            self._finalize(n_final, end)

    def give_up_until(self, end: int) -> None:
        """Give up speech without words, up to a position at which the segment begins then."""
        self.events.append(Gap(start=seconds(self.text.start), end=seconds(end), reason="unclear"))
        self._set(start=end)

    def _finalize(self, n_final: int, end: int) -> None:
        """Make all stable words before a number final, as a segment that ends at a position."""
        text, tail = self.text, self.text.tail
        if tail.continues and n_final == text.stable.end:
            # It continues a word that becomes final: too late.
            tail = tail.kept(1, len(tail.words))
        stable = text.stable.between(text.stable.n_final, n_final)
        words, _ = text.spoken(stable, len(stable))
        said = "".join(word.text for word in words)
        self.events.append(
            Final(
                segment=text.segment,
                start=seconds(text.start),
                end=seconds(end),
                text=said.strip(),
                words=event_words(words, len(words), text.start, end),
                language=text.language or tail.language or self._settings.language,
                no_speech_prob=round(tail.no_speech_prob, 4),
                avg_logprob=round(min(0.0, mean_log_prob(words) if words else tail.avg_logprob), 4),
            )
        )
        self._set(
            segment=text.segment + 1,
            start=end,
            stable=replace(text.stable, n_final=n_final),
            tail=tail,
            trusted=(),
            said=replace(text.said, anything=text.said.anything or bool(said)),
            shown=Shown(n_stable=n_final),
        )
