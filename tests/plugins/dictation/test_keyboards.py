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
from dataclasses import dataclass
from pathlib import Path

import pytest

from streamer.errors import PeerError, UsageError
from streamer.plugins.dictation import keyboards
from streamer.plugins.dictation.keyboards import Typist, find_clipboard, find_keyboards, grabbed
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


class Typing:
    """A typist on Wayland, and what it says."""

    def __init__(self, tools: StandIns) -> None:
        self.tools = tools
        self.notices: list[str] = []
        self.terminal = io.StringIO()
        tools.add("wtype")
        self.typist = Typist(find_keyboards("wayland"), find_clipboard("wayland"), self.terminal, self.notices.append)

    def type(self, text: str) -> str:
        """Type a text, and return what was typed and copied newest."""
        self.typist.type(text)
        return f"{self.tools.input('wtype', newest=True)}|{self.tools.input('wl-copy', newest=True)}"


def test_text_is_never_an_argument(tools: StandIns) -> None:
    Typing(tools).typist.type("-x $(reboot) `ls`; 'ü'")
    assert tools.input("wtype") == "-x $(reboot) `ls`; 'ü'"
    assert set(tools.arguments("wtype")) == {"-"}


def test_text_is_pasted_if_the_compositor_lets_no_program_type(tools: StandIns) -> None:
    for name in ("ydotool", "wl-copy"):
        tools.add(name)
    made = Typing(tools)
    tools.fail("wtype", "Compositor does not support the virtual keyboard protocol")
    assert made.type("Grüße").endswith("|Grüße")
    assert tools.arguments("wl-copy") == ["", "--primary"]
    assert tools.arguments("ydotool")[-1] == "key 42:1 110:1 110:0 42:0"  # Shift+Insert, on each layout


def test_text_that_nothing_types_is_in_the_terminal_and_the_clipboard_until_typing_works_again(tools: StandIns) -> None:
    tools.add("wl-copy")
    made = Typing(tools)
    made.type("One.")
    tools.fail("wtype", "gone")
    made.type(" Two.")
    assert made.type(" Three.").endswith("| Two. Three.")
    assert made.terminal.getvalue() == " Two. Three."
    assert len(made.notices) == 1
    assert "gone" in made.notices[0], "what the tool said"
    tools.add("wtype")
    assert made.type(" Four.").startswith(" Four.|")
    assert made.terminal.getvalue() == " Two. Three.\n"
    assert len(made.notices) == 2
    tools.fail("wtype", "gone")
    assert made.type(" Five.").endswith("| Five.")


def test_an_x_server_that_is_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":97")
    with pytest.raises(PeerError):
        keyboards.find_keyboards("x11")


def test_a_tool_that_hangs_is_given_up_and_one_that_serves_in_the_background_is_not_waited_for(
    tools: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tools.folder / "sleep").symlink_to("/bin/sleep")
    tools.add("wtype", "exec sleep 60")
    monkeypatch.setattr(keyboards, "TOOL_S", 0.2)
    with pytest.raises(PeerError):
        keyboards.Tool(("wtype", "-")).type("x")
    monkeypatch.setattr(keyboards, "TOOL_S", WAIT_S)
    tools.add("wl-copy", "sleep 600 & echo $! > $0.pid")
    clipboard = find_clipboard("wayland")
    assert clipboard is not None
    clipboard.type("x")
    os.kill(int((tools.folder / "wl-copy.pid").read_text(encoding="ascii")), 9)


@pytest.mark.parametrize("locker", ["a process", "loginctl"])
def test_nothing_is_typed_into_a_locked_screen(tools: StandIns, monkeypatch: pytest.MonkeyPatch, locker: str) -> None:
    made = Typing(tools)
    if locker == "loginctl":
        monkeypatch.setenv("XDG_SESSION_ID", "3")
        tools.add("loginctl", "echo yes")
        made.type("secret")
        assert tools.arguments("loginctl") == ["show-session --property=LockedHint --value -- 3"]
    else:
        name = f"lock{os.getpid()}"  # other tests at the same time must not see one that is known
        monkeypatch.setattr(keyboards, "LOCKERS", {name})
        with subprocess.Popen([shutil.copy("/bin/sleep", tools.folder / name), "600"]) as process:
            made.type("secret")
            process.kill()
    assert tools.input("wtype") == ""
    assert made.terminal.getvalue() == "secret"
    assert len(made.notices) == 1


@pytest.mark.parametrize(("lock_s", "n_looked"), [(10 * WAIT_S, 1), (0.0, 3)])
def test_whether_the_screen_is_locked_is_not_looked_up_for_each_piece(
    tools: StandIns, monkeypatch: pytest.MonkeyPatch, lock_s: float, n_looked: int
) -> None:
    tools.add("loginctl")
    monkeypatch.setattr(keyboards, "LOCK_S", lock_s)
    made = Typing(tools)
    for _ in range(3):
        made.type("x")
    assert tools.arguments("loginctl") == ["show-session --property=LockedHint --value -- auto"] * n_looked


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


