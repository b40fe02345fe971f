"""The daemon as a process, real sockets, the embedded model: the promises of docs/protocol.md, and the commands."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile
from websockets.asyncio.client import connect

from streamer.constants import SAMPLE_RATE
from streamer.events import End, Error, Event, Final, Gap, Partial, Ready, Resumed, Speech, from_json
from streamer.whisper.shipped import EMBEDDED_ORIGIN, limits
from tests.daemon import (
    SAMPLE,
    WAIT_S,
    Daemon,
    Outcome,
    Received,
    command,
    connected,
    events_of,
    follow,
    pause_after,
    pcm16,
    recording,
    running,
    sample_text,
    send_audio,
)
from tests.promises import check_promises, transcript
from tests.unit.outputs.stand_ins import WebStandIn
from tests.wer import wer, words_of

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "audio"

# The first sentence of the sample, the second, and both.
FIRST_S = (0.0, pause_after(1))
BOTH_S = (0.0, pause_after(2))

# How far streamed text may be from what is said there: nano.en gets about one word in six wrong.
MAX_SAMPLE_WER = 0.4

# Of the eleven words of the first sentence nano.en finds four hard, and hears them by where the passes fall.
MAX_FIRST_WER = 0.6


def check_first(text: str) -> None:
    """Hold a text against the first sentence: from its beginning to its end."""
    assert text.startswith("The Commission regards"), text
    assert text.rstrip(".,").endswith("danger"), text
    assert wer(sample_text(*FIRST_S), text) <= MAX_FIRST_WER


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon for clients' own audio, with room for two."""
    with running("--input", "none", environ={"STREAMER_SERVER_MAX_STREAMS": "2"}) as daemon:
        yield daemon
        outcome = daemon.stop()
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.stdout == ""
        assert "Traceback" not in outcome.stderr, outcome.stderr


