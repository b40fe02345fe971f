"""docs/conference.md: two stages speak at once, their rooms are read, and their transcripts are there afterwards."""

import subprocess
import sys
from pathlib import Path

import soundfile

from streamer import listen
from streamer.constants import SAMPLE_RATE
from streamer.events import Final, Ready
from tests.daemon import REPOSITORY, environment, pause_after, recording, running
from tests.waiting import WAIT_S

EXAMPLE = REPOSITORY / "examples" / "conference"


def test_two_stages_have_readers_and_transcripts_of_their_own(tmp_path: Path) -> None:
    marks = (0.0, pause_after(1), pause_after(2))
    talks = {room: tmp_path / f"{room}.wav" for room in ("main", "side")}
    for path, begin_s, end_s in zip(talks.values(), marks, marks[1:], strict=False):
        soundfile.write(path, recording(begin_s=begin_s, end_s=end_s), SAMPLE_RATE)
    settings = ("--config", EXAMPLE / "conference.yaml", "--host", "127.0.0.1", "--model", "nano.en")
    with running(*settings, environ={"STREAMER_SERVER_HISTORY": str(tmp_path / "history.db")}) as daemon:

        def python(script: str, *arguments: object) -> "subprocess.Popen[str]":
            command = [sys.executable, str(EXAMPLE / script), *map(str, arguments)]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment())

        stages = {room: python("stage.py", room, daemon.url, path) for room, path in talks.items()}
        said = {room: stage.communicate(timeout=WAIT_S)[0].splitlines() for room, stage in stages.items()}
        assert [stage.returncode for stage in stages.values()] == [0, 0]
        assert said["main"] != said["side"]
        assert all(said.values())
        reading = iter(listen(f"{daemon.url}v1/captions?room=main&after=0"))
        assert isinstance(next(reading), Ready)
        finals = (event.text for event in reading if isinstance(event, Final))
        assert [next(finals) for _ in said["main"]] == said["main"]
        assert python("transcripts.py", daemon.url, tmp_path / "talks").wait(WAIT_S) == 0
    for room, lines in said.items():
        (saved,) = (tmp_path / "talks").glob(f"*-{room}.txt")
        assert saved.read_text(encoding="utf-8").split() == " ".join(lines).split()
