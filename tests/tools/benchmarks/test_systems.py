"""Our own daemon as a system under test."""

import itertools

import pytest

from streamer.events import End, Error, Final, Gap, Partial, Speech
from tests.daemon import recording
from tools.benchmarks import systems
from tools.benchmarks.processes import ServerFailure
from tools.benchmarks.systems import Streamer, StreamerConversation

pytestmark = pytest.mark.slow


def test_our_events_are_recorded_until_the_last() -> None:
    conversation = StreamerConversation("127.0.0.1:1")
    events = [
        Speech(state="start", time=0.5),
        Partial(segment=0, start=0.5, end=1.5, text="One two", stable=3, words=()),
        Final(segment=0, start=0.5, end=2, text="One to.", words=(), language="en", no_speech_prob=0, avg_logprob=0),
        Gap(start=2, end=3, reason="overload"),
        End(),
    ]
    assert [conversation.hear(event.to_json(), i) for i, event in enumerate(events)] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert conversation.is_over(0.0)
    timeline = conversation.recorder.timeline("streamer", "it", 3.0, cpu_s=1.0, peak_rss_mb=1.0)
    assert [(r.wall_s, r.words, r.n_stable) for r in timeline.revisions] == [
        (1, ("One", "two"), 1),
        (2, ("One", "to."), 2),
    ]
    assert timeline.gaps == [(2, 3)]


def test_a_fatal_error_and_nonsense_are_failures() -> None:
    conversation = StreamerConversation("127.0.0.1:1")
    assert not conversation.hear(Error(code="device", message="slow", fatal=False).to_json(), 1.0)
    with pytest.raises(ServerFailure, match="broken"):
        conversation.hear(Error(code="device", message="broken", fatal=True).to_json(), 1.0)
    with pytest.raises(ServerFailure, match="is not an event"):
        conversation.hear("not an event", 5)


def test_the_daemon_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "WARM_UP_S", 0.5)
    system = Streamer(["--device", "CPU"])
    samples = recording(end_s=3.0)
    try:
        system.start()
        timeline = system.stream("sample", samples)
    finally:
        system.stop()
    assert timeline.audio_s == 3.0
    assert timeline.revisions[-1].words
    assert timeline.revisions[-1].n_stable == len(timeline.revisions[-1].words)
    assert timeline.revisions[-1].wall_s >= 3.0
    assert all(a.wall_s <= b.wall_s for a, b in itertools.pairwise(timeline.revisions))
    assert timeline.cpu_s > 0
    assert timeline.peak_rss_mb > 50
    assert timeline.encoder_calls
    assert timeline.decoder_calls


def test_flags_that_are_wrong_are_a_failure() -> None:
    system = Streamer(["--no-such-flag"])
    with pytest.raises(ServerFailure, match=r"streamer ended with 2: .*no-such-flag"):
        system.start()
