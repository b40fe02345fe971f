"""OBS Studio: stream captions and a text source, through restarts, and what is wrong with it."""

import math

import pytest

from streamer.errors import PeerError, RefusalError
from streamer.plugins.obs.sink import Obs, authentication
from tests.builders import ready
from tests.targets import target
from tests.unit.outputs.stand_ins import ObsStandIn, WebStandIn, numbered, sending, spoken, wait_failing, warnings

LONG = spoken(3, *["caption"] * 30)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.plugins.obs.sink.PAUSE_S", 0.0)


def obs(stand_in: ObsStandIn | WebStandIn, password: str = "", text_source: str = "") -> Obs:
    return Obs(target(f"127.0.0.1:{stand_in.port}", obs_password=password, obs_text_source=text_source))


def test_obs_gets_each_final_once_through_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    with (
        ObsStandIn("sesame", ("Captions",)) as stand_in,
        sending(obs(stand_in, password="sesame", text_source="Captions")) as output,
    ):
        output.handle(ready())
        output.handle(numbered(1))
        stand_in.wait_for(1)
        stand_in.stop()
        output.handle(numbered(2))
        wait_failing(output)
        stand_in.start()
        output.handle(LONG)
    assert stand_in.captions[:2] == ["Words 1.", "Words 2."]
    assert " ".join(stand_in.captions[2:]) == LONG.text  # nothing of it was cut off
    assert len(stand_in.captions) == 4
    assert stand_in.texts == ["Words 1.", "Words 2.", LONG.text]
    assert stand_in.n_identified == 2
    assert warnings(caplog)[1:] == ["output there works again"]


def test_obs_that_does_not_stream_still_shows_its_text_source() -> None:
    with ObsStandIn(sources=("Captions",)) as stand_in:
        stand_in.room = 0
        with sending(obs(stand_in, text_source="Captions")) as output:
            output.handle(numbered(1))
    assert (stand_in.texts, stand_in.captions) == (["Words 1."], [])


def test_a_final_that_failed_in_the_middle_is_continued() -> None:
    with ObsStandIn() as stand_in:
        sink = obs(stand_in)
        stand_in.room = 1
        with pytest.raises(RefusalError):
            sink.handle(LONG)
        stand_in.room = math.inf
        sink.handle(LONG)
        sink.close()
    assert " ".join(stand_in.captions) == LONG.text


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ({}, RefusalError, "outputs.obs_password"),
        ({"password": "mustard"}, RefusalError, "password"),
        ({"password": "sesame", "text_source": "Captoins"}, RefusalError, "No source was found"),
    ],
)
def test_what_obs_refuses_is_a_refusal_without_secrets(given: dict[str, str], error: type[PeerError], why: str) -> None:
    with ObsStandIn("sesame") as stand_in, pytest.raises(error) as refused:
        obs(stand_in, **given).handle(numbered(1))
    assert why in str(refused.value)
    assert "mustard" not in str(refused.value)


def test_another_program_or_none_is_an_error() -> None:
    with ObsStandIn() as stand_in:
        stand_in.rubbish = True
        with pytest.raises(PeerError):
            obs(stand_in).handle(numbered(1))
    with pytest.raises(PeerError):
        obs(stand_in).handle(numbered(1))
    with WebStandIn(lambda request: (200, b"")) as web, pytest.raises(PeerError):
        obs(web).handle(numbered(1))


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("127.0.0.1", "127.0.0.1:4455"),
        ("[::1]", "[::1]:4455"),
        ("ws://localhost", "localhost:4455"),
        ("localhost:1", "localhost:1"),
        ("wss://localhost/obs", "localhost:443"),
    ],
)
def test_the_usual_port_is_that_of_obs(monkeypatch: pytest.MonkeyPatch, url: str, place: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("refused")

    monkeypatch.setattr("streamer.plugins.obs.sink.connect", refuse)
    with pytest.raises(PeerError) as refused:
        Obs(target(url)).handle(ready())
    assert f" {place} " in str(refused.value)


def test_the_challenge_is_answered_as_the_protocol_says() -> None:
    # The challenge of the protocol's document, and what its clients answer.
    salt, challenge = "lM1GncleQOaCu9lT1yeUZhFYnqhsLLP1G5lAGo3ixaI=", "+IxH4CnCiqpX1rM9scsNynZzbOe4KhDeYcTNS3PDaeY="
    expected = "1Ct943GAT+6YQUUX47Ia/ncufilbe6+oD6lY+5kaCu4="
    assert authentication("supersecretpassword", salt, challenge) == expected
