"""What all tests share."""

import os
import sys

import hypothesis

from tests.virtual_mic import virtual_microphone

__all__ = ["virtual_microphone"]

if sys.platform == "linux" and "PYTEST_XDIST_WORKER" in os.environ:
    # Each of several test processes, with all that it starts, keeps to a core of its own: threads of OpenVINO that wait
    # for others which have no core to run on take many times as long.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) % len(cores)]})

# Time never decides a test, and a machine that is busy with something else is no reason to fail.
hypothesis.settings.register_profile("untimed", deadline=None, max_examples=60)
hypothesis.settings.load_profile("untimed")
