import pytest

from streamer.server.limits import MAX_ADDRESSES, MAX_WRONG, WINDOW_S, Guesses, Limits

NOW = 1_800_000_000.0
ADDRESS = "192.0.2.1"


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


def guessed(guesses: Guesses, n: int, address: str = ADDRESS, now: float = NOW) -> None:
    for _ in range(n):
        assert guesses.count_wrong(address, now) == 0


def test_after_so_many_wrong_ones_an_address_waits_for_the_next_minute() -> None:
    guesses = Guesses()
    guessed(guesses, MAX_WRONG)
    assert guesses.count_wrong(ADDRESS, NOW + 1.0) == WINDOW_S - 1.0
    guessed(guesses, 1, "192.0.2.2")
    guessed(guesses, MAX_WRONG, now=NOW + WINDOW_S)


def test_a_clock_that_is_set_back_locks_nobody_out() -> None:
    guesses = Guesses()
    guessed(guesses, MAX_WRONG)
    guessed(guesses, MAX_WRONG, now=NOW - 86_400)


def test_wrong_tokens_of_a_network_of_ipv6_count_together() -> None:
    guesses = Guesses()
    for n in range(MAX_WRONG):
        guesses.count_wrong(f"2001:db8::{n:x}", NOW)
    assert guesses.count_wrong("2001:db8::ffff:1", NOW) > 0
    assert guesses.count_wrong("2001:db8:0:1::1", NOW) == 0
    for _ in range(MAX_WRONG):
        guesses.count_wrong("::ffff:192.0.2.1", NOW)
    assert guesses.count_wrong("192.0.2.1", NOW) > 0
    assert guesses.count_wrong("192.0.2.2", NOW) == 0


def test_addresses_beyond_those_that_are_remembered_share_one_limit() -> None:
    guesses = Guesses()
    for n in range(MAX_ADDRESSES + MAX_WRONG):
        guesses.count_wrong(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", NOW)
    assert guesses.count_wrong("192.0.2.9", NOW) > 0
    assert guesses.count_wrong("10.0.0.0", NOW) == 0


def test_the_log_has_two_lines_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    guesses = Guesses()
    for n in range(1000):
        guesses.count_wrong("a\x1b[2J" if n == 0 else f"192.0.2.{n % 3}", NOW)
    first, slowed = caplog.messages
    assert first == "a wrong token from a [2J"
    assert "192.0.2." in slowed
    guesses.count_wrong(ADDRESS, NOW + WINDOW_S)
    assert len(caplog.messages) == 3
