"""One thing that was looked at in a model: found against expected, a row of `streamer models verify`."""

from collections.abc import Iterable
from dataclasses import dataclass

from streamer.errors import InferenceError, ModelError


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    found: str
    expected: str
    passed: bool = True
    problem: str = ""  # what it means that the check did not pass, and what to do
    stage: str = ""  # stage whose device is to blame; empty: the files are

    def error(self) -> ModelError | InferenceError:
        """Return what to raise if the check did not pass."""
        if self.stage:
            remedy = "update the device's driver, or choose another device with --device CPU"
            return InferenceError(f"{self.problem}; {remedy}", self.stage)
        return ModelError(self.problem)


def require(checks: Iterable[Check]) -> None:
    """Raise the error of the first check that did not pass."""
    for check in checks:
        if not check.passed:
            raise check.error()
