from streamer.server.limits import Limits


def test_connections_are_counted_in_all_and_by_address() -> None:
    limits = Limits(max_connections=3, max_per_address=2)
    assert limits.enter("a") is None
    assert limits.enter("a") is None
    refused = limits.enter("a")
    assert refused is not None
    assert refused.reason == "connections_per_address"
    assert limits.enter("b") is None
    refused = limits.enter("c")
    assert refused is not None
    assert refused.reason == "connections"
    limits.leave("a")
    assert limits.n_open == 2
    assert limits.enter("a") is None


def test_what_has_no_address_is_counted_in_all_only() -> None:
    limits = Limits(max_connections=5, max_per_address=1)
    assert [limits.enter("") for _ in range(5)] == [None] * 5
    assert limits.enter("") is not None


def test_a_network_of_ipv6_is_one_address() -> None:
    limits = Limits(max_connections=100, max_per_address=2)
    assert [limits.enter(f"2001:db8::{n:x}") for n in range(2)] == [None] * 2
    refused = limits.enter("2001:db8::ffff:1")
    assert refused is not None
    assert refused.reason == "connections_per_address"
    assert limits.enter("2001:db8:0:1::1") is None
    limits.leave("2001:db8::1")
    assert limits.enter("2001:db8::ffff:1") is None
