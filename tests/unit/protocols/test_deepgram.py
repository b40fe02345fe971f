"""Deepgram's messages, without a network: a client's messages and a session's events in, actions out."""

import hashlib
import io
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import ANY
from urllib.parse import urlencode

import msgspec
import numpy as np
import pytest
import soundfile
from starlette.datastructures import QueryParams

from streamer.errors import ConfigError, IdleError
from streamer.events import End, Event, Final, Flushed, Gap, Partial, Speech
from streamer.protocols.adapter import Action, Do, Finish, Hangup, Open, Say, Write
from streamer.protocols.deepgram import ListenQuery, Live, describe_error, read_query, write_answer
from streamer.protocols.recordings import RecordedSegment
from tests import builders

RAW = {"encoding": ["linear16"], "sample_rate": ["16000"]}
SECOND = bytes(32_000)


def asked(**values: Sequence[str]) -> ListenQuery:
    return read_query(QueryParams(urlencode(values, doseq=True)))


def final(text: str, start: float, end: float, segment: int = 0) -> Final:
    return builders.final(
        text, start=start, end=end, segment=segment, words=builders.words(text, start, probability=0.5)
    )


def segment(text: str, start: float, end: float) -> RecordedSegment:
    return RecordedSegment(final=final(text, start, end), seek=0, tokens=(), temperature=0.0, compression_ratio=1.0)


def partial(text: str, start: float, end: float) -> Partial:
    return builders.partial(text, start=start, end=end)


def speech(start: float, end: float | None = None) -> list[Event]:
    ended = [] if end is None else [Speech(state="end", time=end)]
    return [Speech(state="start", time=start), *ended]


class Talk:
    """An adapter at work, with everything that it wanted done."""

    def __init__(self, query: Mapping[str, Sequence[str]] = RAW, **more: str) -> None:
        read = asked(**query, **{key: [value] for key, value in more.items()})
        self.live = Live(read, request_id="r", created="2026-01-01T00:00:00.000Z")
        self.done: list[Action] = self.live.begin()
        self.on(builders.ready())

    def send(self, *messages: str | bytes) -> list[Action]:
        new = [action for message in messages for action in self.live.receive(message)]
        self.done += new
        return new

    def command(self, kind: str) -> list[Action]:
        return self.send(json.dumps({"type": kind}))

    def on(self, *events: Event) -> list[dict[str, Any]]:
        """Return the messages that events cause."""
        new = [action for event in events for action in self.live.on_event(event)]
        self.done += new
        return said(new)


def said(actions: Sequence[Action]) -> list[dict[str, Any]]:
    return [json.loads(action.text) for action in actions if isinstance(action, Say)]


def transcript(result: Mapping[str, Any]) -> str:
    return str(result["channel"]["alternatives"][0]["transcript"])


def test_a_query_opens_a_session_of_its_format_and_options() -> None:
    talk = Talk(
        RAW | {"keyterm": ["OpenVINO"], "keywords": ["Silero:2", ":1"]},
        channels="2", language="en-US", endpointing="300", model="nova-3", redact="pci",
    )  # fmt: skip
    (opened,) = talk.done
    assert isinstance(opened, Open)
    start = opened.start
    assert (start.format, start.sample_rate, start.channels, start.language) == ("s16le", 16_000, 2, "en")
    assert (start.min_silence_s, start.words, start.hotwords) == (0.3, True, ("OpenVINO", "Silero"))


@pytest.mark.parametrize(("asked", "silence_s"), [("10", 0.1), ("60000", 10.0), ("false", None), ("true", None)])
def test_endpointing_is_the_silence_that_ends_speech(asked: str, silence_s: float | None) -> None:
    (opened,) = Talk(endpointing=asked).done
    assert isinstance(opened, Open)
    assert opened.start.min_silence_s == silence_s


