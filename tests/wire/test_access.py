"""Who may ask the daemon for what: the tables of tests/golden/access.toml, over real sockets."""

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from streamer.server import limits
from tests.wire.harness import NotedRecordings, added, bearer, serving

GOLDEN = Path(__file__).parents[1] / "golden" / "access.toml"
TABLES = tomllib.loads(GOLDEN.read_text(encoding="utf-8"))["table"]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table["name"])
async def test_who_may_ask_for_what(table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WRONG", 1000)
    monkeypatch.chdir(tmp_path)
    settings, given, refused = (table.get(name, {}) for name in ("settings", "given", "refused"))
    secrets = {"wrong": "a wrong one of 16 or more", "all": settings.get("token", "")}
    if "token_file" in settings:
        secrets |= {name: added(Path("tokens.json"), name, scopes=(name,)) for name in ("read", "stream", "control")}
    unix = settings.get("unix_socket", "")
    if unix and os.name == "nt":
        pytest.skip("asyncio has no Unix sockets there")
    header, *rows = table["statuses"].strip().splitlines()
    columns = header.split()
    expected = {label: statuses for label, *statuses in (row.rsplit(maxsplit=len(columns)) for row in rows)}

    async with serving(recordings=NotedRecordings(), **settings) as running:

        async def status(label: str, column: str) -> str:
            told = {**given, table["rows"]: label, table["columns"]: column}
            headers = {
                name: text.replace("PORT", str(running.port)).replace("_", " ").replace("|", f"\r\n{name}: ")
                for name, text in told.items()
                if text != "-" and name not in ("request", "token")
            }
            token = secrets.get(told.get("token", ""))
            return str(await running.status(told["request"], unix=unix, **headers, **(bearer(token) if token else {})))

        found = {label: [await status(label, column) for column in columns] for label in expected}
        assert found == expected
        assert {reason: running.count("refusals_total", reason=reason) for reason in refused} == refused
