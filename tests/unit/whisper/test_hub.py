"""Models from a hub on loopback: whole, half fetched, refused, and without any network."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from streamer.errors import PeerError, StreamerError
from streamer.whisper.hub import cache, fetch, files
from streamer.whisper.hub.progress import Progress
from tests.hub_server import Hub, take_for_the_real_one
from tests.refusals import Refusal, refusals
from tests.unit.whisper.support import table

REPOSITORY = "openai/whisper-tiny"
FASTER = "Systran/faster-whisper-large-v3"
WEIGHTS = random.Random(0).randbytes(300_000)
SMALL = {
    "config.json": b'{"model_type": "whisper"}',
    "generation_config.json": b"{}",
    "preprocessor_config.json": b"{ }",
    "tokenizer.json": b'{"version": "1.0"}',
}
MODEL = {**SMALL, "model.safetensors": WEIGHTS}
FASTER_MODEL = {**SMALL, "model.bin": WEIGHTS, "vocabulary.json": b"[]"}
del FASTER_MODEL["generation_config.json"]
N_BYTES = sum(map(len, MODEL.values()))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with two models, which this process takes for the real one, and an empty cache."""
    with Hub(tmp_path / "hub") as server:
        server.add(REPOSITORY, {**MODEL, "README.md": b"not needed", "flax_model.msgpack": b"not needed"})
        server.add(FASTER, {**FASTER_MODEL, "README.md": b"not needed"})
        take_for_the_real_one(server, tmp_path, monkeypatch)
        yield server


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@refusals("whisper_hub")
def test_what_cannot_be_pulled_is_refused(
    refusal: Refusal, server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = refusal.given
    server.add("me/other", dict.fromkeys(given.get("files", ()), b"x"))
    server.refused |= given.get("refused", {})
    server.wrong |= {name: text.encode() for name, text in given.get("wrong", {}).items()}
    server.cuts |= given.get("cuts", {})
    server.hangs |= {*given.get("hangs", ())}
    server.loops |= {*given.get("loops", ())}
    server.listing = given.get("listing")
    (tmp_path / "file").touch()
    monkeypatch.setenv("HF_TOKEN", given.get("token", ""))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", given.get("offline", False))
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / given.get("cache", "cache")))
    usage = shutil.disk_usage(tmp_path)._replace(free=given.get("free", 1 << 40))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    name = given.get("name", "tiny")
    with pytest.raises(StreamerError) as caught:
        fetch.pull(name)
    says = str(caught.value).replace(server.url, "HUB").replace(str(tmp_path), "DIR")
    refusal.check(type(caught.value).__name__, caught.value.code, says)
    assert cache.cached(name) is None
    assert not [*tmp_path.glob("cache/models--*/blobs/*.incomplete")]
    assert not given.get("token") or given["token"] not in says


TABLES = table("hub")


def test_a_name_means_a_repository_on_the_hub_or_none() -> None:
    for name, repository in TABLES["repositories"].items():
        assert getattr(cache.parse(name), "repository", None) == repository
    for name in (*TABLES["names"]["impossible"], "a/" + "b" * 5000):
        assert cache.parse(name) is None, name


@pytest.mark.parametrize(("weights", "others"), TABLES["files"]["chosen"])
def test_one_set_of_weights_is_chosen(weights: list[str], others: list[str]) -> None:
    companions = ["adapter_config.json", "config.json", "tokenizer.json", "multilingual.tiktoken"]
    chosen = files.choose([*companions, *weights, *others, "README.md", ".gitattributes", "sub/config.json"], "a/b")
    assert sorted(chosen) == sorted([*companions[1:], *weights])


def test_an_adapter_is_chosen_without_a_model() -> None:
    for name in ("adapter_model.safetensors", "adapter_model.bin"):
        names = ["README.md", "adapter_config.json", name, "tokenizer.json", "training_args.bin"]
        assert files.choose(names, "a/b") == ["adapter_config.json", name]


def test_a_file_of_a_repository_of_several_models_is_fetched_alone(server: Hub) -> None:
    server.add("me/cpp", {f"ggml-{size}.bin": size.encode() for size in ("tiny", "base")})
    path = fetch.pull("me/cpp/ggml-tiny.bin")
    assert path.read_bytes() == b"tiny"
    assert cache.cached("me/cpp/ggml-tiny.bin") == path
    assert cache.cached("me/cpp/ggml-base.bin") is cache.cached("me/cpp") is None
    assert fetch.pull("me/cpp/ggml-base.bin").read_bytes() == b"base"
    assert [*cache.downloaded()] == ["me/cpp/ggml-base.bin", "me/cpp/ggml-tiny.bin"]