def test_older_clients_write_true_with_a_capital() -> None:
    query = asked(interim_results=["True"], punctuate=["False"], language=["multi"])
    assert (query.interim_results, query.punctuated, query.options.language) == (True, False, "auto")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sample_rate", "x"), ("sample_rate", "1"), ("sample_rate", "1e999"), ("channels", "0"), ("encoding", "mp2"),
        ("interim_results", "perhaps"), ("endpointing", "-1"), ("utterance_end_ms", "soon"), ("keyterm", "a\nb"),
        ("language", "x" * 40), ("encoding", "linear16"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_with_the_key_named(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        asked(**{key: [value]})


def test_an_http_error_has_deepgrams_three_keys() -> None:
    refusal = describe_error(400, "query has channels='0'")
    assert set(refusal) == {"err_code", "err_msg", "request_id"}
    assert refusal["err_msg"] == "query has channels='0'"
    assert describe_error(429, "")["err_code"] == "TOO_MANY_REQUESTS"


def test_results_have_what_the_sdk_requires_and_words_in_both_spellings() -> None:
    talk = Talk()
    talk.send(SECOND)
    (result,) = talk.on(*speech(0.1, 0.9), final("It's Ann — Ann.", 0.1, 0.9))
    assert (result["type"], result["channel_index"]) == ("Results", [0, 1])
    assert (result["is_final"], result["speech_final"], result["from_finalize"]) == (True, True, False)
    assert result["metadata"]["request_id"] == "r"
    assert result["metadata"]["model_info"] == {"name": "nano.en", "version": "1", "arch": "whisper"}
    (best,) = result["channel"]["alternatives"]
    assert (best["transcript"], best["confidence"]) == ("It's Ann — Ann.", 0.5)
    assert best["words"][1:] == [
        {"word": "ann", "start": 0.35, "end": 0.6, "confidence": 0.5, "punctuated_word": "Ann —"},
        {"word": "ann", "start": 0.85, "end": 1.1, "confidence": 0.5, "punctuated_word": "Ann."},
    ]
    assert best["words"][0]["word"] == "it's"


def test_words_name_their_speaker_if_requested_and_known() -> None:
    said = final("One two three.", 0.1, 0.9)
    labels = ("Ann", None, "S1")
    spoken = tuple(msgspec.structs.replace(w, speaker=s) for w, s in zip(said.words, labels, strict=True))
    for asked, numbers in (("true", [0, None, 1]), ("false", [None] * 3)):
        talk = Talk(diarize=asked)
        talk.send(SECOND)
        (result,) = talk.on(*speech(0.1, 0.9), msgspec.structs.replace(said, words=spoken))
        assert [word.get("speaker") for word in result["channel"]["alternatives"][0]["words"]] == numbers


def test_finals_follow_one_another_and_interim_results_begin_where_the_last_ended() -> None:
    talk = Talk(interim_results="true")
    talk.send(*[SECOND] * 6)
    results = talk.on(
        *speech(0.5), partial("One", 0.5, 1.0), final("One,", 0.5, 1.5), partial("two", 1.5, 2.0),
        Speech(state="end", time=2.5), final("two.", 1.5, 2.5, 1),
        *speech(4.0, 5.0), partial("Three", 4.0, 5.0), final("Three.", 4.0, 5.0, 2), End(),
    )  # fmt: skip
    last = results.pop()
    assert last["type"] == "Metadata"
    spans = [(r["start"], r["start"] + r["duration"], transcript(r)) for r in results if r["is_final"]]
    assert spans == [(0, 1.5, "One,"), (1.5, 2.5, "two."), (2.5, 5.0, "Three."), (5.0, 6.0, "")]
    interim = [(r["start"], transcript(r)) for r in results if not r["is_final"]]
    assert interim == [(0, "One"), (1.5, "two"), (2.5, "Three")]
    assert [transcript(r) for r in results if r["speech_final"]] == ["two.", "Three."]


def test_without_interim_results_there_are_finals_only() -> None:
    talk = Talk()
    assert talk.on(*speech(0.0), partial("One", 0.0, 0.5)) == []


def test_plain_text_if_punctuation_is_declined_and_no_speech_final_without_endpointing() -> None:
    talk = Talk(punctuate="false", endpointing="false")
    (result,) = talk.on(*speech(0.0, 1.0), final("Well, it's Ann!", 0.0, 1.0))
    assert (result["is_final"], result["speech_final"], transcript(result)) == (True, False, "well it's ann")
    assert "punctuated_word" not in result["channel"]["alternatives"][0]["words"][0]


def test_finalize_is_answered_by_the_final_that_it_caused() -> None:
    talk = Talk(interim_results="true")
    talk.send(SECOND)
    talk.on(*speech(0.1))
    assert talk.command("Finalize") == [Do("flush")]
    # A final may be on its way that is not the last one before that place.
    assert talk.on(final("One,", 0.1, 0.5)) == []
    assert [transcript(r) for r in talk.on(partial("two", 0.5, 1.0))] == ["One,", "two"]
    assert talk.on(Speech(state="end", time=1.0), final("two.", 0.5, 1.0)) == []
    (answer,) = talk.on(Flushed(time=0.99))
    assert (answer["is_final"], answer["from_finalize"], transcript(answer)) == (True, True, "two.")
    # Afterwards nothing is held back.
    assert [transcript(r) for r in talk.on(*speech(1.1, 1.5), final("Three.", 1.1, 1.5))] == ["Three."]


def test_finalize_is_answered_where_nothing_was_left() -> None:
    talk = Talk()
    talk.send(SECOND)
    talk.command("Finalize")
    (answer,) = talk.on(Flushed(time=0.992))
    assert (answer["start"], answer["duration"], transcript(answer)) == (0, 0.992, "")
    assert (answer["is_final"], answer["from_finalize"]) == (True, True)
    # Speech may begin a little earlier than that: its words do not.
    (result,) = talk.on(*speech(0.9, 2.0), final("One.", 0.9, 2.0))
    assert (result["start"], result["channel"]["alternatives"][0]["words"][0]["start"]) == (0.992, 0.992)


def test_speech_started_only_where_it_was_asked_for() -> None:
    assert Talk().on(*speech(0.5)) == []
    assert Talk(vad_events="true").on(*speech(0.5)) == [{"type": "SpeechStarted", "channel": [0, 1], "timestamp": 0.5}]


def test_an_utterance_ends_when_nothing_followed_the_last_word_for_as_long() -> None:
    talk = Talk(utterance_end_ms="1000")
    talk.send(SECOND)
    talk.on(*speech(0.0, 0.5), final("One two", 0.0, 0.5))
    assert said(talk.send(bytes(15_000))) == []
    assert said(talk.send(bytes(17_000))) == [{"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": 0.5}]
    assert said(talk.send(SECOND)) == []  # once


def test_an_utterance_goes_on_where_speech_follows_at_once_and_ends_before_what_comes_later() -> None:
    talk = Talk(utterance_end_ms="1000", vad_events="true")
    talk.send(*[SECOND] * 10)
    first = talk.on(*speech(0.0, 0.5), *speech(1.0, 2.0), *speech(4.0), final("One", 0.0, 0.5))
    assert "UtteranceEnd" not in [message["type"] for message in first]
    second = talk.on(final("two", 1.0, 2.0))
    assert [message["type"] for message in second] == ["Results", "UtteranceEnd"]


def test_keep_alive_has_no_answer_and_holds_the_session_and_the_timeout_off() -> None:
    talk = Talk()
    assert talk.live.timeout_s == 10.0
    assert talk.send('{"type":"KeepAlive"}') == [Do("resume")]
    (hangup,) = talk.live.refused(IdleError("nothing came for 10 s"))
    assert isinstance(hangup, Hangup)
    assert hangup.code == 1011
    assert "NET-0001" in hangup.reason
    assert len(hangup.reason) <= 123


@pytest.mark.parametrize("goodbye", ['{"type":"CloseStream"}', b""])
def test_the_end_is_what_is_left_then_metadata_then_1000(goodbye: str | bytes) -> None:
    talk = Talk()
    talk.send(SECOND)
    assert talk.send(goodbye) == [Finish()]
    assert talk.send(SECOND, goodbye) == []  # more is not listened to
    assert talk.live.timeout_s is None
    result, metadata = talk.on(*speech(0.0, 1.0), final("One.", 0.0, 1.0), End())
    assert transcript(result) == "One."
    assert metadata == {
        "type": "Metadata",
        "transaction_key": "deprecated",
        "request_id": "r",
        "sha256": hashlib.sha256(SECOND).hexdigest(),
        "created": "2026-01-01T00:00:00.000Z",
        "duration": 1.0,
        "channels": 1,
    }
    assert talk.done[-1] == Hangup(1000)


def test_what_a_pending_finalize_holds_back_is_said_at_the_end() -> None:
    talk = Talk()
    talk.send(SECOND)
    talk.command("Finalize")
    talk.command("CloseStream")
    messages = talk.on(*speech(0.0, 1.0), final("One.", 0.0, 1.0), End())
    assert [message["type"] for message in messages] == ["Results", "Metadata"]


def test_what_was_lost_ends_no_later_speech() -> None:
    talk = Talk()
    talk.send(*[SECOND] * 4)
    assert talk.on(*speech(0.0, 1.0), Gap(start=0.0, end=1.5, reason="overload")) == []
    (result,) = talk.on(*speech(2.0), final("Two,", 2.0, 2.5))
    assert (result["start"], result["speech_final"]) == (0, False)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "5", "null", '{"type":5}', '{"type":"Unheard"}', "[" * 5000, '{"type":"KeepAlive"', "é" * 5000],
)
def test_an_unreadable_text_frame_is_an_error_and_changes_nothing(text: str) -> None:
    talk = Talk()
    (error,) = said(talk.send(text))
    assert (error["type"], error["variant"]) == ("Error", "SchemaError")
    assert error["description"]
    assert len(error["message"]) <= 1000
    assert talk.send(SECOND) == [Write(SECOND)]


