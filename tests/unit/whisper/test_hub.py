"""Models from a hub on loopback: whole, interrupted, damaged, refused, and without any network."""

import errno
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.errors import ModelError, PeerError, StreamerError
from streamer.whisper.hub import cache, download, fetch, files
from streamer.whisper.hub.progress import Progress
from tests.hub_server import COMMIT, Hub, take_for_the_real_one
from tests.waiting import wait_until

REPOSITORY = "openai/whisper-tiny"
FASTER = "Systran/faster-whisper-large-v3"
WEIGHTS = os.urandom(300_000)
SMALL = {
    "config.json": b'{"model_type": "whisper"}',
    "generation_config.json": b"{}",
    "preprocessor_config.json": b"{ }",
    "tokenizer.json": b'{"version": "1.0"}',
}
MODEL = {**SMALL, "model.safetensors": WEIGHTS}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one model, which this process takes for the real one, and an empty cache."""
    with Hub(tmp_path / "hub") as server:
        server.add(REPOSITORY, {**MODEL, "README.md": b"not needed", "flax_model.msgpack": b"not needed"})
        take_for_the_real_one(server, tmp_path, monkeypatch)
        yield server


def refuse(kind: type[StreamerError], *parts: str, name: str = "tiny") -> str:
    """Check that pulling fails with one line that holds all of these, and that nothing counts as here."""
    with pytest.raises(StreamerError) as caught:
        fetch.pull(name)
    assert type(caught.value) is kind, caught.value
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    for part in parts:
        assert part in message
    assert cache.cached(name) is None
    return message


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# Names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiny.en", "openai/whisper-tiny.en"),
        ("large-v1", "openai/whisper-large"),
        ("large", "openai/whisper-large-v3"),
        ("turbo", "openai/whisper-large-v3-turbo"),
        ("distil-large-v3.5", "distil-whisper/distil-large-v3.5"),
        ("me/my_fine-tune.2", "me/my_fine-tune.2"),
        ("ggerganov/whisper.cpp/ggml-base.bin", "ggerganov/whisper.cpp"),
        ("me/models/deep/down/x.pt", "me/models"),
    ],
)
def test_names_of_the_hub(name: str, expected: str) -> None:
    assert cache.repository(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        *("", "nano.en", "base.fr", "a/b/c", "a/b/c.json", "a/b/../c.bin", "../a", "./a/b", "/a/b", "a/b/", "a//b"),
        *("a/..", "a/.b", "a/-b", "a/b--c", "a/b..c", "a/b.git", "a/b.", "a\\b", "C:\\a/b", "C:/a", "a/b\n", "ä/b"),
        *("a" * 60 + "/" + "b" * 60, "a/" + "b" * 5000, "a/b?x=1", "a/b#c", "a/b@main", "~/a", "a/b/%2e%2e/c.bin"),
    ],
)
def test_names_that_cannot_be_on_the_hub(server: Hub, name: str) -> None:
    assert cache.repository(name) is None
    assert cache.cached(name) is None
    refuse(ModelError, "there is no model", "expected one of", "tiny.en", name=name)
    assert server.requests == []


def test_a_slip_in_a_short_name_is_told(server: Hub) -> None:
    refuse(ModelError, "there is no model 'bsae.en' (did you mean base.en?)", name="bsae.en")


# Files


INDEX, BIN_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"
SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
BIN_SHARDS = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]


@pytest.mark.parametrize(
    ("weights", "others"),
    [
        (
            ["model.safetensors"],
            ["model.bin", *SHARDS, INDEX, "pytorch_model.bin", "model.fp32-00001-of-00002.safetensors"],
        ),
        (["model.safetensors"], ["model.safetensors.index.fp32.json", "flax_model.msgpack", "tf_model.h5", "a.pt"]),
        ([INDEX, *SHARDS], ["pytorch_model.bin", "weights.npz"]),
        (["weights.safetensors"], ["weights.npz", "ggml-model.bin"]),
        (["weights.npz"], ["ggml-model.bin", "model.bin"]),
        (["pytorch_model.bin"], ["a.pt", *BIN_SHARDS, *SHARDS[:2], INDEX, "training_args.bin"]),
        ([BIN_INDEX, *BIN_SHARDS], ["ggml-model.bin", "optimizer.pt"]),
        (["fine-tuned.pt"], ["model.gguf", "onnx/model.onnx", "old/other.pt"]),
        (["model.bin", "vocabulary.txt"], ["ggml-model.bin", "model.onnx"]),
        (["model.bin", "vocabulary.json"], ["shared_vocabulary.json", "training_args.bin"]),
        (["ggml-base.bin"], ["model.bin", "shared_vocabulary.json", "ggml-base-encoder.mlmodelc.zip"]),
        (
            [
                f"w_{part}.{kind}"
                for part in ("encoder", "encoder_decoder_cross_kv", "decoder")
                for kind in ("xml", "bin")
            ],
            ["other.txt"],
        ),
    ],
)
def test_one_set_of_weights_is_chosen(weights: list[str], others: list[str]) -> None:
    companions = ["config.json", "tokenizer.json", "multilingual.tiktoken"]
    names = [*companions, *weights, *others, "README.md", ".gitattributes", "sub/config.json"]
    chosen = files.choose(names, "a/b")
    assert len(chosen) == len(set(chosen))
    assert set(chosen) == {*companions, *weights}


def test_an_adapter_is_fetched_and_no_model_beside_it() -> None:
    names = ["README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "training_args.bin"]
    assert files.choose(names, "a/b") == ["adapter_config.json", "adapter_model.safetensors"]
    assert "adapter_model.safetensors" not in files.choose([*names, "config.json", "model.safetensors"], "a/b")
    names[2] = "adapter_model.bin"
    assert files.choose(names, "a/b") == ["adapter_config.json", "adapter_model.bin"]


def test_a_repository_without_a_model(server: Hub) -> None:
    server.add("me/other", {"adapter_config.json": b"{}", "a.gguf": b"x"})
    refuse(ModelError, "me/other has no weights", "expected model.safetensors", "'a.gguf'", name="me/other")
    server.add("me/shards", {**SMALL, INDEX: b"{}", SHARDS[0]: b"x", SHARDS[2]: b"x"})
    refuse(ModelError, "me/shards has no weights", SHARDS[2], name="me/shards")
    assert len(server.requests) == 2


def test_a_repository_of_several_models_asks_which(server: Hub) -> None:
    server.add("me/cpp", {f"ggml-{size}.bin": size.encode() for size in ("tiny", "base")})
    refuse(ModelError, "me/cpp holds 2 models", "such as me/cpp/ggml-base.bin", name="me/cpp")
    path = fetch.pull("me/cpp/ggml-tiny.bin")
    assert path.read_bytes() == b"tiny"
    assert cache.cached("me/cpp/ggml-tiny.bin") == path
    assert cache.cached("me/cpp/ggml-base.bin") is cache.cached("me/cpp") is None
    assert fetch.pull("me/cpp/ggml-base.bin").read_bytes() == b"base"
    assert [model.name for model in cache.downloaded()] == ["me/cpp/ggml-base.bin", "me/cpp/ggml-tiny.bin"]
    refuse(ModelError, "me/cpp", "has no ggml-huge.bin", "'ggml-base.bin'", name="me/cpp/ggml-huge.bin")


@settings(max_examples=100)
@given(
    st.lists(st.text(max_size=12) | st.sampled_from([*MODEL, *SHARDS, INDEX, "a.pt", "../a.pt", "/x.xml", "C:x.pt"]))
)
def test_no_name_leads_out_of_the_directory(names: list[str]) -> None:
    try:
        chosen = files.choose([*names, "w_encoder_decoder_cross_kv.xml"], "a/b")
    except ModelError:
        return
    for name in chosen:
        assert not set(name) & set('/\\:*?"<>|\0\n')
        assert not name.startswith(".")


# Fetching


def test_a_model_is_fetched_once(server: Hub, tmp_path: Path) -> None:
    told: list[Progress] = []
    assert cache.cached("tiny") is None
    directory = fetch.pull("tiny", on_progress=told.append)
    assert content(directory) == MODEL
    assert {Path(request.path).name for request in server.requests} == {"main", *MODEL}
    n_bytes = sum(map(len, MODEL.values()))
    assert told[-1] == Progress("model.safetensors", n_bytes, n_bytes)
    assert [progress.n_here for progress in told] == sorted(progress.n_here for progress in told)

    server.requests.clear()
    assert fetch.pull("tiny") == fetch.pull(REPOSITORY) == cache.cached("tiny") == directory
    assert cache.downloaded() == [cache.Downloaded(REPOSITORY, directory, n_bytes, REPOSITORY)]
    assert server.requests == []


def test_other_programs_find_the_model_in_the_cache(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = fetch.pull("tiny")
    for name in MODEL:
        found = huggingface_hub.try_to_load_from_cache(REPOSITORY, name, cache_dir=constants.HF_HUB_CACHE)
        assert found == str(directory / name)
    scan = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE)
    assert not scan.warnings
    assert [(repo.repo_id, repo.size_on_disk) for repo in scan.repos] == [(REPOSITORY, sum(map(len, MODEL.values())))]
    server.requests.clear()
    huggingface_hub.snapshot_download(
        REPOSITORY,
        cache_dir=constants.HF_HUB_CACHE,
        endpoint=server.url,
        allow_patterns=list(MODEL),
        local_files_only=True,
    )
    assert server.requests == []


def test_what_other_programs_fetched_is_used_without_network(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MODEL:
        fetch_as_another_program(server, name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    server.requests.clear()
    assert cache.cached("tiny") is None
    told: list[str] = []
    directory = fetch.pull("tiny", on_progress=lambda progress: told.append(progress.doing))
    assert content(directory) == MODEL
    assert told == [f"checking {name}" for name in MODEL]
    assert cache.cached("tiny") == directory
    assert server.requests == []


@pytest.mark.parametrize("lacking", [*MODEL, "damaged"])
def test_a_model_of_another_program_that_is_not_whole_is_completed(
    server: Hub, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in MODEL:
        if name != lacking:
            fetch_as_another_program(server, name)
    if lacking == "damaged":
        snapshot = Path(constants.HF_HUB_CACHE) / "models--openai--whisper-tiny" / "snapshots" / COMMIT
        damage((snapshot / "model.safetensors").resolve())
    server.requests.clear()
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        refuse(PeerError, "HF_HUB_OFFLINE is set")
    assert server.requests == []
    assert content(fetch.pull("tiny")) == MODEL
    assert sum(bool(server.fetched(name)) for name in MODEL) == 1


@pytest.mark.parametrize("lacking", ["", "preprocessor_config.json", "tokenizer.json", "model.bin"])
def test_what_faster_whisper_fetched_is_used_without_network(
    server: Hub, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its repositories have no generation_config.json, and only those of large-v3 a preprocessor_config.json."""
    model = {name: SMALL[name] for name in ("config.json", "preprocessor_config.json", "tokenizer.json")}
    model |= {"model.bin": WEIGHTS, "vocabulary.json": b"[]"}
    server.add(FASTER, {**model, "README.md": b"not needed"})
    for name in model:
        if name != lacking:
            fetch_as_another_program(server, name, FASTER)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    server.requests.clear()
    if lacking in ("tokenizer.json", "model.bin"):
        refuse(PeerError, "HF_HUB_OFFLINE is set", name=FASTER)
    else:
        directory = fetch.pull(FASTER)
        assert content(directory) == {name: data for name, data in model.items() if name != lacking}
        assert cache.cached(FASTER) == directory
    assert server.requests == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    if lacking != "preprocessor_config.json":
        assert content(fetch.pull(FASTER)) == model


