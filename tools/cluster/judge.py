"""What a client saw, held against what clients see where nothing happens."""

import difflib
import itertools
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

from streamer.events import Error, Event, Final, Gap, Partial, Speech
from tests.promises import ROUNDING_S, check_promises
from tools.cluster.sessions import Received

# Words in a row that were lost or doubled, and not only transcribed otherwise.
LEAST_RUN = 3


@dataclass
class Judgement:
    """How one session went."""

    session: str = ""

    # The first promise that is broken, or why the client gave up; empty: none.
    broken: str = ""
    words: int = 0

    # Missing and surplus words, of LEAST_RUN or more in a row; other words that differ.
    lost: int = 0
    doubled: int = 0
    differing: int = 0

    # Words spoken in the undisturbed run that lie in no final and no gap. Words in a pause do not count: the times of
    # such words differ from run to run.
    untold: int = 0

    # Events that the client received and the log does not have, or the other way round: unlike words, that is exact.
    unlike_log: int = 0

    # Seconds in gaps, by reason; how often the client had to come back.
    gaps: dict[str, float] = field(default_factory=dict)
    reconnected: int = 0

    # The longest time without an event during speech, and by how much that is longer than usual there.
    silent_s: float = 0.0
    stall_s: float = 0.0

    # Owners that the session had, and whether the fault was to its own machine.
    epoch: int = 0
    hit: bool = True

    # What was said where it differs: what was expected and what came.
    differences: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        return not (self.broken or self.lost or self.doubled or self.untold or self.unlike_log)


def judge(
    received: Received, references: Sequence[Received], duration_s: float, stored: Sequence[Event] | None = None
) -> Judgement:
    """Compare a session with the same one in undisturbed runs, by the words of the nearest, and with its log.

    stored : all events of the log; None: not compared
    """
    events = [event for _, event in received.events]
    # `waiting` is no event of the session, and has the number of the one before.
    numbered = [event for event in events if not (isinstance(event, Error) and event.code == "waiting")]
    found = Judgement(session=received.session, reconnected=sum("went away" in text for text in received.notices))
    try:
        if received.failure:
            raise AssertionError(received.failure)
        check_promises(numbered, duration_s=duration_s)
    except AssertionError as error:
        found.broken = f"{error}"[:600] or str(traceback.extract_tb(error.__traceback__)[-1].line)
    if stored is not None:
        from_client = {event.to_json() for event in numbered if not isinstance(event, Partial)}
        found.unlike_log = len(from_client ^ {event.to_json() for event in stored})
    for gap in (event for event in events if isinstance(event, Gap)):
        found.gaps[gap.reason] = round(found.gaps.get(gap.reason, 0.0) + gap.end - gap.start, 3)
    said = _words(events)
    found.words = len(said)
    nearest = min((_compare(_words([e for _, e in one.events]), said) for one in references), key=lambda c: sum(c[:3]))
    found.lost, found.doubled, found.differing, found.differences = nearest
    covered = [(event.start - ROUNDING_S, event.end + ROUNDING_S) for event in events if isinstance(event, Final | Gap)]
    speech = _speech(references[0])
    for final in (event for _, event in references[0].events if isinstance(event, Final)):
        middles_s = [(word.start + word.end) / 2 for word in final.words]
        found.untold += sum(_within(middle_s, speech) and not _within(middle_s, covered) for middle_s in middles_s)
    silences = _silences(received, references[0])
    usual = [silence for one in references for silence in _silences(one, references[0])]
    found.silent_s = round(max((b - a for a, b in silences), default=0.0), 2)
    found.stall_s = round(max((_beyond(silence, usual) for silence in silences), default=0.0), 2)
    return found


def _compare(expected: Sequence[str], said: Sequence[str]) -> tuple[int, int, int, list[str]]:
    """Return words lost, doubled and differing otherwise, and the places."""
    lost = doubled = differing = 0
    places = []
    for i, j, k, m in _differences(expected, said):
        missing = (j - i) - (m - k)
        lost += missing if missing >= LEAST_RUN else 0
        doubled += -missing if missing <= -LEAST_RUN else 0
        differing += max(j - i, m - k) if abs(missing) < LEAST_RUN else 0
        places.append(f"{' '.join(expected[i:j])!r} -> {' '.join(said[k:m])!r} behind {' '.join(expected[:i][-3:])!r}")
    return lost, doubled, differing, places


def _differences(expected: Sequence[str], said: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Return where the words differ, as ranges of both; what chance has alike between two such places divides none."""
    found: list[tuple[int, int, int, int]] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, expected, said, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        if found and i - found[-1][1] < LEAST_RUN:
            first = found.pop()
            i, k = first[0], first[2]
        found.append((i, j, k, m))
    return found


def _beyond(silence: tuple[float, float], usual: Sequence[tuple[float, float]]) -> float:
    """Return by how much a silence is longer than the longest usual one that it overlaps."""
    start_s, end_s = silence
    return max(0.0, end_s - start_s - max((b - a for a, b in usual if a < end_s and start_s < b), default=0.0))


def _silences(received: Received, reference: Received) -> list[tuple[float, float]]:
    """Return the times between two events during the speech of the reference."""
    speech = _speech(reference)
    times = [0.0, *(at_s for at_s, _ in received.events), *(end_s for _, end_s in speech[-1:])]
    return [(a, b) for a, b in itertools.pairwise(times) if any(a < end_s and start_s < b for start_s, end_s in speech)]


def _speech(reference: Received) -> list[tuple[float, float]]:
    changes = [event.time for _, event in reference.events if isinstance(event, Speech)]
    return list(zip(changes[::2], changes[1::2], strict=False))


def _within(time_s: float, spans: Sequence[tuple[float, float]]) -> bool:
    return any(start_s <= time_s <= end_s for start_s, end_s in spans)


def _words(events: Sequence[Event]) -> list[str]:
    return [
        word for event in events if isinstance(event, Final) for word in re.findall(r"[\w']+", event.text.casefold())
    ]
