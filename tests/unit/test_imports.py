"""Who may import whom (docs/design.md)."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "streamer"

# Rooms, and modules that are none's, each of which imports only what stands below it.
HOUSE = [
    *(
        "__main__",
        "cli",
        "plugins",
        "commands",
        "app",
        "library",
        "server",
        "daemon",
        "check",
        "after",
        "setup",
    ),
    *(
        "offline",
        "history",
        "protocols",
        "client",
        "outputs",
        "engine",
        "session",
        "whisper",
        "audio",
        "log",
        "settings",
    ),
    *("findings", "packed_models", "wheels", "languages", "health", "worker", "systemd", "signals", "descriptors"),
    *("extras", "entry_points", "events", "outside", "errors", "arrays", "constants", "version"),
]

# For the references in the tests and for people's tools.
NEVER = ("torch", "transformers", "librosa", "whisper", "tools", "tests")


def name_of(path: Path) -> str:
    """Return the dotted name of a module's file."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# Rooms of `streamer/whisper`, each of which imports only those further down. Upwards from `weights` it is the way from
# the bytes of files to words; `source` joins what lies on disk, `model` joins all.
ROOMS = [
    "options",
    "model",
    "doctor",
    "locate",
    "source",
    "adapters",
    "decode",
    "device",
    "graphs",
    "generation",
    "hub",
    "tokens",
    "weights",
]
ROOMS += ["cache", "check", "heads", "shipped", "dims", "ir", "files", "plausible", "result"]

MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def below(*packages: str) -> list[str]:
    """Return the modules of packages, or the modules of these names."""
    found = [name for name in MODULES if any(name == p or name.startswith(f"{p}.") for p in packages)]
    assert found, f"no module is named like {packages}"
    return found


def imports_of(module: str) -> Iterator[str]:
    """Yield the names that a module imports anywhere in its text, in functions too."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield stem
            # `from streamer import app` imports a module too.
            yield from (f"{stem}.{alias.name}" for alias in node.names if f"{stem}.{alias.name}" in MODULES)


def loaded_by(modules: list[str]) -> set[str]:
    """Return the modules that are loaded once some have been imported, in a process of their own."""
    code = (
        "import importlib, json, sys\n"
        "for module in sys.argv[1:]: importlib.import_module(module)\n"
        "print(json.dumps([*sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *modules], capture_output=True, encoding="utf-8", cwd=PACKAGE.parent, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def within(names: set[str], *packages: str) -> list[str]:
    return sorted(name for name in names if any(name == p or name.startswith(f"{p}.") for p in packages))


def test_errors_events_and_audio_load_no_model_no_engine_and_no_server() -> None:
    loaded = loaded_by(below("streamer.errors", "streamer.events", "streamer.audio"))
    assert not within(loaded, "openvino", "streamer.whisper", "streamer.engine", "streamer.server")


@pytest.mark.parametrize("module", ["streamer.session.gate", "streamer.session.session"])
def test_the_decisions_are_pure(module: str) -> None:
    loaded = loaded_by([module])
    assert not within(loaded, "asyncio", "openvino", "sounddevice", "streamer.server", "streamer.engine.engine")
    # The standard library may have loaded threading and time for itself.
    assert not within(set(imports_of(module)), "asyncio", "threading", "time", "datetime", "openvino")


def test_the_engine_loads_no_openvino() -> None:
    assert not within(loaded_by(["streamer.engine.engine"]), "openvino")


def room_of(module: str) -> str:
    """Return the room of a module of `streamer`; the package itself is its own."""
    return module.split(".")[1] if "." in module else module


def test_every_room_imports_rooms_below_it_only() -> None:
    assert {room_of(name) for name in MODULES} == {*HOUSE, "streamer"}
    upwards = [
        f"{name} imports {other}"
        for name in MODULES
        if room_of(name) != "streamer"
        for other in sorted({room_of(other) for other in imports_of(name) if other in MODULES} - {"streamer"})
        if HOUSE.index(other) < HOUSE.index(room_of(name))
    ]
    assert upwards == []


def test_protocols_wait_for_nothing_and_know_no_server() -> None:
    loaded = loaded_by(below("streamer.protocols"))
    assert not within(loaded, "asyncio", "starlette", "uvicorn", "openvino", "streamer.server", "streamer.engine")
    assert not within(loaded, "streamer.whisper", "streamer.daemon")


def test_the_client_knows_events_only() -> None:
    loaded = {room_of(name) for name in within(loaded_by(below("streamer.client")), "streamer")}
    assert loaded == {"streamer", "client", "events", "errors", "outside", "constants", "version"}


def test_only_the_command_that_runs_it_imports_the_application() -> None:
    importers = [name for name in MODULES if within(set(imports_of(name)), "streamer.app")]
    assert importers == ["streamer.commands.run"]


def test_a_room_of_whisper_imports_rooms_below_it_only() -> None:
    for room in ROOMS:
        imported = {name for module in below(f"streamer.whisper.{room}") for name in imports_of(module)}
        rooms = {name.split(".")[2] for name in imported if name.startswith("streamer.whisper.")} - {room}
        assert all(ROOMS.index(room) < ROOMS.index(other) for other in rooms), (room, rooms)


def test_every_module_of_whisper_is_in_a_room() -> None:
    found = {name.split(".")[2] for name in MODULES if name.startswith("streamer.whisper.")}
    assert found == set(ROOMS)


def test_no_module_imports_what_only_tests_and_tools_have() -> None:
    found = {module: within(set(imports_of(module)), *NEVER) for module in MODULES}
    assert {module: names for module, names in found.items() if names} == {}
