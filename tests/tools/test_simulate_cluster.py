"""The simulated cluster: what happens in it is what the real decisions make of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from streamer.engine.load import MAX_LOAD
from streamer.plugins.cluster.messages import BEAT_S, LOST_S
from tools.simulate_cluster import (
    Assumed,
    Cell,
    drained,
    filled,
    gateway_lost,
    main,
    placed,
    region_lost,
    settled,
    workers_lost,
)

SMALL = Assumed(machines=20, sessions=200, cell_workers=10, capacities=(12, 20, 28), gateway_streams=50)


def n_sessions(cell: Cell) -> int:
    """Sessions that some worker has; each has just one."""
    at = [session for worker in cell.workers.values() for session in worker.sessions]
    assert len(set(map(id, at))) == len(at)
    assert all(session.worker and session in session.worker.sessions for session in at)
    return len(at)


def test_all_clients_are_placed_and_no_machine_gets_more_than_it_can_do() -> None:
    (row,) = placed(SMALL, 1)
    assert (row["sessions"], row["turned away"]) == (200, 0)
    assert float(str(row["most"])) <= 1.05
    assert float(str(row["requests each"])) < 1.5


def test_more_than_there_is_room_for_are_turned_away() -> None:
    cell = filled(replace(SMALL, sessions=1000), 1)
    assert cell.outcome.n_turned_away > 0
    assert n_sessions(cell) < 500
    assert all(worker.load.ratio <= MAX_LOAD for worker in cell.workers.values())


def test_what_a_lost_worker_had_goes_on_elsewhere() -> None:
    cell = settled(SMALL, 1)
    lost = next(worker for worker in cell.workers.values() if worker.sessions)
    cell.kill([lost])
    cell.run(LOST_S + 5.0)
    assert n_sessions(cell) == 100
    assert len(cell.outcome.waited_s) == len(lost.sessions)
    assert min(cell.outcome.waited_s) >= LOST_S - BEAT_S
    assert max(cell.outcome.waited_s) <= LOST_S + SMALL.check_s + SMALL.timeout_s + 1.0


def test_what_finds_no_room_goes_on_all_the_same() -> None:
    *_, half = workers_lost(replace(SMALL, sessions=300), 1)
    assert float(str(half["without room"])) > 0
    assert half["turned away"] == 0


def test_clients_of_a_lost_gateway_are_back_at_others() -> None:
    cell = settled(SMALL, 1)
    orphans = cell.lose(cell.gateways[0])
    for session in orphans:
        cell.arrive(session, n_reads=2)
    cell.run(10.0)
    assert n_sessions(cell) == 100
    assert sum(len(gateway.sessions) for gateway in cell.gateways) == 100
    few, _, whole = gateway_lost(SMALL, 1)
    assert few["sessions"] == whole["sessions"] == len(orphans)
    assert float(str(few["p99, s"])) < float(str(whole["p99, s"]))


def test_a_drained_worker_has_nothing_left_and_others_take_over_at_once() -> None:
    one, behind, before = drained(SMALL, 1)
    for row in (one, behind, before):
        assert float(str(row["p50, s"])) < 1.0
    assert float(str(behind["moves each"])) >= 1.0
    cell = settled(SMALL, 1)
    worker = next(iter(cell.workers.values()))
    cell.drain(worker)
    cell.run(2.0)
    assert not worker.sessions
    assert n_sessions(cell) == 100


def test_a_lost_regions_clients_are_taken_where_there_is_room_for_them() -> None:
    rows = region_lost(replace(SMALL, sessions=160), 1)
    assert rows[0]["never"] == 0
    rows = region_lost(replace(SMALL, sessions=480), 1)
    assert float(str(rows[0]["never"])) > 0


def test_a_busy_worker_gives_sessions_to_one_that_has_joined() -> None:
    cell = Cell(SMALL, 1, n_workers=1)
    (busy,) = cell.workers.values()
    for _ in range(20):
        session = cell.new_session()
        session.gateway = cell.gateways[0]
        session.gateway.sessions[session] = None
        busy.admit(session, cell.now_s, must=True)
        session.speech = 1.0
    cell.join()
    cell.run(20.0)
    assert n_sessions(cell) == 20
    assert busy.load.ratio <= MAX_LOAD


def test_the_same_seed_gives_the_same_figures() -> None:
    assert workers_lost(SMALL, 3) == workers_lost(SMALL, 3)


def test_figures_are_written_with_what_they_assume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert main(["workers", "--machines", "20", "--sessions", "200", "--cell", "10", "--json", str(file)]) == 0
    written = json.loads(file.read_text(encoding="utf-8"))
    assert (written["assumed"]["machines"], len(written["workers"])) == (20, 3)
    assert "| 1 of 10 workers |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["nonsense"])
