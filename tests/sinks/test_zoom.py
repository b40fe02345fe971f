"""Captions of a Zoom meeting: each final once and in order, through restarts of either side."""

import threading
import time

import pytest

from streamer.events import Ready
from streamer.sinks.outputs import Output
from streamer.sinks.zoom import Zoom, language_tag
from tests.sinks.stand_ins import (
    CUT,
    LONG_S,
    Answer,
    CaptionService,
    Request,
    WebStandIn,
    final,
    sending,
    wait_failing,
    warnings,
)

READY = Ready(model="m", device={}, sample_rate=16_000, language="en")
QUERY = "id=1%2C2&ns=Talk&expire=9&signature=a.b%2Fc"


def texts(service: CaptionService) -> list[str]:
    return [request.body.decode("utf-8") for request in service.taken]


def zoom(stand_in: WebStandIn) -> Zoom:
    return Zoom(f"http://127.0.0.1:{stand_in.port}/closedcaption?{QUERY}")


def test_zoom_gets_each_final_once_through_restarts_of_either_side(caplog: pytest.LogCaptureFixture) -> None:
    service = CaptionService()
    with WebStandIn(service) as stand_in:
        with sending(zoom(stand_in)) as output:
            output.handle(READY)
            output.handle(final(1))
            service.wait_for(1)
            stand_in.stop()
            output.handle(final(2))
            output.handle(final(3))
            wait_failing(output)
            stand_in.start()
            service.wait_for(3)
            service.faults = [(CUT, True), ((503, b""), False), ((200, b"<html>"), True)]  # it takes the first and dies
            output.handle(final(4, "Grüße 4."))
            output.handle(final(5))
        with sending(zoom(stand_in)) as output:  # the program was started again
            output.handle(final(6))
    assert texts(service) == [f"{'Grüße' if n == 4 else 'Words'} {n}.\n" for n in range(1, 7)]
    assert [request.query["seq"] for request in service.taken] == ["1", "2", "3", "4", "5", "6"]
    assert {request.path for request in service.taken} == {"/closedcaption"}
    assert service.taken[0].query | {"seq": ""} == {
        "id": "1,2",
        "ns": "Talk",
        "expire": "9",
        "signature": "a.b/c",
        "seq": "",
        "lang": "en-US",
    }
    assert service.taken[0].headers["content-type"] == "text/plain; charset=utf-8"
    told = warnings(caplog)
    assert [line.partition(":")[0] for line in told] == ["output there", "output there works again"] * 2
    assert "signature" not in caplog.text


def test_zoom_begins_at_one_where_it_cannot_be_asked_and_sends_nothing_old_when_the_meeting_begins() -> None:
    begun = threading.Event()
    service = CaptionService()

    def answer(request: Request) -> Answer:
        return service(request) if begun.is_set() else (400, b"meeting has not started")

    with WebStandIn(answer) as stand_in:
        output = Output("zoom", zoom(stand_in), first_delay_s=0.001)
        for number in (1, 2, 3):
            output.handle(final(number))
        while output.n_dropped < 3:
            time.sleep(0.001)
        begun.set()
        output.handle(final(4))
        output.close(time.monotonic() + LONG_S)
    assert texts(service) == ["Words 4.\n"]
    assert service.last == 1


@pytest.mark.parametrize(("code", "tag"), [("en", "en-US"), ("de", "de-DE"), ("ja", "ja-JP"), ("pt", "pt-BR")])
def test_zoom_has_languages_with_their_country(code: str, tag: str) -> None:
    assert language_tag(code) == tag
