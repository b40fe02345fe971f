"""README.md and docs/: the blocks that tests/fences.py leaves to this file run as they stand, and do what is said.

They run in a folder with the files of a clone that they name, beside a daemon of the test, whose address replaces the
usual one. Those that follow the daemon run while it transcribes a sentence, and end with it.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import nkeys
import pytest
import soundfile
import soxr

from streamer.after.correct.glossary import read_terms
from streamer.constants import SAMPLE_RATE
from streamer.settings.load import load_settings
from streamer.whisper.shipped import EMBEDDED_ORIGIN, limits
from tests.chat_endpoint import chat_endpoint, saying
from tests.daemon import REPOSITORY, SAMPLE, WAIT_S, Daemon, environment, pause_after, pcm16, recording, running
from tests.fences import SNIPPETS, Fence, fences_of
from tests.wer import words_of

QUICKSTART = (REPOSITORY / "docs" / "quickstart.md").read_text(encoding="utf-8")
FENCES = fences_of(SNIPPETS)

# What is said in the recordings of these tests.
SENTENCE_S = (pause_after(1), pause_after(2))
SENTENCE = json.loads(SAMPLE.with_suffix(".json").read_text(encoding="utf-8"))[1]["text"]

# Those that follow the daemon: all of them run while it transcribes a sentence.
FOLLOWS = ("streamer listen", "streamer chat", "from streamer import listen")

# Those that are no clients.
OTHERS = ("streamer token", 'python -c "import os, nkeys')

pytestmark = pytest.mark.skipif(os.name == "nt", reason="snippets are for a POSIX shell")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a clone, whose example is a sentence that nano.en understands."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "examples").mkdir()
    sentence = recording(SAMPLE, *SENTENCE_S)
    for name, rate in (("examples/kennedy.flac", SAMPLE_RATE), ("talk.m4a", SAMPLE_RATE), ("speech.wav", 24_000)):
        format = "FLAC" if name == "talk.m4a" else None  # its name decides nothing
        soundfile.write(folder / name, soxr.resample(sentence, SAMPLE_RATE, rate), rate, "PCM_16", format=format)
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, command in (("python", sys.executable), ("streamer", f"{sys.executable} -m streamer")):
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon that transcribes what is written to its standard input."""
    with running("--input", "-", "--no-captions", stdin=subprocess.PIPE) as daemon:
        yield daemon
        assert daemon.stop().exit_code == 0


