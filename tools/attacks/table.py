"""The table of attacks, read from conversations.yaml, whose head explains it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import yaml

from tools.attacks.target import Target

Kind = Literal["plain", "own", "token", "tls", "few", "self"]

_FILE = yaml.safe_load(Path(__file__).with_name("conversations.yaml").read_text("utf-8"))
TEXTS: Mapping[str, str] = _FILE["texts"]
KINDS: Mapping[str, Mapping[str, Any]] = _FILE["kinds"]
_STEPS: dict[str, Callable[..., str]] = {}


@dataclass(frozen=True)
class Attack:
    """An attack, and the bounds that hold for it."""

    name: str
    what: str
    must: str
    do: Sequence[Mapping[str, Any]]
    kind: Kind = "plain"
    quick: bool = False

    # Whether others are answered meanwhile; not if slots are attacked.
    probe: bool = True

    # Memory at its largest, and memory that stays, above what it was; bytes of log; lines of level ERROR.
    peak_mb: float = 64.0
    kept_mb: float = 16.0
    log_bytes: int = 20_000
    errors: int = 0

    # What the log has to hold, and what it may not.
    logged: str = ""
    not_logged: Sequence[str] = ()

    def run(self, target: Target | None) -> str:
        """Attack; return what was seen. Raises Broken if something does not hold."""
        return run_steps(target, self.do)


def step(function: Callable[..., str]) -> Callable[..., str]:
    """Make a function a step under its own name with dashes. It gets the target and what the file says."""
    _STEPS[function.__name__.replace("_", "-")] = function
    return function


def run_steps(target: Target | None, steps: Sequence[Mapping[str, Any]]) -> str:
    """Run steps; return what they report. Raises Broken if something does not hold."""
    reports = []
    for one in steps:
        (name, value), *options = one.items()
        reports.append(_STEPS[name](target, value, **dict(options)))
    return "; ".join(filter(None, reports))


def read() -> dict[str, Attack]:
    """Return all attacks by their names. Raises KeyError or TypeError if one has an unknown step or option."""
    import_module("tools.attacks.coded")  # defines steps, as conversations does, which it imports
    attacks = {name: Attack(name, **fields) for name, fields in _FILE["attacks"].items()}
    for one in (one for attack in attacks.values() for one in attack.do):
        (name, value), *options = one.items()
        inspect.signature(_STEPS[name]).bind(None, value, **dict(options))
    return attacks
