"""The small edition of `tools/fuzz.py`: sessions that go through anything."""

import pytest

from tests.unit.engine.fuzzing import Totals, run_in_simulated_time, run_threads
from tools import fuzz

N_THREADED = 4


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 60), marks=pytest.mark.slow)], ids=["few", "many"])
def test_whatever_a_session_goes_through_every_promise_is_kept(seeds: range) -> None:
    totals = Totals()
    for seed in seeds:
        try:
            run_in_simulated_time(seed, totals)
        except AssertionError as error:
            pytest.fail(f"python tools/fuzz.py --seed {seed}: {error}")
    assert min(totals.sessions, totals.audio_s, totals.finals, totals.gaps, totals.commands, totals.failures) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(N_THREADED))
def test_with_threads_of_its_own_it_keeps_them_too(seed: int) -> None:
    run_threads(seed, Totals())


def test_what_breaks_is_told_with_its_seed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(seed: int, totals: Totals) -> None:
        totals.sessions += 1
        assert seed != 8, "a word was told twice"

    monkeypatch.setattr(fuzz, "run_in_simulated_time", run)
    assert fuzz.main(["--sessions", "3", "--first-seed", "7"]) == 1
    first, summary = capsys.readouterr().out.splitlines()
    assert first.startswith("python tools/fuzz.py --seed 8: AssertionError: a word was told twice")
    assert summary.startswith("3 sessions")
    assert summary.endswith("1 broken promises")
    assert fuzz.main(["--seed", "7"]) == 0
