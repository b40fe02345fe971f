"""The tools of clusters run, and judge what a client saw."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from streamer.events import End, Event, Speech
from tests.builders import final, ready
from tools.cluster.faults import main
from tools.cluster.judge import Judgement, judge
from tools.cluster.sessions import Received
from tools.simulate_cluster import main as simulate

SAID = "one two three four five six seven eight nine ten"


def received(text: str, *, silent_s: float = 0.0) -> Received:
    """Return what a client sees whose text is one final; `silent_s`: how late the end of speech comes."""
    start, end = Speech(state="start", time=0.0), Speech(state="end", time=5.0)
    devices = dict.fromkeys(("encoder", "cross_kv", "decoder"), "CPU")
    said = final(text, segment=1, end=5.0)
    events: list[tuple[float, Event]] = [(0.1, ready(device=devices)), (0.2, start), (3.0, said)]
    events += [(4.0 + silent_s, end), (4.0 + silent_s, End())]
    return Received(events=[(at_s, event.stamped(i, "s1")) for i, (at_s, event) in enumerate(events, 1)])


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (SAID, (0, 0, 0)),
        ("one two three seven eight nine ten", (3, 0, 0)),
        ("one two three four five six four five six seven eight nine ten", (0, 3, 0)),
        ("one too three four five sixty seven eight nine ten", (0, 0, 2)),
        ("once four six oh so many nine ten", (0, 0, 8)),  # transcribed otherwise
    ],
)
def test_words_are_lost_doubled_or_only_differ(text: str, counts: tuple[int, int, int]) -> None:
    found = judge(received(text), [received(SAID)], 5.0)
    assert (found.lost, found.doubled, found.differing, found.broken) == (*counts, "")


def test_stalls_the_log_and_failures_count() -> None:
    events = [event for _, event in received(SAID).events]
    assert judge(received(SAID, silent_s=3.0), [received(SAID)], 9.0, events).stall_s == 3.0
    assert judge(received(SAID), [received(SAID)], 5.0, events[:-2]).unlike_log == 2
    assert not judge(replace(received(SAID), failure="BusyError"), [received(SAID)], 5.0).well


def test_the_tools_print_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"fault": "drain", "sessions": [asdict(Judgement(words=10, stall_s=2.0))]}
    (tmp_path / "out").write_text(json.dumps(line), encoding="utf-8")
    assert main(["--report", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("| drain | 1 (1) | 10 |")
    assert simulate(["--machines", "10", "--cell", "10", "--sessions", "500"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
