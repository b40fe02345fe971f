"""What the checks of `streamer doctor` return. A room's checks are in its module `doctor`."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"  # the daemon works without
    PROBLEM = "problem"  # a start with these settings fails


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, and what to do about it; without a remedy there is nothing to do, or `found` says it."""

    severity: Severity
    found: str
    remedy: str = ""


def ok(found: str) -> Finding:
    return Finding(Severity.OK, found)


def warning(found: str, remedy: str = "") -> Finding:
    return Finding(Severity.WARNING, found, remedy)


def problem(found: str, remedy: str = "") -> Finding:
    return Finding(Severity.PROBLEM, found, remedy)


def missing(found: str, remedy: str = "", *, needed: bool) -> Finding:
    """Return what is missing as a problem if the settings need it, else as a warning."""
    return Finding(Severity.PROBLEM if needed else Severity.WARNING, found, remedy)
