"""What plug-ins refuse at the start, and commands of theirs: one line, and nothing is measured or typed."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import soundfile

from streamer.constants import SAMPLE_RATE
from streamer.plugins.chat.chatbot import Conversation
from streamer.plugins.chat.settings import ChatSettings
from streamer.plugins.compare.candidates import parse_candidates
from streamer.plugins.dictation.keyboards import grabbed
from streamer.plugins.hls import Hls
from streamer.plugins.obs.sink import Obs
from streamer.plugins.proofread.language_model import LanguageModel
from streamer.plugins.proofread.settings import ProofreadSettings
from streamer.plugins.web.sinks import Webhook, Zoom
from tests.daemon import Outcome, recording
from tests.refusals import Refusal, refusals
from tests.stand_ins import StandIns
from tests.targets import target

MAKERS: dict[str, Callable[..., Any]] = {
    "chat": lambda **given: Conversation(ChatSettings(**{"url": "http://h/v1", **given})),
    "compare": parse_candidates,
    "hls": lambda place: Hls(target(place)),
    "key": lambda name, key: ExitStack().enter_context(grabbed(name, key)),
    "obs": lambda url: Obs(target(url)),
    "proofread": lambda **given: LanguageModel(
        ProofreadSettings(**{"to": "http://h/v1", **given}), 1.0, terms=lambda: ()
    ),
    "web": lambda url: Zoom(target(url)),
    "webhook": lambda secret: Webhook(target("http://127.0.0.1:1/", webhook_secret=secret)),
}


@refusals("plugins")
def test_what_cannot_be_is_refused_at_once(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    make, given = MAKERS[refusal.name.partition(":")[0]], refusal.given
    with refusal.expected(tmp_path):
        if isinstance(given, dict):
            make(**given)
        else:
            make(given.replace("DIR", str(tmp_path)) if isinstance(given, str) else given)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the tools are Linux's")
@refusals("plugin_commands")
def test_a_command_is_refused_in_one_line_before_it_begins(
    refusal: Refusal, run_here: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = StandIns(tmp_path / "bin")
    tools.add("wtype")
    monkeypatch.chdir(tmp_path)
    for name in ("clip.wav", "talk.wav"):
        soundfile.write(name, recording(end_s=1.0), SAMPLE_RATE)
    Path("empty.txt").write_text(" ...\n", encoding="utf-8")
    monkeypatch.delenv("DISPLAY", raising=False)
    environ = {"PATH": str(tools.folder), "WAYLAND_DISPLAY": "wayland-9", "XDG_CACHE_HOME": str(tmp_path)}
    *variables, argv = refusal.given
    environ.update(variable.split("=") for variable in variables)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    refusal.check_command(run_here(*argv.split()), tmp_path)
    assert tools.input("wtype") == ""
