"""Who may import whom (docs/design.md)."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "streamer"

# Rooms and modules from the top of the house down: each imports only what stands below it, and nothing a plug-in.
# fmt: off
HOUSE = [
    "plugins", "__main__", "cli", "commands", "app", "live_text", "library", "server", "daemon", "check", "after",
    "setup", "offline", "history", "protocols", "client", "outputs", "engine", "session", "whisper", "audio", "log",
    "settings", "findings", "packed_models", "wheels", "languages", "health", "worker", "systemd", "signals",
    "descriptors", "lock", "extras", "entry_points", "events", "outside", "errors", "arrays", "constants",
    "version",
]
# fmt: on

# Lines of Python in each room, and what they are to become; `modules` are in no room. The first number only falls, or
# says beside it why not. Plainer sentences of refusals took some lines more in all rooms, and so did imports when
# options of decoding became those of a session and the task of a window.
BUDGETS = {
    "plugins": (9453, 7300),  # the overlay, and in it a Wayland client, as Qt has no layers above windows
    "commands": (3103, 2400),  # bench: the offline text beside, energy; a command's help is its docstring
    "server": (4159, 2520),  # what is read in rooms, whose address is drawn
    "daemon": (1386, 1300),  # a stream and its session are one class; rooms
    "after": (2576, 2050),  # the second pass counts only where it is likelier; what it can is told
    "setup": (819, 700),  # what a session's settings come to; base.en where English is named
    "offline": (1179, 950),
    "history": (904, 640),
    "protocols": (2541, 1980),  # Wyoming answers before the second pass; names of rooms
    "client": (1057, 850),  # one table of transitions, and what drives it
    "outputs": (1919, 1240),  # a file loses no line that was delivered, killed or on a full disk
    "engine": (2111, 1280),  # commands are values; recovery, journal and the count stand by themselves
    "session": (2559, 1450),  # one frozen value in parts, the table of what is decoded again, policies
    # Forks with several buffers, likelihood of a text, adapters of keys and values, graphs kept without their weights.
    "whisper": (10241, 7050),
    "audio": (3472, 2150),
    "settings": (1419, 900),  # what a session may choose, which protocols had
    "modules": (2911, 1750),  # live_text.py; lock.py; pip by way of uv, and its end
}

# The same of tests, by folders, of all of them, and of tools.
TEST_BUDGETS = {
    "unit/session unit/engine": (4222, 3200),  # names of modules that moved
    "unit/whisper": (8334, 6300),  # a model that is soon compiled
    "unit/server wire": (6958, 3300),  # connections without overrides of uvicorn; rooms
    "unit/history unit/daemon unit/offline": (3381, 2000),  # the history against a model
    "unit/protocols": (868, 850),
    "unit/outputs": (1512, 1300),  # kills
    "unit/audio unit/after": (4913, 3150),  # what small faults showed
    "unit/commands unit/setup unit/settings": (2720, 1600),  # what small faults showed
    "plugins": (7153, 5000),  # the overlay, beside a compositor of its own
    "e2e": (3024, 1700),  # the image, its services, Home Assistant
    "reference": (2413, 2600),  # real exports for NPUs
    "tools": (724, 400),
    ".": (51433, 33000),
    "../tools": (6822, 5000),
}

# What passes the limits of a file (lines), a function (lines, parameters) and a class (methods, attributes), and by how
# much. No entry is added; who takes one away has done well.
MAX_FILE, MAX_FUNCTION, MAX_PARAMETERS, MAX_CLASS = 350, 50, 6, (20, 15)
LONG_FILES = {
    "streamer.audio.sources.microphone": 386,
    "streamer.protocols.deepgram": 461,
    "streamer.protocols.openai_realtime": 379,
    "streamer.settings.table": 619,
}
LONG_FUNCTIONS = {
    "streamer.whisper.decode.search.follow": 53,
}
MANY_PARAMETERS = {
    "streamer.commands.transcribe.transcribe": 7,
    "streamer.daemon.recordings.recorded_segments": 7,
    "streamer.offline.recording.transcribe_segments": 7,
    "streamer.plugins.compare.command.compare": 7,
    "streamer.plugins.dictation.plugin.type_text": 7,
    "streamer.whisper.decode.fallback.decode_with_fallback": 7,
    "streamer.whisper.decode.word_timestamps.add_word_timestamps": 8,
    "streamer.whisper.graphs.ports.ports": 7,
}
LARGE_CLASSES = {
    "streamer.app.Daemon": (11, 18),
    "streamer.daemon.streams.ClientStream": (29, 13),  # two classes before, of 12 and 21 methods
    "streamer.protocols.deepgram.ListenQuery": (3, 18),
    "streamer.protocols.deepgram.Live": (17, 17),
    "streamer.protocols.openai_realtime.Realtime": (29, 18),
    "streamer.server.runtime.Conversation": (23, 14),
    "streamer.session.course.Course": (23, 3),
    "streamer.session.session.Session": (29, 4),
    "streamer.settings.table.ModelSettings": (0, 16),
    "streamer.settings.table.DecodingSettings": (0, 41),
    "streamer.settings.table.ServerSettings": (0, 28),
    "streamer.whisper.device.decoder.Decoder": (23, 13),
    "streamer.whisper.result.Hypothesis": (1, 16),
}

# A room that has become smaller by this many lines is to get a smaller budget.
SLACK = 60

# For the references in the tests and for people's tools.
NEVER = ("torch", "transformers", "librosa", "whisper", "tools", "tests")


def name_of(path: Path) -> str:
    """Return the dotted name of a module's file."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# Rooms of `streamer/whisper`, each of which imports only those further down. Upwards from `weights` it is the way from
