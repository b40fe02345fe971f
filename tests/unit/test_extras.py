"""What an option says if its package is missing."""

import sys

import pytest

from streamer.errors import ConfigError
from streamer.extras import requires


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.part", "json.no_such_part"])
def test_what_is_not_installed_is_named_with_what_installs_it(module: str) -> None:
    with pytest.raises(ConfigError) as error:
        requires(module, extra="grammar", purpose="--grammar")
    assert str(error.value) == (
        f'{module} is not installed: expected for --grammar; pip install "streamer-captions[grammar]"'
    )
    assert error.value.exit_code == 2


@pytest.mark.parametrize("module", ["json", "json.decoder"])
def test_what_is_installed_is_not_complained_about(module: str) -> None:
    requires(module, extra="grammar", purpose="--grammar")


def test_a_package_is_not_imported_to_see_whether_it_is_there() -> None:
    assert "antigravity" not in sys.modules
    requires("antigravity", extra="grammar", purpose="--grammar")
    assert "antigravity" not in sys.modules
