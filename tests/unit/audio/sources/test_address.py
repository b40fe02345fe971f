"""Addresses: what a small server sends, and how it is connected to again."""

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from streamer.audio.sources import address
from streamer.audio.sources.address import Address, is_address
from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioDeviceError, TruncatedAudioError
from tests.unit.audio.support import Recorder, played, speech, written
from tests.unit.audio.test_track import link, write

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextmanager
def server(answer: Answer) -> Iterator[str]:

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None: ...

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


def test_a_file_goes_on_where_it_was_lost() -> None:
    data = written(speech(0.5))
    parts = iter([data[: len(data) // 2], data])
    with server(lambda request: sends(next(parts), length=len(data))(request)) as url:
        source = Address(url, speed=0)
        assert not source.realtime
        recorder = played(source)
    assert recorder.ends == [None]
    np.testing.assert_allclose(recorder.audio, speech(0.5), rtol=0, atol=1e-6)


def test_a_file_that_ends_twice_in_one_place_ends_there() -> None:
    # FFmpeg does not read on where an Ogg stream changes its rate.
    data = link("opus", 0) + link("OGG", 1)
    with server(sends(data, length=len(data))) as url:
        recorder = played(Address(url, speed=0))
    [error] = recorder.ends
    assert isinstance(error, TruncatedAudioError)
    assert error.found_s == pytest.approx(1.0, rel=0.02)
    assert len(recorder.audio) == pytest.approx(SAMPLE_RATE, rel=0.02)
    assert len(recorder.errors) == 1  # it was tried again


def test_a_station_is_connected_to_again_and_what_was_lost_is_a_gap() -> None:
    recorder = Recorder()
    station, refuse = sends(written(speech(0.5), format="OGG")), sends(b"", status=503)
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
    assert error.code == "audio_device"
    assert "secret" not in f"{error}{source.name}{source.failure}"
    assert recorder.ends == []


def test_hls_is_read_and_a_playlist_opens_no_file(tmp_path: Path) -> None:
    (tmp_path / "speech").mkdir()
    playlist = tmp_path / "speech" / "list.m3u8"
    write(playlist, speech(1.0), "hls", options={"hls_time": "0.3", "hls_playlist_type": "vod"})
    text = playlist.read_text(encoding="utf-8")
    assert text.count("#EXTINF") > 1
    (tmp_path / "local.m3u8").write_text(text.replace("list0", f"file://{tmp_path}/speech/list0"), encoding="utf-8")

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        data = (tmp_path / request.path.partition("?")[0].lstrip("/")).read_bytes()
        sends(data, length=len(data))(request)

    with server(answer) as url:
        recorder = played(Address(url.replace("radio", "speech/list.m3u8"), speed=0))
        with pytest.raises(AudioDeviceError):
            Address(url.replace("radio", "local.m3u8")).check()
    assert len(recorder.audio) == pytest.approx(SAMPLE_RATE, rel=0.1)
    assert (recorder.errors, recorder.ends) == ([], [None])


@pytest.mark.parametrize("answer", [sends(b"no", status=404), sends(b"<html>" * 1000)])
def test_an_address_without_audio_is_refused_without_naming_its_secrets(answer: Answer) -> None:
    with server(answer) as url, pytest.raises(AudioDeviceError) as caught:
        Address(url).check()
    assert "secret" not in str(caught.value)


def test_what_is_an_address() -> None:
    assert is_address("HTTPS://example.org/a.m3u8")
    assert is_address("rtsp://user:secret@camera/1")
    assert not any(map(is_address, ("talk.mp4", "C:\\talk.mp4", "concat:a|b", "-")))
    assert address.shown("rtsp://user:p@ss@camera:554/1?token=x#y") == "rtsp://camera:554/1"
