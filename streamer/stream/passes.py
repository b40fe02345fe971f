"""When a window of speech is due, which one it is, and what is on its way. Sans-I/O, positions in absolute samples.

A *stretch* is speech between two long silences. Only the oldest is transcribed; those behind it wait, or share its
window. A window also reaches back over earlier silences, as far as settled words go.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Self

import msgspec

from streamer.audio.constants import HOP_LENGTH, N_SAMPLES, SAMPLE_RATE
from streamer.stream.settings import SessionSettings
from streamer.stream.window import MAX_SILENCE_SAMPLES, Window

# Silence this long is a pause: what was said before it is complete. (Stops, such as the t in "at ten", are shorter.)
PAUSE_SAMPLES = SAMPLE_RATE // 4

HESITATION_SAMPLES = SAMPLE_RATE // 10  # after silence this long it is worth waiting for whether it becomes a pause

# Passes come no more often than so many times as much new audio comes as one costs, up to this much audio: words are
# seen sooner where passes are cheap, and the machine is not kept busy for it.
EASE = 2.5
EASY_SAMPLES = SAMPLE_RATE

JOIN_OPEN_SAMPLES = 8 * SAMPLE_RATE  # if a pass costs as much, waiting speech and ongoing speech share a window


class State(Enum):
    """How far a stretch of speech is."""

    # Somebody is speaking.
    OPEN = auto()

    # Speech has ended: its last window is still to come.
    ENDED = auto()

    # The last window is on its way.
    LAST_ISSUED = auto()


@dataclass(slots=True)
class Stretch:
    """Speech that is being transcribed, and the windows that it was heard in."""

    number: int
    start: int
    state: State = State.OPEN

    # Where speech ended; while it goes on, where it has got to.
    end: int = 0

    # Behind this a window hears nothing new, once speech has ended.
    heard_from: int = 0

    # Whether it begins behind speech that was given up: its first window is due at once, whatever the pace.
    overdue: bool = False

    # Whether audio was lost right before it: no window may hear it together with what came before.
    after_loss: bool = False

    # Whether a window was handed out a second time, because its text could not be relied on.
    looked_again: bool = False

    # End of the newest window that was handed out, and of the newest that came back; 0 before the first.
    issued_end: int = 0
    taken_end: int = 0

    @property
    def open(self) -> bool:
        """Whether somebody is still speaking."""
        return self.state is State.OPEN


class PassesState(msgspec.Struct, frozen=True, array_like=True):
    """The stretches that are not final, to go on with elsewhere; what is on its way has to be handed out again."""

    stretches: tuple[Stretch, ...]
    heard: int
    last_speech: int
    cost: int
    window_start: int


class Passes:
    """The stretches of speech that are not final yet, and their windows."""

    def __init__(self, settings: SessionSettings, numbers: Iterator[int], *, start: int = 0) -> None:
        """Begin to hear at a position; stretches get the numbers."""
        self._numbers = numbers
        # Oldest first.
        self._stretches: deque[Stretch] = deque()
        # End of the audio that was heard, and of the newest speech in it.
        self.heard = self.last_speech = start
        # Where the next window begins, on the spectrogram's grid.
        self.window_start = start // HOP_LENGTH * HOP_LENGTH
        # What the last pass cost, in samples of real time.
        self.cost = 0
        self.change(settings)

    @property
    def state(self) -> PassesState:
        stretches = tuple(
            replace(stretch, state=State.OPEN, issued_end=min(stretch.issued_end, stretch.taken_end))
            if stretch.open
            else replace(stretch, state=State.ENDED, issued_end=0)
            for stretch in self._stretches
        )
        return PassesState(stretches, self.heard, self.last_speech, self.cost, self.window_start)

    @classmethod
    def restored(cls, settings: SessionSettings, numbers: Iterator[int], state: PassesState) -> Self:
        passes = cls(settings, numbers)
        passes._stretches.extend(replace(stretch) for stretch in state.stretches)
        passes.heard, passes.last_speech, passes.cost = state.heard, state.last_speech, state.cost
        passes.window_start = state.window_start
        return passes

    def change(self, settings: SessionSettings) -> None:
        self._pace = round(settings.pace_s * SAMPLE_RATE)
        self._most_window = round(settings.window_s * SAMPLE_RATE)

    @property
    def current(self) -> Stretch | None:
        """The stretch that is being transcribed; None in silence."""
        return self._stretches[0] if self._stretches else None

    @property
    def newest(self) -> Stretch | None:
        """The stretch that came last; None in silence."""
        return self._stretches[-1] if self._stretches else None

    @property
    def waiting_from(self) -> int | None:
        """Position of the oldest speech that no text has come of; None where there is none."""
        stretch = self.current
        return None if stretch is None else max(stretch.taken_end, stretch.start)

    def advance(self, heard: int, last_speech: int) -> None:
        """Audio was heard up to a position, and speech up to another."""
        self.heard, self.last_speech = heard, last_speech

    def begin(self, position: int, *, after_loss: bool) -> Stretch:
        stretch = self._new_stretch(position)
        stretch.after_loss = after_loss
        self._stretches.append(stretch)
        return stretch

    def end(self, position: int) -> Stretch:
        """Nobody speaks any more: the newest stretch ends at a position."""
        stretch = self._stretches[-1]
        assert stretch.open, "it has ended before"
        stretch.state, stretch.end = State.ENDED, position
        stretch.heard_from = min(self.last_speech + PAUSE_SAMPLES, position)
        return stretch

    def remove_first(self) -> Stretch:
        """The oldest stretch is final, or given up."""
        return self._stretches.popleft()

    def resume_at(self, stretch: Stretch, position: int) -> Stretch:
        """Go on with a stretch that was removed from a position on, as one of its own."""
        rest = self._new_stretch(position)
        rest.state, rest.end, rest.heard_from, rest.overdue = stretch.state, stretch.end, stretch.heard_from, True
        if rest.state is State.LAST_ISSUED:
            rest.state = State.ENDED
        self._stretches.appendleft(rest)
        return rest

    def find(self, window: Window) -> Stretch | None:
        """Return the stretch that a window that has come back tells of; None where it has nothing new to say.

        That is one that comes late, behind a newer one. The last may well be shorter than one before it: where speech
        ended is known only when the silence has lasted.
        """
        stretch = self.current
        if stretch is None or stretch.number != window.stretch:
            return None
        return stretch if window.last or window.end > stretch.taken_end else None

    def closes(self, stretch: Stretch, end: int) -> bool:
        """Say whether a window up to a position has heard all that was said in a stretch."""
        return not stretch.open and end >= stretch.heard_from

    def ends_in_next(self, stretch: Stretch) -> bool:
        """Say whether the next window is the last and takes in all that is left."""
        return not stretch.open and stretch.end <= self.window_start + N_SAMPLES

    def too_long(self, end: int) -> bool:
        """Say whether the window behind one up to `end` would be too long."""
        return end + self._interval - self.window_start > self._most_window

    @property
    def room(self) -> int:
        """Samples of a window of 30 s that what is said until the next leaves free."""
        return max(0, N_SAMPLES - max(self._interval, 2 * SAMPLE_RATE))

    def is_full(self, end: int) -> bool:
        """Say whether a window up to `end` cannot take in what is said until the next."""
        return end - self.window_start > self.room

    def move_on(self, position: int) -> None:
        """Let the next window begin at a position, or where it does if that is later."""
        self.window_start = max(self.window_start, position // HOP_LENGTH * HOP_LENGTH)

    def look_again(self, stretch: Stretch) -> None:
        """Let a window that was handed out be due once more."""
        stretch.issued_end, stretch.looked_again = 0, True
        if stretch.state is State.LAST_ISSUED:
            stretch.state = State.ENDED

    def hear_rest_again(self, stretch: Stretch) -> None:
        """Let a window be due of what was heard from where the next one begins."""
        self.look_again(stretch)
        stretch.taken_end = self.window_start

    def due(self) -> bool:
        """Say whether `next_window` would return one."""
        stretch = self.current
        if stretch is None or stretch.state is State.LAST_ISSUED:
            return False
        end = self._window_end(stretch)
        if not stretch.open and end == stretch.end:
            return stretch.issued_end < stretch.heard_from  # else what it says is known, or on its way
        if end == self.window_start + N_SAMPLES:
            return end > stretch.issued_end  # else the window is full, and its text is on its way
        if stretch.overdue and not stretch.issued_end:
            return True
        silence = self.heard - self.last_speech
        if silence >= PAUSE_SAMPLES:
            return stretch.issued_end < self.last_speech + PAUSE_SAMPLES  # else it has all that was said
        if silence > HESITATION_SAMPLES:
            return False  # speech goes on in a moment, or it is a pause
        return end - max(stretch.issued_end, stretch.start) >= self._interval

    @property
    def until_due(self) -> int | None:
        """Samples of audio that have to come before a window can be due; None while nobody speaks."""
        stretch, silence = self.current, self.heard - self.last_speech
        if stretch is None or not stretch.open or silence >= PAUSE_SAMPLES:
            return None
        rest = self._interval - (self.heard - max(stretch.issued_end, stretch.start))
        return max(0, min(rest, PAUSE_SAMPLES - silence))

    def next_window(self, first_word: int, now_s: float) -> Window | None:
        """Return the audio to transcribe next, None where none is due; `first_word` is the first settled one in it."""
        if not self.due():
            return None
        self._join_waiting()
        stretch = self._stretches[0]
        end = self._window_end(stretch)
        last = not stretch.open and end == stretch.end
        stretch.issued_end = end
        if last:
            stretch.state = State.LAST_ISSUED
        return Window(
            stretch=stretch.number,
            start=self.window_start,
            end=end,
            last=last,
            pause=end >= self.last_speech + PAUSE_SAMPLES,
            first_word=first_word,
            issued_s=now_s,
        )

    @property
    def _interval(self) -> int:
        """New audio from one pass to the next."""
        return max(self._pace, self.cost, min(EASY_SAMPLES, round(EASE * self.cost)))

    def _new_stretch(self, position: int) -> Stretch:
        return Stretch(next(self._numbers), position)

    def _window_end(self, stretch: Stretch) -> int:
        return min(self.heard if stretch.open else stretch.end, self.window_start + N_SAMPLES)

    def _join_waiting(self) -> None:
        """Let one window take in all speech that waits and fits; what is still being said, where passes cost much."""
        first = self._stretches[0]
        while len(self._stretches) > 1 and not first.open:
            following = self._stretches[1]
            end = self.heard if following.open else following.end
            if following.after_loss or (following.open and self.cost < JOIN_OPEN_SAMPLES):
                break
            if end > self.window_start + N_SAMPLES or following.start - first.end > MAX_SILENCE_SAMPLES:
                break
            first.state, first.end, first.heard_from = following.state, following.end, following.heard_from
            del self._stretches[1]
