"""OBS Studio: stream captions and a text source, through restarts, and what is wrong with it."""

import math
import re

import pytest

from streamer.errors import ConfigError, PeerError, RefusalError
from streamer.plugins.obs.sink import Obs, authentication
from tests.builders import ready
from tests.targets import target
from tests.unit.outputs.stand_ins import ObsStandIn, WebStandIn, numbered, sending, spoken, wait_failing, warnings

READY = ready()


def obs(stand_in: ObsStandIn, password: str = "", text_source: str = "") -> Obs:
    return Obs(target(f"127.0.0.1:{stand_in.port}", obs_password=password, obs_text_source=text_source))


def test_obs_gets_each_final_once_through_a_restart(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.plugins.obs.sink.PAUSE_S", 0.0)
    long = spoken(3, *["caption"] * 30)
    with (
        ObsStandIn("sesame", ("Captions",)) as stand_in,
        sending(obs(stand_in, password="sesame", text_source="Captions")) as output,
    ):
        output.handle(READY)
        output.handle(numbered(1))
        stand_in.wait_for(1)
        stand_in.stop()
        output.handle(numbered(2))
        wait_failing(output)
        stand_in.start()
        output.handle(long)
    assert stand_in.captions[:2] == ["Words 1.", "Words 2."]
    assert " ".join(stand_in.captions[2:]) == long.text  # nothing of it was cut off
    assert len(stand_in.captions) == 4
    assert stand_in.texts == ["Words 1.", "Words 2.", long.text]
    assert stand_in.n_identified == 2
    assert warnings(caplog)[1:] == ["output there works again"]


def test_obs_that_does_not_stream_still_shows_its_text_source() -> None:
    with ObsStandIn(sources=("Captions",)) as stand_in:
        stand_in.room = 0
        with sending(obs(stand_in, text_source="Captions")) as output:
            output.handle(numbered(1))
        sink = obs(stand_in)
        with pytest.raises(RefusalError, match="is not streaming: captions begin with the stream"):
            sink.handle(numbered(1))
        stand_in.room = math.inf
        sink.handle(numbered(1))
        with pytest.raises(RefusalError, match=r"refuses SetInputSettings \(600 No source was found\.\)"):
            obs(stand_in, text_source="Captoins").handle(numbered(1))
        sink.close()
    assert (stand_in.texts, stand_in.captions) == (["Words 1."], ["Words 1."])


def test_a_final_that_failed_in_the_middle_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.plugins.obs.sink.PAUSE_S", 0.0)
    long = spoken(1, *["caption"] * 30)
    with ObsStandIn() as stand_in:
        sink = obs(stand_in)
        stand_in.room = 1
        with pytest.raises(RefusalError, match="is not streaming"):
            sink.handle(long)
        stand_in.room = math.inf
        sink.handle(long)
        sink.close()
    assert " ".join(stand_in.captions) == long.text


def test_obs_says_what_is_wrong_with_the_password_and_with_other_programs() -> None:
    with ObsStandIn("sesame") as stand_in:
        with pytest.raises(RefusalError, match=r"asks for a password: set outputs\.obs_password"):
            obs(stand_in).handle(READY)
        with pytest.raises(RefusalError, match="refuses the password") as refused:
            obs(stand_in, password="mustard").handle(READY)
        assert "mustard" not in str(refused.value)
        stand_in.rubbish = True
        with pytest.raises(PeerError, match="answers what is not obs-websocket 5"):
            obs(stand_in).handle(numbered(1))
    with pytest.raises(PeerError, match="cannot be reached"):
        obs(stand_in).handle(numbered(1))
    with WebStandIn(lambda request: (200, b"")) as web, pytest.raises(PeerError, match="cannot be reached"):
        Obs(target(f"ws://127.0.0.1:{web.port}")).handle(READY)
    with pytest.raises(ConfigError, match=r"outputs\.obs_url is not an address"):
        Obs(target("http://127.0.0.1"))


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
    with pytest.raises(PeerError, match=re.escape(f"OBS at {place} cannot be reached (refused)")):
        Obs(target(url)).handle(READY)


def test_the_challenge_is_answered_as_the_protocol_says() -> None:
    # The challenge of the protocol's document, and what its clients answer.
    salt, challenge = "lM1GncleQOaCu9lT1yeUZhFYnqhsLLP1G5lAGo3ixaI=", "+IxH4CnCiqpX1rM9scsNynZzbOe4KhDeYcTNS3PDaeY="
    expected = "1Ct943GAT+6YQUUX47Ia/ncufilbe6+oD6lY+5kaCu4="
    assert authentication("supersecretpassword", salt, challenge) == expected
