"""Outputs at a web address: addresses that are secrets, Zoom, YouTube, webhooks, and services that fail."""

import base64
import hashlib
import hmac
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from streamer.events import Event, Speakers, from_json
from streamer.outputs.outputs import Output
from streamer.outputs.sink import Later
from streamer.plugins.web import sinks
from streamer.plugins.web.sinks import Webhook, YouTube, Zoom, language_tag, signature
from tests.builders import ready
from tests.daemon import REPOSITORY
from tests.targets import target
from tests.unit.outputs.finals import revised
from tests.unit.outputs.stand_ins import (
    CUT,
    Answer,
    CaptionService,
    Request,
    WebStandIn,
    finish,
    numbered,
    sending,
    spoken,
    wait_failing,
    warnings,
)
from tests.waiting import WAIT_S, wait_until

QUERY = "id=1%2C2&ns=Talk&expire=9&signature=a.b%2Fc"


def answers(script: list[Answer], opened: threading.Event | None = None) -> Callable[[Request], Answer]:
    """Return what answers by script, and 204 behind it, once it is open."""

    def answer(request: Request) -> Answer:
        assert opened is None or opened.wait(WAIT_S)
        return script.pop(0) if script else (204, b"")

    return answer


def webhook(stand_in: WebStandIn, secret: str = "") -> Webhook:
    return Webhook(target(f"http://127.0.0.1:{stand_in.port}/hook?key=SECRET", webhook_secret=secret))


def zoom(stand_in: WebStandIn) -> Zoom:
    return Zoom(target(f"http://127.0.0.1:{stand_in.port}/closedcaption?{QUERY}"))


def texts(service: CaptionService) -> list[str]:
    return [request.body.decode("utf-8") for request in service.taken]


def test_a_post_that_fails_never_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = threading.Event()
    errors: list[str] = []

    def post(timeout_s: float) -> None:
        monkeypatch.setattr(sinks, "TIMEOUT_S", timeout_s)
        url = f"http://127.0.0.1:{stand_in.port}/hook?key=SECRET"
        answer = Webhook(target(url)).post(b"", {})
        assert isinstance(answer, Later)
        errors.append(answer.reason)

    with WebStandIn(answers([CUT, CUT], hang)) as stand_in:
        post(0.05)
        hang.set()
        post(WAIT_S)
        stand_in.stop()
        post(WAIT_S)
    assert "0.05 s" in errors[0]
    assert not any("SECRET" in error for error in errors)


def test_a_webhook_gets_signed_json_once_through_faults_and_restarts(caplog: pytest.LogCaptureFixture) -> None:
    faults: list[Answer] = [CUT, (500, b"busy"), (429, b""), (301, b""), (200, b"x" * 200_000)]
    events = [numbered(1), numbered(2), numbered(3), spoken(4, "Again", "there.")]
    with WebStandIn(answers(faults)) as stand_in, sending(webhook(stand_in, "hush")) as output:
        for event in events[:3]:
            output.put(event)
        wait_until(lambda: output.n_sent == 3)
        stand_in.stop()
        output.put(events[3])
        stand_in.start()
    taken = {request.headers["idempotency-key"]: request for request in stand_in.requests}
    assert [from_json(request.body) for request in taken.values()] == events
    assert list(taken) == ['"s-1"', '"s-2"', '"s-3"', '"s-4"']
    for request in stand_in.requests:
        name, at = request.headers["webhook-id"], request.headers["webhook-timestamp"]
        digest = hmac.new(b"hush", f"{name}.{at}.".encode() + request.body, hashlib.sha256).digest()
        assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
        assert abs(int(at) - time.time()) < 3600
        assert f'"{name}"' == request.headers["idempotency-key"]
        assert request.headers["content-type"] == "application/json"
    assert "SECRET" not in caplog.text


@pytest.mark.parametrize(("wanted", "delay_s"), [("7", 7.0), ("86400", sinks.MAX_RETRY_S), ("soon", 0.0)])
def test_a_service_says_when_to_come_again(wanted: str, delay_s: float) -> None:
    with WebStandIn(answers([(503, b"")]), retry_after=wanted) as stand_in:
        answer = webhook(stand_in).deliver(numbered(1))
    assert isinstance(answer, Later)
    assert answer.delay_s == delay_s


def test_webhooks_get_revisions_and_speakers_and_without_a_secret_no_signature() -> None:
    first = numbered(1)
    events: list[Event] = [first, revised(first, "One"), Speakers(same=("S2", "S1")).stamped(98, "s")]
    opened = threading.Event()
    with WebStandIn(answers([], opened)) as stand_in, sending(webhook(stand_in)) as output:
        for event in events:
            output.put(event)
        opened.set()  # only now it answers: nobody waited for it
    assert [request.headers["webhook-id"] for request in stand_in.requests] == ["s-1", "s-99", "s-98"]
    assert not any("webhook-signature" in request.headers for request in stand_in.requests)


