"""`streamer listen`, `chat` and `type`: where they look for the daemon."""

import pytest

from streamer.commands.listen import daemon_address
from streamer.settings.table import ServerSettings, Settings


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("localhost", "localhost"),
        ("::1", "[::1]"),
        ("[::1]", "[::1]"),
        ("::", "[::1]"),
        ("[::]", "[::1]"),
    ],
)
def test_the_daemon_is_where_the_settings_start_it(host: str, place: str) -> None:
    settings = Settings(server=ServerSettings(host=host, port=9000))
    assert daemon_address(None, "", "", settings).url == f"ws://{place}:9000/v1/captions"