@pytest.fixture(scope="module")
def excerpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first two sentences of the sample, as a file."""
    path = tmp_path_factory.mktemp("audio") / "excerpt.wav"
    soundfile.write(path, recording(SAMPLE, *BOTH_S), SAMPLE_RATE, subtype="PCM_16")
    return path


def check_sample(received: Received, begin_s: float, end_s: float) -> None:
    """A stream of a part of the sample kept every promise, ended well, and its text is what is said there."""
    assert received.close_code == 1000, received.close_reason
    check_promises(received.events, duration_s=end_s - begin_s)
    assert not received.of(Error, Gap)
    limit = MAX_FIRST_WER if (begin_s, end_s) == FIRST_S else MAX_SAMPLE_WER
    assert wer(sample_text(begin_s, end_s), transcript(received.events)) <= limit


# --- clients' own audio -----------------------------------------------------------------------------------------------


def test_the_daemon_says_once_where_it_is_and_is_healthy(daemon: Daemon) -> None:
    assert daemon.stderr.count("http://") == 1
    health = daemon.health()
    assert (health["status"], health["model"], health["input"]) == ("ok", "nano.en", "none")
    assert set(health["device"]) == {"encoder", "cross_kv", "decoder"}
    assert health["notice"] == limits(EMBEDDED_ORIGIN)
    assert daemon.stderr.count(health["notice"]) == 1
    assert "streamer_encodes_total" in daemon.get("/metrics")[1]


async def test_audio_at_the_pace_of_speech_is_told_while_it_is_said(daemon: Daemon) -> None:
    async with connected(daemon.address("/v1/stream")) as (connection, received):
        await send_audio(connection, recording(SAMPLE, *FIRST_S), speed=1.0)
        assert received.of(Partial), "no word while there was still audio to come"
        await connection.send('{"type":"finish"}')
        await received.wait_closed()
    check_sample(received, *FIRST_S)
    assert any(partial.stable for partial in received.of(Partial)), "no word settled before the end"


async def test_other_formats_say_the_same(daemon: Daemon) -> None:
    samples = np.repeat(recording(SAMPLE, *FIRST_S), 2 * 3)  # stereo at 48 kHz
    async with connected(daemon.address("/v1/stream")) as (connection, received):
        await connection.send(
            '{"type":"start","format":"f32le","sample_rate":48000,"channels":2,"language":"en","task":"transcribe"}'
        )
        data = samples.astype("<f4").tobytes()
        for first in range(0, len(data), 1 << 20):
            await connection.send(data[first : first + (1 << 20)])
        await connection.send('{"type":"finish"}')
        await received.wait_closed()
    check_sample(received, *FIRST_S)
    assert received.of(Ready)[0].language == "en"


async def test_a_client_that_loses_its_connection_goes_on_where_it_was(daemon: Daemon) -> None:
    samples = recording(SAMPLE, *BOTH_S)
    whole = Received()
    heard, resume = 0, ""
    for until in (len(samples) // 3, 2 * len(samples) // 3, len(samples)):
        async with connected(daemon.address("/v1/stream")) as (connection, received):
            if resume:
                await connection.send(resume)
                await received.wait_for(Resumed)
                greeting = received.events.pop(0)
                assert isinstance(greeting, Resumed)
                assert heard <= greeting.heard_samples <= until
                heard = greeting.heard_samples
            await send_audio(connection, samples[heard:until])
            if until == len(samples):
                await connection.send('{"type":"finish"}')
                await received.wait_closed()
            else:
                await received.wait_for(Ready if not resume else Event)
                connection.transport.abort()
                await received.wait_closed()
        whole.events += received.events
        last = whole.events[-1]
        resume = json.dumps({"type": "resume", "session": last.session, "after": last.seq})
    whole.close_code = received.close_code
    check_sample(whole, *BOTH_S)


async def test_a_stream_is_commanded_between_its_audio(daemon: Daemon) -> None:
    samples = recording(SAMPLE, 0.0, pause_after(3))
    end_s = len(samples) / SAMPLE_RATE
    async with connected(daemon.address("/v1/stream")) as (connection, received):

        async def send(begin_s: float, until_s: float, **command: object) -> None:
            await send_audio(connection, samples[round(begin_s * SAMPLE_RATE) : round(until_s * SAMPLE_RATE)])
            await connection.send(json.dumps(command))

        await send(0.0, 3.0, type="flush")  # in mid-speech
        await received.wait_for(Final)
        await send(3.0, 5.0, type="pause")
        await send(5.0, 7.0, type="resume")
        await send(7.0, 9.5, type="clear")
        await send(9.5, 13.0, type="set", words=False)  # between two sentences
        await send(13.0, end_s, type="finish")
        await received.wait_closed()
    assert received.close_code == 1000, received.close_reason
    assert not received.of(Error)
    assert received.of(Final)[0].end == 3.0
    paused, cleared = received.of(Gap)
    assert (paused.reason, paused.start, paused.end) == ("paused", 5.0, 7.0)
    assert (cleared.reason, cleared.end) == ("cleared", 9.5)
    assert cleared.start >= 7.0
    finals = received.of(Final)
    assert finals[0].words
    assert not any(event.words for event in received.of(Partial, Final) if event.end > 13.5)
    assert any(final.text for final in finals if final.end > 13.0)
    check_promises(received.events, duration_s=end_s, wordless=True)


async def test_a_client_that_vanishes_in_the_middle_of_a_word_frees_its_place(daemon: Daemon) -> None:
    for _ in range(2):
        async with connect(daemon.address("/v1/stream"), proxy=None) as connection:
            await send_audio(connection, recording(SAMPLE, 0.0, 3.0))
            connection.transport.abort()
    check_sample(await transcribe_when_free(daemon, *FIRST_S), *FIRST_S)
    assert daemon.health()["status"] == "ok"


async def transcribe_when_free(daemon: Daemon, begin_s: float, end_s: float) -> Received:
    """Transcribe as soon as there is a place: the daemon may not have noticed yet that a client is gone."""
    async with asyncio.timeout(WAIT_S):
        while True:
            async with connected(daemon.address("/v1/stream")) as (connection, received):
                await connection.send(b"\0\0")
                await received.wait_for(Ready, Error)
                if received.of(Error):
                    assert received.of(Error)[0].code == "busy"
                    await asyncio.sleep(0.1)
                    continue
                await send_audio(connection, recording(SAMPLE, begin_s, end_s)[1:])
                await connection.send('{"type":"finish"}')
                await received.wait_closed()
                return received


# --- the daemon's own input -------------------------------------------------------------------------------------------


async def test_all_subscribers_of_a_file_get_every_final_also_over_a_broken_connection(excerpt: Path) -> None:
    posted = WebStandIn(lambda request: (204, b""))
    flags = ("--speed", "3", "--exit-at-end", "--no-captions")
    with (
        posted,
        running("--input", excerpt, *flags, "--to", f"webhook:http://127.0.0.1:{posted.port}/") as daemon,
    ):
        address = daemon.address("/v1/captions?after=0")
        steady = asyncio.create_task(follow(address))
        async with connected(address) as (connection, before):
            await before.wait_for(Partial, n=1)
            connection.transport.abort()
            await before.wait_closed()
        last = before.events[-1]
        await asyncio.sleep(0.5)  # something is missed meanwhile
        after = await follow(daemon.address(f"/v1/captions?after={last.seq}&session={last.session}"))
        received = await steady
        outcome = daemon.wait()
    assert outcome.exit_code == 0, outcome.stderr
    check_sample(received, *BOTH_S)
    assert after.close_code == 1000
    both = [*before.events, *after.events]
    check_promises(both, duration_s=BOTH_S[1])
    assert lasting(both) == lasting(received.events)
    finals = [event for event in both if isinstance(event, Final) and event.text]
    assert [from_json(request.body) for request in posted.requests] == finals


def lasting(events: Sequence[Event]) -> list[Event]:
    """Return all but the partials."""
    return [event for event in events if not isinstance(event, Partial)]


def test_standard_input_is_captioned() -> None:
    outcome = command(
        *("run", "--port", "0", "--input", "-", "--exit-at-end"), stdin=pcm16(recording(SAMPLE, *FIRST_S))
    )
    assert outcome.exit_code == 0, outcome.stderr
    check_first(outcome.stdout.strip())


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM to catch on Windows")
async def test_what_was_said_before_sigterm_is_final() -> None:
    with running("--input", SAMPLE, "--no-captions") as daemon:
        async with connected(daemon.address("/v1/captions?after=0")) as (_, received):
            await received.wait_for(Partial, n=4)
            spoken = received.of(Partial)[-1]
            daemon.terminate()
            await received.wait_closed()
        outcome = daemon.wait()
    assert outcome.exit_code == 0, outcome.stderr
    assert received.close_code == 1000
    check_promises(received.events)
    finals = received.of(Final)  # more than one if partials came late
    assert isinstance(received.events[-1], End)
    assert received.of(Speech)[-1].state == "end"
    assert finals[-1].end >= spoken.end
    assert words_of(finals[0].text)[:3] == words_of(sample_text())[:3]


# --- recordings -------------------------------------------------------------------------------------------------------

# Somebody who does not stop to breathe.
RECORDING = RECORDINGS / "breathless.flac"


@pytest.mark.skipif(not RECORDING.exists(), reason=f"no recordings in {RECORDINGS.name}/ beside the repository")
def test_streamed_text_is_as_good_as_offline_text_and_keeps_every_promise(
    run_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    for arguments in (("--stream", "--format", "jsonl"), ("--format", "text")):
        outcome = run_here("transcribe", *arguments, "-o", tmp_path, RECORDING)
        assert outcome.exit_code == 0, outcome.stderr
    reference = RECORDING.with_suffix(".txt").read_text(encoding="utf-8")
    events = events_of((tmp_path / "breathless.jsonl").read_text(encoding="utf-8"))
    offline = (tmp_path / "breathless.txt").read_text(encoding="utf-8")
    assert wer(reference, transcript(events)) <= wer(reference, offline) + 0.03
    check_promises(events, duration_s=soundfile.info(RECORDING).duration)
