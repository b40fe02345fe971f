"""The machine of our clients: its table in docs/protocol.md, in Python and in JavaScript, and its delays."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from streamer.client import machine
from streamer.client.connection import parse_address
from streamer.client.machine import TRANSITIONS, Client
from streamer.events import Error
from tests.builders import ready
from tests.conversations import conversations
from tests.daemon import REPOSITORY
from tests.waiting import WAIT_S

DOCUMENT = (REPOSITORY / "docs" / "protocol.md").read_text(encoding="utf-8")
CLIENT_JS = REPOSITORY / "streamer" / "server" / "static" / "client.js"

# The rows of the document: an input, the states in which it is possible, and the next state.
TABLE = DOCUMENT.partition("| Input | From | To |")[2].partition("\n\n")[0]
ROWS = [
    tuple(re.findall(r"`(\w+)`", cell) for cell in cells)
    for cells in re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) \|", TABLE, re.MULTILINE)
]


def run_js(script: str, tmp_path: Path) -> Any:  # noqa: ANN401 - JSON
    """Return what a script prints behind client.js."""
    node = shutil.which("node") or pytest.skip("no Node on this machine")
    (tmp_path / "client.mjs").write_text(CLIENT_JS.read_text(encoding="utf-8") + script, encoding="utf-8")
    printed = subprocess.check_output([node, "client.mjs"], cwd=tmp_path, encoding="utf-8", timeout=WAIT_S)
    return json.loads(printed)


def test_both_clients_have_the_table_of_the_document(tmp_path: Path) -> None:
    documented: dict[str, dict[str, str]] = {state: {} for state in TRANSITIONS}
    for (input,), before, (after,) in ROWS:
        for state in before:
            documented[state][input] = after
    assert documented == TRANSITIONS
    assert documented == run_js("console.log(JSON.stringify(TRANSITIONS))", tmp_path)


def test_the_conversations_go_through_each_row_of_the_table() -> None:
    seen = set()
    for parameter in conversations("native", "clients"):
        state: Any = "connecting"
        for input in parameter.values[0].inputs:
            seen.add((input, state))
            state = TRANSITIONS[state][input]
    assert [row for row in ROWS if not seen & {(row[0][0], state) for state in row[1]}] == []


DELAYS_S = [0.25, 0.5, 1, 2, 4, 8, 10, 10, 0.25]
BUSY = Error(code="busy", message="the model is being loaded", fatal=True)


def test_each_failure_in_a_row_doubles_the_delay_and_an_event_ends_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "FIRST_DELAY_S", DELAYS_S[0])
    monkeypatch.setattr(machine, "MAX_DELAY_S", DELAYS_S[-2])
    monkeypatch.setattr("random.uniform", lambda least, most: most - least)
    client = Client(parse_address("h"), print, wait_s=60)
    delays_s: list[float] = []
    for _ in DELAYS_S:
        client.move("start")
        if len(delays_s) == len(DELAYS_S) - 1:
            client.take(ready().stamped(1, "s"))
        client.take(BUSY)
        delays_s.append(2 * client.pause_s())
        client.move("retry")
    assert delays_s == DELAYS_S


def test_each_failure_in_a_row_doubles_the_delay_of_client_js_too(tmp_path: Path) -> None:
    script = f"""
    globalThis.WebSocket = class {{}};
    Math.random = () => 0;
    const delays = [];
    globalThis.setTimeout = (work, delay) => delays.push(delay / 500);
    const client = new Stream({{ url: "http://h", onEvent() {{}} }}, {{}});
    Object.assign(client, {{ connect() {{}}, waits: true }});
    for (let n = 1; n <= {len(DELAYS_S)}; n += 1) {{
      client.move("start");
      if (n === {len(DELAYS_S)}) client.take({ready().stamped(1, "s").to_json()});
      client.take({BUSY.to_json()});
      client.move("retry");
    }}
    console.log(JSON.stringify(delays));
    """
    assert run_js(script, tmp_path) == DELAYS_S
