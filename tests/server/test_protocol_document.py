"""docs/protocol.md says what the server does."""

import asyncio
import os
import re
import sys
from pathlib import Path

from streamer.events import EVENT_TYPES, from_json
from streamer.server.messages import StreamStart, parse_message
from tests.server.support import final, serving, within

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", DOCUMENT, flags=re.DOTALL | re.MULTILINE)


def test_every_event_has_an_example_that_is_one() -> None:
    examples = [from_json(block) for block in blocks("json")]
    assert [example.type for example in examples] == list(EVENT_TYPES)
    for block, example in zip(blocks("json"), examples, strict=True):
        assert example.to_json() == block.strip()


def test_the_examples_of_messages_are_some_and_every_key_is_described() -> None:
    assert [parse_message(example)[0] for example in blocks("text")] == ["start", "set"]
    for key in StreamStart.__dataclass_fields__:
        assert f"| `{key}` |" in DOCUMENT


async def test_the_python_client_prints_the_finals() -> None:
    (program,) = blocks("python")
    async with serving() as running:
        program = program.replace("127.0.0.1:8765", f"127.0.0.1:{running.port}")
        running.log.append(final(1, "before"))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env={**os.environ, "NO_PROXY": "*"}
        )
        assert process.stdout is not None
        assert (await within(process.stdout.readline())).strip() == b"before"
        running.log.append(final(2, "live"))
        running.log.close()
        assert (await within(process.stdout.read())).split() == [b"live"]
        assert await within(process.wait()) == 0
