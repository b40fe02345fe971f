"""Addresses: what a small server sends, and how it is connected to again."""

import http.server
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import soundfile

from streamer.audio.sources import address
from streamer.audio.sources.address import Address, is_address
from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioDeviceError, ConfigError, TruncatedAudioError
from tests.unit.audio.sources.recorder import Recorder
from tests.unit.audio.sources.test_container import link, write
from tests.unit.audio.sources.test_file import speech

N_SAMPLES = SAMPLE_RATE // 2

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def encoded(format: str) -> bytes:
    """Return half a second of speech as a file."""
    file = io.BytesIO()
    soundfile.write(file, speech(0.5), SAMPLE_RATE, format=format)
    return file.getvalue()


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    """Answer all requests; yield the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://user:secret@127.0.0.1:{served.server_port}/radio?key=secret"
        finally:
            served.shutdown()
            thread.join()


def sends(data: bytes, *, length: int | None = None, status: int = 200) -> Answer:
    """Return an answer that ends with the connection: with a length, a file; without one, a station."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        if length is not None:
            request.send_header("Content-Length", str(length))
        request.end_headers()
        request.wfile.write(data)

    return answer


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "RETRY_S", 0.01)
    monkeypatch.setattr(address, "LOOK_S", 0.01)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("format", ["WAV", "OGG"])
def test_a_file_is_heard_to_its_end(format: str) -> None:
    recorder = Recorder()
    with server(sends(data := encoded(format), length=len(data))) as url:
        source = Address(url, speed=0)
        assert not source.realtime
        source.start(recorder.callbacks)
        assert recorder.wait_for_end() is None
    assert abs(len(recorder.audio) - N_SAMPLES) < N_SAMPLES / 20
    assert recorder.order == ["audio", "end"]


def test_a_file_goes_on_where_it_was_lost() -> None:
    recorder = Recorder()
    data = encoded("WAV")
    parts = iter([data[: len(data) // 2], data])
    with server(lambda request: sends(next(parts), length=len(data))(request)) as url:
        source = Address(url, speed=0)
        source.start(recorder.callbacks)
        assert recorder.wait_for_end() is None
    np.testing.assert_allclose(recorder.audio, speech(0.5), rtol=0, atol=1e-6)


def test_a_file_that_ends_twice_in_one_place_ends_there() -> None:
    recorder = Recorder()
    # FFmpeg does not read on where an Ogg stream changes its rate.
    data = link("opus", 0) + link("OGG", 1)
    with server(sends(data, length=len(data))) as url:
        source = Address(url, speed=0)
        source.start(recorder.callbacks)
        error = recorder.wait_for_end()
    assert isinstance(error, TruncatedAudioError)
    assert "radio cannot be read behind 1.0" in str(error)
    assert len(recorder.audio) == pytest.approx(SAMPLE_RATE, rel=0.02)
    assert len(recorder.errors) == 1  # it was tried again


def test_a_station_is_connected_to_again_and_what_was_lost_is_a_gap() -> None:
    recorder = Recorder()
    station, refuse = sends(encoded("OGG")), sends(b"", status=503)
    first = iter([station])
    with server(lambda request: next(first, station if recorder.gaps else refuse)(request)) as url:
        source = Address(url)
        assert source.realtime
        source.start(recorder.callbacks)
        while recorder.order[-2:] != ["gap", "audio"]:
            assert not recorder.ended.wait(0.01)
        source.stop()
    assert recorder.order[:4] == ["audio", "error", "gap", "audio"]
    assert {reason for _, reason in recorder.gaps} == {"device"}
    [error] = recorder.errors
    assert isinstance(error, AudioDeviceError)
    assert "secret" not in f"{error}{source.name}{source.failure}"
    assert recorder.ends == []


def test_hls_is_heard_and_a_playlist_opens_no_file(tmp_path: Path) -> None:
    (tmp_path / "speech").mkdir()
    write(
        tmp_path / "speech" / "list.m3u8", speech(1.0), "hls", options={"hls_time": "0.3", "hls_playlist_type": "vod"}
    )
    playlist = (tmp_path / "speech" / "list.m3u8").read_text(encoding="utf-8")
    assert playlist.count("#EXTINF") > 1
    (tmp_path / "local.m3u8").write_text(playlist.replace("list0", f"file://{tmp_path}/speech/list0"), encoding="utf-8")

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        data = (tmp_path / request.path.partition("?")[0].lstrip("/")).read_bytes()
        sends(data, length=len(data))(request)

    recorder = Recorder()
    with server(answer) as url:
        source = Address(url.replace("radio", "speech/list.m3u8"), speed=0)
        source.start(recorder.callbacks)
        assert recorder.wait_for_end() is None
        with pytest.raises(AudioDeviceError, match="cannot be opened"):
            Address(url.replace("radio", "local.m3u8")).check()
    assert abs(len(recorder.audio) / SAMPLE_RATE - 1.0) < 0.1
    assert recorder.errors == []


@pytest.mark.parametrize("answer", [sends(b"no", status=404), sends(b"<html>" * 1000)])
def test_an_address_without_audio_is_told_before_anything_else(answer: Answer) -> None:
    with server(answer) as url, pytest.raises(AudioDeviceError, match="cannot be opened") as caught:
        Address(url).check()
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_an_address() -> None:
    assert is_address("HTTPS://example.org/a.m3u8")
    assert is_address("rtsp://user:secret@camera/1")
    assert not any(map(is_address, ("talk.mp4", "C:\\talk.mp4", "concat:a|b", "-")))
    with pytest.raises(ConfigError, match="expected an address of http, https"):
        Address("file:///etc/passwd")
    assert address.shown("rtsp://user:p@ss@camera:554/1?token=x#y") == "rtsp://camera:554/1"
