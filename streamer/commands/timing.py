"""How long calls take on this machine."""

import time
from collections.abc import Callable


def times_s(call: Callable[[], object], n_runs: int, before: Callable[[], object] = lambda: None) -> list[float]:
    """Return what each of `n_runs` calls takes, in seconds; another one warms up. `before` is not counted.

    Whatever else the machine does only adds: the least is what a call takes at best.
    """
    found = []
    for _ in range(n_runs + 1):
        before()
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return found[1:]
