"""What all outputs share: `--to`, the queue, what is tried again, what is dropped, and what of it is told."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from streamer.engine.eventlog import EventLog
from streamer.errors import ConfigError, PeerError, RefusalError
from streamer.events import End, Event, Final, Gap, Speech
from streamer.outputs import outputs as module
from streamer.outputs.outputs import MAX_WAITING, MAX_WAITING_LIVE, Output, Outputs, parse_target
from streamer.outputs.target import read_secret
from streamer.plugins.obs.sink import Obs
from streamer.plugins.web.sinks import Webhook, YouTube, Zoom
from streamer.settings.load import load_settings
from streamer.settings.table import Settings
from tests.builders import final as said
from tests.builders import partial, ready
from tests.unit.outputs.stand_ins import final, warnings
from tests.waiting import WAIT_S


class Peer:
    """A sink that fails as it is told to, and then takes what comes."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.taken: list[Event] = []
        self.closed = False
        self.n_calls = 0
        # Cleared: whoever hands over an event waits.
        self.open = threading.Event()
        self.open.set()
        self.changed = threading.Condition()

    def handle(self, event: Event) -> None:
        with self.changed:
            self.n_calls += 1
            self.changed.notify_all()
        assert self.open.wait(WAIT_S)
        if self.errors:
            raise self.errors.pop(0)
        with self.changed:
            self.taken.append(event)
            self.changed.notify_all()

    def close(self) -> None:
        self.closed = True

    def wait_for(self, happened: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(happened, WAIT_S)


def output(peer: Peer, limit: int = 10) -> Output:
    return Output("peer", peer, limit=limit, first_delay_s=0.001)


def finish(made: Output) -> None:
    made.close(time.monotonic() + WAIT_S)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("obs", ("obs", "")),
        ("obs:ws://host:4455", ("obs", "ws://host:4455")),
        ("zoom", ("zoom", "")),
        ("webhook:https://a.example/hook?x=1", ("webhook", "https://a.example/hook?x=1")),
        ("hls:live", ("hls", "live")),
        ("captions.srt", ("file", "captions.srt")),
        (r"C:\talks\Monday.VTT", ("file", r"C:\talks\Monday.VTT")),
        ("file:a.txt", ("file", "a.txt")),
    ],
)
def test_a_target_is_a_kind_and_where(text: str, target: tuple[str, str]) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text", ["", "twitch", "captions.doc", "https://wmcc.example/closedcaption?signature=SECRET.txt"]
)
def test_an_unknown_output_is_refused_without_its_address(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not an output: expected hls, obs, .* \.jsonl") as refused:
        parse_target(text)
    assert "SECRET" not in str(refused.value)


def test_the_flag_is_given_once_for_each_output(tmp_path: Path) -> None:
    settings = load_settings(None, {}, {"outputs.to": ["obs", "webhook:https://a.example/?a=1,2"]})
    assert settings.outputs.to == ("obs", "webhook:https://a.example/?a=1,2")
    assert load_settings(None, {"STREAMER_OUTPUTS_TO": "obs,a.srt"}, {}).outputs.to == ("obs", "a.srt")


def test_a_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("hush\n", encoding="utf-8")
    assert read_secret(f"@{path}", "outputs.webhook_secret") == "hush"
    assert read_secret("as it is", "outputs.webhook_secret") == "as it is"
    with pytest.raises(ConfigError, match=r"outputs\.webhook_secret names a file that cannot be read"):
        read_secret(f"@{path}.gone", "outputs.webhook_secret")


def test_events_come_once_and_in_order_without_partials() -> None:
    peer = Peer()
    made = output(peer)
    events = [final(1), Gap(start=1.0, end=2.0, reason="paused"), final(2), End()]
    for event in events:
        made.handle(event)
    finish(made)
    assert peer.taken == events
    assert peer.closed
    assert (made.n_sent, made.n_dropped, made.n_failures) == (2, 0, 0)


def test_a_failure_is_retried_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer(PeerError("it is gone"), OSError("still gone"), PeerError("it answers rubbish"))
    made = output(peer)
    for number in (1, 2, 3):
        made.handle(final(number))
    finish(made)
    assert peer.taken == [final(1), final(2), final(3)]
    assert made.n_failures == 3
    assert warnings(caplog) == [
        "output peer: it is gone; captions go on, and it is tried again",
        "output peer works now",
    ]


def test_the_publisher_never_waits_and_the_oldest_events_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer()
    peer.open.clear()
    made = output(peer, limit=3)
    made.handle(final(1))
    peer.wait_for(lambda: peer.n_calls == 1)  # it holds the first one up
    for number in range(2, 8):
        made.handle(final(number))
    peer.open.set()
    finish(made)
    assert peer.taken == [final(number) for number in (1, 5, 6, 7)]
    assert made.n_dropped == 3
    assert warnings(caplog) == [
        "output peer: finals are dropped (it refuses them, or more than 3 wait)",
        "output peer works now; 3 finals are missing there",
    ]


def test_what_is_refused_over_and_over_is_dropped_and_does_not_pile_up(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer(*[RefusalError("the meeting has not begun")] * (module.MAX_REFUSALS + 2))
    made = output(peer)
    for number in (1, 2, 3, 4):
        made.handle(final(number))
    finish(made)
    assert peer.taken == [final(4)]  # the first was tried five times, the next two once each
    assert made.n_dropped == 3
    assert warnings(caplog)[-1] == "output peer works now; 3 finals are missing there"


def test_it_works_again_only_when_a_final_was_accepted(caplog: pytest.LogCaptureFixture) -> None:
    class Away(Peer):
        def handle(self, event: Event) -> None:
            if isinstance(event, Final) and event.text:  # it leaves other events out
                super().handle(event)

    peer = Away(*[RefusalError("it is gone")] * (module.MAX_REFUSALS + 1))
    made = output(peer)
    for number in (1, 2, 3):
        made.handle(Speech(state="start", time=1.0))
        made.handle(final(number))
        made.handle(msgspec.structs.replace(final(number), text=""))
    peer.wait_for(lambda: bool(peer.taken))
    finish(made)
    assert peer.taken == [final(3)]  # the first was tried five times, the next one once
    assert warnings(caplog) == [
        "output peer: it is gone; captions go on, and it is tried again",
        "output peer: finals are dropped (it refuses them, or more than 10 wait)",
        "output peer works now; 2 finals are missing there",
    ]


def test_a_bug_costs_the_event_that_it_met_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer(KeyError("words"))
    made = output(peer)
    made.handle(final(1))
    made.handle(final(2))
    finish(made)
    assert peer.taken == [final(2)]
    assert "KeyError" in caplog.text


def test_the_end_waits_no_longer_than_it_may_and_says_what_was_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer(*[PeerError("it is gone")] * 1000)
    made = Output("peer", peer, first_delay_s=WAIT_S)
    made.handle(final(1))
    made.handle(final(2))
    peer.wait_for(lambda: peer.n_calls == 1)
    made.close(time.monotonic())
    assert made.n_dropped == 2
    assert warnings(caplog)[-1] == "output peer: the last 2 finals were not sent"
    made.handle(final(3))  # too late, and harmless
    assert made.n_dropped == 2


def test_outputs_get_all_events_except_partials_and_know_the_time_of_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    peers: list[Peer] = []

    def make(*_: object) -> Peer:
        peers.append(Peer())
        return peers[-1]

    now_s = [1000.0]
    monkeypatch.setattr(module.Outputs, "_make_sink", make)
    monkeypatch.setattr("streamer.outputs.outputs.time.time", lambda: now_s[0])
    made = Outputs(Settings().having({"outputs.to": ("webhook:http://a", "webhook:http://b", "talk/a.srt")}))
    assert [each.name for each in made.all] == ["webhook", "webhook (2)", "a.srt"]
    made.handle(ready())
    now_s[0] = 1004.0  # the audio began at 1000.2, and a partial of its second 3 came first
    made.handle(partial("Wor", start=2.0, end=3.8))
    now_s[0] = 1005.5
    made.handle(final(3))
    made.handle(Speech(state="end", time=4.0))
    assert made.said_at(3.0) == pytest.approx(1003.2)
    made.close()
    assert [[event.type for event in peer.taken] for peer in peers] == [["ready", "final", "speech"]] * 3


def test_a_slow_terminal_is_shown_the_newest_partial_only() -> None:
    peer, log, made = Peer(), EventLog("s", 100), Outputs(Settings())
    peer.open.clear()
    made.draw(peer, limit=100)
    log.subscribe(made.handle)
    log.append(partial("a", segment=1))
    peer.wait_for(lambda: peer.n_calls == 1)  # it holds the first one up
    for _ in range(1000):
        log.append(partial("a", segment=1))
    log.append(said(segment=1))
    log.append(partial("a", segment=2))
    peer.open.set()
    made.close()
    assert [event.seq for event in peer.taken] == [1, 1002, 1003]
    assert peer.closed


def test_a_terminal_that_stood_still_misses_no_final() -> None:
    peer, log, made = Peer(), EventLog("s", 100), Outputs(Settings())
    peer.open.clear()
    made.draw(peer, limit=100)
    log.subscribe(made.handle)
    log.append(said(segment=1))
    peer.wait_for(lambda: peer.n_calls == 1)
    for segment in range(2, 100):
        log.append(partial("a", segment=segment))
        log.append(said(segment=segment))
    log.close()
    peer.open.set()
    made.close()
    assert [event.seq for event in peer.taken] == [1, *range(3, 199, 2), 198]
    assert made.all[0].n_dropped == 0


def test_a_sink_that_acts_when_time_passes_is_called_while_no_event_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Ticking(Peer):
        n_ticks = 0

        def tick(self) -> None:
            with self.changed:
                self.n_ticks += 1
                self.changed.notify_all()
            raise OSError("the disk is full")

    monkeypatch.setattr(module, "TICK_S", 0.001)
    peer = Ticking()
    made = output(peer)
    peer.wait_for(lambda: peer.n_ticks == 3)
    made.handle(final(1))
    finish(made)
    assert peer.taken == [final(1)]
    assert warnings(caplog)[0] == "output peer: the disk is full; captions go on, and it is tried again"


def test_settings_make_each_kind() -> None:
    to = ("obs", "zoom", "youtube:http://127.0.0.1:1/closedcaption?cid=x", "webhook:http://127.0.0.1:1/")
    made = Outputs(Settings().having({"outputs.to": to, "outputs.zoom_url": "https://127.0.0.1:1/closedcaption"}))
    assert [type(output._sink) for output in made.all] == [Obs, Zoom, YouTube, Webhook]
    assert [output._limit for output in made.all] == [*[MAX_WAITING_LIVE] * 3, MAX_WAITING]
    made.close()
    with pytest.raises(ConfigError, match=r"outputs\.zoom_url is empty"):
        Outputs(Settings().having({"outputs.to": ("zoom",)}))
