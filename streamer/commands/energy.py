"""The energy that a machine's processors use, if it reports that."""

import re
import threading
from pathlib import Path

# Linux's counters, of Intel's and AMD's processors. Of late only root may read them.
POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """The energy of all processor packages since the meter was made: of everything that runs, idle power included.

    Source: Running Average Power Limit, https://docs.kernel.org/power/powercap/powercap.html.
    """

    def __init__(self, folder: Path = POWERCAP) -> None:
        # Several threads may read: a counter that began anew must count once.
        self._lock = threading.Lock()
        self._used_uj = 0
        try:
            self._last_uj = {zone: _read_uj(zone / "energy_uj") for zone in _packages(folder)}
            self._range_uj = {zone: _read_uj(zone / "max_energy_range_uj") for zone in self._last_uj}
        except (OSError, ValueError):
            self._last_uj = {}

    def joules(self) -> float | None:
        """Return the energy, None if the machine reports none to this user.

        Call it before a counter has begun anew twice, which takes a laptop an hour or more.
        """
        with self._lock:
            try:
                for zone, last_uj in self._last_uj.items():
                    self._last_uj[zone] = now_uj = _read_uj(zone / "energy_uj")
                    self._used_uj += now_uj - last_uj + (self._range_uj[zone] if now_uj < last_uj else 0)
            except (OSError, ValueError):
                self._last_uj = {}
            return self._used_uj / 1e6 if self._last_uj else None


def _packages(folder: Path) -> list[Path]:
    """Return the zones of whole packages: their cores are in them, and `psys` has them within the whole machine."""
    zones = [zone for zone in folder.glob("intel-rapl:*") if re.fullmatch(r"intel-rapl:\d+", zone.name)]
    return [zone for zone in zones if (zone / "name").read_text(encoding="utf-8").startswith("package")]


def _read_uj(path: Path) -> int:
    return int(path.read_text(encoding="utf-8"))
