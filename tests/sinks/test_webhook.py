"""Finals as signed JSON, and receivers that fail."""

import base64
import hashlib
import hmac
import json
import re
import threading
import time
from typing import Any

import pytest

from streamer.errors import ConfigError
from streamer.events import from_json
from streamer.sinks.webhook import Webhook, signature
from tests.daemon import REPOSITORY
from tests.sinks.stand_ins import (
    CUT,
    LONG_S,
    Answer,
    Request,
    WebStandIn,
    final,
    sending,
    spoken,
    warnings,
)


def webhook(stand_in: WebStandIn, secret: str = "") -> Webhook:
    return Webhook(f"http://127.0.0.1:{stand_in.port}/hook", secret)


def test_a_webhook_gets_signed_json_and_knows_what_it_has() -> None:
    taken: dict[str, Request] = {}
    faults: list[Answer] = [CUT, (500, b"busy"), (429, b"")]
    third = threading.Event()

    def answer(request: Request) -> Answer:
        taken.setdefault(request.headers["idempotency-key"], request)
        if len(taken) == 3:
            third.set()
        return faults.pop(0) if faults else (204, b"")

    with WebStandIn(answer) as stand_in, sending(webhook(stand_in, "hush")) as output:
        for number in (1, 2, 3):
            output.handle(final(number))
        assert third.wait(LONG_S)
        stand_in.stop()
        output.handle(spoken(4, "Again", "there."))
        stand_in.start()
    assert [from_json(request.body) for request in taken.values()] == [
        *(final(1), final(2), final(3)),
        spoken(4, "Again", "there."),
    ]
    assert list(taken) == ['"s-1"', '"s-2"', '"s-3"', '"s-4"']
    for request in stand_in.requests:
        name, at = request.headers["webhook-id"], request.headers["webhook-timestamp"]
        digest = hmac.new(b"hush", f"{name}.{at}.".encode() + request.body, hashlib.sha256).digest()
        assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
        assert abs(int(at) - time.time()) < 3600
        assert f'"{name}"' == request.headers["idempotency-key"]
        assert request.headers["content-type"] == "application/json"


def test_signatures_are_those_of_standard_webhooks() -> None:
    # The example of the specification's libraries.
    key = base64.b64decode("plJ3nmyCDGBKInavdOK15jsl")
    body = b'{"event_type":"ping","data":{"success":true}}'
    expected = "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="
    assert signature(key, "msg_loFOjxBNrRLzqYUf", "1731705121", body) == expected
    with pytest.raises(ConfigError, match=r"outputs\.webhook_secret is not base64"):
        Webhook("http://127.0.0.1:1/", "whsec_?")


def test_who_is_slow_or_asks_elsewhere_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    answers: list[Answer] = [(301, b""), (200, b"x" * 200_000), (200, b"")]

    def answer(request: Request) -> Answer:
        assert release.wait(LONG_S)
        return answers.pop(0)

    with WebStandIn(answer) as stand_in, sending(webhook(stand_in)) as output:
        for number in (1, 2):
            output.handle(final(number))
        release.set()  # only now it answers: nobody waited for it
    assert [json.loads(request.body)["segment"] for request in stand_in.requests] == [1, 1, 2]
    assert "webhook-signature" not in stand_in.requests[0].headers
    assert warnings(caplog)[0].startswith("output there: 127.0.0.1 answers 301 Moved Permanently;")


def test_the_documented_receiver_knows_what_is_ours() -> None:
    text = (REPOSITORY / "docs" / "outputs.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    receiver: dict[str, Any] = {}
    exec(code, receiver)
    headers = {"webhook-id": "a", "webhook-timestamp": "1", "webhook-signature": signature(b"hush", "a", "1", b"{}")}
    assert receiver["is_ours"](headers, b"{}", "hush")
    assert not receiver["is_ours"](headers, b"{ }", "hush")
    assert not receiver["is_ours"](headers, b"{}", "hash")
