"""Whether a package is there that a plain install does not bring; a missing one is refused in test_refused."""

import sys

import pytest

from streamer.extras import requires


@pytest.mark.parametrize("module", ["json", "json.decoder", "antigravity"])
def test_what_is_installed_is_enough_and_is_not_imported(module: str) -> None:
    before = set(sys.modules)
    requires(module, extra="grammar", purpose="--grammar")
    assert set(sys.modules) == before
