from streamer.server.guesses import MAX_ADDRESSES, MAX_WRONG, REFILL_S, Guesses

NOW = 1_800_000_000.0
ADDRESS = "192.0.2.1"


def guessed(guesses: Guesses, n: int, address: str = ADDRESS, now: float = NOW) -> None:
    for _ in range(n):
        assert guesses.count_wrong(address, now) == 0


def test_after_so_many_wrong_ones_an_address_waits() -> None:
    guesses = Guesses()
    guessed(guesses, MAX_WRONG)
    assert guesses.count_wrong(ADDRESS, NOW) == REFILL_S
    assert guesses.count_wrong("192.0.2.2", NOW) == 0
    assert 0 < guesses.count_wrong(ADDRESS, NOW + REFILL_S - 0.1) < 0.2
    guessed(guesses, 1, now=NOW + REFILL_S)
    assert guesses.count_wrong(ADDRESS, NOW + REFILL_S) == REFILL_S


def test_no_more_than_one_each_refill_is_within_the_limit_in_the_long_run() -> None:
    guesses = Guesses()
    within = sum(guesses.count_wrong(ADDRESS, NOW + n / 10) == 0 for n in range(3600 * 10))
    assert abs(within - (MAX_WRONG + 3600 / REFILL_S)) <= 2


def test_all_is_forgiven_in_time() -> None:
    guesses = Guesses()
    guessed(guesses, MAX_WRONG)
    guessed(guesses, MAX_WRONG, now=NOW + MAX_WRONG * REFILL_S)


def test_a_clock_that_is_set_back_locks_nobody_out() -> None:
    guesses = Guesses()
    guessed(guesses, MAX_WRONG)
    assert guesses.count_wrong(ADDRESS, NOW - 86_400) == REFILL_S
    assert guesses.count_wrong(ADDRESS, NOW - 86_400 + REFILL_S) == 0


def test_a_network_of_ipv6_is_one_address() -> None:
    guesses = Guesses()
    for n in range(MAX_WRONG):
        guesses.count_wrong(f"2001:db8::{n:x}", NOW)
    assert guesses.count_wrong("2001:db8::ffff:1", NOW) > 0
    assert guesses.count_wrong("2001:db8:0:1::1", NOW) == 0
    for _ in range(MAX_WRONG):
        guesses.count_wrong("::ffff:192.0.2.1", NOW)
    assert guesses.count_wrong("192.0.2.1", NOW) > 0
    assert guesses.count_wrong("192.0.2.2", NOW) == 0


def test_no_more_addresses_are_remembered_than_fit() -> None:
    guesses = Guesses()
    for n in range(MAX_ADDRESSES + 10):
        guesses.count_wrong(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", NOW)
    assert len(guesses._wrong) == MAX_ADDRESSES
    assert "10.0.0.9" not in guesses._wrong
    assert "10.0.0.10" in guesses._wrong


def test_it_is_told_at_once_and_then_once_a_minute() -> None:
    guesses = Guesses()
    assert guesses.report(NOW) is None
    guesses.count_wrong("a\x1b[2J", NOW)
    assert guesses.report(NOW) == "wrong tokens: 1, from a [2J"
    for n in range(1000):
        guesses.count_wrong(f"192.0.2.{n % 3}", NOW)
        assert guesses.report(NOW + n / 100) is None
    n_late = 1000 - 3 * MAX_WRONG
    assert guesses.report(NOW + 60) == f"wrong tokens: 1000, {n_late} of them answered late, from 192.0.2.0 and 2 more"
    assert guesses.report(NOW + 120) is None
