"""contrib/home-assistant: the app's files agree with the program, and its start serves Home Assistant's own client."""

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from PIL import Image
from wyoming.client import AsyncTcpClient
from wyoming.info import Describe, Info

from streamer.settings.load import load_settings
from streamer.settings.registry import SETTINGS
from streamer.version import __version__
from tests.daemon import REPOSITORY, WAIT_S, environment, free_port

APP = REPOSITORY / "contrib" / "home-assistant"

# What Home Assistant's Supervisor takes for the type of an option.
TYPE = re.compile(r"(bool|email|url|port|str|password|(int|float)(\([\d.]*,[\d.]*\))?|match\(.*\)|list\(.+\))\??")

# What it announces to: the token and what was sent.
Announced = list[tuple[str, str, Any]]


def read_yaml(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((APP / name).read_text(encoding="utf-8"))
    return read


CONFIG = read_yaml("config.yaml")


@pytest.fixture(scope="module")
def start() -> ModuleType:
    spec = importlib.util.spec_from_file_location("start", APP / "start.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fits(value: str, kind: str) -> bool:
    """Return whether a default fits the type of its option."""
    inner = kind.rstrip("?").partition("(")[2].removesuffix(")")
    if kind.startswith("list("):
        return value in inner.split("|")
    return bool(re.match(inner, value)) if kind.startswith("match(") else kind.startswith("str")


def test_the_configuration_is_of_the_form_that_home_assistant_reads() -> None:
    assert {"name", "version", "slug", "description", "arch"} <= CONFIG.keys()
    assert re.fullmatch(r"[-_.A-Za-z0-9]+", CONFIG["slug"])
    assert set(CONFIG["arch"]) <= {"amd64", "aarch64"}
    assert CONFIG["stage"] in ("stable", "experimental", "deprecated")
    assert CONFIG["discovery"] == ["wyoming"]
    assert all(re.fullmatch(r"/dev/\w+/\w+", node) for node in CONFIG["devices"])  # nodes: folders are not known to it
    assert all(re.fullmatch(r"\d+/tcp", port) for port in CONFIG["ports"])
    assert CONFIG["ports_description"].keys() == CONFIG["ports"].keys()
    for key, protocol in (("watchdog", "tcp"), ("webui", "http")):
        found = re.fullmatch(rf"{protocol}://\[HOST\]:\[PORT:(\d+)\]/?", CONFIG[key])
        assert found
        assert f"{found[1]}/tcp" in CONFIG["ports"]
    assert 10 <= CONFIG["timeout"] <= 300
    assert all(TYPE.fullmatch(kind) for kind in CONFIG["schema"].values())
    assert all(fits(value, CONFIG["schema"][name]) for name, value in CONFIG["options"].items())
    optional = {name for name, kind in CONFIG["schema"].items() if kind.endswith("?")}
    assert CONFIG["options"].keys() == CONFIG["schema"].keys() - optional


@pytest.mark.parametrize("language", ["en", "de"])
def test_translations_name_every_option_and_port(language: str) -> None:
    translated = read_yaml(f"translations/{language}.yaml")
    assert translated["configuration"].keys() == CONFIG["schema"].keys()
    assert all(option.keys() == {"name", "description"} for option in translated["configuration"].values())
    assert translated["network"].keys() == CONFIG["ports"].keys()


def test_the_documentation_names_every_option_and_versions_are_the_program_s() -> None:
    documented = re.findall(r"(?m)^\| `(\w+)` \|", (APP / "DOCS.md").read_text(encoding="utf-8"))
    assert documented == list(CONFIG["schema"])
    dockerfile = (APP / "Dockerfile").read_text(encoding="utf-8")
    assert [CONFIG["version"]] == re.findall(r"io\.hass\.version=(\S+)", dockerfile) == [__version__]
    (copied,) = re.findall(r"(?m)^COPY (\S+)", dockerfile)
    assert (APP / copied).is_file()


@pytest.mark.parametrize(("name", "size"), [("icon.png", (128, 128)), ("logo.png", (250, 100))])
def test_pictures_have_the_sizes_that_home_assistant_recommends(name: str, size: tuple[int, int]) -> None:
    with Image.open(APP / name) as picture:
        assert picture.size == size


@pytest.mark.parametrize("token", ["", "a-token-for-tests-only"])
def test_options_are_settings_and_captions_are_open_with_a_token_only(
    token: str, start: ModuleType, tmp_path: Path
) -> None:
    assert start.OPTIONS.keys() == CONFIG["schema"].keys()
    assert set(start.OPTIONS.values()) <= {setting.variable for setting in SETTINGS.values()}
    given = start.settings({**CONFIG["options"], "language": "de", **({"token": token} if token else {})}, tmp_path)
    environ = {name: value for name, value in given.items() if name.startswith("STREAMER_")}
    settings = load_settings(Path(os.devnull), environ, {})
    assert (settings.decoding.language, settings.server.token) == ("de", token)
    assert settings.server.host == ("0.0.0.0" if token else "127.0.0.1")
    assert f"{settings.server.port}/tcp" in CONFIG["ports"]
    assert f"{settings.server.wyoming_port}/tcp" in CONFIG["ports"]


@pytest.fixture
def supervisor() -> Iterator[tuple[str, Announced]]:
    """A stand-in of the Supervisor: its address, and what it was told."""
    announced: Announced = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            announced.append((self.path, self.headers["Authorization"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", announced
        server.shutdown()


# The start with what differs here: ports, the user, and how the program is called.
CHILD = """
import importlib.util, json, sys
from pathlib import Path
path, changes = sys.argv[1], json.loads(sys.argv[2])
spec = importlib.util.spec_from_file_location("start", path)
start = importlib.util.module_from_spec(spec)
spec.loader.exec_module(start)
vars(start).update(changes, DATA=Path(changes["DATA"]), become_user=lambda cache: None)
sys.exit(start.main())
"""


@pytest.mark.skipif(os.name == "nt", reason="the app is for Linux")
async def test_home_assistant_is_told_of_the_port_once_it_serves(
    supervisor: tuple[str, Announced], tmp_path: Path
) -> None:
    address, announced = supervisor
    http_port, wyoming_port = free_port(), free_port()
    (tmp_path / "options.json").write_text(json.dumps(CONFIG["options"] | {"model": "nano.en"}), encoding="utf-8")
    changes = {
        "DATA": str(tmp_path),
        "SUPERVISOR": address,
        "COMMAND": [sys.executable, "-m", "streamer", "run", "--no-captions", "--input", "none"],
        "HTTP_PORT": http_port,
        "WYOMING_PORT": wyoming_port,
        "POLL_S": 0.05,
    }
    environ = environment({"SUPERVISOR_TOKEN": "supervised", "PYTHONPATH": str(REPOSITORY)})
    arguments = [sys.executable, "-c", CHILD, str(APP / "start.py"), json.dumps(changes)]
    with subprocess.Popen(arguments, env=environ, stderr=subprocess.PIPE, encoding="utf-8") as process:
        try:
            async with asyncio.timeout(WAIT_S):
                while not announced and process.poll() is None:
                    await asyncio.sleep(0.05)
                ((path, authorization, found),) = announced
                async with AsyncTcpClient("127.0.0.1", wyoming_port) as client:
                    await client.write_event(Describe().event())
                    event = await client.read_event()
            assert (path, authorization, found["service"]) == ("/discovery", "Bearer supervised", "wyoming")
            assert re.fullmatch(rf"tcp://[^/:]+:{wyoming_port}", found["config"]["uri"])
            assert event is not None
            assert [model.name for model in Info.from_event(event).asr[0].models] == ["nano.en"]
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.to_thread(process.communicate)
            assert process.returncode == 0, errors
            assert "Traceback" not in errors
        finally:
            process.kill()
