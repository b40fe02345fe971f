"""What all outputs share: `--to`, the queue, what is retried, what is dropped, and what of it is logged."""

import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.engine.eventlog import EventLog
from streamer.events import End, Event, Final, Gap, Speech
from streamer.outputs import outputs as module
from streamer.outputs.outputs import MAX_REFUSALS, Output, Outputs, parse_target, retry_delays
from streamer.outputs.sink import MAX_WAITING, MAX_WAITING_LIVE, Answer, Delivered, Later, Refused, Sink
from streamer.plugins.obs.sink import Obs
from streamer.plugins.web.sinks import Webhook, YouTube, Zoom
from streamer.settings.load import load_settings
from streamer.settings.table import OutputsSettings, Settings
from tests.builders import final, partial, ready
from tests.unit.outputs.stand_ins import finish, numbered, warnings
from tests.waiting import WAIT_S, wait_until

# What a sink answers, or raises, by a letter.
FAULTS: dict[str, Answer | Exception] = {
    "p": Later("it is gone"),
    "o": OSError("disk full"),
    "r": Refused("not yet"),
    "b": KeyError("words"),
    ".": Delivered(),
}


class Peer(Sink):
    """A sink that fails by script, and then accepts what comes."""

    def __init__(self, faults: str = "", *, max_waiting: int = 10, partials: bool = False) -> None:
        self.max_waiting = max_waiting
        self.partials = partials
        self.faults = [FAULTS[letter] for letter in faults]
        self.taken: list[Event] = []
        self.closed = False
        self.n_calls = 0
        # Cleared: it hangs.
        self.open = threading.Event()
        self.open.set()

    def deliver(self, event: Event) -> Answer:
        self.n_calls += 1
        assert self.open.wait(WAIT_S)
        answer = self.faults.pop(0) if self.faults else Delivered()
        if isinstance(answer, Exception):
            raise answer
        if answer == Delivered():
            self.taken.append(event)
        return answer

    def close(self) -> None:
        self.closed = True


def output(peer: Peer) -> Output:
    return Output("peer", peer, first_delay_s=1e-4)


def expected(events: list[Event], faults: str) -> tuple[list[Event], int, int]:
    """Return what a sink with these faults accepts, and how many finals are dropped and calls fail."""
    script = iter(faults)
    taken: list[Event] = []
    n_dropped = n_failures = 0
    refusing = False
    for event in events:
        n_left = 1 if refusing else MAX_REFUSALS
        while (fault := next(script, ".")) != ".":
            n_failures += 1
            n_left -= fault in "rb"
            if not n_left:
                n_dropped += isinstance(event, Final)
                refusing = True
                break
        else:
            taken.append(event)
            refusing = refusing and not isinstance(event, Final)
    return taken, n_dropped, n_failures


@given(st.text("fgs", max_size=6), st.text("".join(FAULTS) + "rrr", max_size=18))
def test_each_event_comes_once_and_in_order_unless_it_is_refused_over_and_over(kinds: str, faults: str) -> None:
    kind: dict[str, Callable[[int], Event]] = {
        "f": numbered,
        "g": lambda n: Gap(start=n, end=n + 1.0, reason="paused"),
        "s": lambda n: Speech(state="start", time=n),
    }
    events = [kind[letter](i) for i, letter in enumerate(kinds)]
    peer = Peer(faults)
    made = output(peer)
    for event in events:
        made.put(event)
    finish(made)
    assert peer.closed
    assert (peer.taken, made.n_dropped, made.n_failures) == expected(events, faults)
    assert made.n_sent == sum(isinstance(event, Final) for event in peer.taken)


@pytest.mark.parametrize(
    ("faults", "n_warnings", "last"),
    [
        ("", 0, ""),
        ("pop", 2, "output peer works now"),
        (".p", 2, "output peer works again"),
        ("r" * (MAX_REFUSALS + 1), 3, "output peer works now; 2 finals are missing there"),
        ("b", 2, "output peer works now"),
    ],
)
def test_an_outage_is_logged_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture, faults: str, n_warnings: int, last: str
) -> None:
    peer = Peer(faults)
    made = output(peer)
    for number in range(3):
        made.put(numbered(number))
    wait_until(lambda: bool(peer.taken))  # what is dropped at the end is logged otherwise
    finish(made)
    assert len(warnings(caplog)) == n_warnings
    assert "".join(warnings(caplog)[-1:]) == last


def test_an_output_works_again_only_when_a_final_with_words_was_accepted(caplog: pytest.LogCaptureFixture) -> None:
    made = output(Peer("r" * MAX_REFUSALS))
    for event in (numbered(1), Speech(state="start", time=1.0), numbered(2, " ")):
        made.put(event)
    finish(made)
    assert not any("works" in line for line in warnings(caplog))
    assert (made.n_sent, made.n_dropped) == (0, 1)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("obs", ("obs", "")),
        ("webhook:https://a.example/hook?x=1", ("webhook", "https://a.example/hook?x=1")),
        ("captions.srt", ("file", "captions.srt")),
        (r"C:\talks\Monday.VTT", ("file", r"C:\talks\Monday.VTT")),
        ("file:a.txt", ("file", "a.txt")),
    ],
)
def test_a_target_is_a_kind_and_where(text: str, target: tuple[str, str]) -> None:
    assert parse_target(text) == target


