"""WhisperLiveKit's protocol."""

import base64
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tools.benchmarks.peers.whisperlivekit import WhisperLiveKit, WhisperLiveKitConversation, heads_mask
from tools.benchmarks.processes import ServerFailure
from tools.benchmarks.published import PublishedModel


def test_lines_are_promised_and_the_buffer_is_not() -> None:
    conversation = WhisperLiveKitConversation("ws://127.0.0.1:1")
    answer = {
        "status": "active_transcription",
        "lines": [
            {"speaker": 1, "text": " One two.", "start": "0:00:00.00", "end": "0:00:01.00"},
            {"speaker": -2, "text": None, "start": "0:00:01.00", "end": "0:00:07.00"},
            {"speaker": 1, "text": " The light", "start": "0:00:07.00", "end": "0:00:08.00"},
        ],
        "buffer_transcription": " fell",
    }
    assert conversation.hear(json.dumps(answer), 1.5)
    revision = conversation.screen.revisions[-1]
    assert revision.words == ("One", "two.", "The", "light", "fell")
    assert revision.n_stable == 4
    assert not conversation.is_over(100.0)
    assert not conversation.hear('{"type": "ready_to_stop"}', 2.0)
    assert conversation.is_over(0.0)


@pytest.mark.parametrize("answer", ['{"status": "error", "error": "no ffmpeg"}', "nonsense", "3"])
def test_an_error_is_a_failure(answer: str) -> None:
    with pytest.raises(ServerFailure, match=r"ws://127\.0\.0\.1:1"):
        WhisperLiveKitConversation("ws://127.0.0.1:1").hear(answer, 1.0)


def test_the_heads_are_written_as_openai_whisper_reads_them(tmp_path: Path) -> None:
    written = heads_mask(PublishedModel("nano.en", tmp_path, tmp_path))
    mask = np.frombuffer(gzip.decompress(base64.b85decode(written)), dtype=np.bool_).reshape(3, 3)
    assert np.argwhere(mask).tolist() == [[1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]]  # half of the layers


def test_the_policies_have_names_of_their_own(tmp_path: Path) -> None:
    model = PublishedModel("base", tmp_path, tmp_path)
    names = {WhisperLiveKit(model, "localagreement").name, WhisperLiveKit(model, "simulstreaming").name}
    assert names == {"whisperlivekit LocalAgreement", "whisperlivekit AlignAtt"}