def test_a_wav_stream_is_read_wherever_it_is_cut() -> None:
    pcm = bytes(range(200))
    chunk = b"LIST" + (4).to_bytes(4, "little") + b"INFO"
    form = b"fmt " + (16).to_bytes(4, "little") + bytes.fromhex("0100 0200 44ac0000 10b10200 0400 1000")
    wav = b"RIFF\xff\xff\xff\xffWAVE" + chunk + form + b"data\xff\xff\xff\xff" + pcm
    for size in (1, 3, 7, 50, len(wav)):
        talk = Talk({})
        talk.send(*[wav[i : i + size] for i in range(0, len(wav), size)])
        opened = [action.start for action in talk.done if isinstance(action, Open)]
        assert [(start.format, start.sample_rate, start.channels) for start in opened] == [("s16le", 44_100, 2)]
        assert b"".join(action.audio for action in talk.done if isinstance(action, Write)) == pcm
        assert talk.command("CloseStream") == [Finish()]
        metadata = talk.on(End())[-1]
        assert metadata["sha256"] == hashlib.sha256(wav).hexdigest()


def wav(pcm: bytes, n_bytes: int) -> bytes:
    """Return a WAV file whose header announces some bytes."""
    form = struct.pack("<HHIIHH", 1, 1, 16_000, 32_000, 2, 16)
    return b"RIFF" + bytes(4) + b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", n_bytes) + pcm


