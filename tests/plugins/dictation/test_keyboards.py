"""What types on a desktop: tools that stand-ins play, and the X server where Xvfb is installed."""

import ctypes
import gc
import io
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamer.errors import PeerError, StreamerError, UsageError
from streamer.plugins.dictation import keyboards
from streamer.plugins.dictation.keyboards import Typist, desktop, find_clipboard, find_keyboards, grabbed
from streamer.plugins.dictation.windows import inputs_of
from streamer.plugins.dictation.x11 import X11
from tests.stand_ins import StandIns
from tests.waiting import WAIT_S, wait_until

HARD = "-x Grüße, naïve – 你好 😀 {yz|@} Żółć ёж"
MANY = " 好あいうえおかきくけこさしすせそたちつてとなにぬねの"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tools are Linux's")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    found = StandIns(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(found.folder))
    for variable in ("WAYLAND_DISPLAY", "DISPLAY", "XDG_SESSION_ID"):
        monkeypatch.delenv(variable, raising=False)
    return found


def typist(notices: list[str]) -> tuple[Typist, io.StringIO]:
    terminal = io.StringIO()
    return Typist(find_keyboards("wayland"), find_clipboard("wayland"), terminal, notices.append), terminal


def test_text_is_never_an_argument(tools: StandIns) -> None:
    tools.add("wtype")
    made, _ = typist([])
    made.type("-x $(reboot) `ls`; 'ü'")
    assert tools.input("wtype") == "-x $(reboot) `ls`; 'ü'"
    assert set(tools.arguments("wtype")) == {"-"}


def test_where_the_compositor_lets_no_program_type_text_is_pasted(tools: StandIns) -> None:
    tools.fail("wtype", "Compositor does not support the virtual keyboard protocol")
    for name in ("ydotool", "wl-copy"):
        tools.add(name)
    made, _ = typist([])
    made.type("Grüße")
    assert tools.arguments("wl-copy") == ["", "--primary"]
    assert tools.input("wl-copy", newest=True) == "Grüße"
    assert tools.arguments("ydotool")[-1] == "key 42:1 110:1 110:0 42:0"  # Shift+Insert, on each layout


def test_text_that_nothing_types_is_in_the_terminal_and_the_clipboard_until_typing_works_again(tools: StandIns) -> None:
    for name in ("wtype", "wl-copy"):
        tools.add(name)
    notices: list[str] = []
    made, terminal = typist(notices)
    made.type("One.")
    tools.fail("wtype", "gone")
    made.type(" Two.")
    made.type(" Three.")
    assert terminal.getvalue() == tools.input("wl-copy", newest=True) == " Two. Three."
    assert notices == ["text goes to the terminal and the clipboard, not to the window: wtype failed: gone"]
    tools.add("wtype")
    made.type(" Four.")
    assert notices[1:] == ["typing works again"]
    assert terminal.getvalue() == " Two. Three.\n"
    assert tools.input("wtype", newest=True) == " Four."
    tools.fail("wtype", "gone")
    made.type(" Five.")
    assert tools.input("wl-copy", newest=True) == " Five."


def test_a_tool_that_hangs_is_given_up_and_one_that_serves_in_the_background_is_not_waited_for(
    tools: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyboards, "TOOL_S", 0.2)
    (tools.folder / "sleep").symlink_to("/bin/sleep")
    tools.add("wtype", "exec sleep 60")
    tools.add("wl-copy")
    with pytest.raises(PeerError, match=r"wtype failed: .*timed out"):
        keyboards.Tool(("wtype", "-")).type("x")
    monkeypatch.setattr(keyboards, "TOOL_S", WAIT_S)
    tools.add("wl-copy", "sleep 600 & echo $! > $0.pid")
    clipboard = find_clipboard("wayland")
    assert clipboard is not None
    clipboard.type("x")
    os.kill(int((tools.folder / "wl-copy.pid").read_text(encoding="ascii")), 9)