# the bytes of files to words; `source` joins what lies on disk, `loading` joins all.
ROOMS = [
    "option_checks",
    "options",
    "model",
    "shared",
    "loading",
    "choices",
    "doctor",
    "trust",
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


def test_no_modules_import_each_other() -> None:
    others = MODULES.keys() - {"streamer"}
    imported = {name: others.intersection(imports_of(name)) - {name} for name in others}
    while leaves := {name for name, more in imported.items() if not more}:
        imported = {name: more - leaves for name, more in imported.items() if name not in leaves}
    assert imported == {}


def lines_in(*paths: Path) -> int:
    files = {file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))}
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files)


def check_budgets(budgets: dict[str, tuple[int, int]], lines: dict[str, int]) -> None:
    assert lines.keys() == budgets.keys()
    wrong = {name: n for name, n in lines.items() if not budgets[name][0] - SLACK < n <= budgets[name][0]}
    assert wrong == {}, "over its budget, or so far below that the budget is to fall"


def test_rooms_keep_their_budgets() -> None:
    rooms = [path for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()]
    check_budgets(
        BUDGETS, {**{room.name: lines_in(room) for room in rooms}, "modules": lines_in(*PACKAGE.glob("*.py"))}
    )


def test_tests_keep_their_budgets() -> None:
    tests = PACKAGE.parent / "tests"
    check_budgets(TEST_BUDGETS, {names: lines_in(*(tests / name for name in names.split())) for names in TEST_BUDGETS})


def test_files_functions_and_classes_are_small_except_for_those_that_are_known() -> None:
    files: dict[str, int] = {}
    functions: dict[str, int] = {}
    parameters: dict[str, int] = {}
    classes: dict[str, tuple[int, int]] = {}
    for module, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        if (n_lines := text.count("\n")) > MAX_FILE:
            files[module] = n_lines
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if (n_lines := node.end_lineno - node.lineno + 1) > MAX_FUNCTION:
                    functions[f"{module}.{node.name}"] = n_lines
                taken = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                if (n_taken := len({*taken} - {"self", "cls"})) > MAX_PARAMETERS:
                    parameters[f"{module}.{node.name}"] = n_taken
            elif isinstance(node, ast.ClassDef):
                size = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
                n_fields = len(attributes_of(node))
                if size > MAX_CLASS[0] or n_fields > MAX_CLASS[1]:
                    classes[f"{module}.{node.name}"] = size, n_fields
    for found, known in ((files, LONG_FILES), (functions, LONG_FUNCTIONS), (parameters, MANY_PARAMETERS)):
        assert found.keys() == known.keys()
        assert [name for name, size in found.items() if size > known[name]] == []
    assert classes.keys() == LARGE_CLASSES.keys()
    assert [name for name, sizes in classes.items() if any(map(int.__gt__, sizes, LARGE_CLASSES[name]))] == []


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Return the names of a class's fields: declared in it, or assigned to `self` in a method."""
    declared = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    stored = (each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
    return declared | {each.attr for each in stored if isinstance(each.value, ast.Name) and each.value.id == "self"}


def test_protocols_wait_for_nothing_and_know_no_server() -> None:
    loaded = loaded_by(below("streamer.protocols"))
    assert not within(loaded, "asyncio", "starlette", "uvicorn", "openvino", "streamer.server", "streamer.engine")
    assert not within(loaded, "streamer.whisper", "streamer.daemon")


def test_the_client_knows_events_only() -> None:
    loaded = {room_of(name) for name in within(loaded_by(below("streamer.client")), "streamer")}
    assert loaded == {"streamer", "client", "events", "errors", "outside", "constants", "version"}


def test_openvino_reports_nothing_of_its_user(tmp_path: Path) -> None:
    program = "from streamer import LiveText; import openvino.tools.ovc"
    home = {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **home}, check=True)
    assert [*tmp_path.iterdir()] == []  # it would number its user in a file there


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
