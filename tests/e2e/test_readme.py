"""README.md and docs/quickstart.md: their snippets run as they stand, and what they show is true.

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

import pytest
import soundfile

from streamer.constants import SAMPLE_RATE
from streamer.whisper.shipped import EMBEDDED_ORIGIN, limits
from tests.chat_endpoint import chat_endpoint, saying
from tests.daemon import REPOSITORY, SAMPLE, WAIT_S, Daemon, environment, pause_after, pcm16, recording, running

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
QUICKSTART = (REPOSITORY / "docs" / "quickstart.md").read_text(encoding="utf-8")
FENCES: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", README + QUICKSTART, re.DOTALL | re.MULTILINE)

# What is said in the recordings of these tests.
SENTENCE_S = (pause_after(1), pause_after(2))
SENTENCE = json.loads(SAMPLE.with_suffix(".json").read_text(encoding="utf-8"))[1]["text"]

# Why a snippet is not run here, by how it begins.
NOT_RUN = {
    "pipx install": "needs the network for what is installed",
    "make run": "needs the network for what is installed, and make; CI makes its environment by it",
    "python3 -m venv": "needs the network for what is installed",
    "py -m venv": "needs Windows, and the network for what is installed",
    "streamer run  ": "needs a sound server; tests/unit/audio/sources has these sources",
    "streamer devices": "needs a sound server; tests/unit/audio/sources/test_application.py has one",
    "streamer run --to obs": "needs OBS and a microphone; tests/plugins/obs/test_sink.py speaks with a stand-in",
    "streamer transcribe talk.mp4": "needs a video; tests/e2e/test_app.py has such files",
    "streamer models pull speakers": "needs the network for a model; the rest: tests/unit/after",
    "from streamer import LiveText": "needs a microphone; tests/e2e/test_library.py speaks into one",
    "arecord": "needs a microphone; tests/e2e/test_end_to_end.py captions standard input",
}

# Those that follow the daemon: all of them run while it transcribes a sentence.
FOLLOWS = ("streamer listen", "streamer chat", "from streamer import listen")

pytestmark = pytest.mark.skipif(os.name == "nt", reason="snippets are for a POSIX shell")


def snippets(*languages: str) -> list[str]:
    found = [text for language, text in FENCES if language in languages]
    return [text for text in found if not text.startswith(tuple(NOT_RUN))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a clone, whose example is a sentence that nano.en understands."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "examples").mkdir()
    soundfile.write(folder / "examples" / "kennedy.flac", recording(SAMPLE, *SENTENCE_S), SAMPLE_RATE)
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "streamer").write_text(f'#!/bin/sh\nexec {sys.executable} -m streamer "$@"\n', encoding="utf-8")
    (programs / "streamer").chmod(0o755)
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
    command = [sys.executable, "-c", text] if text.startswith("from ") else ["bash", "-euo", "pipefail", "-c", text]
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


async def test_snippets_that_end_do_what_they_say(folder: Path, daemon: Daemon) -> None:
    ran = [text for text in snippets("sh", "python") if not text.startswith(FOLLOWS)]
    assert len(ran) == 1
    for text in ran:
        stdout, stderr = await finished(await start(text, folder, addresses(daemon)))
        assert limits(EMBEDDED_ORIGIN) in stderr
        for subtitles in (stdout, (folder / "talk.srt").read_text(encoding="utf-8")):
            assert " --> " in subtitles
            assert "Secret Service agents" in " ".join(subtitles.split())


async def test_snippets_that_follow_the_daemon_end_with_it(folder: Path, daemon: Daemon) -> None:
    texts = [text for text in snippets("sh", "python") if text.startswith(FOLLOWS)]
    assert len(texts) == 4
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


def test_each_snippet_is_run_or_has_a_reason() -> None:
    for start in NOT_RUN:
        assert any(text.startswith(start) for _, text in FENCES), start
    assert {language for language, _ in FENCES} == {"sh", "python", "powershell"}


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