def test_a_model_is_fetched_once(server: Hub) -> None:
    reported: list[Progress] = []
    assert cache.cached("tiny") is None
    directory = fetch.pull("tiny", on_progress=reported.append)
    assert content(directory) == MODEL
    assert {Path(request.path).name for request in server.requests} == {"main", *MODEL}
    assert {progress.doing for progress in reported} == MODEL.keys()
    assert reported[-1] == Progress("model.safetensors", N_BYTES, N_BYTES)
    assert [progress.n_here for progress in reported] == sorted(progress.n_here for progress in reported)
    server.requests.clear()
    assert fetch.pull("tiny") == fetch.pull(REPOSITORY) == cache.cached("tiny") == directory
    assert cache.downloaded() == {REPOSITORY: directory}
    assert server.requests == []


def test_other_programs_find_the_model_in_the_cache(server: Hub) -> None:
    directory, hub_cache = fetch.pull("tiny"), constants.HF_HUB_CACHE
    for name in MODEL:
        assert huggingface_hub.try_to_load_from_cache(REPOSITORY, name) == str(directory / name)
    scan = huggingface_hub.scan_cache_dir(hub_cache)
    assert not scan.warnings
    assert [(repo.repo_id, repo.size_on_disk) for repo in scan.repos] == [(REPOSITORY, N_BYTES)]


@pytest.mark.parametrize("name", ["tiny", "large-v3"])
def test_what_another_program_fetched_is_used_without_network_if_it_is_whole(
    server: Hub, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """faster-whisper's repositories have no generation_config.json, and only some a preprocessor_config.json."""
    repository, model = (REPOSITORY, MODEL) if name == "tiny" else (FASTER, FASTER_MODEL)
    for lacking in model:
        shutil.rmtree(constants.HF_HUB_CACHE, ignore_errors=True)
        for file in model.keys() - {lacking}:
            huggingface_hub.hf_hub_download(repository, file)
        server.requests.clear()
        is_whole = cache.cached(name) is not None
        assert is_whole == (name == "large-v3" and lacking == "preprocessor_config.json")
        expected = {file: model[file] for file in model if file != lacking or not is_whole}
        assert content(fetch.pull(repository)) == expected
        assert bool(server.requests) != is_whole
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch.pull(name) == cache.cached(repository)
    assert [*cache.downloaded()] == [repository]


@pytest.mark.parametrize("lacking", MODEL)
def test_a_half_fetched_model_is_not_used_and_the_rest_of_it_is_fetched(server: Hub, lacking: str) -> None:
    server.refused[lacking] = (500, "")
    with pytest.raises(PeerError):
        fetch.pull("tiny")
    assert (cache.cached("tiny"), cache.downloaded()) == (None, {})
    server.refused.clear()
    server.requests.clear()
    assert content(fetch.pull("tiny")) == MODEL
    sent = [name for name in MODEL if server.fetched(name)]
    assert sent == [*MODEL][[*MODEL].index(lacking) :]


def test_the_hub_gets_the_token_and_nothing_else_of_this_machine(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    before = dict(os.environ)
    fetch.pull("tiny")
    assert os.environ == before
    for request in server.requests:
        assert request.method in ("GET", "HEAD")
        assert "torch" not in request.headers["user-agent"]
        assert "agent" not in request.headers["user-agent"]
        # The token is for the hub, not for the host that keeps the large files.
        assert request.headers.get("authorization") == (None if request.cdn else "Bearer hf_secret")
    assert any(request.cdn for request in server.requests)


def test_a_newer_version_is_fetched_when_the_old_one_has_gone(server: Hub) -> None:
    old = fetch.pull("tiny")
    server.commit = "f" * 40
    server.add(REPOSITORY, {"config.json": b"newer"})
    assert fetch.pull("tiny") == old
    shutil.rmtree(old)
    server.requests.clear()
    assert content(fetch.pull("tiny")) == {**MODEL, "config.json": b"newer"}
    assert [name for name in MODEL if server.fetched(name)] == ["config.json"]  # the rest was here


def test_files_of_two_versions_are_no_model(server: Hub) -> None:
    def change(progress: Progress) -> None:
        server.commit = "f" * 40

    with pytest.raises(PeerError):
        fetch.pull("tiny", on_progress=change)
    assert cache.cached("tiny") is None
    assert content(fetch.pull("tiny")) == MODEL


def test_without_the_hub_what_is_here_is_used_and_named(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch.pull("tiny")
    server.refused["api"] = (503, "")
    monkeypatch.setattr(constants, "ENDPOINT", server.url.replace("//", "//someone:password@"))
    with pytest.raises(PeerError) as caught:
        fetch.pull("base")
    assert content(fetch.pull("tiny")) == MODEL
    assert REPOSITORY in str(caught.value)
    assert "password" not in str(caught.value)
