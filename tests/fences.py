"""The fenced blocks of README.md and docs/: which test runs each as it stands, or why none does.

A block is named by its page, its language and how it begins. tests/unit/test_documents.py holds the table against the
pages: a new block needs an entry here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.daemon import REPOSITORY

SNIPPETS = "tests/e2e/test_snippets.py"
PROTOCOL = "tests/wire/test_protocol_document.py"
PLUGIN = "tests/unit/test_entry_points.py"

NETWORK = "what it installs or downloads needs the network"
SOUND = "needs a sound server; tests/unit/audio/sources has these sources"
MICROPHONE = "needs a microphone; tests/e2e/test_library.py and test_end_to_end.py speak into one"
PICTURE = "is a picture, and nothing to run"

# Page -> language and beginning of a block -> the test that runs it, or why none does.
FENCES: dict[str, dict[str, str]] = {
    "README.md": {
        "sh make run": f"{NETWORK}; CI makes its environment by it",
        "sh pipx install": NETWORK,
        "sh streamer transcribe": SNIPPETS,
        "sh streamer listen": SNIPPETS,
        "python from streamer import listen": SNIPPETS,
        "python from streamer import LiveText": MICROPHONE,
    },
    "docs/quickstart.md": {
        "sh python3 -m venv": NETWORK,
        "powershell py -m venv": f"needs Windows; {NETWORK}",
        "sh streamer run  ": SOUND,
        "sh streamer devices": SOUND,
        "sh arecord": MICROPHONE,
        "sh streamer listen": SNIPPETS,
        "sh streamer run --to obs": "needs OBS and a microphone; tests/plugins/obs has a stand-in",
        "sh streamer transcribe": "needs videos; tests/e2e/test_app.py has some",
        "sh streamer models pull speakers": NETWORK,
        "sh streamer chat": SNIPPETS,
    },
    "docs/clients.md": {
        "sh export AUDIO_STT": "needs Open WebUI; what it sends: tests/wire/test_uploads.py",
        "sh export OPENAI_BASE_URL": "needs scribe and a microphone; tests/e2e/test_openai_rest_client.py",
    },
    "docs/clients/deepgram.md": {"python ": SNIPPETS},
    "docs/clients/libraries.md": {
        "python from streamer import listen, stream": SNIPPETS,
        "python import queue": MICROPHONE,
        "python from streamer import LiveText": MICROPHONE,
        "sh pip install": f"{NETWORK}; tests/plugins/agents runs these examples",
        "python from streamer.plugins": "needs Pipecat and LiveKit; tests/plugins/agents has both, each where it is",
        "html ": "tests/wire/test_client_js.py",
    },
    "docs/clients/openai.md": {"sh curl": SNIPPETS, "python from openai": SNIPPETS, "python import base64": SNIPPETS},
    "docs/clients/vosk.md": {"python ": SNIPPETS},
    "docs/clients/whisperlive.md": {
        "python ": "its client waits 15 s at its end; tests/e2e/test_stock_clients.py waits for the last word",
    },
    "docs/outputs.md": {
        "sh streamer run --to obs": "needs OBS and a microphone; tests/plugins/obs and web have stand-ins",
        "python ": "tests/plugins/web/test_sinks.py",
        "sh pip install": f"{NETWORK}; tests/plugins/overlay shows it",
    },
    "docs/conference.md": {
        "sh streamer token new main": "listens on all addresses; tests/e2e/test_conference.py listens on one",
        "sh STREAMER_TOKEN": "needs a microphone and a box; tests/e2e/test_conference.py plays recordings",
    },
    "docs/cluster.md": {
        "sh pip install": f"{NETWORK}; tests/plugins/cluster has such machines",
        "text ": PICTURE,
        "sh python -c": SNIPPETS,
        "yaml ": SNIPPETS,
    },
    "docs/design.md": {"text ": PICTURE},
    "docs/npu.md": {"sh ": "needs an NPU"},
    "docs/operations.md": {
        "sh streamer token new kitchen": SNIPPETS,
        "sh streamer token new phone": "listens on all addresses; tests/wire/test_secure.py listens on one",
        "yaml ": SNIPPETS,
        "nginx ": "needs nginx; tests/golden/access.toml has what proxies send",
        "sh streamer run --history": MICROPHONE,
        "sh streamer history": "names sessions of its own; tests/unit/commands/test_history.py has some",
        "sh streamer run --input none --unload-after": "waits for ten minutes; tests/e2e/test_idle.py waits less",
    },
    "docs/plugins.md": {"toml ": PLUGIN, "python ": PLUGIN},
    "docs/protocol.md": {
        "text connect": "is a conversation; tests/golden/protocols/native.txt plays such",
        "text {": PROTOCOL,
        "json ": PROTOCOL,
        "python ": PROTOCOL,
        "html ": PROTOCOL,
        "sh curl -X POST": "needs a token of its own; tests/golden/access.toml asks for the address",
        "sh curl 'http://127.0.0.1:8765/v1/sessions": "names its own sessions; tests/wire/test_transcripts.py",
        "sh STREAMER_SERVER_ORIGINS": "needs a microphone; the page's test has these origins",
    },
    "docs/streaming.md": {
        "text ": PICTURE,
        "sh streamer models pull": NETWORK,
        "yaml ": SNIPPETS,
    },
}


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block, and its entries in the table; it has to have one."""

    page: str
    language: str
    text: str

    @property
    def entries(self) -> list[str]:
        """The keys of its page's entries that name it, the longest first."""
        named = f"{self.language} {self.text}"
        return sorted((key for key in FENCES.get(self.page, {}) if named.startswith(key)), key=len, reverse=True)

    @property
    def run_by(self) -> str:
        """Return the test that runs it; empty if none does."""
        said = FENCES[self.page][self.entries[0]]
        return said if said.startswith("tests/") else ""


def all_fences() -> Iterator[Fence]:
    """Yield the blocks of README.md and of all pages of docs/."""
    for path in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))):
        page = path.relative_to(REPOSITORY).as_posix()
        text = path.read_text(encoding="utf-8")
        for language, body in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
            yield Fence(page, language, body)


def fences_of(test: str) -> list[Fence]:
    """Return the blocks that a test runs."""
    return [fence for fence in all_fences() if fence.run_by == test]
