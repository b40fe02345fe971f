import pytest

from streamer.errors import ConfigError
from streamer.outside import is_loopback
from streamer.server.access import Access

LOCAL = Access(host="127.0.0.1", token="", origins=("https://captions.example.org",))
OPEN = Access(host="0.0.0.0", token="tökén", origins=())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "captions.example.org"])
def test_beyond_loopback_a_token_is_required(host: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.token"):
        Access(host=host, token="", origins=()).check_settings()
    Access(host=host, token="t", origins=()).check_settings()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"])
def test_on_loopback_none_is(host: str) -> None:
    assert is_loopback(host)
    Access(host=host, token="", origins=()).check_settings()


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        Access(host="", token="t", origins=()).check_settings()
    with pytest.raises(ConfigError, match="example"):
        Access(host="::1", token="", origins=("example.org",)).check_settings()


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost", "localhost:9000", "LocalHost:1", "[::1]:8765"])
def test_on_loopback_our_own_names_pass(host: str) -> None:
    assert LOCAL.check_peer(host, None) is None


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "evil.example:8765", "127.0.0.1.evil.example", "user@127.0.0.1", "127.0.0.1/x"]
)
def test_on_loopback_other_names_do_not(host: str | None) -> None:
    refusal = LOCAL.check_peer(host, None)
    assert refusal is not None
    assert refusal.status == 403


def test_beyond_loopback_any_name_may_be_ours() -> None:
    assert OPEN.check_peer("captions.example.org", None) is None


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:8765", "127.0.0.1:8765"),
        ("http://localhost", "localhost"),
        ("http://localhost", "localhost:80"),
        ("https://localhost", "localhost"),
        ("http://[::1]:8765", "[::1]:8765"),
        ("https://captions.example.org", "127.0.0.1:8765"),
        ("https://captions.example.org:443", "127.0.0.1:8765"),
    ],
)
def test_our_own_page_and_listed_origins_may_connect(origin: str, host: str) -> None:
    assert LOCAL.check_peer(host, origin) is None


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "http://evil.example",
        "http://127.0.0.1",
        "http://127.0.0.1:8000",
        "http://localhost:8765",
        "http://captions.example.org",
        "https://captions.example.org.evil.example",
        "file://",
        "http://127.0.0.1:8765:1",
    ],
)
def test_other_web_sites_may_not(origin: str) -> None:
    refusal = LOCAL.check_peer("127.0.0.1:8765", origin)
    assert refusal is not None
    assert refusal.status == 403


def test_the_token_comes_in_a_header_or_in_the_address() -> None:
    assert OPEN.check_token("Bearer tökén", None) is None
    assert OPEN.check_token("bearer tökén", None) is None
    assert OPEN.check_token(None, "tökén") is None


@pytest.mark.parametrize(
    ("authorization", "query"),
    [(None, None), ("", ""), ("Basic tökén", None), ("Bearer", None), ("Bearer x", None), (None, "x"), ("tökén", None)],
)
def test_without_it_nothing_is_told(authorization: str | None, query: str | None) -> None:
    refusal = OPEN.check_token(authorization, query)
    assert refusal is not None
    assert refusal.status == 401