def fetch_as_another_program(server: Hub, name: str, repository: str = REPOSITORY) -> None:
    huggingface_hub.hf_hub_download(repository, name, cache_dir=constants.HF_HUB_CACHE, endpoint=server.url)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_hub_is_told_nothing_but_what_it_must_know(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    before = dict(os.environ)
    fetch.pull("tiny")
    assert os.environ == before
    for request in server.requests:
        assert request.method == "GET"
        assert "torch" not in request.headers["user-agent"]
        assert "agent" not in request.headers["user-agent"]
        # The token is for the hub, not for the host that keeps the large files.
        assert request.headers.get("authorization") == (None if request.cdn else "Bearer hf_secret")
    assert any(request.cdn for request in server.requests)


def test_only_the_tokenizer_is_fetched(server: Hub) -> None:
    path = fetch.fetch_tokenizer(REPOSITORY)
    assert path.read_bytes() == MODEL["tokenizer.json"]
    assert len(server.requests) == 2
    assert cache.cached("tiny") is None
    assert cache.downloaded() == []


def test_a_newer_version_is_taken_when_the_old_one_has_gone(server: Hub) -> None:
    old = fetch.pull("tiny")
    server.commit = "f" * 40
    server.add(REPOSITORY, {"config.json": b"newer"})
    assert fetch.pull("tiny") == old
    shutil.rmtree(old)
    server.requests.clear()
    new = fetch.pull("tiny")
    assert content(new) == {**MODEL, "config.json": b"newer"}
    assert {Path(request.path).name for request in server.requests} == {"main", "config.json"}  # the rest was here


@pytest.mark.parametrize("lacking", [*MODEL, "shorter"])
def test_a_snapshot_that_lost_a_file_or_a_part_of_one_is_not_taken_for_whole(server: Hub, lacking: str) -> None:
    directory = fetch.pull("tiny")
    if lacking == "shorter":
        path = (directory / "model.safetensors").resolve()
        path.write_bytes(path.read_bytes()[:-1])
    else:
        (directory / lacking).resolve().unlink()
    assert cache.cached("tiny") is None
    assert cache.downloaded() == []
    server.requests.clear()
    assert content(fetch.pull("tiny")) == MODEL
    assert sum(bool(server.fetched(name)) for name in MODEL) == 1


def test_a_system_without_symbolic_links(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*args: object, **keywords: object) -> None:
        raise OSError(errno.EPERM, "A required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", cannot)
    directory = fetch.pull("tiny")
    assert content(directory) == MODEL
    assert not any(path.is_symlink() for path in directory.iterdir())
    assert cache.cached("tiny") == directory
    (directory / "config.json").unlink()
    server.requests.clear()
    assert content(fetch.pull("tiny")) == MODEL
    assert not server.fetched("model.safetensors")


# Interruptions


def test_a_cut_download_goes_on_where_it_stopped(server: Hub) -> None:
    server.cuts["model.safetensors"] = [100_000, 0, 50_000]
    assert content(fetch.pull("tiny")) == MODEL
    ranges = [request.headers.get("range") for request in server.requests if request.cdn]
    assert ranges == [None, "bytes=100000-", "bytes=100000-", "bytes=150000-"]
    assert sum(request.n_sent for request in server.fetched("model.safetensors")) == len(WEIGHTS)


def test_what_arrived_before_it_was_given_up_is_kept(server: Hub) -> None:
    server.cuts["model.safetensors"] = [100_000, *[0] * 20]
    refuse(PeerError, "model.safetensors of openai/whisper-tiny", "the connection was cut", "what has arrived is kept")
    n_asked = sum(request.cdn for request in server.requests)
    assert n_asked == 1 + download._TRIES - 1
    server.cuts.clear()
    server.requests.clear()
    told: list[Progress] = []
    assert content(fetch.pull("tiny", on_progress=told.append)) == MODEL
    assert [request.n_sent for request in server.fetched("model.safetensors")] == [len(WEIGHTS) - 100_000]
    assert not any(server.fetched(name) for name in SMALL)
    assert told[-1].n_here == told[-1].n_all


def test_a_server_that_knows_no_ranges_sends_all_again(server: Hub) -> None:
    server.ranges = False
    server.cuts["model.safetensors"] = [100_000]
    assert content(fetch.pull("tiny")) == MODEL
    assert [request.n_sent for request in server.fetched("model.safetensors")] == [100_000, len(WEIGHTS)]


def test_a_program_that_was_killed_goes_on_where_it_stopped(server: Hub, tmp_path: Path) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    env = {**kept, "HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": server.url}
    code = "from streamer.whisper.hub import fetch; print(fetch.pull('tiny'))"
    blobs = tmp_path / "home/hub/models--openai--whisper-tiny/blobs"
    server.pause_s = 0.02
    first = subprocess.Popen([sys.executable, "-c", code], env=env)
    wait_until(lambda: any(size_of(path) > 50_000 for path in blobs.glob("*.incomplete")))
    first.kill()
    first.wait()
    (partial,) = blobs.glob("*.incomplete")
    n_kept = size_of(partial)
    assert 50_000 < n_kept < len(WEIGHTS)

    server.requests.clear()
    server.pause_s = 0
    again = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    assert content(Path(again.stdout.strip())) == MODEL
    (fetched,) = server.fetched("model.safetensors")
    assert (fetched.headers["range"], fetched.n_sent) == (f"bytes={n_kept}-", len(WEIGHTS) - n_kept)
    assert not list(blobs.glob("*.incomplete"))


def size_of(path: Path) -> int:
    """Return a file's size: 0 if it was renamed since it was found."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_two_programs_at_once_fetch_it_once(server: Hub) -> None:
    server.pause_s = 0.02
    found: list[Path] = []
    told: list[str] = []
    pulls = [
        threading.Thread(
            target=lambda: found.append(fetch.pull("tiny", on_progress=lambda progress: told.append(progress.doing)))
        )
        for _ in range(2)
    ]
    for thread in pulls:
        thread.start()
    for thread in pulls:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 2
    assert content(found[0]) == MODEL
    assert all(len(server.fetched(name)) == 1 for name in MODEL)
    assert "waiting for another program that fetches it" in told


# Wrong content


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["flipped", "shorter", "longer", "empty", "endless"])
def test_content_that_is_not_what_was_promised(server: Hub, name: str, kind: str) -> None:
    right = MODEL[name]
    server.wrong[name] = {
        "flipped": right[:-1] + b"\0",
        "shorter": right[:-1],
        "longer": right + b"\0",
        "empty": b"",
        "endless": right * 200,
    }[kind]
    refuse(ModelError, f"{name} of openai/whisper-tiny", "not what was promised", "deleted", "pull it again")
    assert sum(request.n_sent for request in server.requests) < 30_000_000  # an endless one is not read to its end
    cache = Path(constants.HF_HUB_CACHE)
    assert not list(cache.rglob("*.incomplete"))
    assert name not in [path.name for path in cache.rglob("*") if path.is_file()]
    server.wrong.clear()
    assert content(fetch.pull("tiny")) == MODEL


def test_a_damaged_beginning_is_found_out(server: Hub) -> None:
    server.cuts["model.safetensors"] = [100_000, *[0] * 20]
    refuse(PeerError)
    (partial,) = Path(constants.HF_HUB_CACHE).rglob("*.incomplete")
    damage(partial)
    server.cuts.clear()
    refuse(ModelError, "not what was promised")
    assert content(fetch.pull("tiny")) == MODEL


# Refusals


def test_a_repository_that_is_not_there_leaves_nothing_behind(server: Hub) -> None:
    refuse(ModelError, "there is no openai/whisper-base on http://127.0.0.1", "check the name", "HF_TOKEN", name="base")
    assert not Path(constants.HF_HUB_CACHE).exists()


def test_a_file_that_is_listed_but_not_there(server: Hub) -> None:
    server.refused["tokenizer.json"] = (404, "EntryNotFound")
    refuse(ModelError, "there is no tokenizer.json of openai/whisper-tiny on http://127.0.0.1", "it answered 404")


@pytest.mark.parametrize("where", ["api", "config.json", "model.safetensors"])
@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_repository(server: Hub, where: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.refused[where] = (status, "GatedRepo")
    message = refuse(ModelError, "accept the licence", f"{server.url}/openai/whisper-tiny", "HF_TOKEN")
    assert "hf_secret" not in message
    assert len(server.requests) < 12


@pytest.mark.parametrize("where", ["api", "config.json"])
@pytest.mark.parametrize("trouble", [400, 429, 500, 503, "no answer in time", "TooManyRedirects"])
def test_a_hub_in_trouble(server: Hub, where: str, trouble: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    if isinstance(trouble, int):
        server.refused[where] = (trouble, "")
        trouble = f"(it answered {trouble})"
    else:
        (server.hangs if "no answer" in trouble else server.loops).add(where)
    refuse(PeerError, trouble, "HF_ENDPOINT", "try again", "elsewhere and pass --model DIR")


def listing_of(**file: object) -> dict[str, object]:
    return {"id": REPOSITORY, "sha": COMMIT, "siblings": [file]}


@pytest.mark.parametrize(
    "listing",
    [
        [1],
        {"id": REPOSITORY},
        {"id": REPOSITORY, "sha": "../../..", "siblings": []},
        listing_of(rfilename="model.safetensors"),
        listing_of(rfilename="model.safetensors", size=3, blobId="../x"),
        listing_of(rfilename="weights.npz", size=-3, blobId="a" * 40),
        listing_of(rfilename="weights.npz", size="3", blobId="a" * 40),
        listing_of(rfilename="a.pt", size=3, blobId="a" * 40, lfs={"size": 3}),
        listing_of(rfilename=["a.pt"], size=3, blobId="a" * 40),
    ],
)
def test_a_list_of_files_that_is_not_one(server: Hub, listing: object) -> None:
    server.listing = listing
    refuse(PeerError, "openai/whisper-tiny cannot be fetched from http://127.0.0.1")
    assert not Path(constants.HF_HUB_CACHE).exists()


def test_no_network_says_what_is_here(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch.pull("tiny")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        refuse(
            PeerError,
            f"openai/whisper-base cannot be fetched from {url} (",
            "on this machine: openai/whisper-tiny",
            name="base",
        )
        assert content(fetch.pull("tiny")) == MODEL
    monkeypatch.setattr(constants, "ENDPOINT", "http://someone:password@nowhere.invalid")
    assert "password" not in refuse(PeerError, "cannot be fetched from http://nowhere.invalid (", name="base")


def test_offline_asks_nobody(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refuse(PeerError, "openai/whisper-tiny is not here", "HF_HUB_OFFLINE is set", "elsewhere and pass --model DIR")
    assert server.requests == []


def test_a_token_that_cannot_be_sent_is_not_shown(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_sécret")
    message = refuse(PeerError, "openai/whisper-tiny cannot be fetched")
    assert "cret" not in message


# The disk


def test_a_full_disk_is_told_before_anything_is_fetched(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(Path.cwd())._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    refuse(StreamerError, "openai/whisper-tiny needs 0 MB more", "0 MB are free", "HF_HOME")
    assert len(server.requests) == 1


def test_a_disk_that_becomes_full(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refuse(StreamerError, "cannot be kept in", "No space left on device", "make room", "HF_HOME")
    assert content(fetch.pull("tiny")) == MODEL


def test_a_cache_that_cannot_be_made(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "cache"))
    refuse(StreamerError, f"cannot be kept in {tmp_path / 'file'}", "HF_HOME")


@pytest.mark.parametrize(
    "record",
    [
        *(b"", b"\xff", b"[1]", b"[" * 100_000, b'{"commit":' + b"9" * 5000 + b"}"),
        *(
            f'{{"commit": {commit}, "files": {names}}}'.encode()
            for commit in ("1", "null", '"../.."', f'"{COMMIT}"')
            for names in ("{}", "[]", '{"../../../x": 1}', '{"config.json": "25"}', '{"config.json": 9e99}')
        ),
    ],
    ids=range(25),
)
def test_a_damaged_record_counts_as_none(server: Hub, record: bytes) -> None:
    folder = Path(constants.HF_HUB_CACHE) / "models--openai--whisper-tiny" / ".streamer"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.json").write_bytes(record)
    assert cache.cached("tiny") is None
    assert cache.downloaded() == []
