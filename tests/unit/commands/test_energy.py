"""Energy is read from the counters of processor packages, each once."""

from pathlib import Path

import pytest

from streamer.commands.energy import EnergyMeter


def write_zone(folder: Path, name: str, energy_uj: int) -> Path:
    folder.mkdir(parents=True)
    for file, value in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", 1_000_000)):
        (folder / file).write_text(f"{value}\n", encoding="utf-8")
    return folder / "energy_uj"


@pytest.fixture
def packages(tmp_path: Path) -> list[Path]:
    """The counters of the packages of a machine with two."""
    # In a package, the same once more, and the whole machine.
    write_zone(tmp_path / "intel-rapl:0:0", "core", 500_000)
    write_zone(tmp_path / "intel-rapl-mmio:0", "package-0", 900_000)
    write_zone(tmp_path / "intel-rapl:2", "psys", 900_000)
    return [write_zone(tmp_path / f"intel-rapl:{k}", f"package-{k}", 900_000) for k in range(2)]


def test_packages_count_once_and_a_counter_that_begins_anew_goes_on(tmp_path: Path, packages: list[Path]) -> None:
    meter = EnergyMeter(tmp_path)
    assert meter.joules() == 0
    for path in tmp_path.glob("*/energy_uj"):
        path.write_text("950000\n", encoding="utf-8")
    assert meter.joules() == pytest.approx(0.1)
    for value, more_j in (("50000\n", 0.1), ("990000\n", 0.94), ("20000\n", 0.03)):
        before_j = meter.joules()
        packages[0].write_text(value, encoding="utf-8")
        assert meter.joules() == pytest.approx((before_j or 0) + more_j)


def test_a_machine_that_reports_no_energy_has_none(tmp_path: Path, packages: list[Path]) -> None:
    assert EnergyMeter(tmp_path / "missing").joules() is None
    packages[1].unlink()  # as one that only root may read
    assert EnergyMeter(tmp_path).joules() is None


def test_a_counter_that_goes_away_is_no_measurement(tmp_path: Path, packages: list[Path]) -> None:
    meter = EnergyMeter(tmp_path)
    for text in ("broken", "950000"):
        packages[1].write_text(text, encoding="utf-8")
        assert meter.joules() is None
