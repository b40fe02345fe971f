"""One session of streaming transcription: what to transcribe next, and what to say of it.

Sans-I/O: told of speech probabilities, hypotheses and the time, it answers with windows to transcribe and events to
publish. Positions are absolute samples of the session's audio.

A *region* is a stretch of speech between two silences. It is told in *segments*, one final each: the last ends with
the region, earlier ones where long speech is cut behind a settled word. Words settle when the decoder is sure of them
or successive hypotheses agree; the decoder is made to begin each hypothesis with the settled words of its window, so
that what has been said to be stable stays. After a cut the window keeps the last few words of the final as *anchor*:
the decoder is given them too, and goes on behind them, so that nothing is lost or doubled at the join.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamer.audio.constants import HOP_LENGTH, N_SAMPLES, SAMPLE_RATE
from streamer.events import Event, Final, Gap, GapReason, Partial, Speech, seconds
from streamer.stream.agreement import LocalAgreement
from streamer.stream.gate import GateSettings, SpeechEnd, SpeechGate, SpeechStart
from streamer.stream.region import MIN_REREAD_WORDS, HeardWord, Region, event_words, find_reread
from streamer.whisper.result import Hypothesis, TimedWord

# Words that end nearer than this to the end of the audio may be cut off: they do not settle.
CUT_OFF_SAMPLES = SAMPLE_RATE // 5

# Unless they are this probable they are not shown either.
CUT_OFF_PROBABILITY = 0.95

# Where no word of a text is this probable and "no speech" is, nobody spoke: music makes for such words.
LIKELY_PROBABILITY = 0.5

# Silence this long is a pause: what was said before it is complete. (Stops, such as the t in "at ten", are shorter.)
PAUSE_SAMPLES = SAMPLE_RATE // 4

# After silence this long it is worth waiting for whether it becomes a pause.
HESITATION_SAMPLES = SAMPLE_RATE // 10

# Words that begin nearer than this to the end of the audio were not heard: nobody says a word in a tenth of a second.
# The decoder makes them up when it writes on past the end, and takes them back in the next pass.
INVENTED_SAMPLES = SAMPLE_RATE // 10

# Passes in a row that bring no new word before the decoder reads again, until the next window begins behind that. What
# the first reads again the second, which hears more, often does not.
MAX_REREADING_PASSES = 2

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

# Speech that waits shares a window with what follows, unless a silence longer than this lies between.
MAX_SILENCE_SAMPLES = 5 * SAMPLE_RATE

# Text of earlier finals that goes into the prompt, in characters; the decoder trims it to what its context allows.
PROMPT_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How a session goes about it."""

    gate: GateSettings
    pace_s: float

    # A word settles where `n_agreeing` hypotheses in a row agree; with `alignatt` also at once, where the decoder did
    # not look for it within `attention_margin_s` of the end of the audio and finds it at least this probable.
    policy: str
    n_agreeing: int
    attention_margin_s: float
    commit_probability: float

    # An unsettled word is shown where it is at least this probable; 0 shows all.
    show_probability: float
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

    # Whether it ends in a pause: no word at its end is cut off.
    pause: bool

    # Number, within the region, of the first settled word that lies in it.
    first_word: int

    # When it was handed out, in seconds of the caller's clock.
    issued_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How to decode a window."""

    # Tokens that the hypothesis has to begin with.
    prefix: tuple[int, ...]

    # What was said before the window, where the model shall see it.
    prompt: str
    language: str
    task: str
    n_samples: int

    # Whether nothing has become final yet.
    first: bool = False

    # What the newest hypothesis said behind the prefix: a guess at what comes now.
    draft: tuple[int, ...] = ()


class Session:
    """The decisions of one session."""

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._gate = SpeechGate(settings.gate)
        self._agreement = LocalAgreement(settings.n_agreeing)
        self._pace = round(settings.pace_s * SAMPLE_RATE)
        self._margin = round(settings.attention_margin_s * SAMPLE_RATE)
        self._trim_after = round(settings.trim_after_s * SAMPLE_RATE)
        # End of the audio that has been heard.
        self._heard = 0
        # Stretches of speech that are not final yet, oldest first; only the oldest is transcribed.
        self._regions: deque[Region] = deque()
        self._n_regions = 0
        # Number of the segment that is open.
        self._segment = 1
        # What the last pass cost, in samples of real time.
        self._cost = 0
        # Language once it is known.
        self._language = settings.language
        # The end of the text that is final, as far as the decoder may see it.
        self._said = ""
        # Whether any text has become final.
        self._anything_said = False
        # Where the newest final or gap ends: nothing that follows reaches back beyond it.
        self._told_until = 0
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
    def waiting_from(self) -> int | None:
        """Position of the oldest speech that no text has come of; None where there is none."""
        if not self._regions:
            return None
        return max(self._regions[0].taken_end, self._regions[0].start)

    @property
    def final_awaited(self) -> bool:
        """Whether speech has ended and is not final yet."""
        return bool(self._regions) and self._regions[0].end is not None

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
            # The first region reaches back furthest, and those behind it were never transcribed.
            start = min(start, self._abandon(self._regions.popleft(), events))
        boundary = self._gate.close(self._heard)
        if boundary is not None:
            events.append(Speech(state="end", time=seconds(boundary.position)))
        self._agreement.reset()
        self._heard = max(self._heard, end)
        # Up to the grid of the mel frames, so that the next window begins behind what is lost.
        self._gate.skip_to(-(-self._heard // HOP_LENGTH) * HOP_LENGTH)
        self._add_gap(start, self._heard, reason, events)
        return events

    def shed(self, until: int, reason: GapReason) -> list[Event]:
        """Give up speech before `until`, which was heard: make final what is known of it and go on from there.

        No window may be on its way: its text would be lost, too.
        """
        until = min(until, self._heard) // HOP_LENGTH * HOP_LENGTH
        events: list[Event] = []
        lost_from: int | None = None
        lost_until = 0
        while self._regions and self._regions[0].start < until:
            region = self._regions.popleft()
            known = self._abandon(region, events)
            lost_from = known if lost_from is None else lost_from
            resume = max(until, known)
            lost_until = resume if region.end is None else min(resume, region.end)
            if region.end is None or region.end > resume:
                self._regions.appendleft(self._resumed(region, resume))
                break
        self._agreement.reset()
        if lost_from is not None:
            self._add_gap(lost_from, lost_until, reason, events)
        return events

    def fail(self, window: Window, reason: GapReason) -> list[Event]:
        """A window cannot be transcribed: give up its region, unless newer text of it has come since."""
        region = self._region_of(window)
        if region is None:
            return []
        if region.end is None:
            return self.lose(self._heard, reason)
        events: list[Event] = []
        self._regions.popleft()
        self._agreement.reset()
        self._add_gap(self._abandon(region, events), region.end, reason, events)
        return events

    def next_window_due(self) -> bool:
        """Say whether `next_window` would return one."""
        if not self._regions or self._regions[0].last_issued:
            return False
        region = self._regions[0]
        end = self._window_end(region)
        if end == region.end:
            return region.issued_end < region.heard_from  # else what it says is known, or on its way
        if end == region.window_start + N_SAMPLES:
            return end > region.issued_end  # else the window is full, and its text is on its way
        if region.overdue and not region.issued_end:
            return True
        silence = self._heard - self._gate.last_speech
        if silence >= PAUSE_SAMPLES:
            return region.issued_end < self._gate.last_speech + PAUSE_SAMPLES  # else it has all that was said
        if silence > HESITATION_SAMPLES:
            return False  # speech goes on in a moment, or it is a pause
        return end - max(region.issued_end, region.start) >= max(self._pace, self._cost)

    def next_window(self, now_s: float) -> Window | None:
        """Return the audio to transcribe next, or None where nothing is due."""
        if not self.next_window_due():
            return None
        self._join_waiting()
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
            pause=end >= self._gate.last_speech + PAUSE_SAMPLES,
            first_word=region.first_word,
            issued_s=now_s,
        )

    def request(self, window: Window) -> Request | None:
        """Return how to decode a window, or None where it is not wanted any more.

        The answer holds until the next `take`: windows are decoded one after the other.
        """
        region = self._region_of(window)
        if region is None:
            return None
        words = region.settled_from(window.first_word)
        n_anchor = max(0, region.n_final - window.first_word)
        anchor = sum(len(word.text) for word in words[:n_anchor])
        said = self._said[: max(0, len(self._said) - anchor)]
        return Request(
            prefix=tuple(token for word in words for token in word.tokens),
            prompt=said if self._settings.condition_on_previous_text else "",
            language=self._language,
            task=self._settings.task,
            n_samples=window.end - window.start,
            first=not self._anything_said,
            draft=tuple(token for word in region.tail for token in word.tokens),
        )

    def take(self, window: Window, request: Request, hypothesis: Hypothesis, now_s: float) -> list[Event]:
        """Take what a window reads. Returns what there is to say."""
        region = self._region_of(window)
        if region is None:
            return []
        self._cost = round(max(0.0, now_s - window.issued_s) * SAMPLE_RATE)
        region.language = hypothesis.language
        region.no_speech_prob = hypothesis.no_speech_prob
        region.avg_logprob = hypothesis.avg_logprob
        self._measure(region, window, request, hypothesis)
        rereads = self._find_new(region, window)
        # A window that was on its way when a newer one was made to begin further on may well read again.
        stuck = rereads and not region.n_new and window.start == region.window_start
        region.n_rereading = region.n_rereading + 1 if stuck else 0
        trusted = self._trusted(hypothesis)
        if not trusted:
            self._agreement.reset()
        led_astray = bool(request.prompt) and self._loops(hypothesis)
        if led_astray:
            # What was said last may have led the decoder into the loop: it is not shown it again.
            self._said = ""

        closing = region.end is not None and window.end >= region.heard_from
        if led_astray and (closing or window.pause):
            # Once more, without a prompt: no window may follow that would mend it.
            region.issued_end, region.last_issued = 0, False
            return []
        region.taken_end = max(region.taken_end, window.end)
        events: list[Event] = []
        if rereads and region.n_new < len(region.tail) and (closing or (window.pause and trusted)):
            # The decoder went on behind what it read again. No window may follow: that is heard once more, without it.
            region.settle(region.n_new)
            events += self._begin_behind_settled(region, window)
            if region.window_start < (region.heard_from if closing else window.end) - INVENTED_SAMPLES:
                region.issued_end, region.last_issued, region.taken_end = 0, False, region.window_start
                return events
        if closing:
            return [*events, self._close(region)]

        if trusted:
            new = region.tail[: region.n_new]
            limit = window.end - CUT_OFF_SAMPLES
            n_eligible = next((i for i, word in enumerate(new) if word.end > limit), len(new))
            words = [word.text for word in region.tail]
            region.settle(self._agreement.update(words, n_eligible, self._count_certain(new, window)))

        cut = self._find_cut(region, window)
        if cut is not None:
            events.append(self._cut(region, window, *cut))
        elif region.n_rereading >= MAX_REREADING_PASSES:
            events += self._begin_behind_settled(region, window)
        partial = self._partial(region, window, trusted)
        if partial is not None:
            events.append(partial)
        return events

    def _window_end(self, region: Region) -> int:
        return min(self._heard if region.end is None else region.end, region.window_start + N_SAMPLES)

    @property
    def _lookback(self) -> int:
        """Audio before the present that a start of speech may reach back to."""
        gate = self._settings.gate
        return round((gate.pad_s + gate.min_speech_s) * SAMPLE_RATE) + SAMPLE_RATE

    def _cross(self, boundary: SpeechStart | SpeechEnd | None) -> list[Event]:
        match boundary:
            case SpeechStart(position):
                # A window may have heard, and a final told, more than the gate took for speech.
                position = max(position, self._told_until)
                start = position // HOP_LENGTH * HOP_LENGTH
                self._n_regions += 1
                region = Region(self._n_regions, position, window_start=start, segment_start=position)
                self._regions.append(region)
                return [Speech(state="start", time=seconds(position))]
            case SpeechEnd(position):
                region = self._regions[-1]
                region.end = max(position, region.segment_start)
                region.heard_from = min(self._gate.last_speech + PAUSE_SAMPLES, region.end)
                events: list[Event] = [Speech(state="end", time=seconds(region.end))]
                if region.taken_end >= region.heard_from:
                    # The newest hypothesis says it all.
                    events.append(self._close(region))
                return events
        return []

    def _join_waiting(self) -> None:
        """Let one window take in all the speech that waits and fits: where time is short, each saves a pass.

        What is still being said has a pass of its own, unless that costs so much that the two had better share one.
        """
        first = self._regions[0]
        while len(self._regions) > 1 and first.end is not None:
            following = self._regions[1]
            end = self._heard if following.end is None else following.end
            if following.end is None and self._cost < self._trim_after:
                break
            if end > first.window_start + N_SAMPLES or following.start - first.end > MAX_SILENCE_SAMPLES:
                break
            first.end, first.heard_from = following.end, following.heard_from
            del self._regions[1]

    def _close(self, region: Region) -> Final:
        """Make final what is known of the oldest region, which has ended."""
        assert region is self._regions[0]
        assert region.end is not None
        self._regions.popleft()
        self._agreement.reset()
        return self._final(region, region.settled_from(region.n_final) + region.tail, region.end)

    def _count_certain(self, words: Sequence[HeardWord], window: Window) -> int:
        """Count the first words of a hypothesis that settle at once, whatever was said before."""
        if self._settings.policy != "alignatt":
            return 0
        limit = window.end if window.pause else window.end - self._margin
        for i, word in enumerate(words):
            if max(word.attended, word.end) > limit or word.probability < self._settings.commit_probability:
                return i
        return len(words)

    def _region_of(self, window: Window) -> Region | None:
        region = self._regions[0] if self._regions else None
        if region is None or region.number != window.region:
            return None
        # A window that comes late, behind a newer one, has nothing new to say. The last may well be shorter than one
        # before it: where speech ended is known only when the silence has lasted.
        return region if window.last or window.end > region.taken_end else None

    def _measure(self, region: Region, window: Window, request: Request, hypothesis: Hypothesis) -> None:
        """Place the settled words anew, and keep what the hypothesis says behind them."""
        first, first_open = window.first_word - region.n_forgotten, region.n_final - region.n_forgotten
        # For each token of the prefix, the index of the settled word that it belongs to.
        owners = [i for i in range(first, len(region.words)) for _ in region.words[i].tokens]
        tokens = tuple(token for word in hypothesis.words for token in word.tokens)
        assert len(owners) == len(request.prefix), "another window was taken since the request"
        assert tokens[: len(owners)] == request.prefix, "the decoder left the prefix that it was given"
        region.tail, region.tail_writes_on = [], False
        position = 0  # tokens of the hypothesis that were looked at
        for timed in hypothesis.words:
            word = _absolute(timed, window)
            owned = owners[position : position + len(word.tokens)]
            position += len(word.tokens)
            if not owned:
                region.tail.append(word)
                continue
            if owned[-1] < first_open:
                continue  # final: it stays as it is, and what is written on at it has come too late
            known = "".join(region.words[i].text for i in range(owned[0], owned[-1] + 1))
            region.words[owned[0]] = replace(
                region.words[owned[0]], start=word.start, end=word.end, probability=word.probability
            )
            if len(owned) < len(word.tokens) and word.text.startswith(known):
                # The decoder wrote on at the last word: "President" has become "President's".
                text, rest = word.text[len(known) :], word.tokens[len(owned) :]
                region.tail.append(replace(word, text=text, tokens=rest, start=word.end))
                region.tail_writes_on = True
        while region.tail and region.tail[-1].start > window.end - INVENTED_SAMPLES:
            region.tail.pop()
        if self._is_silence(hypothesis):
            region.tail = []
        region.tail_writes_on = region.tail_writes_on and bool(region.tail)

    def _find_new(self, region: Region, window: Window) -> bool:
        """Tell new words of the tail from those that the decoder read again; return whether it did so.

        What it read again does not settle. Where it did nothing else up to its end, nothing new was heard there.
        """
        # What the settled words were heard by counts from when they settled.
        reach = region.words[-1].attended if window.first_word < region.n_settled else 0
        stretch = find_reread(region.tail, reach)
        region.n_new = stretch.start
        # Of one word it is not known before the next comes.
        several = len(stretch) >= MIN_REREAD_WORDS
        if several and stretch.stop == len(region.tail):
            del region.tail[region.n_new :]
            region.tail_writes_on = region.tail_writes_on and bool(region.tail)
        return several

    def _begin_behind_settled(self, region: Region, window: Window) -> list[Event]:
        """Let the next window begin behind the settled words, without an anchor: they cannot be read again.

        Those that are open become final. Returns what there is to say of that.
        """
        last = region.words[-1]
        # A word that is read twice is placed too early or too late; it was heard as far as the decoder looked for it.
        end = window.end if region.end is None else min(window.end, region.end)
        position = min(max(last.end, last.attended, region.segment_start), end)
        region.tail, region.tail_writes_on, region.n_new, region.n_rereading = [], False, 0, 0
        self._agreement.reset()
        events: list[Event] = []
        if region.n_settled > region.n_final:
            events.append(self._cut(region, window, region.n_settled, position))
        region.first_word = region.n_settled
        region.window_start = max(region.window_start, position // HOP_LENGTH * HOP_LENGTH)
        return events

    def _is_silence(self, hypothesis: Hypothesis) -> bool:
        """Say whether nobody spoke: by openai-whisper's rule, or where none of the words is likely either."""
        if hypothesis.is_silence(self._settings.no_speech_threshold, self._settings.logprob_threshold):
            return True
        return hypothesis.no_speech_prob > self._settings.no_speech_threshold and all(
            word.probability < LIKELY_PROBABILITY for word in hypothesis.words
        )

    def _trusted(self, hypothesis: Hypothesis) -> bool:
        return not (self._loops(hypothesis) or self._is_silence(hypothesis))

    def _loops(self, hypothesis: Hypothesis) -> bool:
        return hypothesis.looped or hypothesis.compression_ratio > self._settings.compression_ratio_threshold

    def _find_cut(self, region: Region, window: Window) -> tuple[int, int] | None:
        """Return after which settled word (its number) and at which position to cut, or None for not yet."""
        if region.end is not None and region.end <= region.window_start + N_SAMPLES:
            return None  # the last window is coming and takes in all that is left
        length = window.end - region.window_start
        # Where passes cost much, a window is full that could not hold what is said until the next.
        full = length >= MAX_WINDOW_SAMPLES or (
            length >= self._trim_after and length + self._cost >= MAX_WINDOW_SAMPLES
        )
        cut = region.find_cut(length, self._trim_after, full=full)
        # Unless much is cut off, a full window would not move on.
        middle = region.window_start + length // 2
        if full and (cut is None or cut[1] < middle):
            cut = self._force_cut(region, window, middle)
        if cut is None:
            return None
        n_final, position = cut
        return n_final, min(max(position, region.segment_start), window.end)

    def _force_cut(self, region: Region, window: Window, middle: int) -> tuple[int, int]:
        """Settle what the newest hypothesis says, all but its end, and cut behind it, beyond `middle`."""
        limit = window.end - FORCED_CUT_MARGIN_SAMPLES
        region.settle(next((i for i, word in enumerate(region.tail) if word.end > limit), len(region.tail)))
        self._agreement.reset()
        if region.n_settled > region.n_final and region.words[-1].end >= middle:
            return region.n_settled, region.words[-1].end
        # Nothing was heard for long.
        following = region.tail[0].start if region.tail else limit
        return region.n_settled, max(middle, min(following, limit))

    def _cut(self, region: Region, window: Window, n_final: int, position: int) -> Final:
        """Make everything before a settled word final, and let the next window begin at the anchor."""
        if region.tail_writes_on and n_final == region.n_settled:
            # The beginning of its first word becomes final: what was written on has come too late.
            del region.tail[0]
            region.tail_writes_on = False
        first, last = region.n_final - region.n_forgotten, n_final - region.n_forgotten
        final = self._final(region, region.words[first:last], position)
        region.n_final = region.n_told_stable = n_final
        region.segment_start = position
        region.first_word = max(region.first_word, n_final - N_ANCHOR_WORDS)
        anchor = region.settled_from(region.first_word)[: n_final - region.first_word]
        begin = anchor[0].start - ANCHOR_MARGIN_SAMPLES if anchor else position
        if position - begin > MAX_ANCHOR_SAMPLES:
            # Far-away words would keep the window from moving on.
            region.first_word, begin = n_final, position
        region.window_start = max(region.window_start, min(begin, position) // HOP_LENGTH * HOP_LENGTH)
        # Windows on their way are newer than this one and begin no earlier.
        n_old = window.first_word - region.n_forgotten
        del region.words[:n_old]
        region.n_forgotten += n_old
        region.partial = None
        return final

    def _abandon(self, region: Region, events: list[Event]) -> int:
        """Make final what is known of a region; return where what is lost of it begins."""
        taken = region.taken_end if region.end is None else min(region.taken_end, region.end)
        end = max(taken, region.segment_start)
        words = region.settled_from(region.n_final) + region.tail
        if words or end > region.segment_start:
            events.append(self._final(region, words, end))
        return end

    def _resumed(self, region: Region, position: int) -> Region:
        """Return what is left of a region from a position on."""
        self._n_regions += 1
        return Region(
            self._n_regions,
            position,
            end=region.end,
            heard_from=region.heard_from,
            overdue=True,
            window_start=position // HOP_LENGTH * HOP_LENGTH,
            segment_start=position,
        )

    def _add_gap(self, start: int, end: int, reason: GapReason, events: list[Event]) -> None:
        if start < end:
            events.append(Gap(start=seconds(start), end=seconds(end), reason=reason))
            self._told_until = end

    def _final(self, region: Region, words: Sequence[HeardWord], end: int) -> Final:
        text = "".join(word.text for word in words)
        self._said = (self._said + text)[-PROMPT_CHARACTERS:]
        self._anything_said |= bool(text)
        self._told_until = end
        if self._language == "auto" and words:
            self._language = region.language
        final = Final(
            segment=self._segment,
            start=seconds(region.segment_start),
            end=seconds(end),
            text=text.strip(),
            words=event_words(words, len(words), region.segment_start, end),
            language=region.language or self._language,
            no_speech_prob=round(region.no_speech_prob, 4),
            avg_logprob=round(region.avg_logprob, 4),
        )
        self._segment += 1
        return final

    def _partial(self, region: Region, window: Window, trusted: bool) -> Partial | None:
        settled = region.settled_from(region.n_final)
        previous = region.partial
        region.n_told_stable = region.n_settled
        n_shown = min(region.n_new, self._count_shown(region, window, len(settled), trusted))
        words = settled + region.tail[:n_shown]
        if previous is None and not words:
            return None
        partial = Partial(
            segment=self._segment,
            start=seconds(region.segment_start),
            end=seconds(window.end),
            text="".join(word.text for word in words).lstrip(),
            # Without a space at its end: a final that ends there ends without it.
            stable=len("".join(word.text for word in settled).strip()),
            words=event_words(words, len(settled), region.segment_start, window.end),
        )
        if previous is not None and (previous.text, previous.stable) == (partial.text, partial.stable):
            return None
        region.partial = partial
        return partial

    def _count_shown(self, region: Region, window: Window, n_settled: int, trusted: bool) -> int:
        """Count the unsettled words that are fit to be seen: those that will probably stay.

        Words at the very end of the audio are guessed from their beginnings; what is on screen already stays there.
        """
        if not self._settings.show_probability:
            return len(region.tail)
        seen = region.partial.words[n_settled:] if region.partial is not None else ()
        limit = window.end if window.pause else window.end - CUT_OFF_SAMPLES
        for i, word in enumerate(region.tail):
            least = self._settings.show_probability if word.end <= limit else CUT_OFF_PROBABILITY
            likely = trusted and word.probability >= least
            if not likely and not (i < len(seen) and seen[i].word == word.text):
                return i
        return len(region.tail)


def _absolute(word: TimedWord, window: Window) -> HeardWord:
    start = min(window.start + max(0, word.start_samples), window.end)
    end = min(max(start, window.start + word.end_samples), window.end)
    attended = min(window.start + word.attended_samples, window.end)
    return HeardWord(word.text, word.tokens, start, end, attended, word.probability)
