"""Deepgram's own SDK against the daemon."""

import contextlib
import hashlib
import io
import itertools
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import soundfile
from deepgram import DeepgramClient, DeepgramClientEnvironment
from deepgram.core.api_error import ApiError
from deepgram.core.events import EventType
from deepgram.errors import BadRequestError
from websockets.exceptions import InvalidStatus

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from tests.daemon import WAIT_S, Daemon, pause_after, pcm16, recording, sample_text, serving_with
from tests.wer import wer

KEY = "a-key-of-forty-characters-as-deepgram-has"

# The third sentence of the sample, of three words, and the seconds of it.
SENTENCE_S = (pause_after(2), pause_after(3))

# nano.en gets about one word in six wrong.
MAX_WER = 0.4


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with serving_with(KEY) as daemon:
        yield daemon


def client_of(daemon: Daemon, key: str = KEY) -> DeepgramClient:
    url = daemon.url.rstrip("/")
    here = DeepgramClientEnvironment(base=url, production=daemon.address(""), agent="", agent_rest="")
    return DeepgramClient(api_key=key, environment=here)


def sentence() -> Float32Array:
    return recording(begin_s=SENTENCE_S[0], end_s=SENTENCE_S[1])


@contextlib.contextmanager
def listening(daemon: Daemon, **query: Any) -> Iterator[tuple[Any, list[Any]]]:  # noqa: ANN401 - passed on
    """Connect, and keep what comes until the daemon closes."""
    messages: list[Any] = []
    with client_of(daemon).listen.v1.connect(model="nova-3", **query) as connection:
        connection.on(EventType.MESSAGE, messages.append)
        connection.on(EventType.ERROR, messages.append)
        reader = threading.Thread(target=connection.start_listening)
        reader.start()
        yield connection, messages
        reader.join(WAIT_S)
        assert not reader.is_alive()


def check_finals(messages: list[Any], duration_s: float) -> list[str]:
    """Hold messages to what a program counts on; return the transcripts that are final."""
    results = [message for message in messages if message.type == "Results"]
    until = 0.0
    for result in results:
        assert result.start == pytest.approx(until, abs=0.0015)
        words = result.channel.alternatives[0].words
        assert all(a.start <= a.end <= b.end for a, b in itertools.pairwise(words))
        assert all(result.start <= word.start and 0 <= word.confidence <= 1 for word in words)
        assert result.metadata.model_info.name == "nano.en"
        until = result.start + result.duration if result.is_final else until
    assert until == pytest.approx(duration_s, abs=0.01)
    last = messages[-1]
    assert (last.type, last.duration) == ("Metadata", pytest.approx(duration_s, abs=0.01))
    assert [message.type for message in messages].count("Metadata") == 1
    return [result.channel.alternatives[0].transcript for result in results if result.is_final]


