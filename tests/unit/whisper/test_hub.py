"""Models from a hub on loopback: whole, interrupted, damaged, refused, and without any network."""

import errno
import os
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

from streamer.errors import ModelError, PeerError, StreamerError
from streamer.whisper.hub import cache, download, fetch, files
from streamer.whisper.hub.progress import Progress
from tests.hub_server import COMMIT, Hub, take_for_the_real_one
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
N_BYTES = sum(map(len, MODEL.values()))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one model, which this process takes for the real one, and an empty cache."""
    with Hub(tmp_path / "hub") as server:
        server.add(REPOSITORY, {**MODEL, "README.md": b"not needed", "flax_model.msgpack": b"not needed"})
        take_for_the_real_one(server, tmp_path, monkeypatch)
        yield server


def fail(kind: type[StreamerError], name: str = "tiny") -> None:
    """Check that pulling fails, and that nothing counts as here."""
    with pytest.raises(kind):
        fetch.pull(name)
    assert cache.cached(name) is None


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def n_fetched(server: Hub) -> int:
    """Return how many of the model's files were sent since the last call."""
    n = sum(bool(server.fetched(name)) for name in MODEL)
    server.requests.clear()
    return n


def fetch_as_another_program(server: Hub, *names: str, repository: str = REPOSITORY) -> None:
    for name in names:
        huggingface_hub.hf_hub_download(repository, name, cache_dir=constants.HF_HUB_CACHE, endpoint=server.url)
    server.requests.clear()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


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
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / given.get("cache", "cache")))
    usage = shutil.disk_usage(tmp_path)._replace(free=given.get("free", 1 << 40))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    name = given.get("name", "tiny")
    with pytest.raises(StreamerError) as caught:
        fetch.pull(name)
    says = str(caught.value).replace(server.url, "HUB").replace(str(tmp_path), "DIR")
    refusal.check(type(caught.value).__name__, caught.value.code, says)
    assert cache.cached(name) is None
    assert not given.get("token") or given["token"] not in says
    assert not list(tmp_path.glob("cache/models--*/snapshots/*")) or "listing" not in given


# Names


def test_a_name_means_a_repository_on_the_hub() -> None:
    repositories = TABLES["repositories"]
    assert {name: cache.repository(name) for name in repositories} == repositories


def test_a_name_that_cannot_be_on_the_hub_means_none() -> None:
    for name in (*TABLES["names"]["impossible"], "a/" + "b" * 5000):
        assert cache.repository(name) is None, name


# Files


TABLES = table("hub")
SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


@pytest.mark.parametrize(("weights", "others"), TABLES["files"]["chosen"])
def test_one_set_of_weights_is_chosen(weights: list[str], others: list[str]) -> None:
    companions = ["adapter_config.json", "config.json", "tokenizer.json", "multilingual.tiktoken"]
    chosen = files.choose([*companions, *weights, *others, "README.md", ".gitattributes", "sub/config.json"], "a/b")
    assert sorted(chosen) == sorted([*companions[1:], *weights])


def test_an_adapter_is_chosen_without_a_model() -> None:
    for name in ("adapter_model.safetensors", "adapter_model.bin"):
        names = ["README.md", "adapter_config.json", name, "tokenizer.json", "training_args.bin"]
        assert files.choose(names, "a/b") == ["adapter_config.json", name]


@given(
    st.lists(
        st.text(max_size=12)
        | st.sampled_from([*MODEL, *SHARDS, "model.safetensors.index.json", "a.pt", "../a.pt", "/x.xml", "C:x.pt"])
    )
)
def test_no_name_leads_out_of_the_directory(names: list[str]) -> None:
    try:
        chosen = files.choose([*names, "w_encoder_decoder_cross_kv.xml"], "a/b")
    except ModelError:
        return
    for name in chosen:
        assert not set(name) & set('/\\:*?"<>|\0\n')
        assert not name.startswith(".")


def test_a_file_of_a_repository_of_several_models_is_fetched_alone(server: Hub) -> None:
    server.add("me/cpp", {f"ggml-{size}.bin": size.encode() for size in ("tiny", "base")})
    path = fetch.pull("me/cpp/ggml-tiny.bin")
    assert path.read_bytes() == b"tiny"
    assert cache.cached("me/cpp/ggml-tiny.bin") == path
    assert cache.cached("me/cpp/ggml-base.bin") is cache.cached("me/cpp") is None
    assert fetch.pull("me/cpp/ggml-base.bin").read_bytes() == b"base"
    assert [model.name for model in cache.downloaded()] == ["me/cpp/ggml-base.bin", "me/cpp/ggml-tiny.bin"]


# Fetching


