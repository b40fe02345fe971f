"""Dockerfile, contrib/compose.yaml, contrib/healthcheck.py: they agree with each other and with the program."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamer.commands.parser import make_parser
from streamer.settings.load import load_settings
from streamer.settings.table import Settings
from tests.daemon import REPOSITORY, environment, running

IMAGE = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
CODE = re.sub(r"(?m)^\s*#.*\n", "", IMAGE).replace("\\\n", "")
HEALTHCHECK = REPOSITORY / "contrib" / "healthcheck.py"
TOKEN = "a-token-for-tests-only"


def composed(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((REPOSITORY / "contrib" / name).read_text(encoding="utf-8"))
    return read


SERVICES: dict[str, dict[str, Any]] = composed("compose.yaml")["services"]


def found(pattern: str) -> str:
    """Return the one match of a pattern in the Dockerfile."""
    (match,) = re.findall(pattern, CODE, re.MULTILINE)
    return str(match)


def settings_of(more: dict[str, object]) -> Settings:
    """Return the settings of a container with these variables beside the image's."""
    environ = dict(re.findall(r"(STREAMER_\w+)=(\S+)", found("^ENV .*")))
    return load_settings(Path(os.devnull), environ | {name: str(value) for name, value in more.items()}, {})


def test_docker_is_given_what_the_image_is_built_from() -> None:
    ignored = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", CODE, re.MULTILINE)
    assert sorted(" ".join(copied).split()) == sorted(re.findall("^!(.*)", ignored, re.MULTILINE))
    for source in re.findall(r"^COPY --from=build /source/(\S+)", CODE, re.MULTILINE):
        assert (REPOSITORY / source).is_file()


def test_the_image_has_all_models_that_come_with_the_program() -> None:
    kept = re.findall(r"(?m)^!(models/\S+)/", (REPOSITORY / ".gitignore").read_text(encoding="utf-8"))
    assert kept == re.findall(r"(?m)^COPY (models/\S+) \1$", CODE)


def test_the_image_starts_the_program_as_another_user_than_root() -> None:
    user = found(r"^USER (\d+):\d+")
    assert int(user) > 0
    assert f"install -d -o {user} " in CODE
    program, *arguments = json.loads(found(r"^CMD (\[.*\])"))
    assert program == "streamer"
    assert make_parser().parse_args(arguments).command == "run"
    assert settings_of({}).server.token_file


def test_each_driver_has_a_stage() -> None:
    stages = re.findall(r"^FROM \S+ AS (\w+)", CODE, re.MULTILINE)
    assert found(r"^ARG DRIVER=(\w+)") in stages
    assert composed("compose-intel.yaml")["x-intel"]["build"]["args"]["DRIVER"] in stages
    for name in composed("compose-intel.yaml")["x-intel"]["build"]["args"]:
        assert found(rf"^ARG ({name})\b")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_gives_what_the_image_asks_for(name: str) -> None:
    service, file = SERVICES[name], composed("compose.yaml")
    token_file = Path(settings_of({}).server.token_file)
    assert (service["secrets"], list(file["secrets"])) == ([token_file.name], [token_file.name])
    assert service["volumes"] == [f"{next(iter(file['volumes']))}:" + found(r"^VOLUME (\S+)")]
    assert service["read_only"]
    server = settings_of(service.get("environment", {})).server
    for host, _, inside in (str(port).split(":") for port in service["ports"]):
        assert host == "127.0.0.1"
        assert int(inside) in (server.port, server.wyoming_port)


def test_ports_of_services_are_different_and_intel_s_are_the_same_services() -> None:
    outside = [str(port).split(":")[1] for service in SERVICES.values() for port in service["ports"]]
    assert len(set(outside)) == len(outside)
    assert composed("compose-intel.yaml")["services"].keys() == SERVICES.keys()
    assert {profile for service in SERVICES.values() for profile in service["profiles"]} == {
        *("captions", "home-assistant", "rooms")
    }
    assert found(r"^EXPOSE (\d+)") == str(settings_of({}).server.port)


def check(port: int, **environ: str) -> tuple[int, str]:
    """Run the image's health check, and return its exit code and what it prints."""
    variables = environment({"STREAMER_SERVER_PORT": str(port), **environ})
    done = subprocess.run(
        [sys.executable, HEALTHCHECK], capture_output=True, encoding="utf-8", env=variables, check=False
    )
    assert not done.stderr
    return done.returncode, done.stdout.strip()


def test_the_health_check_names_the_devices_to_who_has_the_token(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(f"{TOKEN}\n", encoding="utf-8")
    with running("--input", "none", environ={"STREAMER_SERVER_TOKEN": TOKEN}) as daemon:
        port = int(daemon.url.rpartition(":")[2].strip("/"))
        for known in ({"STREAMER_SERVER_TOKEN_FILE": str(token_file)}, {"STREAMER_SERVER_TOKEN": TOKEN}):
            assert check(port, **known) == (0, "ok: nano.en, encoder CPU, cross_kv CPU, decoder CPU")
        token_file.write_text('{"tokens": []}', encoding="utf-8")
        assert check(port, STREAMER_SERVER_TOKEN_FILE=str(token_file)) == (0, "ok")
        daemon.stop()
    code, text = check(port)
    assert (code, text.partition(":")[0]) == (1, "no answer")
