import json

import pytest

from streamer.errors import ProtocolError
from streamer.server.interfaces import StreamStart


def test_everything_has_a_default() -> None:
    assert StreamStart.from_json('{"type":"start"}') == StreamStart(
        format="s16le", sample_rate=16_000, channels=1, language=None, task=None
    )


def test_everything_can_be_said() -> None:
    message = {
        "type": "start",
        "format": "f32le",
        "sample_rate": 48_000,
        "channels": 2,
        "language": "de",
        "task": "translate",
    }
    assert StreamStart.from_json(json.dumps(message)) == StreamStart(
        format="f32le", sample_rate=48_000, channels=2, language="de", task="translate"
    )


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("hello", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('["start"]', "list"),
        ("{}", "None"),
        ('{"type":"begin"}', "begin"),
        ('{"type":"start","rate":8000}', "rate"),
        ('{"type":"start","format":"mp3"}', "s16le or f32le"),
        ('{"type":"start","format":["s16le"]}', "s16le or f32le"),
        ('{"type":"start","sample_rate":0}', "4000 to 384000"),
        ('{"type":"start","sample_rate":16000.0}', "4000 to 384000"),
        ('{"type":"start","sample_rate":true}', "4000 to 384000"),
        ('{"type":"start","sample_rate":1e400}', "4000 to 384000"),
        ('{"type":"start","sample_rate":null}', "4000 to 384000"),
        ('{"type":"start","channels":33}', "1 to 32"),
        ('{"type":"start","language":""}', "language"),
        ('{"type":"start","language":7}', "language"),
        ('{"type":"start","task":"sing"}', "transcribe or translate"),
    ],
)
def test_a_bad_start_is_refused_in_one_line_that_says_what_was_expected(message: str, said: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        StreamStart.from_json(message)
    assert said in str(caught.value)
    assert "expected" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
