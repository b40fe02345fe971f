"""Limits of connections and of wrong tokens, in all and by address."""

import logging

import pytest

from streamer.server.limits import MAX_ADDRESSES, MAX_WRONG, WINDOW_S, Guesses, Limits

NOW = 1_800_000_000.0
HERE = "192.0.2.1"


def entered(limits: Limits, *addresses: str) -> list[str]:
    """Let connections in; return why each is refused, or nothing."""
    refused = [limits.enter(address) for address in addresses]
    return [each.reason if each is not None else "" for each in refused]


def test_connections_are_counted_in_all_and_by_address() -> None:
    limits = Limits(max_connections=3, max_per_address=2)
    assert entered(limits, "a", "a", "a", "b", "c") == ["", "", "connections_per_address", "", "connections"]
    limits.leave("a")
    assert limits.n_open == 2
    assert entered(limits, "a", "a") == ["", "connections"]


def test_what_has_no_address_is_counted_in_all_only() -> None:
    limits = Limits(max_connections=5, max_per_address=1)
    assert entered(limits, *[""] * 6) == [*[""] * 5, "connections"]
    limits.leave("")
    assert entered(limits, "") == [""]


def test_the_clients_of_a_proxy_are_counted_by_address_only() -> None:
    limits = Limits(max_connections=1, max_per_address=2)
    assert [limits.enter_address("a") is None for _ in range(3)] == [True, True, False]
    limits.leave_address("a")
    assert limits.enter_address("a") is None
    assert limits.n_open == 0


def test_a_network_of_ipv6_is_one_address() -> None:
    limits, guesses = Limits(max_connections=100, max_per_address=2), Guesses()
    assert entered(limits, "2001:db8::1", "2001:db8::2", "2001:db8::ffff:1", "2001:db8:0:1::1") == [
        *("", "", "connections_per_address", "")
    ]
    limits.leave("2001:db8::1")
    assert entered(limits, "2001:db8::ffff:1") == [""]
    for n in range(MAX_WRONG):
        guesses.count_wrong(f"2001:db8::{n:x}", NOW)
        guesses.count_wrong(f"::ffff:{HERE}", NOW)
    found = [guesses.count_wrong(each, NOW) > 0 for each in ("2001:db8::ffff:1", HERE, "2001:db8:0:1::1", "192.0.2.2")]
    assert found == [True, True, False, False]


def guessed(guesses: Guesses, n: int, address: str = HERE, now: float = NOW) -> set[float]:
    return {guesses.count_wrong(address, now) for _ in range(n)}


def test_after_so_many_wrong_ones_an_address_waits_for_the_next_minute() -> None:
    guesses = Guesses()
    assert guessed(guesses, MAX_WRONG) == {0.0}
    assert guessed(guesses, 1, now=NOW + 1.0) == {WINDOW_S - 1.0}
    assert guessed(guesses, 1, "192.0.2.2") == {0.0}
    assert guessed(guesses, MAX_WRONG, now=NOW + WINDOW_S) == {0.0}
    assert guessed(guesses, MAX_WRONG, now=NOW - 86_400) == {0.0}  # a clock that is set back locks no client out


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
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert all(message.isprintable() for message in caplog.messages)
    guesses.count_wrong(HERE, NOW + WINDOW_S)
    assert len(caplog.messages) == 3
