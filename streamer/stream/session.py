"""One session of streaming transcription: what to transcribe next, and what to say of it.

Sans-I/O: told of speech probabilities, hypotheses and the time, it answers with windows to transcribe and events to
publish. Positions are absolute samples of the session's audio.

A *region* is a stretch of speech between two silences. It is told in *segments*, one final each: the last ends with
the region, earlier ones where long speech is cut behind a settled word. Words are settled by agreement of successive
hypotheses; the decoder is made to begin each hypothesis with the settled words of its window, so that what has been
said to be stable stays. After a cut the window keeps the last few words of the final as *anchor*: the decoder is given
them too, and goes on behind them, so that nothing is lost or doubled at the join.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from streamer.audio.constants import HOP_LENGTH, N_SAMPLES, SAMPLE_RATE
from streamer.events import Event, Final, Gap, GapReason, Partial, Speech, Word, seconds
from streamer.stream.agreement import LocalAgreement
from streamer.stream.gate import GateSettings, SpeechEnd, SpeechGate, SpeechStart
from streamer.whisper.result import Hypothesis, TimedWord

# Words that end nearer than this to the end of the audio may be cut off: they do not settle.
CUT_OFF_SAMPLES = SAMPLE_RATE // 5

# Words of the last final that a window keeps after a cut. Three are enough for the decoder to find its place.
N_ANCHOR_WORDS = 3

# An anchor that reaches further back than this is no use: there was a pause, or a word was misplaced.
MAX_ANCHOR_SAMPLES = 5 * SAMPLE_RATE

# Audio kept before the first word of the anchor: word times are good to about a tenth of a second.
ANCHOR_MARGIN_SAMPLES = SAMPLE_RATE // 10

# A window this long is cut even where nothing was settled, because it cannot grow beyond 30 s.
MAX_WINDOW_SAMPLES = N_SAMPLES - 2 * SAMPLE_RATE

# Words that end within this of the end of such a window stay unsettled.
FORCED_CUT_MARGIN_SAMPLES = 2 * SAMPLE_RATE

# Text of earlier finals that goes into the prompt, in characters; the decoder trims it to what its context allows.
PROMPT_CHARACTERS = 1_000

SENTENCE_ENDS = (".", "?", "!", "。", "？", "！")
CLAUSE_ENDS = (",", ";", ":", "—", "，", "、", "；", "：")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How a session goes about it."""

    gate: GateSettings
    pace_s: float
    n_agreeing: int
    trim_after_s: float
    condition_on_previous_text: bool
    no_speech_threshold: float
    logprob_threshold: float
    compression_ratio_threshold: float
    language: str
    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Audio to transcribe."""

    # Region that it belongs to.
    region: int
    start: int
    end: int

    # Whether speech has ended: nothing follows in the region.
    last: bool

    # Number, within the region, of the first settled word that lies in it.
    first_word: int

    # When it was handed out, in seconds of the caller's clock.
    issued_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How to decode a window."""

    # Tokens that the hypothesis has to begin with.
    prefix: tuple[int, ...]

    # What was said before the window.
    prompt: str
    language: str
    task: str
    n_samples: int


@dataclass(frozen=True, slots=True)
class _Settled:
    """A word that will not change; its place may still be measured better until it is final."""

    text: str
    tokens: tuple[int, ...]
    start: int
    end: int
    probability: float


@dataclass(slots=True)
class _Region:
    """A stretch of speech that is being transcribed."""

    number: int
    start: int

    # Where speech ended; None while it goes on.
    end: int | None = None

    # Where the next window begins.
    window_start: int = 0

    # Where the segment that is open begins: where the last final ended.
    segment_start: int = 0

    # End of the newest window that was handed out, and of the newest that came back.
    issued_end: int = 0
    taken_end: int = 0

    # Whether the last window was handed out.
    last_issued: bool = False

    # Settled words, numbered from `n_forgotten` on; the first `n_final` (counted from the region's start) are final.
    words: list[_Settled] = field(default_factory=list)
    n_forgotten: int = 0
    n_final: int = 0

    # Number of the first settled word that lies in the window.
    first_word: int = 0

    # Unsettled words of the newest hypothesis.
    tail: list[_Settled] = field(default_factory=list)

    # What the newest hypothesis said besides its words.
    language: str = ""
    no_speech_prob: float = 0.0
    avg_logprob: float = 0.0

    # The newest partial, so that the same is not said twice.
    partial: Partial | None = None

    def settled_from(self, number: int) -> list[_Settled]:
        """Return the settled words from a number on."""
        return self.words[max(0, number - self.n_forgotten) :]

    @property
    def n_settled(self) -> int:
        return self.n_forgotten + len(self.words)


