"""Where a request's token and its client's address may stand; tests/wire/test_access.py shows who may ask for what."""

import base64

import pytest

from streamer.server.access import Access, Proxies, chosen_subprotocol, client_address, shown_token
from streamer.server.tokens import Tokens


def encoded(token: str) -> str:
    return "streamer.token." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"])
def test_on_loopback_no_token_is_required(host: str) -> None:
    Access(
        host=host, tokens=Tokens("", None), origins=("http://localhost:*", "https://a.example:8443")
    ).check_settings()


@pytest.mark.parametrize(
    ("authorizations", "subprotocols", "query", "shown"),
    [
        ([], [], [], None),
        (["bearer  abc "], [], [], "abc"),
        (["TOKEN a b"], [], [], "a b"),
        (["Bearer"], [], [], ""),
        (["abc"], [], [], None),
        (["Bearer abc", "Bearer abc"], [], [], ""),
        (["Basic x", "Bearer abc"], [], [], ""),
        (["Basic x", "Basic y"], [], ["q"], "q"),
        (["Bearer abc"], [encoded("s")], ["q"], "abc"),
        ([], ["streamer.v1", encoded("a b&ö?")], ["q"], "a b&ö?"),
        ([], [encoded("a"), encoded("b")], [], ""),
        ([], ["streamer.token.%%%"], [], ""),
        ([], ["streamer.token._w"], [], ""),
        ([], ["Bearer", "key"], [], "key"),
        ([], ["token", "key", "more"], [], None),
        ([], ["graphql-ws"], [], None),
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
        ("2001:db8::1", "fe80::1%eth0", "fe80::1"),
        ("10.1.2.3", "::ffff:198.51.100.9", "198.51.100.9"),
        ("10.1.2.3", "198.51.100.9, \x1b[2J", "10.1.2.3"),
        ("10.1.2.3", "", "10.1.2.3"),
        ("10.1.2.3", "1.1.1.1," + ",".join(100 * ["10.0.0.1"]), "1.1.1.1"),
        ("", "198.51.100.9", "198.51.100.9"),
        ("", None, "unix"),
    ],
)
def test_a_client_is_who_the_outermost_proxy_saw(peer: str, header: str | None, client: str) -> None:
    proxies = Proxies.parse(["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "[2001:db7::1]", "unix"])
    assert client_address(peer, header, proxies) == client


def test_no_address_is_a_proxy_unless_it_is_named() -> None:
    for peer in ("127.0.0.1", "::1", "10.0.0.1"):
        assert client_address(peer, "198.51.100.9", Proxies()) == peer
    assert client_address("", "198.51.100.9", Proxies.parse(["0.0.0.0/0", "::/0"])) == "unix"
