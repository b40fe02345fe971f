"""A small edition of tools/survive.py."""

from pathlib import Path

import pytest

from tools.survive import survive


@pytest.mark.slow
async def test_a_client_that_follows_across_kills_misses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    survived = await survive(n_kills=3, minutes=10.0, speed=None, seed=1, folder=tmp_path)
    assert survived, capsys.readouterr().out
