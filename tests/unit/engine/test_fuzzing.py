"""The small edition of `tools/fuzz.py`: sessions that go through anything."""

import pytest

from tests.unit.engine.fuzzing import Totals, run_in_simulated_time, run_threads
from tools import fuzz

pytestmark = pytest.mark.slow

N_SIMULATED = 60
N_THREADED = 4


@pytest.mark.parametrize("first_seed", range(0, N_SIMULATED, 20))
def test_whatever_a_session_goes_through_every_promise_is_kept(first_seed: int) -> None:
    totals = Totals()
    for seed in range(first_seed, first_seed + 20):
        try:
            run_in_simulated_time(seed, totals)
        except AssertionError as error:
            pytest.fail(f"python tools/fuzz.py --seed {seed}: {error}")
    assert min(totals.sessions, totals.audio_s, totals.finals, totals.gaps, totals.commands, totals.failures) > 0


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