def test_signatures_are_those_of_standard_webhooks() -> None:
    # The example of the specification's libraries.
    key = base64.b64decode("plJ3nmyCDGBKInavdOK15jsl")
    body = b'{"event_type":"ping","data":{"success":true}}'
    expected = "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="
    assert signature(key, "msg_loFOjxBNrRLzqYUf", "1731705121", body) == expected


def test_the_documented_receiver_knows_what_is_ours() -> None:
    text = (REPOSITORY / "docs" / "outputs.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def is_ours" in block]
    receiver: dict[str, Any] = {}
    exec(code, receiver)
    headers = {"webhook-id": "a", "webhook-timestamp": "1", "webhook-signature": signature(b"hush", "a", "1", b"{}")}
    given = ((b"{}", "hush"), (b"{ }", "hush"), (b"{}", "hash"))
    assert [receiver["is_ours"](headers, body, secret) for body, secret in given] == [True, False, False]


def test_youtube_gets_lines_with_their_times_by_its_own_clock() -> None:
    service = CaptionService()
    service.clock = datetime.now(UTC) + timedelta(hours=1)
    began_s = 1_700_000_000.0
    words = ["captions"] * 12
    with WebStandIn(service) as stand_in:
        url = f"http://127.0.0.1:{stand_in.port}/closedcaption?cid=x"
        with sending(YouTube(target(url, lambda position_s: began_s + position_s))) as output:
            output.put(spoken(1, *words))
            service.wait_for(1)
            service.faults = [(None, True), ((200, b"no time"), True), ((200, b"9999-12-31T23:59:59"), True)]
            for number in (2, 3, 4):  # it answers with its clock, and then rubbish
                output.put(numbered(number))
    first, *others = (text.splitlines() for text in texts(service))
    assert first == ["2023-11-14T22:13:30.000", " ".join(words[:7]), "2023-11-14T22:13:33.500", " ".join(words[7:])]
    for number, (time_text, text) in enumerate(others, 2):
        said = datetime.fromisoformat(f"{time_text}+00:00").timestamp() - began_s - number
        assert 3590 < said < 3610
        assert text == f"Words {number}."
    numbers = [int(request.query["seq"]) for request in service.taken]
    assert numbers == list(range(numbers[0], numbers[0] + 4))
    assert numbers[0] > 1_600_000_000  # and so more than in any run before


def test_zoom_gets_each_final_once_through_restarts_of_either_side(caplog: pytest.LogCaptureFixture) -> None:
    service = CaptionService()
    with WebStandIn(service) as stand_in:
        with sending(zoom(stand_in)) as output:
            output.put(ready())
            output.put(numbered(1))
            service.wait_for(1)
            stand_in.stop()
            output.put(numbered(2))
            output.put(numbered(3))
            wait_failing(output)
            stand_in.start()
            service.wait_for(3)
            service.faults = [(CUT, True), ((503, b""), False), ((200, b"<html>"), True)]  # it takes the first and dies
            output.put(numbered(4, "Grüße 4."))
            output.put(numbered(5))
        with sending(zoom(stand_in)) as output:  # the program was started again
            output.put(numbered(6))
    assert texts(service) == [f"{'Grüße' if n == 4 else 'Words'} {n}.\n" for n in range(1, 7)]
    assert [request.query["seq"] for request in service.taken] == ["1", "2", "3", "4", "5", "6"]
    assert {request.path for request in service.taken} == {"/closedcaption"}
    query = {"id": "1,2", "ns": "Talk", "expire": "9", "signature": "a.b/c"}
    assert service.taken[0].query == {**query, "seq": "1", "lang": "en-US"}
    assert service.taken[0].headers["content-type"] == "text/plain; charset=utf-8"
    assert len(warnings(caplog)) == 4
    assert "signature" not in caplog.text


def test_zoom_begins_at_one_if_it_cannot_be_asked_and_sends_nothing_old_when_the_meeting_begins() -> None:
    begun = threading.Event()
    service = CaptionService()

    def answer(request: Request) -> Answer:
        return service(request) if begun.is_set() else (400, b"meeting has not started")

    with WebStandIn(answer) as stand_in:
        output = Output("zoom", zoom(stand_in), first_delay_s=0.001)
        for number in (1, 2, 3):
            output.put(numbered(number))
        wait_until(lambda: output.n_dropped >= 3)
        begun.set()
        output.put(numbered(4))
        finish(output)
    assert texts(service) == ["Words 4.\n"]
    assert service.last == 1


@pytest.mark.parametrize(("code", "tag"), [("en", "en-US"), ("de", "de-DE"), ("ja", "ja-JP"), ("pt", "pt-BR")])
def test_zoom_has_languages_with_their_country(code: str, tag: str) -> None:
    assert language_tag(code) == tag