@pytest.mark.parametrize("locker", ["a process", "loginctl"])
def test_nothing_is_typed_into_a_locked_screen(tools: StandIns, monkeypatch: pytest.MonkeyPatch, locker: str) -> None:
    tools.add("wtype")
    notices: list[str] = []
    made, terminal = typist(notices)
    if locker == "loginctl":
        monkeypatch.setenv("XDG_SESSION_ID", "3")
        tools.add("loginctl", "echo yes")
        made.type("secret")
        assert tools.arguments("loginctl") == ["show-session --property=LockedHint --value -- 3"]
    else:
        name = f"lock{os.getpid()}"  # other tests at the same time must not see one that is known
        monkeypatch.setattr(keyboards, "LOCKERS", {name})
        copy = shutil.copy("/bin/sleep", tools.folder / name)
        with subprocess.Popen([copy, "600"]) as process:
            made.type("secret")
            process.kill()
    assert tools.input("wtype") == ""
    assert terminal.getvalue() == "secret"
    assert notices == ["text goes to the terminal, not to the window: the screen is locked"]


def test_whether_the_screen_is_locked_is_not_looked_up_for_each_piece(
    tools: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools.add("wtype")
    tools.add("loginctl")
    monkeypatch.setattr(keyboards, "LOCK_S", 10 * WAIT_S)
    made, _ = typist([])
    for _ in range(3):
        made.type("x")
    assert tools.arguments("loginctl") == ["show-session --property=LockedHint --value -- auto"]
    monkeypatch.setattr(keyboards, "LOCK_S", 0.0)
    made, _ = typist([])
    for _ in range(2):
        made.type("x")
    assert len(tools.arguments("loginctl")) == 3


def test_a_machine_without_a_desktop_or_tools_is_one_line(tools: StandIns) -> None:
    with pytest.raises(StreamerError, match="no desktop is here"):
        desktop()
    assert find_keyboards("wayland") == []
    assert find_clipboard("wayland") is None
    with pytest.raises(UsageError, match="bind `streamer type --toggle` to it"), grabbed("wayland", "F9"):
        pass
    with pytest.raises(UsageError, match="'Control_L' is no key to be held"), grabbed("x11", "Control_L"):
        pass


def test_windows_gets_a_press_and_a_release_for_each_utf16_unit() -> None:
    inputs = inputs_of("ü😀")
    assert {len(item) for item in inputs} == {40}  # sizeof(INPUT) on 64-bit Windows
    # type; virtual key, scan code and flags at the offsets of KEYBDINPUT within INPUT
    fields = [(*struct.unpack_from("<I", item), *struct.unpack_from("<HHI", item, 8)) for item in inputs]
    assert fields == [(1, 0, unit, flags) for unit in (0xFC, 0xD83D, 0xDE00) for flags in (4, 6)]


@pytest.fixture
def x_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for program in ("Xvfb", "xterm", "xdotool", "setxkbmap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    read_end, write_end = os.pipe()
    # Without -noreset it begins anew when setxkbmap, its only client, has ended, and loses an xterm that connects then.
    command = ["Xvfb", "-displayfd", str(write_end), "-screen", "0", "800x300x24", "-nolisten", "tcp", "-noreset"]
    with subprocess.Popen(command, pass_fds=[write_end], stderr=subprocess.DEVNULL) as server:
        os.close(write_end)
        with os.fdopen(read_end) as file:
            monkeypatch.setenv("DISPLAY", f":{file.readline().strip()}")
        yield
        server.kill()


class XTerm:
    """An xterm with the focus, whose lines go into a file."""

    def __init__(self, folder: Path) -> None:
        self._out = folder / "out"
        self.process = subprocess.Popen(
            ["xterm", "-u8", "-e", "sh", "-c", f"echo $WINDOWID > {folder}/id; exec cat > {self._out}"],
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        self.id = folder / "id"
        wait_until(lambda: self.id.exists() and bool(self.id.read_text(encoding="ascii").strip()))
        # The window may be mapped a moment later.
        name = self.id.read_text(encoding="ascii").strip()
        wait_until(lambda: xdotool("windowfocus", name) == 0)

    def read(self) -> str:
        """Return what was typed, behind a Return that this test types."""
        assert xdotool("key", "Return") == 0
        wait_until(lambda: self._out.exists() and self._out.read_text(encoding="utf-8").endswith("\n"))
        return self._out.read_text(encoding="utf-8").removesuffix("\n")


def xdotool(*arguments: str) -> int:
    return subprocess.run(["xdotool", *arguments], check=False, capture_output=True).returncode


@pytest.mark.parametrize("layout", ["us", "de", "us,ru"])
def test_all_characters_arrive_on_each_layout(x_server: None, tmp_path: Path, layout: str) -> None:
    subprocess.run(["setxkbmap", layout], check=True)
    terminal, keyboard = XTerm(tmp_path), X11()
    try:
        keyboard.type(HARD)
        # More than there are unused keys; one is needed again.
        keyboard.type(MANY)
        assert terminal.read() == HARD + MANY
        # Another process takes over the keys that this one used.
        X11().type("好")
    finally:
        terminal.process.kill()


def test_caps_lock_changes_no_letter_and_stays_on(x_server: None, tmp_path: Path) -> None:
    terminal, keyboard = XTerm(tmp_path), X11()
    try:
        assert xdotool("key", "Caps_Lock") == 0
        keyboard.type("aB ж")
        keyboard.type(" é")
        assert xdotool("key", "c") == 0
        assert terminal.read() == "aB ж éC"
    finally:
        terminal.process.kill()


def test_without_a_focused_window_or_with_a_modifier_nothing_is_typed(
    x_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyboards, "MODIFIERS_S", 0.1)
    monkeypatch.setattr(keyboards, "LOCKERS", set())
    terminal, notices, said = XTerm(tmp_path), list[str](), io.StringIO()
    typing = Typist([X11()], None, said, notices.append)
    try:
        assert xdotool("keydown", "ctrl") == 0
        typing.type("w")
        assert xdotool("keyup", "ctrl") == 0
        typing.type("typed")
        assert terminal.read() == "typed"
    finally:
        terminal.process.kill()
        terminal.process.wait()
    focus_nothing()
    typing.type("lost?")
    assert said.getvalue() == "w\nlost?"
    assert [notice.partition("window: ")[2] for notice in notices] == [
        "Shift, Ctrl, Alt or Super is held",
        "",
        "no window has the focus",
    ]


def test_a_window_manager_says_whether_a_window_has_the_focus(x_server: None, tmp_path: Path) -> None:
    terminal, keyboard = XTerm(tmp_path), X11()
    number = int((tmp_path / "id").read_text(encoding="ascii"))
    try:
        name_window("_NET_SUPPORTING_WM_CHECK", number)
        with pytest.raises(PeerError, match="no window has the focus"):
            keyboard.type("nobody sees this")
        name_window("_NET_ACTIVE_WINDOW", number)
        keyboard.type("typed")
        assert terminal.read() == "typed"
        name_window("_NET_ACTIVE_WINDOW", 0x600001)  # it has gone, as openbox does not note
        with pytest.raises(PeerError, match="no window has the focus"):
            keyboard.type("nobody sees this")
    finally:
        terminal.process.kill()


def name_window(name: str, window: int) -> None:
    """Set a property of the root window, as a window manager does."""
    keyboard = X11()
    atom = ctypes.c_ulong(keyboard._call("XInternAtom", name.encode(), 0))
    data = ctypes.byref(ctypes.c_ulong(window))
    keyboard._call("XChangeProperty", keyboard._root, atom, ctypes.c_ulong(33), 32, 0, data, 1)  # 33: WINDOW
    keyboard._call("XSync", 0)


def focus_nothing() -> None:
    """Give the focus to the root window, as window managers do when the last window has gone."""
    keyboard = X11()
    keyboard._call("XSetInputFocus", keyboard._root, 1, ctypes.c_ulong(0))
    keyboard._call("XSync", 0)


def test_a_held_key_is_ours_and_text_typed_meanwhile_arrives(x_server: None, tmp_path: Path) -> None:
    terminal = XTerm(tmp_path)
    try:
        with grabbed("x11", "F9") as is_down:
            with pytest.raises(UsageError, match="another program has the key F9"), grabbed("x11", "F9"):
                pass
            assert xdotool("keydown", "F9") == 0
            wait_until(is_down)
            X11().type("while it is held")
            assert xdotool("keyup", "F9") == 0
            wait_until(lambda: not is_down())
            assert terminal.read() == "while it is held"  # and nothing of F9 itself
    finally:
        terminal.process.kill()


def test_a_refusal_is_that_of_its_connection(x_server: None) -> None:
    f9, first, second = keyboards.KEYS["x11"]["F9"], X11(), X11()
    assert first.grab(f9)
    X11()  # its error handler goes with it
    gc.collect()
    assert [second.grab(f9), first.grab(f9)] == [False, True]


def test_a_key_that_the_layout_lacks_is_one_line(x_server: None) -> None:
    with pytest.raises(UsageError, match="layout has no such key"), grabbed("x11", "F24"):
        pass
