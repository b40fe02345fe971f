"""For how long Linux's NPUs have computed: the proof that an NPU did what it was to do, and not a silent fall-back.

The counters are there from Linux 6.11 on, and count what other programs have computed, too:
https://kernel.org/doc/Documentation/ABI/testing/sysfs-driver-ivpu
"""

import contextlib
from collections.abc import Iterator, Sequence

from streamer.whisper.check import Check
from streamer.whisper.device import drivers


def npu_busy_us() -> int | None:
    """Return for how many microseconds the NPUs of this machine have computed; None if no file says so."""
    total_us = None
    for counter in (drivers.ROOT / "sys/class/accel").glob("accel*/device/npu_busy_time_us"):
        with contextlib.suppress(OSError, ValueError):
            total_us = (total_us or 0) + int(counter.read_text(encoding="ascii"))
    return total_us


def busy_checks(since_us: int | None, stages: Sequence[str]) -> Iterator[Check]:
    """Yield the check that NPUs have computed since they had for `since_us`; none if no file says so.

    stages : what an NPU was to compute meanwhile
    """
    now_us = npu_busy_us()
    if stages and since_us is not None and now_us is not None:
        problem = f"the NPU was to compute {', '.join(stages)}, and was not busy meanwhile: something else computed it"
        found = f"{(now_us - since_us) / 1000:.1f} ms"
        yield Check("NPU: busy time", found, "more than 0 ms", now_us > since_us, problem, stages[0])