class Session:
    """The decisions of one session."""

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._gate = SpeechGate(settings.gate)
        self._agreement = LocalAgreement(settings.n_agreeing)
        self._pace = round(settings.pace_s * SAMPLE_RATE)
        self._trim_after = round(settings.trim_after_s * SAMPLE_RATE)
        # End of the audio that has been heard.
        self._heard = 0
        # Stretches of speech that are not final yet, oldest first; only the oldest is transcribed.
        self._regions: deque[_Region] = deque()
        self._n_regions = 0
        # Number of the segment that is open.
        self._segment = 1
        # What the last pass cost, in samples of real time.
        self._cost = 0
        # Language once it is known.
        self._language = settings.language
        # The end of the text that is final.
        self._said = ""
        # Whether the audio has ended.
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the audio has ended."""
        return self._ended

    @property
    def finished(self) -> bool:
        """Whether the audio has ended and everything that was said is final."""
        return self._ended and not self._regions

    @property
    def needed_from(self) -> int:
        """Position of the oldest sample that may still be asked for."""
        if self._regions:
            return self._regions[0].window_start
        return max(0, self._heard - self._lookback)

    @property
    def cost_samples(self) -> int:
        """What the last pass cost, in samples of real time."""
        return self._cost

    @property
    def language(self) -> str:
        """Language code, or `auto` while it is not known."""
        return self._language

    def hear(self, end: int, probability: float) -> list[Event]:
        """Take the probability of speech of the audio from where the last call ended to `end`."""
        boundary = self._gate.feed(self._heard, end, probability)
        self._heard = end
        return self._cross(boundary)

    def finish(self, end: int) -> list[Event]:
        """The audio ends at `end`: what is being said is over."""
        self._heard = max(self._heard, end)
        self._ended = True
        return self._cross(self._gate.close(self._heard))

    def lose(self, end: int, reason: GapReason) -> list[Event]:
        """Audio that was needed, up to `end`, is gone: make final what is known and go on behind it."""
        events: list[Event] = []
        start = self._heard
        while self._regions:
            region = self._regions.popleft()
            if region.taken_end > region.segment_start:
                start = min(start, region.taken_end)
                events.append(self._final(region, region.settled_from(region.n_final) + region.tail, region.taken_end))
            else:
                start = min(start, region.segment_start)
        boundary = self._gate.close(self._heard)
        if boundary is not None:
            events.append(Speech(state="end", time=seconds(boundary.position)))
        self._agreement.reset()
        self._heard = max(self._heard, end)
        self._gate.skip_to(self._heard)
        events.append(Gap(start=seconds(start), end=seconds(self._heard), reason=reason))
        return events

    def next_window_due(self) -> bool:
        """Say whether `next_window` would return one."""
        if not self._regions or self._regions[0].last_issued:
            return False
        region = self._regions[0]
        end = self._window_end(region)
        if end == region.end:
            return True
        if end == region.window_start + N_SAMPLES:
            return end > region.issued_end  # else the window is full, and its text is on its way
        return end - max(region.issued_end, region.start) >= max(self._pace, self._cost)

    def next_window(self, now_s: float) -> Window | None:
        """Return the audio to transcribe next, or None where nothing is due."""
        if not self.next_window_due():
            return None
        region = self._regions[0]
        end = self._window_end(region)
        last = end == region.end
        region.issued_end = end
        region.last_issued = last
        return Window(
            region=region.number,
            start=region.window_start,
            end=end,
            last=last,
            first_word=region.first_word,
            issued_s=now_s,
        )

    def request(self, window: Window) -> Request | None:
        """Return how to decode a window, or None where it is not wanted any more."""
        region = self._region_of(window)
        if region is None:
            return None
        words = region.settled_from(window.first_word)
        n_anchor = max(0, region.n_final - window.first_word)
        anchor = sum(len(word.text) for word in words[:n_anchor])
        said = self._said[: len(self._said) - anchor] if anchor else self._said
        return Request(
            prefix=tuple(token for word in words for token in word.tokens),
            prompt=said if self._settings.condition_on_previous_text else "",
            language=self._language,
            task=self._settings.task,
            n_samples=window.end - window.start,
        )

    def take(self, window: Window, request: Request, hypothesis: Hypothesis, now_s: float) -> list[Event]:
        """Take what a window reads. Returns what there is to say."""
        region = self._region_of(window)
        if region is None:
            return []
        self._cost = round(max(0.0, now_s - window.issued_s) * SAMPLE_RATE)
        region.taken_end = max(region.taken_end, window.end)
        region.language = hypothesis.language
        region.no_speech_prob = hypothesis.no_speech_prob
        region.avg_logprob = hypothesis.avg_logprob
        self._measure(region, window, request, hypothesis)
        trusted = self._trusted(hypothesis)
        if not trusted:
            self._agreement.reset()

        if window.last:
            words = region.settled_from(region.n_final) + region.tail
            self._regions.popleft()
            self._agreement.reset()
            assert region.end is not None, "the last window was handed out before speech ended"
            if self._language == "auto" and words:
                self._language = hypothesis.language
            return [self._final(region, words, region.end)]

        if trusted:
            limit = window.end - CUT_OFF_SAMPLES
            n_eligible = next((i for i, word in enumerate(region.tail) if word.end > limit), len(region.tail))
            n_settled = self._agreement.update([word.text for word in region.tail], n_eligible)
            region.words += region.tail[:n_settled]
            del region.tail[:n_settled]

        events: list[Event] = []
        cut = self._find_cut(region, window)
        if cut is not None:
            events.append(self._cut(region, *cut))
        partial = self._partial(region, window.end)
        if partial is not None:
            events.append(partial)
        return events

    def _window_end(self, region: _Region) -> int:
        return min(self._heard if region.end is None else region.end, region.window_start + N_SAMPLES)

    @property
    def _lookback(self) -> int:
        """Audio before the present that a start of speech may reach back to."""
        gate = self._settings.gate
        return round((gate.pad_s + gate.min_speech_s) * SAMPLE_RATE) + SAMPLE_RATE

    def _cross(self, boundary: SpeechStart | SpeechEnd | None) -> list[Event]:
        match boundary:
            case SpeechStart(position):
                start = position // HOP_LENGTH * HOP_LENGTH
                self._n_regions += 1
                region = _Region(self._n_regions, position, window_start=start, segment_start=position)
                self._regions.append(region)
                return [Speech(state="start", time=seconds(position))]
            case SpeechEnd(position):
                self._regions[-1].end = position
                return [Speech(state="end", time=seconds(position))]
        return []

    def _region_of(self, window: Window) -> _Region | None:
        region = self._regions[0] if self._regions else None
        if region is None or region.number != window.region:
            return None
        # A window that comes late, behind a newer one, has nothing new to say. The last may well be shorter than one
        # before it: where speech ended is known only when the silence has lasted.
        return region if window.last or window.end > region.taken_end else None

    def _measure(self, region: _Region, window: Window, request: Request, hypothesis: Hypothesis) -> None:
        """Place the settled words anew, and keep what the hypothesis says behind them."""
        settled = region.settled_from(window.first_word)
        n_skip = len(region.words) - len(settled)
        heard = [_absolute(word, window.start) for word in hypothesis.words]
        tail: list[_Settled] = []
        position = 0  # tokens of the hypothesis that were looked at
        for word in heard:
            index = _word_at(settled, position)
            position += len(word.tokens)
            if index is None:
                tail.append(word)
                continue
            known = settled[index]
            n_known = sum(len(w.tokens) for w in settled[: index + 1])
            if position > n_known and index == len(settled) - 1:
                # The decoder wrote on at the last word: "President" has become "President's".
                rest = replace(
                    word,
                    text=word.text[len(known.text) :] if word.text.startswith(known.text) else "",
                    tokens=word.tokens[len(word.tokens) - (position - n_known) :],
                )
                if n_skip + index + region.n_forgotten >= region.n_final:
                    region.words[n_skip + index] = replace(word, text=known.text, tokens=known.tokens)
                if rest.text:
                    tail.append(replace(rest, start=word.end))
            elif n_skip + index + region.n_forgotten >= region.n_final:
                region.words[n_skip + index] = replace(
                    known, start=word.start, end=word.end, probability=word.probability
                )
        region.tail = tail
        if self._is_silence(hypothesis):
            region.tail = []

    def _is_silence(self, hypothesis: Hypothesis) -> bool:
        # openai-whisper's rule: no speech is likely, and what was decoded is not.
        return (
            hypothesis.no_speech_prob > self._settings.no_speech_threshold
            and hypothesis.avg_logprob < self._settings.logprob_threshold
        )

    def _trusted(self, hypothesis: Hypothesis) -> bool:
        return not (
            hypothesis.looped
            or hypothesis.compression_ratio > self._settings.compression_ratio_threshold
            or self._is_silence(hypothesis)
        )

    def _find_cut(self, region: _Region, window: Window) -> tuple[int, int] | None:
        """Return after which settled word (its number) and at which position to cut, or None for not yet."""
        length = window.end - window.start
        # The last settled word stays: the decoder might still write on at it.
        open_words = region.settled_from(region.n_final)
        if length >= self._trim_after and len(open_words) > 1:
            candidates = range(len(open_words) - 1)
            for ends in (SENTENCE_ENDS, CLAUSE_ENDS):
                for i in reversed(candidates):
                    if open_words[i].text.endswith(ends):
                        return region.n_final + i + 1, _between(open_words[i], open_words[i + 1])
            if length >= self._trim_after * 3 // 2:
                i = max(candidates, key=lambda i: (open_words[i + 1].start - open_words[i].end, i))
                return region.n_final + i + 1, _between(open_words[i], open_words[i + 1])
        if length >= MAX_WINDOW_SAMPLES:
            limit = window.end - FORCED_CUT_MARGIN_SAMPLES
            n_settled = next((i for i, word in enumerate(region.tail) if word.end > limit), len(region.tail))
            region.words += region.tail[:n_settled]
            del region.tail[:n_settled]
            self._agreement.reset()
            position = region.words[-1].end if region.n_settled > region.n_final else limit
            return region.n_settled, max(position, region.segment_start)
        return None

    def _cut(self, region: _Region, n_final: int, position: int) -> Final:
        """Make everything before a settled word final, and let the next window begin at the anchor."""
        first, last = region.n_final - region.n_forgotten, n_final - region.n_forgotten
        final = self._final(region, region.words[first:last], position)
        region.n_final = n_final
        region.segment_start = position
        region.first_word = max(region.first_word, n_final - N_ANCHOR_WORDS)
        anchor = region.settled_from(region.first_word)[: n_final - region.first_word]
        begin = anchor[0].start - ANCHOR_MARGIN_SAMPLES if anchor else position
        if position - begin > MAX_ANCHOR_SAMPLES:
            # Far-away words would keep the window from moving on.
            region.first_word, begin = n_final, position
        region.window_start = max(region.window_start, min(begin, position) // HOP_LENGTH * HOP_LENGTH)
        # Windows on their way may still begin at the window before this one; those before it are gone.
        n_old = max(0, region.first_word - 200 - region.n_forgotten)
        del region.words[:n_old]
        region.n_forgotten += n_old
        region.partial = None
        return final

    def _final(self, region: _Region, words: Sequence[_Settled], end: int) -> Final:
        text = "".join(word.text for word in words)
        self._said = (self._said + text)[-PROMPT_CHARACTERS:]
        final = Final(
            segment=self._segment,
            start=seconds(region.segment_start),
            end=seconds(end),
            text=text.strip(),
            words=_event_words(words, len(words), region.segment_start, end),
            language=region.language or self._language,
            no_speech_prob=round(region.no_speech_prob, 4),
            avg_logprob=round(region.avg_logprob, 4),
        )
        self._segment += 1
        return final

    def _partial(self, region: _Region, end: int) -> Partial | None:
        settled = region.settled_from(region.n_final)
        words = settled + region.tail
        text = "".join(word.text for word in words)
        stripped = text.lstrip()
        stable = max(0, sum(len(word.text) for word in settled) - (len(text) - len(stripped)))
        previous = region.partial
        if previous is None and not words:
            return None
        partial = Partial(
            segment=self._segment,
            start=seconds(region.segment_start),
            end=seconds(end),
            text=stripped,
            stable=stable,
            words=_event_words(words, len(settled), region.segment_start, end),
        )
        if previous is not None and (previous.text, previous.stable) == (partial.text, partial.stable):
            return None
        region.partial = partial
        return partial


def _absolute(word: TimedWord, start: int) -> _Settled:
    return _Settled(word.text, word.tokens, start + word.start_samples, start + word.end_samples, word.probability)


def _word_at(words: Sequence[_Settled], position: int) -> int | None:
    """Return which word the token at a position belongs to, None behind the last."""
    for i, word in enumerate(words):
        if position < len(word.tokens):
            return i
        position -= len(word.tokens)
    return None


def _between(left: _Settled, right: _Settled) -> int:
    return (left.end + right.start) // 2


def _event_words(words: Sequence[_Settled], n_stable: int, start: int, end: int) -> tuple[Word, ...]:
    """Turn words into those of an event, in order and within its bounds."""
    result: list[Word] = []
    earliest = start
    for i, word in enumerate(words):
        begin = min(max(word.start, earliest), end)
        earliest = min(max(word.end, begin), end)
        result.append(
            Word(
                word=word.text,
                start=seconds(begin),
                end=seconds(earliest),
                probability=round(word.probability, 3),
                stable=i < n_stable,
            )
        )
    return tuple(result)