def test_a_model_is_fetched_once(server: Hub) -> None:
    reported: list[Progress] = []
    assert cache.cached("tiny") is None
    directory = fetch.pull("tiny", on_progress=reported.append)
    assert content(directory) == MODEL
    assert {Path(request.path).name for request in server.requests} == {"main", *MODEL}
    assert reported[-1] == Progress("model.safetensors", N_BYTES, N_BYTES)
    assert [progress.n_here for progress in reported] == sorted(progress.n_here for progress in reported)
    server.requests.clear()
    assert fetch.pull("tiny") == fetch.pull(REPOSITORY) == cache.cached("tiny") == directory
    assert cache.downloaded() == [cache.Downloaded(REPOSITORY, directory, N_BYTES, REPOSITORY)]
    assert server.requests == []


def test_other_programs_find_the_model_in_the_cache(server: Hub) -> None:
    directory, hub_cache = fetch.pull("tiny"), constants.HF_HUB_CACHE
    for name in MODEL:
        assert huggingface_hub.try_to_load_from_cache(REPOSITORY, name, cache_dir=hub_cache) == str(directory / name)
    scan = huggingface_hub.scan_cache_dir(hub_cache)
    assert not scan.warnings
    assert [(repo.repo_id, repo.size_on_disk) for repo in scan.repos] == [(REPOSITORY, N_BYTES)]
    huggingface_hub.snapshot_download(
        REPOSITORY, cache_dir=hub_cache, endpoint=server.url, allow_patterns=list(MODEL), local_files_only=True
    )