def test_the_publisher_never_waits_and_the_oldest_events_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer(max_waiting=3)
    peer.open.clear()
    made = output(peer)
    made.put(numbered(1))
    wait_until(lambda: peer.n_calls == 1)  # it holds the first one up
    for number in range(2, 8):
        made.put(numbered(number))
    peer.open.set()
    finish(made)
    assert peer.taken == [numbered(number) for number in (1, 5, 6, 7)]
    assert made.n_dropped == 3
    assert len(warnings(caplog)) == 2


def test_the_end_waits_no_longer_than_it_may_and_counts_what_was_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer("p" * 1000)
    made = Output("peer", peer, first_delay_s=WAIT_S)
    made.put(numbered(1))
    made.put(numbered(2))
    wait_until(lambda: peer.n_calls == 1)
    made.end(time.monotonic())
    made.put(numbered(3))  # too late, and harmless
    made.join()
    assert made.n_dropped == 2
    assert "the last 2 finals" in warnings(caplog)[-1]


def test_outputs_get_all_events_except_partials_and_know_the_time_of_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    peers: list[Peer] = []

    def make(*_: object) -> Peer:
        peers.append(Peer())
        return peers[-1]

    now_s = [1000.0]
    monkeypatch.setattr(module.Outputs, "_make_sink", make)
    monkeypatch.setattr("streamer.outputs.outputs.time.time", lambda: now_s[0])
    made = Outputs(Settings(outputs=OutputsSettings(to=("webhook:http://a", "webhook:http://b", "talk/a.srt"))))
    assert [each.name for each in made.all] == ["webhook", "webhook (2)", "a.srt"]
    made.put(ready())
    now_s[0] = 1004.0  # the audio began at 1000.2, and a partial of its second 3 came first
    made.put(partial("Wor", start=2.0, end=3.8))
    now_s[0] = 1005.5
    made.put(numbered(3))
    made.put(Speech(state="end", time=4.0))
    assert made.said_at(3.0) == pytest.approx(1003.2)
    made.close()
    assert [[event.type for event in peer.taken] for peer in peers] == [["ready", "final", "speech"]] * 3


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        # What stood still is shown the newest partial only ...
        ([partial("a", segment=1)] * 1000 + [final(segment=1), partial("a", segment=2)], [1, 1002, 1003]),
        # ... and misses no final.
        (
            [event for n in range(2, 100) for event in (partial("a", segment=n), final(segment=n))] + [End()],
            [1, *range(3, 199, 2), 198],
        ),
    ],
)
def test_a_slow_terminal_misses_what_is_outdated_only(events: list[Event], shown: list[int]) -> None:
    peer, log, made = Peer(max_waiting=100, partials=True), EventLog("s", 100), Outputs(Settings())
    peer.open.clear()
    made.add("terminal", peer)
    log.subscribe(made.put)
    log.append(partial("a", segment=1))
    wait_until(lambda: peer.n_calls == 1)  # it holds the first one up
    for event in events:
        log.append(event)
    peer.open.set()
    made.close()
    assert [event.seq for event in peer.taken] == shown
    assert made.all[0].n_dropped == 0


def test_a_sink_that_acts_when_time_passes_is_called_while_no_event_comes() -> None:
    class Ticking(Peer):
        tick_s = 0.001

        def tick(self) -> None:
            self.n_calls += 1
            raise OSError("the disk is full")

    peer = Ticking()
    made = output(peer)
    wait_until(lambda: peer.n_calls >= 3)
    made.put(numbered(1))
    finish(made)
    assert peer.taken == [numbered(1)]
    assert made.n_failures >= 3


def test_attempts_are_made_at_longer_and_longer_intervals() -> None:
    longest_s = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0)
    for delay_s, most_s in zip(retry_delays(0.5), longest_s, strict=False):
        assert 0.5 * most_s <= delay_s <= most_s


def test_settings_make_each_kind() -> None:
    to = ("obs", "zoom", "youtube:http://127.0.0.1:1/closedcaption?cid=x", "webhook:http://127.0.0.1:1/?a=1,2")
    made = Outputs(load_settings(None, {}, {"outputs.to": list(to), "outputs.zoom_url": "https://127.0.0.1:1/cc"}))
    assert [type(output._sink) for output in made.all] == [Obs, Zoom, YouTube, Webhook]
    assert [output._sink.max_waiting for output in made.all] == [*[MAX_WAITING_LIVE] * 3, MAX_WAITING]
    made.close()
