"""OBS Studio: stream captions and a text source, through restarts, and what is wrong with it."""

import math

import pytest

from streamer.outputs.sink import Delivered, Later, Refused
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
        output.put(ready())
        output.put(numbered(1))
        stand_in.wait_for(1)
        stand_in.stop()
        output.put(numbered(2))
        wait_failing(output)
        stand_in.start()
        output.put(LONG)
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
            output.put(numbered(1))
    assert (stand_in.texts, stand_in.captions) == (["Words 1."], [])


def test_a_final_that_failed_in_the_middle_is_continued() -> None:
    with ObsStandIn() as stand_in:
        sink = obs(stand_in)
        stand_in.room = 1
        assert isinstance(sink.deliver(LONG), Refused)
        stand_in.room = math.inf
        assert sink.deliver(LONG) == Delivered()
        sink.close()
    assert " ".join(stand_in.captions) == LONG.text


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "outputs.obs_password"),
        ({"password": "mustard"}, "password"),
        ({"password": "sesame", "text_source": "Captoins"}, "No source was found"),
    ],
)
def test_what_obs_refuses_is_a_refusal_without_secrets(given: dict[str, str], why: str) -> None:
    with ObsStandIn("sesame") as stand_in:
        answer = obs(stand_in, **given).deliver(numbered(1))
    assert isinstance(answer, Refused)
    assert why in answer.reason
    assert "mustard" not in answer.reason


def test_another_program_or_none_may_be_obs_later() -> None:
    with ObsStandIn() as stand_in:
        stand_in.rubbish = True
        assert isinstance(obs(stand_in).deliver(numbered(1)), Later)
    assert isinstance(obs(stand_in).deliver(numbered(1)), Later)
    with WebStandIn(lambda request: (200, b"")) as web:
        assert isinstance(obs(web).deliver(numbered(1)), Later)


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
    answer = Obs(target(url)).deliver(ready())
    assert isinstance(answer, Later)
    assert f" {place} " in answer.reason


def test_the_challenge_is_answered_as_the_protocol_says() -> None:
    # The challenge of the protocol's document, and what its clients answer.
    salt, challenge = "lM1GncleQOaCu9lT1yeUZhFYnqhsLLP1G5lAGo3ixaI=", "+IxH4CnCiqpX1rM9scsNynZzbOe4KhDeYcTNS3PDaeY="
    expected = "1Ct943GAT+6YQUUX47Ia/ncufilbe6+oD6lY+5kaCu4="
    assert authentication("supersecretpassword", salt, challenge) == expected
