"""Posts to addresses that are secrets."""

import logging
import threading

import pytest

from streamer.errors import ConfigError, PeerError
from streamer.sinks.post import PostingSink
from streamer.sinks.webhook import Webhook
from tests.sinks.stand_ins import CUT, LONG_S, Answer, Request, WebStandIn, final


def test_a_post_says_what_is_wrong_and_never_where() -> None:
    hang = threading.Event()

    def answer(request: Request) -> Answer:
        assert hang.wait(LONG_S)
        return CUT

    with WebStandIn(answer) as stand_in:
        url = f"http://127.0.0.1:{stand_in.port}/hook?key=SECRET"
        with pytest.raises(PeerError, match=r"127\.0\.0\.1 did not answer within 0\.05 s") as slow:
            PostingSink(url, "outputs.webhook_url", timeout_s=0.05).post(b"", {})
        hang.set()
        poster = PostingSink(url, "outputs.webhook_url")
        with pytest.raises(PeerError, match="cannot be reached") as cut:
            poster.post(b"", {})
        stand_in.stop()
        with pytest.raises(PeerError, match="cannot be reached") as down:
            poster.post(b"", {})
    for url in ("", "SECRET", "ftp://SECRET/x", "https://", "https://[SECRET", "http://a:SECRET/"):
        with pytest.raises(ConfigError, match=r"outputs\.zoom_url is .*: expected https://HOST/") as wrong:
            PostingSink(url, "outputs.zoom_url")
        assert "SECRET" not in str(wrong.value)
    assert not any("SECRET" in str(error.value) for error in (slow, cut, down))


def test_nothing_of_the_libraries_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with WebStandIn(lambda request: (200, b"")) as stand_in, caplog.at_level(logging.WARNING):
        Webhook(f"http://127.0.0.1:{stand_in.port}/?key=SECRET").handle(final(1))
    assert "SECRET" not in caplog.text