def xdotool(*arguments: str) -> int:
    return subprocess.run(["xdotool", *arguments], check=False, capture_output=True).returncode


@dataclass
class XTerm:
    """An xterm with the focus, whose lines go into a file."""

    process: subprocess.Popen[bytes]
    id: Path
    out: Path

    def read(self) -> str:
        """Return what was typed, behind a Return that this test types."""
        assert xdotool("key", "Return") == 0
        wait_until(lambda: self.out.exists() and self.out.read_text(encoding="utf-8").endswith("\n"))
        return self.out.read_text(encoding="utf-8").removesuffix("\n")


@pytest.fixture
def terminal(x_server: None, tmp_path: Path) -> Iterator[XTerm]:
    number, out = tmp_path / "id", tmp_path / "out"
    command = ["xterm", "-u8", "-e", "sh", "-c", f"echo $WINDOWID > {number}; exec cat > {out}"]
    with subprocess.Popen(command, env={**os.environ, "LC_ALL": "C.UTF-8"}) as process:
        wait_until(lambda: number.exists() and bool(number.read_text(encoding="ascii").strip()))
        # The window may be mapped a moment later.
        wait_until(lambda: xdotool("windowfocus", number.read_text(encoding="ascii").strip()) == 0)
        yield XTerm(process, number, out)
        process.kill()


@pytest.mark.parametrize("layout", ["us", "de", "us,ru"])
def test_all_characters_arrive_on_each_layout(terminal: XTerm, layout: str) -> None:
    subprocess.run(["setxkbmap", layout], check=True)
    keyboard = X11()
    keyboard.type(HARD)
    # More than there are unused keys; one is needed again.
    keyboard.type(MANY)
    assert terminal.read() == HARD + MANY
    # Another process takes over the keys that this one used.
    X11().type("好")


def test_caps_lock_changes_no_letter_and_stays_on(terminal: XTerm) -> None:
    keyboard = X11()
    assert xdotool("key", "Caps_Lock") == 0
    keyboard.type("aB ж")
    keyboard.type(" é")
    assert xdotool("key", "c") == 0
    assert terminal.read() == "aB ж éC"


def test_without_a_focused_window_or_with_a_modifier_nothing_is_typed(
    terminal: XTerm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyboards, "MODIFIERS_S", 0.1)
    monkeypatch.setattr(keyboards, "LOCKERS", set())
    notices, said = list[str](), io.StringIO()
    typing = Typist([X11()], None, said, notices.append)
    assert xdotool("keydown", "ctrl") == 0
    typing.type("w")
    assert xdotool("keyup", "ctrl") == 0
    typing.type("typed")
    assert terminal.read() == "typed"
    terminal.process.kill()
    terminal.process.wait()
    focus_nothing()
    typing.type("lost?")
    assert said.getvalue() == "w\nlost?"
    assert len(notices) == 3


def test_a_window_manager_says_whether_a_window_has_the_focus(terminal: XTerm) -> None:
    keyboard, number = X11(), int(terminal.id.read_text(encoding="ascii"))
    name_window("_NET_SUPPORTING_WM_CHECK", number)
    with pytest.raises(PeerError):
        keyboard.type("nobody sees this")
    name_window("_NET_ACTIVE_WINDOW", number)
    keyboard.type("typed")
    assert terminal.read() == "typed"
    name_window("_NET_ACTIVE_WINDOW", 0x600001)  # it has gone, as openbox does not note
    with pytest.raises(PeerError):
        keyboard.type("nobody sees this")


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


def test_a_held_key_is_ours_and_text_typed_meanwhile_arrives(terminal: XTerm) -> None:
    with grabbed("x11", "F9") as is_down:
        with pytest.raises(UsageError), grabbed("x11", "F9"):
            pass
        assert xdotool("keydown", "F9") == 0
        wait_until(is_down)
        X11().type("while it is held")
        assert xdotool("keyup", "F9") == 0
        wait_until(lambda: not is_down())
        assert terminal.read() == "while it is held"  # and nothing of F9 itself


def test_a_refusal_is_that_of_its_connection(x_server: None) -> None:
    f9, first, second = keyboards.KEYS["x11"]["F9"], X11(), X11()
    assert first.grab(f9)
    X11()  # its error handler goes with it
    gc.collect()
    assert [second.grab(f9), first.grab(f9)] == [False, True]


def test_a_key_that_the_layout_lacks_is_refused(x_server: None) -> None:
    with pytest.raises(UsageError), grabbed("x11", "F24"):
        pass
