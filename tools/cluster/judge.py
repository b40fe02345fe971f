"""What a client saw, compared with what clients see if nothing happens."""

import difflib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from streamer.events import Error, Event, Final, Gap, Partial, Speech
from tests.promises import check_promises
from tools.cluster.sessions import Received

# Words in a row that were lost or doubled, and not only transcribed otherwise.
LEAST_RUN = 3


@dataclass
class Judgement:
    """How one session went."""

    # The first promise that is broken, or why the client gave up; empty: none.
    broken: str = ""
    words: int = 0

    # Missing and surplus words, of LEAST_RUN or more in a row; other words that differ.
    lost: int = 0
    doubled: int = 0
    differing: int = 0

    # Events that the client received and the log does not have, or the other way round.
    unlike_log: int = 0

    # Seconds in gaps, by reason; how often the client had to come back.
    gaps: dict[str, float] = field(default_factory=dict)
    reconnected: int = 0

    # The longest time without an event during speech, beyond what is usual there.
    stall_s: float = 0.0

    # Owners that the session had, and whether the fault was to its own machine.
    epoch: int = 0
    hit: bool = True

    @property
    def well(self) -> bool:
        return not (self.broken or self.lost or self.doubled or self.unlike_log)


def judge(
    received: Received, references: Sequence[Received], duration_s: float, stored: Sequence[Event] | None = None
) -> Judgement:
    """Compare a session with undisturbed ones, by the words of the nearest, and with all events of its log if given."""
    events = [event for _, event in received.events]
    # `waiting` is not an event of the session, and has the number of the one before.
    numbered = [event for event in events if not (isinstance(event, Error) and event.code == "waiting")]
    found = Judgement(reconnected=sum("went away" in text for text in received.notices), broken=received.failure)
    try:
        if not received.failure:
            check_promises(numbered, duration_s=duration_s)
    except AssertionError as error:
        found.broken = f"{error}"[:600] or "a promise"
    if stored is not None:
        from_client = {event.to_json() for event in numbered if not isinstance(event, Partial)}
        found.unlike_log = len(from_client ^ {event.to_json() for event in stored})
    for gap in (event for event in events if isinstance(event, Gap)):
        found.gaps[gap.reason] = round(found.gaps.get(gap.reason, 0.0) + gap.end - gap.start, 3)
    said = _words(received)
    found.words = len(said)
    found.lost, found.doubled, found.differing = min((_compare(_words(one), said) for one in references), key=sum)
    usual = [silence for one in references for silence in _silences(one, references[0])]
    stalls = [_beyond(silence, usual) for silence in _silences(received, references[0])]
    found.stall_s = round(max(stalls, default=0.0), 2)
    return found


def _compare(expected: Sequence[str], said: Sequence[str]) -> tuple[int, int, int]:
    """Return how many words were lost, were doubled, and differ otherwise."""
    places: list[tuple[int, int, int, int]] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, expected, said, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        if places and i - places[-1][1] < LEAST_RUN:  # words that are alike by chance do not divide a place
            i, _, k, _ = places.pop()
        places.append((i, j, k, m))
    lost = doubled = differing = 0
    for i, j, k, m in places:
        missing = (j - i) - (m - k)
        lost += missing if missing >= LEAST_RUN else 0
        doubled += -missing if missing <= -LEAST_RUN else 0
        differing += max(j - i, m - k) if abs(missing) < LEAST_RUN else 0
    return lost, doubled, differing


def _beyond(silence: tuple[float, float], usual: Sequence[tuple[float, float]]) -> float:
    """Return by how much a silence is longer than the longest usual one that it overlaps."""
    start_s, end_s = silence
    return max(0.0, end_s - start_s - max((b - a for a, b in usual if a < end_s and start_s < b), default=0.0))


def _silences(received: Received, reference: Received) -> list[tuple[float, float]]:
    """Return the times between two events during the speech of the reference."""
    speech = speech_of(reference)
    times = [0.0, *(at_s for at_s, _ in received.events), *(end_s for _, end_s in speech[-1:])]
    return [(a, b) for a, b in itertools.pairwise(times) if any(a < end_s and start_s < b for start_s, end_s in speech)]


def speech_of(reference: Received) -> list[tuple[float, float]]:
    """Return where speech was detected, in seconds."""
    changes = [event.time for _, event in reference.events if isinstance(event, Speech)]
    return list(zip(changes[::2], changes[1::2], strict=False))


def _words(received: Received) -> list[str]:
    finals = [event for _, event in received.events if isinstance(event, Final)]
    return [word for final in finals for word in re.findall(r"[\w']+", final.text.casefold())]
