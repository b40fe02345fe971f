"""OpenAI's own library against a daemon, unchanged but for its address."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import soundfile

from streamer.constants import SAMPLE_RATE
from tests.daemon import SAMPLE, pause_after, recording, running, sample_text
from tests.waiting import WAIT_S
from tests.wer import wer

TOKEN = "a-secret-of-16-or-more"
MAX_WER = 0.4  # nano.en gets about one word in six wrong


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    """A client of a daemon that asks for a token."""
    with (
        running("--input", "none", "--model", "nano.en", environ={"STREAMER_SERVER_TOKEN": TOKEN}) as daemon,
        openai.OpenAI(base_url=f"{daemon.url}v1", api_key=TOKEN, max_retries=0, timeout=WAIT_S) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def audio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first two sentences of the sample."""
    path = tmp_path_factory.mktemp("audio") / "speech.flac"
    soundfile.write(path, recording(SAMPLE, 0, pause_after(2)), SAMPLE_RATE)
    return path


def test_a_file_becomes_text_with_segments_and_words(client: openai.OpenAI, audio: Path) -> None:
    found = client.audio.transcriptions.create(
        file=audio,
        model="whisper-1",
        language="en",
        temperature=0,
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert wer(sample_text(0, pause_after(2)), found.text) <= MAX_WER
    assert found.language == "english"
    assert found.duration == pytest.approx(pause_after(2), abs=0.01)
    assert found.segments
    assert found.words
    assert "".join(segment.text for segment in found.segments).strip() == found.text
    assert [word.word for word in found.words] == found.text.split()
    times = [time for word in found.words for time in (word.start, word.end)]
    assert times == sorted(times)


def test_a_text_streams_and_its_deltas_join_to_it(client: openai.OpenAI, audio: Path) -> None:
    events = list(client.audio.transcriptions.create(file=audio, model="gpt-4o-transcribe", stream=True))
    assert [event.type for event in events[:-1]] == ["transcript.text.delta"] * (len(events) - 1)
    assert events[-1].type == "transcript.text.done"
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert "".join(deltas) == events[-1].text
    assert wer(sample_text(0, pause_after(2)), events[-1].text) <= MAX_WER


def test_models_and_errors_are_what_the_library_knows(client: openai.OpenAI, audio: Path) -> None:
    assert "nano.en" in [model.id for model in client.models.list()]
    assert client.models.retrieve("nano.en").object == "model"
    with pytest.raises(openai.NotFoundError) as missing:
        client.audio.transcriptions.create(file=audio, model="large-v9")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.audio.transcriptions.create(file=("a.mp3", b"no audio"), model="nano.en")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").audio.transcriptions.create(
            file=("a.wav", bytes(300_000)), model="whisper-1"
        )
