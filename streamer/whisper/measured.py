"""What `streamer models verify` has measured of a model on this machine, kept beside the compiled graphs."""

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from streamer.audio.constants import CHUNK_LENGTH_S
from streamer.errors import ModelError
from streamer.whisper import cache
from streamer.whisper.device.devices import device_facts, the_core
from streamer.whisper.files import read_json
from streamer.whisper.generation import MIN_WINDOW_S

_FILE = "words.json"


@dataclass(frozen=True, slots=True)
class Measured:
    """What costs no words; of what was not measured nothing is said."""

    windows_s: tuple[int, ...] = ()  # windows shorter than 30 s, in seconds
    int8: bool = False  # whether weights of 8 bits do not


def entry_of(base: Path | None, model: Sequence[Path], weights: str, devices: Iterable[str]) -> Path | None:
    """Return where it is kept what was measured of a model on these devices; None where nothing can be.

    A model is known by the names, sizes and times of its files, in one place or several: an adapter has its own.
    `weights` are those that the settings want.
    """
    if base is None:
        return None
    try:
        places = [place.resolve() for place in model]
        files = [file for place in places for file in (sorted(place.iterdir()) if place.is_dir() else [place])]
        marks = [(file, stat.st_size, stat.st_mtime_ns) for file in files if file.is_file() for stat in (file.stat(),)]
    except OSError:
        return None
    facts = [device_facts(the_core(), device) for device in sorted(set(devices))]
    return cache.entry(base, cache.WORDS, [weights, marks, *facts])


def recall(entry: Path | None) -> Measured:
    """Return what is kept, and mark it as used. What is broken counts as nothing."""
    if entry is None or not entry.is_dir():
        return Measured()
    cache.use(entry)
    with contextlib.suppress(ModelError):
        data = read_json(entry / _FILE, max_bytes=1 << 12)
        windows_s, int8 = data.get("windows_s"), data.get("int8")
        if isinstance(windows_s, list) and isinstance(int8, bool):
            return Measured(tuple(s for s in windows_s if type(s) is int and MIN_WINDOW_S <= s < CHUNK_LENGTH_S), int8)
    return Measured()


def keep(entry: Path | None, measured: Measured) -> None:
    """Keep what was measured, in the place of what was before. Never fails."""
    if entry is not None:
        cache.use(entry)
        with contextlib.suppress(OSError):
            (entry / _FILE).write_text(json.dumps(asdict(measured)), encoding="utf-8")