def test_a_live_stream_at_the_pace_of_speech(daemon: Daemon) -> None:
    spoken, pause = sentence(), np.zeros(round(1.6 * SAMPLE_RATE), np.float32)
    audio = np.concatenate([spoken, pause, spoken[: -SAMPLE_RATE // 2]])
    with listening(
        daemon,
        encoding="linear16", sample_rate=SAMPLE_RATE, interim_results=True, endpointing=300, utterance_end_ms="1000",
        vad_events=True, smart_format=True,
    ) as (connection, messages):  # fmt: skip
        begin_s = time.monotonic()
        for first in range(0, len(audio), 1_501):  # and so not always a whole sample
            time.sleep(max(0.0, begin_s + first / SAMPLE_RATE - time.monotonic()))
            connection.send_media(pcm16(audio[first : first + 1_501]))
        connection.send_keep_alive()
        connection.send_finalize()
        connection.send_close_stream()
    texts = check_finals(messages, len(audio) / SAMPLE_RATE)
    assert wer(f"{sample_text(*SENTENCE_S)} {sample_text(*SENTENCE_S)}", " ".join(texts)) <= MAX_WER, texts
    kinds = [message.type for message in messages]
    assert kinds.count("SpeechStarted") == 2
    assert kinds.index("UtteranceEnd") < len(kinds) - kinds[::-1].index("SpeechStarted") - 1  # before the second
    results = [message for message in messages if message.type == "Results"]
    assert any(not result.is_final for result in results)
    assert any(result.speech_final for result in results)
    (finalized,) = [result for result in results if result.from_finalize]
    assert finalized.is_final
    best = finalized.channel.alternatives[0]
    assert best.transcript == " ".join(word.punctuated_word for word in best.words)
    assert best.words[0].word == best.words[0].punctuated_word.lower().strip(".,")


@pytest.mark.parametrize("format", ["WAV", "FLAC"])
def test_a_file_as_fast_as_it_is_taken(daemon: Daemon, format: str) -> None:
    spoken = sentence()
    wave = np.interp(np.arange(0, len(spoken), SAMPLE_RATE / 44_100), np.arange(len(spoken)), spoken)
    file = io.BytesIO()
    soundfile.write(file, np.stack([wave, wave], axis=1), 44_100, format=format, subtype="PCM_16")
    with listening(daemon) as (connection, messages):
        for first in range(0, len(file.getvalue()), 9_999):
            connection.send_media(file.getvalue()[first : first + 9_999])
        connection.send_close_stream()
    texts = check_finals(messages, len(spoken) / SAMPLE_RATE)
    assert wer(sample_text(*SENTENCE_S), " ".join(texts)) <= MAX_WER, texts
    assert {message.type for message in messages} == {"Results", "Metadata"}


def test_who_shows_no_key_or_asks_for_what_cannot_be_is_refused(daemon: Daemon) -> None:
    for key, encoding, status in (("wrong-but-long-enough-to-be-a-key", "linear16", 401), (KEY, "speex", 400)):
        with pytest.raises(InvalidStatus) as refusal:
            client_of(daemon, key).listen.v1.connect(model="nova-3", encoding=encoding, sample_rate=16_000).__enter__()
        response = refusal.value.response
        assert response.status_code == status
        assert set(json.loads(response.body)) == {"err_code", "err_msg", "request_id"}


@pytest.mark.parametrize("chunked", [False, True])
def test_a_recording(daemon: Daemon, chunked: bool) -> None:
    file = io.BytesIO()
    soundfile.write(file, sentence(), SAMPLE_RATE, format="FLAC")
    data = file.getvalue()
    pieces = (data[first : first + 9_999] for first in range(0, len(data), 9_999))
    answer: Any = client_of(daemon).listen.v1.media.transcribe_file(
        request=pieces if chunked else data,
        model="nova-3",
        smart_format=True,
        utterances=True,
        paragraphs=True,
        detect_language=True,
    )
    assert answer.metadata.sha256 == hashlib.sha256(data).hexdigest()
    assert answer.metadata.duration == pytest.approx(SENTENCE_S[1] - SENTENCE_S[0], abs=0.01)
    assert (answer.metadata.channels, len(answer.metadata.models)) == (1, 1)
    (channel,) = answer.results.channels
    (best,) = channel.alternatives
    assert channel.detected_language == "en"
    assert wer(sample_text(*SENTENCE_S), best.transcript) <= MAX_WER
    assert best.transcript == " ".join(word.punctuated_word for word in best.words)
    assert 0 < best.confidence <= 1
    assert " ".join(utterance.transcript for utterance in answer.results.utterances) == best.transcript
    assert best.paragraphs.paragraphs[0].sentences[0].text


def test_what_is_no_recording_is_refused(daemon: Daemon) -> None:
    media = client_of(daemon).listen.v1.media
    with pytest.raises(BadRequestError) as refusal:
        media.transcribe_url(url="http://127.0.0.1:9/a.wav", model="nova-3")
    assert "not fetched" in refusal.value.body["err_msg"]
    with pytest.raises(BadRequestError) as refusal:
        media.transcribe_file(request=b"no audio at all", model="nova-3")
    assert set(refusal.value.body) == {"err_code", "err_msg", "request_id"}
    with pytest.raises(ApiError) as unknown:
        client_of(daemon, "wrong-but-long-enough-to-be-a-key").listen.v1.media.transcribe_file(request=b"RIFF")
    assert (unknown.value.status_code, unknown.value.body["err_code"]) == (401, "INVALID_AUTH")