async def start(text: str, folder: Path, replaced: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Start a snippet as a person would who stands in the folder, with its environment active."""
    for usual, ours in replaced.items():
        text = text.replace(usual, ours)
    python = text.startswith(("from ", "import "))
    command = [sys.executable, "-c", text] if python else ["bash", "-euo", "pipefail", "-c", text]
    path = os.pathsep.join([str(folder / ".venv" / "bin"), os.environ["PATH"]])
    pipe = asyncio.subprocess.PIPE
    # The program is this one, also where another is installed, and it looks for the daemon where ours is.
    port = replaced["localhost:8765"].rpartition(":")[2]
    environ = environment({"PATH": path, "PYTHONPATH": str(REPOSITORY), "STREAMER_SERVER_PORT": port})
    return await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=pipe, stderr=pipe, env=environ)


async def finished(process: asyncio.subprocess.Process) -> tuple[str, str]:
    try:
        async with asyncio.timeout(WAIT_S):
            stdout, stderr = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert process.returncode == 0, stderr.decode()
    return stdout.decode(), stderr.decode()


def addresses(daemon: Daemon) -> dict[str, str]:
    place = daemon.url.removeprefix("http://").rstrip("/")
    return {"127.0.0.1:8765": place, "localhost:8765": place}


def name_of(fence: Fence) -> str:
    return f"{fence.page}: {fence.text.splitlines()[0]:.40}"


CLIENTS = [
    fence for fence in FENCES if fence.language in ("sh", "python") and not fence.text.startswith((*FOLLOWS, *OTHERS))
]


@pytest.mark.parametrize("fence", CLIENTS, ids=name_of)
async def test_snippets_that_end_print_what_is_said(fence: Fence, folder: Path, daemon: Daemon) -> None:
    stdout, stderr = await finished(await start(fence.text, folder, addresses(daemon)))
    texts = [stdout]
    if "talk.srt" in fence.text:
        assert limits(EMBEDDED_ORIGIN) in stderr
        texts.append((folder / "talk.srt").read_text(encoding="utf-8"))
    for text in texts:
        assert ("format=srt" in fence.text) == (" --> " in text)
        assert "secret service agents" in " ".join(words_of(text)), text


async def test_snippets_that_follow_the_daemon_end_with_it(folder: Path, daemon: Daemon) -> None:
    texts = [fence.text for fence in FENCES if fence.text.startswith(FOLLOWS)]
    assert len(texts) == 5
    async with chat_endpoint(saying("Indeed.")) as endpoint:
        replaced = {**addresses(daemon), "http://127.0.0.1:11434/v1": endpoint.url}
        processes = [await start(text, folder, replaced) for text in texts]
        ending = [asyncio.create_task(finished(process)) for process in processes]
        try:
            while f"streamer_subscribers {len(texts)}.0" not in daemon.get("/metrics")[1]:
                assert not any(task.done() for task in ending)
                await asyncio.sleep(0.05)
            assert daemon.process.stdin is not None
            daemon.process.stdin.write(pcm16(recording(SAMPLE, *SENTENCE_S)))
            daemon.process.stdin.close()
        finally:
            ended = await asyncio.gather(*ending)
        for text, (stdout, _) in zip(texts, ended, strict=True):
            assert "Secret Service agents" in " ".join(stdout.split())
            assert ("bot: Indeed." in stdout) == ("chat" in text)
            assert ("caption: " in stdout) == ("caption" in text)


async def test_snippets_of_tokens_and_keys_make_them(folder: Path, tmp_path: Path) -> None:
    tokens, keys = (next(fence.text for fence in FENCES if fence.text.startswith(start)) for start in OTHERS)
    usual = {"localhost:8765": "localhost:8765"}
    tokens = f"export XDG_CONFIG_HOME={tmp_path}\n{tokens}streamer token list\n"
    stdout, _ = await finished(await start(tokens, folder, usual))
    listed, left = stdout.split("Tokens in")[1:]
    assert ("phone" in listed, "phone" in left, "kitchen-display" in left) == (True, False, True)
    public, _ = await finished(await start(keys, folder, usual))
    seed = bytearray((folder / "worker.nk").read_bytes())
    assert public.strip() == nkeys.from_seed(seed).public_key.decode()


def test_snippets_of_yaml_are_settings_or_a_glossary(tmp_path: Path) -> None:
    texts = [fence.text for fence in FENCES if fence.language == "yaml"]
    path = tmp_path / "snippet.yaml"
    for text in texts:
        path.write_text(text, encoding="utf-8")
        if text.startswith("- "):
            assert len(read_terms(path)) == text.count("\n- ") + 1
        else:
            load_settings(path, {}, {})


def test_streamer_is_where_it_is_said_to_be(folder: Path) -> None:
    """The beginning of what is not run: in a new environment, `streamer` is found by its path, or when it is active."""
    assert ".venv/bin/streamer run" in QUICKSTART
    assert "`source .venv/bin/activate`" in QUICKSTART
    (folder / ".venv" / "bin" / "activate").write_text('PATH="$PWD/.venv/bin:$PATH"\n', encoding="utf-8")
    for command in (".venv/bin/streamer --version", "source .venv/bin/activate\nstreamer --version"):
        bash = shutil.which("bash")
        assert bash is not None
        environ = environment({"PYTHONPATH": str(REPOSITORY)})
        assert subprocess.check_output([bash, "-ec", command], cwd=folder, env=environ).startswith(b"streamer ")


def test_its_picture_shows_the_sentences_that_are_said() -> None:
    picture = (REPOSITORY / "docs" / "captions.svg").read_text(encoding="utf-8")
    last = " ".join(re.findall(r"<text[^>]*>([^<]*)", picture[picture.rindex("<g ") :]))
    card = (REPOSITORY / "examples" / "kennedy.md").read_text(encoding="utf-8")
    said = " ".join(re.findall("^> (.*)", card, re.MULTILINE))
    assert re.findall(r"\w+", last.lower()) == re.findall(r"\w+", said.lower())