def test_a_wav_in_each_message_goes_on_and_what_is_ignored_is_told_once_and_keeps_the_session() -> None:
    talk = Talk({})
    talk.send(wav(SECOND, len(SECOND)), wav(SECOND, len(SECOND)))
    assert [action.audio for action in talk.done if isinstance(action, Write)] == [SECOND, SECOND]
    assert said(ignored := talk.send(SECOND)) == [
        {"type": "Error", "variant": "DataError", "description": ANY, "message": ""}
    ]
    assert "behind the 2.00 s that its WAV header announces" in said(ignored)[0]["description"]
    assert talk.send(SECOND) == [Do("resume")]
    talk.command("CloseStream")
    assert talk.on(End(time=2.0))[-1]["duration"] == 2.0


def test_what_came_before_audio_that_cannot_be_decoded_is_answered_first() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(16_000), 16_000, format="FLAC")
    talk = Talk({})
    talk.send(file.getvalue() * 2 + file.getvalue()[:42] + bytes(3_000))
    talk.command("CloseStream")
    assert sum(len(action.audio) for action in talk.done if isinstance(action, Write)) == 2 * 64_000
    assert talk.done[-1] == Finish()
    talk.on(final("Both.", 0.1, 1.9), End(time=2.0))
    *results, hangup = talk.done[-3:]
    assert [message["type"] for message in said(results)] == ["Results", "Metadata"]
    assert isinstance(hangup, Hangup)
    assert (hangup.code, hangup.reason[:40]) == (1008, "DATA-0000: the audio cannot be read behi")


