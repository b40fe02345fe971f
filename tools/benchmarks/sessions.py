"""How many sessions a system keeps in real time on this machine."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from rich.console import Console

from streamer.errors import StreamerError
from tools.benchmarks.figures import measure, quantile
from tools.benchmarks.recordings import Recording
from tools.benchmarks.systems import System
from tools.benchmarks.text import Normaliser

# A session is kept while nine of ten words of its last third are seen within this, and while it shows at least this
# share of the words that it shows alone.
MOST_DELAY_S = 3.0
LEAST_SHARE = 0.8

# Clients do not begin all at once.
APART_S = 0.7


@dataclass(frozen=True, slots=True)
class Session:
    """How one session went."""

    # Delay of nine of ten words of its last third, in seconds; None: none was seen.
    delay_s: float | None

    # Share of the words said that it has.
    share: float

    # Why it failed or was refused.
    failure: str = ""

    def kept(self, share_alone: float) -> bool:
        """Return whether it was kept in real time."""
        if self.failure or self.delay_s is None:
            return False
        return self.delay_s <= MOST_DELAY_S and self.share >= LEAST_SHARE * share_alone


def measure_sessions(
    system: System, recordings: Sequence[Recording], normalise: Normaliser, console: Console, most: int
) -> dict[str, object]:
    """Find the largest number of sessions at once of which each is kept, at most `most`; print each step.

    Raises StreamerError if the system cannot be started.
    """
    steps: dict[int, list[Session]] = {}

    def keeps(n: int) -> bool:
        steps[n] = _run(system, recordings, normalise, n)
        failures = sorted({session.failure for session in steps[n] if session.failure})
        worst = max((session.delay_s for session in steps[n] if session.delay_s is not None), default=None)
        n_kept = sum(session.kept(steps[1][0].share) for session in steps[n])
        slowest = f"nine of ten words within {'–' if worst is None else f'{worst:.2f}'} s in the slowest"
        told = "; ".join([f"{system.name}: {n} at once, {n_kept} kept", slowest, *failures])
        console.print(told, markup=False, highlight=False)
        return n_kept == n

    try:
        system.start()
        kept = largest(keeps, most)
    finally:
        system.stop()
    console.print(f"{system.name}: {kept} session{'' if kept == 1 else 's'} in real time")
    measured = {n: [asdict(session) for session in sessions] for n, sessions in sorted(steps.items())}
    return {"system": system.name, "sessions": kept, "steps": measured}


def largest(keeps: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` that is kept, 0 if not even one is: doubled, then halved between."""
    kept, too_many = 0, most + 1
    n = 1
    while kept < n < too_many:
        if keeps(n):
            kept = n
        else:
            too_many = n
        n = min(2 * kept, most) if too_many > most else (kept + too_many) // 2
    return kept


def _run(system: System, recordings: Sequence[Recording], normalise: Normaliser, n: int) -> list[Session]:
    def client(i: int) -> Session:
        time.sleep(i * APART_S)
        recording = recordings[i % len(recordings)]
        try:
            timeline = system.stream(f"{recording.name}, client {i}", recording.samples())
        except StreamerError as error:
            return Session(None, 0.0, str(error))
        delays = measure(timeline, recording.text, recording.words, normalise).delays["first_seen"]
        share = len(delays) / max(1, len(recording.words))
        return Session(quantile(delays[-(len(delays) // 3) :], 90), share)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(client, range(n)))
