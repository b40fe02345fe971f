"""What the tests of the client share."""

import pytest


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reconnect soon."""
    monkeypatch.setattr("streamer.client.machine.FIRST_DELAY_S", 0.01)
    monkeypatch.setattr("streamer.client.machine.MAX_DELAY_S", 0.05)
