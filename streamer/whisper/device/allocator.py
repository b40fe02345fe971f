"""Keeps the memory of a daemon that runs for days flat."""

import ctypes
import logging
import platform
import re
from pathlib import Path

logger = logging.getLogger(__name__)

# Blocks at least this large are given back to the system when they are freed. Windows and attention are larger.
LARGE_BLOCK_BYTES = 256 * 1024

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # mallopt's parameters, from glibc's malloc.h
_MADV_PAGEOUT = 21  # madvise's advice, from Linux's mman.h

# Addresses of a mapped file that cannot be written to and never was, as tables of libraries were; `x` for code; path.
_MAPPED = re.compile(r"^(\w+)-(\w+) r-(.). \S+ \S+ \d+ +(/.*)\n(?:\w+: .*\n)*?Anonymous: +0 kB", re.MULTILINE)


def give_back_large_blocks() -> None:
    """Have the C library return large blocks to the system; does nothing if it is not glibc.

    glibc raises its threshold each time a large block is freed, and then keeps such blocks in a heap that grows by
    what does not fit into the holes: measured, 27 MB in an hour of audio instead of 3, and 30 MB more to begin with.
    Small blocks come from one heap, not from one for each thread: 15 MB less.
    Source: mallopt(3), M_MMAP_THRESHOLD and M_ARENA_MAX.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    try:
        change = ctypes.CDLL(None).mallopt
        done = change(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES) and change(_M_ARENA_MAX, 1)
    except (OSError, AttributeError):
        done = 0
    if not done:
        logger.debug("the C library's allocator stays as it is")


def give_back_mapped(*, libraries: bool = False) -> None:
    """Let go of the pages of mapped files, also of `libraries` if they are idle, and of free blocks.

    Does nothing if it is not Linux. Compiled graphs map the weights that they read, and have a copy of their own
    once they have computed. The pages count as the process's memory for as long as they are mapped; what is read again
    comes back from the file. Another thread may have freed and used an address since it was read: this advice loses no
    data, whatever is there. The system refuses it for files that others have mapped, and for those that this user may
    not write to.
    Source: madvise(2), MADV_PAGEOUT; proc_pid_smaps(5); malloc_trim(3).
    """
    try:
        mapped = _MAPPED.findall(Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace"))
        library = ctypes.CDLL(None)
        advise = library.madvise
    except (OSError, AttributeError):
        return
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    code = {path for *_, execute, path in mapped if execute == "x"}
    for first, last, _, path in mapped:
        if libraries or path not in code:
            begin, end = int(first, 16), int(last, 16)
            advise(begin, end - begin, _MADV_PAGEOUT)
    # What was read on the way is in small blocks, which the C library keeps.
    if platform.libc_ver()[0] == "glibc":
        library.malloc_trim(0)
