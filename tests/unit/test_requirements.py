"""requirements/, which `make lock` writes and the Makefile installs."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
DEPENDENCIES: list[str] = PROJECT["project"]["dependencies"]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]

# A version, for which systems, and the digests of its files.
PIN = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>[0-9][0-9a-z.]*)(?: ; [^\n\\]+)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n"
)


def locked(name: str) -> dict[str, str]:
    """Return the version of each package that requirements/NAME.txt lists; fail where it holds anything else."""
    text = re.sub(r"^#.*\n", "", (REPOSITORY / "requirements" / f"{name}.txt").read_text(encoding="utf-8"), flags=re.M)
    assert PIN.sub("", text) == "", "expected only versions and digests: run `make lock`"
    return {found["name"]: found["version"] for found in PIN.finditer(text)}


@pytest.mark.parametrize(
    ("name", "ranges"),
    [
        ("run", DEPENDENCIES),
        ("test", [*DEPENDENCIES, *EXTRAS["cluster"], *EXTRAS["test"]]),
        ("apart", PROJECT["dependency-groups"]["apart"]),
    ],
)
def test_what_is_installed_is_locked_within_the_ranges_of_the_project(name: str, ranges: Iterable[str]) -> None:
    versions = locked(name)
    for requirement in map(Requirement, ranges):
        # torch's builds for CPUs and for CUDA have one version and different digests; the first is the project itself.
        if requirement.name not in ("streamer-captions", "torch"):
            version = versions.get(canonicalize_name(requirement.name), "none")
            assert requirement.specifier.contains(version), f"{requirement}: {version} is locked: run `make lock`"


def test_tests_run_with_the_versions_that_users_run() -> None:
    assert locked("run").items() <= locked("test").items()
