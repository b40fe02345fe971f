"""A session that goes on from a state, or behind one that is not known."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from streamer.constants import SAMPLE_RATE
from streamer.errors import SessionStateError
from streamer.session.losses import Loss
from streamer.session.session import Session
from streamer.session.state import NEW, SessionState
from tests.unit.engine.simulation import SETTINGS
from tests.unit.session.scene import Scene


@pytest.mark.parametrize(("quiet_s", "start"), [(0.0, "start 5"), (0.4, "start 5"), (1.0, "start 5.72")])
def test_a_session_of_which_nothing_is_known_goes_on_behind_a_gap(quiet_s: float, start: str) -> None:
    """Speech soon behind a gap begins with it: the detector misses the first sounds."""
    scene = Scene(SessionState.behind_loss(2 * SAMPLE_RATE, 5 * SAMPLE_RATE, 4, mark=2), silent=True)
    scene.promises.segment = 4
    assert scene.session.mark == scene.session.state.mark == 2
    assert scene.hear(5.01 + quiet_s, 0.0) == ["gap 2-5 device"]
    assert scene.talk(6.5 + quiet_s) == [start]
    task = scene.ask()
    assert not task.request.first
    assert task.span.start >= 5 * SAMPLE_RATE
    assert scene.read(f"so {6 + quiet_s} {6.4 + quiet_s}") == ["|so"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("needed_from", 10**9),
        ("needed_from", -1),
        ("losses.published_until", 2**62),
        ("gate.open", True),
        ("losses.waiting", (Loss(-5, 3, "device"),)),
        ("text.segment", 0),
        ("text.stable.n_final", 3),
        ("text.tail.continues", True),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(path: str, value: object) -> None:
    with pytest.raises(SessionStateError):
        Session(SETTINGS, changed(NEW, path.split("."), value))


def changed(state: Any, path: Sequence[str], value: object) -> Any:  # noqa: ANN401
    """Return a state with another value somewhere in it."""
    name, *rest = path
    return msgspec.structs.replace(state, **{name: changed(getattr(state, name), rest, value) if rest else value})
