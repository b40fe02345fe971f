"""A plain install: defaults work without the packages of extras, and an option names the extra that it needs."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.daemon import environment

REPOSITORY = Path(__file__).parents[2]

# Runs commands in turn, in one process without some modules; prints the exit code and what was written.
CODE = """
import contextlib, io, json, logging, sys
modules, commands = json.load(sys.stdin)
sys.modules.update(dict.fromkeys(modules))
from streamer.cli import main
results = []
for arguments in commands:
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            code = main(arguments)
        except SystemExit as left:
            code = left.code or 0
    logging.getLogger().handlers.clear()  # they write where the command's errors went
    results.append((code, output.getvalue(), errors.getvalue()))
print(json.dumps(results))
"""

SPEECH = str(REPOSITORY / "tests" / "data" / "speech.flac")
RUN = ("run", "--port", "0", "--no-captions", "--input")

WORKS = [
    ("--help",),
    ("transcribe", SPEECH),
    (*RUN, SPEECH, "--speed", "0", "--exit-at-end"),
]

# What each command needs, and the extra that brings it.
NEEDS = {
    ("transcribe", SPEECH, "--glossary", "names.yaml"): ("--glossary", "glossary"),
    (*RUN, SPEECH, "--correct-with", "http://127.0.0.1:9/v1"): ("--correct-with", "proofread"),
    ("transcribe", SPEECH, "--grammar", "turns.gbnf"): ("--grammar", "grammar"),
    ("transcribe", SPEECH, "--suppress-regex", "a"): ("--suppress-regex", "grammar"),
    (*RUN, "none", "--tls", "self-signed"): ("server.tls: self-signed", "tls"),
    (*RUN, "system"): ("--input system", "system-audio"),
    (*RUN, "https://127.0.0.1:9/radio"): ("--input URL", "internet-audio"),
    ("completion", "bash"): ("streamer completion", "completion"),
    ("compare", SPEECH, "--models", "nano.en"): ("streamer compare", "compare"),
    ("worker", "--nats", "nats://127.0.0.1:9"): ("streamer worker", "cluster"),
}

Command = tuple[str, ...]
Result = tuple[int, str, str]


def modules_of_extras() -> list[str]:
    """Return the names by which what only extras bring is imported."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [item for name, items in project["optional-dependencies"].items() if name != "test" for item in items]
    packages = {canonicalize_name(Requirement(item).name) for item in extras} - {"streamer-captions"}
    found = packages_distributions()
    return [name for name in found if packages & {canonicalize_name(package) for package in found[name]}]


@pytest.fixture(scope="module")
def results() -> dict[Command, Result]:
    commands: list[Command] = [*WORKS, *NEEDS]
    environ = environment()
    environ.pop("SSL_CERT_FILE", None)  # it takes the place of a package
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        input=json.dumps([modules_of_extras(), commands]),
        capture_output=True,
        encoding="utf-8",
        env=environ,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(commands, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("command", WORKS, ids=lambda command: command[0])
def test_what_a_plain_install_is_for_works(results: dict[Command, Result], command: Command) -> None:
    code, _, errors = results[command]
    assert (code, "error:" in errors, "pip install" in errors) == (0, False, False), errors


@pytest.mark.parametrize("command", NEEDS, ids=lambda command: NEEDS[command][0])
def test_an_option_names_the_extra_that_it_needs(results: dict[Command, Result], command: Command) -> None:
    code, output, errors = results[command]
    purpose, extra = NEEDS[command]
    (line,) = [line for line in errors.splitlines() if "error:" in line]
    assert line.endswith(f' is not installed: expected for {purpose}; pip install "streamer-captions[{extra}]"')
    assert (code, output) == (2, "")
