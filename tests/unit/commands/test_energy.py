"""Energy is read from the counters of processor packages, each once."""

from pathlib import Path

import pytest

from streamer.commands.energy import EnergyMeter


def write_zone(folder: Path, name: str, energy_uj: int, range_uj: int = 1_000_000) -> Path:
    folder.mkdir(parents=True)
    for file, value in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", range_uj)):
        (folder / file).write_text(f"{value}\n", encoding="utf-8")
    return folder / "energy_uj"


def powercap(folder: Path) -> list[Path]:
    """Write the zones of a machine with two packages; return the counters of these."""
    packages = [write_zone(folder / f"intel-rapl:{k}", f"package-{k}", 900_000) for k in range(2)]
    # In a package, the same once more, and the whole machine.
    write_zone(folder / "intel-rapl:0:0", "core", 500_000)
    write_zone(folder / "intel-rapl-mmio:0", "package-0", 900_000)
    write_zone(folder / "intel-rapl:2", "psys", 900_000)
    return packages


def test_all_packages_count_and_nothing_in_them_counts_twice(tmp_path: Path) -> None:
    packages = powercap(tmp_path)
    meter = EnergyMeter(tmp_path)
    for path in tmp_path.glob("*/energy_uj"):
        path.write_text("950000\n", encoding="utf-8")
    assert meter.joules() == pytest.approx(0.1)
    packages[0].write_text("960000\n", encoding="utf-8")
    assert meter.joules() == pytest.approx(0.11)


def test_a_counter_that_begins_anew_goes_on(tmp_path: Path) -> None:
    packages = powercap(tmp_path)
    meter = EnergyMeter(tmp_path)
    for value in ("50000\n", "990000\n", "20000\n"):
        packages[0].write_text(value, encoding="utf-8")
        used_j = meter.joules()
    assert used_j == pytest.approx(0.15 + 0.94 + 0.03)


def test_a_machine_that_reports_no_energy_has_none(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path / "missing").joules() is None
    powercap(tmp_path)[1].unlink()  # as one that only root may read
    assert EnergyMeter(tmp_path).joules() is None


def test_a_counter_that_goes_away_is_no_measurement(tmp_path: Path) -> None:
    packages = powercap(tmp_path)
    meter = EnergyMeter(tmp_path)
    packages[1].write_text("broken", encoding="utf-8")
    assert meter.joules() is None
    packages[1].write_text("950000", encoding="utf-8")
    assert meter.joules() is None
