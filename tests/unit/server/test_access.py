import base64

import pytest

from streamer.errors import ConfigError
from streamer.server.access import (
    Access,
    Proxies,
    chosen_subprotocol,
    client_address,
    shown_token,
)
from streamer.server.limits import Refusal
from streamer.server.tokens import ANYBODY, AccessToken, Tokens

SECRET = "open sesame, 16 or more"
NOW = 1_800_000_000.0
NO_TOKENS = Tokens("", None)
LOCAL = Access(host="127.0.0.1", tokens=NO_TOKENS, origins=("https://captions.example.org",))


def guarded(host: str = "0.0.0.0") -> Access:
    return Access(host=host, tokens=Tokens(SECRET, None))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "captions.example.org"])
def test_beyond_loopback_a_token_is_required(host: str) -> None:
    for loopback in ("127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"):
        Access(host=loopback, tokens=NO_TOKENS).check_settings()
    with pytest.raises(ConfigError, match=r"server\.token"):
        Access(host=host, tokens=NO_TOKENS).check_settings()
    guarded(host).check_settings()


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        guarded("").check_settings()
    with pytest.raises(ConfigError, match="example"):
        Access(host="::1", tokens=NO_TOKENS, origins=("example.org",)).check_settings()


@pytest.mark.parametrize(
    "entry",
    ["http://example.org:*", "*", "http://*", "localhost:*", "http://localhost:80:*", "http://localhost/:*"],
)
def test_what_may_stand_for_many_origins_is_narrow(entry: str) -> None:
    with pytest.raises(ConfigError, match="expected scheme and host"):
        Access(host="127.0.0.1", tokens=NO_TOKENS, origins=(entry,)).check_settings()


def test_all_ports_of_this_machine_can_be_named() -> None:
    access = Access(host="127.0.0.1", tokens=NO_TOKENS, origins=("http://localhost:*",))
    access.check_settings()
    for origin in ("http://localhost:5173", "http://localhost", "http://LOCALHOST:1"):
        assert access.check_peer("127.0.0.1:8765", origin) is None
    others = (
        "https://localhost:5173",
        "http://127.0.0.1:5173",
        "http://localhost.evil.example:5173",
        "null",
        "file://",
    )
    for origin in others:
        assert access.check_peer("127.0.0.1:8765", origin) is not None


def test_files_may_connect_only_where_they_are_named_and_a_token_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="of any web site"):
        Access(host="127.0.0.1", tokens=NO_TOKENS, origins=("null",)).check_settings()
    access = Access(host="127.0.0.1", tokens=Tokens(SECRET, None), origins=("null",))
    access.check_settings()
    for origin in ("null", "file://"):
        assert access.check_peer("127.0.0.1:8765", origin) is None
        refusal = LOCAL.check_peer("127.0.0.1:8765", origin)
        assert refusal is not None
        assert "serve the page over HTTP" in refusal.message
    assert access.check_peer("127.0.0.1:8765", "http://evil.example") is not None
    assert access.check_peer("null", None) is not None  # no name of a host


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:8765", "localhost", "localhost:9000", "LocalHost:1", "[::1]:8765"),
        *("captions.example.org", "Captions.Example.org:443", "captions.example.org:8765"),  # of an origin
    ],
)
def test_on_loopback_our_own_names_and_those_of_origins_pass(host: str) -> None:
    assert LOCAL.check_peer(host, None) is None
    assert LOCAL.check_peer(host, "https://captions.example.org") is None


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "evil.example:8765", "127.0.0.1.evil.example", "user@127.0.0.1", "127.0.0.1/x"]
)
def test_on_loopback_other_names_do_not(host: str | None) -> None:
    refusal = LOCAL.check_peer(host, None)
    assert refusal is not None
    assert (refusal.status, refusal.reason) == (403, "host")


def test_beyond_loopback_any_name_may_be_ours() -> None:
    assert guarded().check_peer("captions.example.org", None) is None


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
    assert (refusal.status, refusal.reason) == (403, "origin")


def checked(access: Access, shown: str | None, now: float = NOW) -> Refusal:
    found = access.check_token(shown, "read", "192.0.2.1", now)
    assert isinstance(found, Refusal)
    return found


def test_where_no_token_is_asked_for_any_is_taken() -> None:
    assert LOCAL.check_token(None, "control", "127.0.0.1", NOW) is ANYBODY
    assert LOCAL.check_token("sk-of-a-client-that-always-sends-one", "read", "127.0.0.1", NOW) is ANYBODY


def test_the_token_opens_and_nothing_else_does() -> None:
    access = guarded()
    caller = access.check_token(SECRET, "control", "192.0.2.1", NOW)
    assert isinstance(caller, AccessToken)
    assert caller.name == "default"
    for shown in ("", "x", SECRET[:-1], SECRET + "x", SECRET.upper(), "x" * 100_000, "\udcff", "ö" * 20):
        refusal = checked(access, shown)
        assert (refusal.status, refusal.reason) == (401, "token")
        assert refusal.headers["WWW-Authenticate"].startswith("Bearer")
        assert SECRET not in refusal.message
    assert checked(access, None).status == 401


