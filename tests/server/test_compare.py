"""What is answered at /v1/compare."""

from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from streamer.errors import UnknownModelError
from streamer.server.rest import COMPARE_PATH
from tests.server.support import serving


class Comparer:
    """Takes notes of what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, str, Sequence[str], str | None, str]] = []

    async def compare(self, path: Path, name: str, models: Sequence[str], reference: str | None, format: str) -> str:
        if "nothing" in models:
            raise UnknownModelError("there is no model 'nothing'")
        self.asked.append((path.read_bytes(), name, models, reference, format))
        return "é"


async def post(comparer: Comparer, data: dict[str, str | list[str]]) -> httpx.Response:
    async with serving(comparer=comparer) as server, httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        return await client.post(COMPARE_PATH, data=data, files={"file": ("talk.wav", b"sound")})


async def test_a_form_is_a_comparison() -> None:
    comparer = Comparer()
    response = await post(comparer, {"models": ["a,b", "c"], "reference": "Yes."})
    assert (response.status_code, response.text) == (200, "é")
    assert response.headers["content-type"] == "application/json"
    assert comparer.asked == [(b"sound", "talk.wav", ["a,b", "c"], "Yes.", "json")]


async def test_a_page_may_do_nothing() -> None:
    comparer = Comparer()
    response = await post(comparer, {"models": "a", "format": "html"})
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "sandbox" in policy
    assert comparer.asked[0][3:] == (None, "html")


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        ({"models": "a", "format": "pdf"}, 400, "expected json or html"),
        ({"models": "nothing"}, 404, "there is no model"),
    ],
)
async def test_an_error_is_answered_in_one_line(data: dict[str, str | list[str]], status: int, message: str) -> None:
    response = await post(Comparer(), data)
    assert response.status_code == status
    assert message in response.json()["error"]
