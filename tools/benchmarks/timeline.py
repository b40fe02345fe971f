"""What a system displayed while it received a recording, from moment to moment: the source of all figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from streamer.events import Event, Final, Gap, Partial
from streamer.events import Revision as Correction


@dataclass(frozen=True, slots=True)
class Revision:
    """What a system displays at one moment: the whole text so far, split at white space."""

    wall_s: float  # seconds since the first audio was sent
    words: tuple[str, ...]  # all finals and the current partial
    n_stable: int  # the system promises not to change this many of the first words


@dataclass(slots=True)
class Timeline:
    """One system over one recording."""

    system: str = ""
    recording: str = ""
    audio_s: float = 0.0
    revisions: list[Revision] = field(default_factory=list)

    # Processor seconds of all the system's processes while the audio was played and finished, and their peak memory.
    cpu_s: float = 0.0
    peak_rss_mb: float = 0.0

    # Joules that the machine's processors used in that time; None if it reports none.
    energy_j: float | None = None

    # Calls of the encoder and the decoder network; None if the system does not report them.
    encoder_calls: int | None = None
    decoder_calls: int | None = None

    # Texts of the finals by their numbers, as corrected later; None if the system makes no corrections.
    corrected: dict[int, str] | None = None

    # (start, end) of audio that was announced as lost, in seconds.
    gaps: list[tuple[float, float]] = field(default_factory=list)

    # (start, end) of each word of the finals, in seconds; None if they are unknown.
    words: list[tuple[float, float]] | None = None

    def show(self, stable: Sequence[str], unstable: Sequence[str], wall_s: float) -> bool:
        """Add stable words and those that may still change; return whether they are new."""
        shown = Revision(wall_s, (*stable, *unstable), len(stable))
        before = self.revisions[-1] if self.revisions else Revision(0.0, (), 0)
        if (shown.words, shown.n_stable) == (before.words, before.n_stable):
            return False
        self.revisions.append(shown)
        return True


class Recorder:
    """Turns the events of one of our sessions into a timeline: displayed are its finals and the newest partial."""

    def __init__(self) -> None:
        self._corrected: dict[int, str] = {}
        self._words: list[tuple[float, float]] = []
        self._finals: tuple[str, ...] = ()  # words of all finals so far, as they are displayed
        self.timeline = Timeline(corrected=self._corrected, words=self._words)

    def add(self, event: Event, wall_s: float) -> None:
        """Add an event that came `wall_s` seconds after the first audio was sent."""
        match event:
            case Gap():
                self.timeline.gaps.append((event.start, event.end))
            case Partial():
                n_stable = len(self._finals) + _n_whole(event.text, event.stable)
                self.timeline.revisions.append(Revision(wall_s, (*self._finals, *event.text.split()), n_stable))
            case Final():
                self._corrected[event.seq] = event.text
                self._words += [(word.start, word.end) for word in event.words]
                self._finals = (*self._finals, *event.text.split())
                self.timeline.revisions.append(Revision(wall_s, self._finals, len(self._finals)))
            case Correction():
                self._corrected[event.of] = event.text


def _n_whole(text: str, n_characters: int) -> int:
    """Return how many words of a text are whole within its first characters."""
    first, rest = text[:n_characters].split(), text.split()
    n = len(first)
    return n if not n or first[-1] == rest[n - 1] else n - 1