def encoded(token: str) -> str:
    return "streamer.token." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("authorizations", "subprotocols", "query", "shown"),
    [
        ([], [], [], None),
        (["Bearer abc"], [], [], "abc"),
        (["bearer  abc "], [], [], "abc"),
        (["Token abc"], [], [], "abc"),
        (["TOKEN a b"], [], [], "a b"),
        (["Bearer"], [], [], ""),
        (["Basic abc"], [], [], None),
        (["Basic abc"], [], ["q"], "q"),
        (["abc"], [], [], None),
        (["Bearer abc", "Bearer abc"], [], [], ""),
        (["Basic x", "Bearer abc"], [], [], ""),
        (["Bearer abc"], [encoded("s")], ["q"], "abc"),
        ([], ["streamer.v1", encoded("a b&ö?")], ["q"], "a b&ö?"),
        ([], [encoded("a"), encoded("b")], [], ""),
        ([], ["streamer.token.%%%"], [], ""),
        ([], ["streamer.token._w"], [], ""),
        ([], ["realtime", "openai-insecure-api-key.sk-1", "openai-beta.realtime-v1"], [], "sk-1"),
        ([], ["token", "key"], [], "key"),
        ([], ["token", "key", "more"], [], None),
        ([], ["graphql-ws"], [], None),
        ([], [], ["abc"], "abc"),
        ([], [], ["a", "b"], ""),
        ([], [], [""], ""),
    ],
)
def test_where_a_token_may_stand(
    authorizations: list[str], subprotocols: list[str], query: list[str], shown: str | None
) -> None:
    assert shown_token(authorizations, subprotocols, query) == shown


def test_the_subprotocol_that_is_answered_is_never_the_one_with_the_token() -> None:
    assert chosen_subprotocol([encoded("a"), "streamer.v1"]) == "streamer.v1"
    assert chosen_subprotocol(["realtime", "openai-insecure-api-key.sk-1"]) == "realtime"
    assert chosen_subprotocol(["token", "key"]) == "token"
    assert chosen_subprotocol([encoded("a")]) is None
    assert chosen_subprotocol([]) is None


PROXIES = Proxies.parse(["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "unix"])


@pytest.mark.parametrize(
    ("peer", "header", "client"),
    [
        ("10.1.2.3", None, "10.1.2.3"),
        ("10.1.2.3", "198.51.100.9", "198.51.100.9"),
        ("::ffff:10.1.2.3", "198.51.100.9", "198.51.100.9"),
        ("192.0.2.7", "198.51.100.9", "198.51.100.9"),
        ("192.0.2.8", "198.51.100.9", "192.0.2.8"),  # no proxy of ours
        ("10.1.2.3", "1.1.1.1, 198.51.100.9", "198.51.100.9"),  # the left one is the client's invention
        ("10.1.2.3", "nonsense, 198.51.100.9 , 10.9.9.9", "198.51.100.9"),
        ("10.1.2.3", "10.7.7.7,10.8.8.8", "10.7.7.7"),
        ("10.1.2.3", "198.51.100.9:4711", "198.51.100.9"),
        ("10.1.2.3", "[2001:DB9::1]:4711", "2001:db9::1"),
        ("10.1.2.3", "2001:db9::1", "2001:db9::1"),
        ("2001:db8::1", "fe80::1%eth0", "fe80::1"),
        ("10.1.2.3", "::ffff:198.51.100.9", "198.51.100.9"),
        ("10.1.2.3", "unknown", "10.1.2.3"),
        ("10.1.2.3", "198.51.100.9, \x1b[2J", "10.1.2.3"),
        ("10.1.2.3", "", "10.1.2.3"),
        ("10.1.2.3", "1.1.1.1," + 100 * "10.0.0.1,", "10.1.2.3"),
        ("10.1.2.3", "1.1.1.1," + ",".join(100 * ["10.0.0.1"]), "1.1.1.1"),
        ("", "198.51.100.9", "198.51.100.9"),
        ("", None, "unix"),
    ],
)
def test_a_client_is_who_the_outermost_proxy_saw(peer: str, header: str | None, client: str) -> None:
    assert client_address(peer, header, PROXIES) == client


def test_nobody_is_a_proxy_unless_named() -> None:
    for peer in ("127.0.0.1", "::1", "10.0.0.1"):
        assert client_address(peer, "198.51.100.9", Proxies()) == peer
    assert client_address("", "198.51.100.9", Proxies.parse(["0.0.0.0/0", "::/0"])) == "unix"


@pytest.mark.parametrize("entry", ["", "proxy.example", "10.0.0.1/8", "10.0.0.0/33", "UNIX", "10.0.0.0/8 "])
def test_a_proxy_that_is_none_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.proxies"):
        Proxies.parse([entry])