@pytest.mark.parametrize("data", [b"OggS", b"RIFF\0\0\0\0AVI " + bytes(70_000), b"RI"])
def test_audio_that_cannot_be_decoded_is_refused(data: bytes) -> None:
    talk = Talk({})
    talk.send(data)
    (hangup,) = [a for a in (*talk.done, *talk.command("CloseStream")) if isinstance(a, Hangup)]
    assert hangup.code == 1008
    assert "DATA-0000" in hangup.reason


def test_a_client_that_sent_nothing_gets_its_metadata() -> None:
    talk = Talk({})
    assert talk.command("Finalize") == talk.command("KeepAlive") == []
    metadata, hangup = talk.command("CloseStream")
    assert said([metadata])[0]["duration"] == 0
    assert hangup == Hangup(1000)


def test_telephone_audio_is_made_linear() -> None:
    talk = Talk({"encoding": ["mulaw"], "sample_rate": ["8000"]})
    assert talk.send(b"\xff\x80") == [Write(b"\x00\x00\x7c\x7d")]


def test_a_recordings_answer() -> None:
    spoken = [segment("One, two.", 0.0, 0.5), segment("Three!", 0.5, 0.75), segment("Four.", 3.0, 3.25)]
    query = asked(utterances=["true"], paragraphs=["true"], detect_language=["true"])
    answer = write_answer(query, spoken, sha256="0" * 64, duration_s=4.0, model="nano.en", language="en")
    metadata, results = answer["metadata"], answer["results"]
    assert (metadata["sha256"], metadata["duration"], metadata["channels"]) == ("0" * 64, 4.0, 1)
    (number,) = metadata["models"]
    assert metadata["model_info"][number]["name"] == "nano.en"
    (channel,) = results["channels"]
    assert channel["detected_language"] == "en"
    (best,) = channel["alternatives"]
    assert best["transcript"] == "One, two. Three! Four."
    assert [word["word"] for word in best["words"]] == ["one", "two", "three", "four"]
    first, second = results["utterances"]
    assert (first["transcript"], first["start"], first["end"], first["channel"]) == ("One, two. Three!", 0.0, 0.75, 0)
    assert (second["transcript"], second["words"][0]["word"]) == ("Four.", "four")
    paragraphs = best["paragraphs"]["paragraphs"]
    assert [[s["text"] for s in p["sentences"]] for p in paragraphs] == [["One, two.", "Three!"], ["Four."]]


def test_a_recording_of_silence_has_an_empty_transcript() -> None:
    query = asked(utterances=["true"])
    answer = write_answer(query, (), sha256="0" * 64, duration_s=1.0, model="nano.en", language="")
    assert answer["results"] == {
        "channels": [{"alternatives": [{"transcript": "", "confidence": 0.0, "words": []}]}],
        "utterances": [],
    }
