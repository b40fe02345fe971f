"""The table of attacks: each is a short function with its name, what it does and what must hold."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

# Which daemon it is for: without an input of its own, with one (a recording at the pace of speech), one that requires
# a token, one with TLS, one with few descriptors; or the attack starts its own.
Kind = Literal["plain", "own", "token", "tls", "few", "self"]


@dataclass(frozen=True)
class Attack:
    """One of them; the function gets the daemon, raises Broken where something does not hold, and may tell a figure."""

    name: str
    what: str
    must: str
    run: Callable[[Any], str | None]
    kind: Kind = "plain"

    # Whether it takes well under a second, and needs no daemon of its own: the tests run these.
    quick: bool = False

    # Whether others are answered meanwhile; not where places are what is attacked.
    probe: bool = True

    # Bounds: memory at its largest, and memory that stays, above what it was; bytes of log.
    peak_mb: float = 64.0
    kept_mb: float = 16.0
    log_bytes: int = 20_000

    # Lines of level ERROR that are in order.
    errors: int = 0


ATTACKS: dict[str, Attack] = {}


def attack(what: str, must: str, **known: Any) -> Callable[[Callable[[Any], str | None]], Callable[[Any], str | None]]:  # noqa: ANN401 - fields of Attack
    """Put a function into the table, under its own name with dashes."""

    def add(run: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
        name = run.__name__.replace("_", "-")
        assert name not in ATTACKS, name
        ATTACKS[name] = Attack(name, what, must, run, **known)
        return run

    return add
