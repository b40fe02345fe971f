"""The scenes of a session (see `scene.py`): what is shown, stable, final, lost and decoded again, and when."""

import pytest

from tests.unit.session.scene import play, scenes


@pytest.mark.parametrize(("settings", "steps"), scenes("windows", "text", "again", "languages", "losses", "state"))
def test_scene(settings: str, steps: list[str]) -> None:
    play(settings, steps)