def test_what_another_program_fetched_is_checked_and_used_without_network(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_as_another_program(server, *MODEL)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert cache.cached("tiny") is None
    doing: list[str] = []
    directory = fetch.pull("tiny", on_progress=lambda progress: doing.append(progress.doing))
    assert content(directory) == MODEL
    assert doing == [f"checking {name}" for name in MODEL]
    assert cache.cached("tiny") == directory
    assert server.requests == []


@pytest.mark.parametrize("lacking", [*MODEL, "damaged", "shorter"])
@pytest.mark.parametrize("by_another", [False, True])
def test_a_model_that_is_not_whole_is_completed(
    server: Hub, lacking: str, by_another: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_another:
        fetch_as_another_program(server, *MODEL)
    else:
        fetch.pull("tiny")
    snapshot = Path(constants.HF_HUB_CACHE) / "models--openai--whisper-tiny" / "snapshots" / COMMIT
    if lacking in MODEL:
        (snapshot / lacking).resolve().unlink()
    elif lacking == "shorter":
        (snapshot / "model.safetensors").resolve().write_bytes(WEIGHTS[:-1])
    elif by_another:  # what we fetched is held against its digest once
        damage((snapshot / "model.safetensors").resolve())
    else:
        return
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        fail(PeerError)
    assert cache.downloaded() == []
    server.requests.clear()
    assert content(fetch.pull("tiny")) == MODEL
    assert n_fetched(server) == 1


@pytest.mark.parametrize(
    ("lacking", "is_whole"),
    [("", True), ("preprocessor_config.json", True), ("tokenizer.json", False), ("model.bin", False)],
)
def test_what_faster_whisper_fetched_is_used_without_network(
    server: Hub, lacking: str, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its repositories have no generation_config.json, and only those of large-v3 a preprocessor_config.json."""
    model = {name: SMALL[name] for name in ("config.json", "preprocessor_config.json", "tokenizer.json")}
    model |= {"model.bin": WEIGHTS, "vocabulary.json": b"[]"}
    server.add(FASTER, {**model, "README.md": b"not needed"})
    fetch_as_another_program(server, *model.keys() - {lacking}, repository=FASTER)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    if is_whole:
        assert content(fetch.pull("large-v3")) == {name: data for name, data in model.items() if name != lacking}
        assert cache.cached(FASTER) == cache.cached("large-v3")
    else:
        fail(PeerError, FASTER)
    assert server.requests == []


def test_the_hub_gets_the_token_and_nothing_else_of_this_machine(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_newer_version_is_fetched_when_the_old_one_has_gone(server: Hub) -> None:
    old = fetch.pull("tiny")
    server.commit = "f" * 40
    server.add(REPOSITORY, {"config.json": b"newer"})
    assert fetch.pull("tiny") == old
    shutil.rmtree(old)
    server.requests.clear()
    assert content(fetch.pull("tiny")) == {**MODEL, "config.json": b"newer"}
    assert {Path(request.path).name for request in server.requests} == {"main", "config.json"}  # the rest was here


def test_a_system_without_symbolic_links_keeps_files(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert n_fetched(server) == 1


# Interruptions


def test_a_cut_download_resumes_where_it_stopped(server: Hub) -> None:
    server.cuts["model.safetensors"] = [100_000, 0, 50_000]
    assert content(fetch.pull("tiny")) == MODEL
    ranges = [request.headers.get("range") for request in server.requests if request.cdn]
    assert ranges == [None, "bytes=100000-", "bytes=100000-", "bytes=150000-"]
    assert sum(request.n_sent for request in server.fetched("model.safetensors")) == len(WEIGHTS)


def test_what_has_arrived_is_kept_when_it_is_given_up(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []
    monkeypatch.setattr(download, "_PAUSE_S", 0.5)
    monkeypatch.setattr("streamer.whisper.hub.download.time.sleep", pauses_s.append)
    server.cuts["model.safetensors"] = [100_000, *[0] * 20]
    fail(PeerError)
    assert pauses_s == [0.5, 1.0, 1.5]
    server.cuts.clear()
    server.requests.clear()
    reported: list[Progress] = []
    assert content(fetch.pull("tiny", on_progress=reported.append)) == MODEL
    assert [request.n_sent for request in server.fetched("model.safetensors")] == [len(WEIGHTS) - 100_000]
    assert n_fetched(server) == 1
    assert reported[-1].n_here == reported[-1].n_all == N_BYTES


def test_a_server_without_ranges_sends_all_again(server: Hub) -> None:
    server.ranges = False
    server.cuts["model.safetensors"] = [100_000]
    assert content(fetch.pull("tiny")) == MODEL
    assert [request.n_sent for request in server.fetched("model.safetensors")] == [100_000, len(WEIGHTS)]


def test_two_programs_at_once_fetch_it_once(server: Hub) -> None:
    server.pause_s = 0.02
    doing: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        found = {*pool.map(lambda _: fetch.pull("tiny", on_progress=lambda p: doing.append(p.doing)), range(2))}
    assert [content(directory) for directory in found] == [MODEL]
    assert all(len(server.fetched(name)) == 1 for name in MODEL)
    assert any(what.startswith("waiting") for what in doing)


# Wrong content


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize(("n_less", "added"), [(1, b"\0"), (1, b""), (0, b"\0"), (0, bytes(60_000_000))])
def test_content_that_is_not_what_was_promised_is_deleted(server: Hub, name: str, n_less: int, added: bytes) -> None:
    server.wrong[name] = MODEL[name][: len(MODEL[name]) - n_less] + added
    fail(ModelError)
    assert sum(request.n_sent for request in server.requests) < 30_000_000  # an endless one is not read to its end
    kept = [path.name for path in Path(constants.HF_HUB_CACHE).rglob("*") if path.is_file()]
    assert not [file for file in kept if file == name or file.endswith(".incomplete")]
    server.wrong.clear()
    assert content(fetch.pull("tiny")) == MODEL


def test_a_damaged_beginning_is_found_out(server: Hub) -> None:
    server.cuts["model.safetensors"] = [100_000, *[0] * 20]
    fail(PeerError)
    (partial,) = Path(constants.HF_HUB_CACHE).rglob("*.incomplete")
    damage(partial)
    server.cuts.clear()
    fail(ModelError)
    assert content(fetch.pull("tiny")) == MODEL


# Without a hub, and without room


def test_without_the_hub_what_is_here_is_used_and_named(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch.pull("tiny")
    server.refused["api"] = (503, "")
    monkeypatch.setattr(constants, "ENDPOINT", server.url.replace("//", "//someone:password@"))
    with pytest.raises(PeerError) as caught:
        fetch.pull("base")
    assert content(fetch.pull("tiny")) == MODEL
    assert REPOSITORY in str(caught.value)
    assert "password" not in str(caught.value)


def test_a_disk_that_becomes_full_is_an_error_until_there_is_room(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        fail(StreamerError)
    assert content(fetch.pull("tiny")) == MODEL


def test_a_damaged_record_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "models_folder", lambda: tmp_path / "models")
    folder = tmp_path / "models--openai--whisper-tiny"
    snapshot, record = folder / "snapshots" / COMMIT, folder / ".streamer" / "model.json"
    for directory in (snapshot, record.parent):
        directory.mkdir(parents=True)
    (snapshot / "config.json").write_bytes(bytes(25))
    lists = ["{}", "[]", '{"../../../x": 1}', '{"config.json": "25"}', '{"config.json": 9e99}', '{"config.json": 26}']
    records = [(commit, '{"config.json": 25}') for commit in ("1", "null", '"../.."')]
    records += [(f'"{COMMIT}"', each) for each in lists]
    for text in ("", "[1]", "[" * 100_000, *(f'{{"commit": {c}, "files": {x}}}' for c, x in records)):
        record.write_text(text, encoding="utf-8")
        assert (cache.cached("tiny"), cache.downloaded()) == (None, [])
    record.write_text(f'{{"commit": "{COMMIT}", "files": {{"config.json": 25}}}}', encoding="utf-8")
    assert cache.cached("tiny") == snapshot
