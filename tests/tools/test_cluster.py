"""How tools/cluster judges what a client saw, and what stands before its gateways."""

import asyncio
import dataclasses
import functools
import json
from pathlib import Path

import pytest

from streamer.events import End, Error, Event, Final, Gap, Ready, Speech, Word
from tools.benchmarks.processes import free_port
from tools.cluster.faults import report
from tools.cluster.judge import Judgement, judge
from tools.cluster.machines import Balancer
from tools.cluster.sessions import Received

SAID = "one two three four five six seven eight nine ten"


def received(text: str, *, silent_s: float = 0.0, until_s: float = 5.0, gap: bool = False) -> Received:
    """What a client sees whose text is one final, a word each half of a second."""
    spoken = tuple(
        Word(word=f" {word}", start=0.5 * i, end=0.5 * i + 0.4, probability=0.9, stable=True)
        for i, word in enumerate(text.split())
        if 0.5 * i + 0.4 <= until_s
    )
    text = "".join(word.word for word in spoken).strip()
    final = Final(
        segment=1, start=0.0, end=until_s, text=text, words=spoken, language="en", no_speech_prob=0.0, avg_logprob=-0.1
    )
    devices = {"encoder": "CPU", "cross_kv": "CPU", "decoder": "CPU"}
    ready = Ready(model="nano.en", device=devices, sample_rate=16_000, language="en")
    events: list[tuple[float, Event]] = [(0.1, ready), (0.2, Speech(state="start", time=0.0)), (3.0, final)]
    events += [(3.1, Gap(start=until_s, end=5.0, reason="device"))] if gap else []
    events.append((4.0 + silent_s, Speech(state="end", time=5.0)))
    return Received(events=[(at_s, event.stamped(i, "s1")) for i, (at_s, event) in enumerate(events, 1)])


def ended(one: Received) -> Received:
    events = [*one.events, (one.events[-1][0], End().stamped(len(one.events) + 1, "s1"))]
    return dataclasses.replace(one, events=events)


def test_the_same_is_well() -> None:
    found = judge(ended(received(SAID)), [ended(received(SAID))], 5.0)
    assert found.well, found
    assert (found.words, found.differing, found.stall_s) == (10, 0, 0.0)


def test_a_stretch_is_lost_or_doubled_and_less_is_placement() -> None:
    reference = [ended(received(SAID))]
    lost = judge(ended(received("one two three seven eight nine ten")), reference, 5.0)
    doubled = judge(ended(received("one two three four one two three four five six")), reference, 5.0)
    other = judge(ended(received("one too three four five sixty seven eight nine ten")), reference, 5.0)
    assert (lost.lost, lost.doubled, lost.well) == (3, 0, False)
    assert (doubled.lost, doubled.doubled) == (4, 4)
    assert (other.differing, other.well) == (2, True)


def test_a_stretch_that_reads_otherwise_is_neither_lost_nor_doubled() -> None:
    found = judge(ended(received("once four six oh so many nine ten")), [ended(received(SAID))], 5.0)
    assert (found.lost, found.doubled, found.differing) == (0, 0, 8)


def test_of_two_undisturbed_runs_the_nearest_counts() -> None:
    other = "one too three four five six seven eight nine ten"
    assert judge(ended(received(other)), [ended(received(SAID)), ended(received(other))], 5.0).differing == 0


def test_what_lies_in_no_final_and_no_gap_is_untold() -> None:
    untold = judge(ended(received(SAID, until_s=2.5)), [ended(received(SAID))], 5.0)
    in_gap = judge(ended(received(SAID, until_s=2.5, gap=True)), [ended(received(SAID))], 5.0)
    assert untold.untold == 5
    assert "lies in no final and no gap" in untold.broken
    assert (in_gap.untold, in_gap.broken, in_gap.gaps) == (0, "", {"device": 2.5})


def test_words_that_lie_in_a_pause_are_not_missed_there() -> None:
    events = ended(received(SAID)).events
    pause = [(2.0, Speech(state="end", time=2.5)), (2.1, Speech(state="start", time=3.3))]
    reference = Received(events=[*events[:2], *((s, e.stamped(2, "s1")) for s, e in pause), *events[2:]])
    assert judge(ended(received(SAID, until_s=2.5)), [reference], 5.0).untold == 3  # of five, two were in the pause


def test_events_are_compared_with_the_log() -> None:
    events = [event for _, event in ended(received(SAID)).events]
    assert judge(ended(received(SAID)), [ended(received(SAID))], 5.0, events).unlike_log == 0
    found = judge(ended(received(SAID)), [ended(received(SAID))], 5.0, events[:-2])
    assert (found.unlike_log, found.well) == (2, False)


def test_a_stall_is_what_is_silent_beyond_the_usual() -> None:
    assert judge(ended(received(SAID, silent_s=3.0)), [ended(received(SAID))], 5.0).stall_s == 3.0


def test_waiting_has_the_number_of_the_event_before_it() -> None:
    one = received(SAID)
    time_s, last = one.events[-1]
    waiting = Error(code="waiting", message="no worker", fatal=False).stamped(last.seq, "s1")
    interrupted = ended(dataclasses.replace(one, events=[*one.events, (time_s, waiting)]))
    end = interrupted.events[-1][1].stamped(last.seq + 1, "s1")
    assert judge(dataclasses.replace(one, events=[*interrupted.events[:-1], (time_s, end)]), [ended(one)], 5.0).well


def test_a_client_that_gave_up_is_no_success() -> None:
    failed = dataclasses.replace(received(SAID), failure="BusyError: no room")
    assert judge(failed, [ended(received(SAID))], 5.0).broken == "BusyError: no room"


async def test_connections_go_to_each_gateway_in_turn_and_never_to_a_dead_one() -> None:
    async def serve(name: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(name + await reader.read(100))
        writer.close()

    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"!")
        answer = await reader.read()
        writer.close()
        return answer

    gateways = [await asyncio.start_server(functools.partial(serve, name), "127.0.0.1", 0) for name in (b"g1", b"g2")]
    ports = {f"g{i}": server.sockets[0].getsockname()[1] for i, server in enumerate(gateways, 1)}
    async with Balancer({**ports, "g3": free_port()}) as balancer:
        answers = [await ask(balancer.port) for _ in range(6)]
        assert set(answers) == {b"g1!", b"g2!"}
    for server in gateways:
        server.close()


def test_the_table_has_a_row_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sessions = [Judgement(words=10, stall_s=1.0), Judgement(words=10, stall_s=3.0, hit=False, lost=3)]
    line = {"fault": "drain", "sessions": [dataclasses.asdict(one) for one in sessions]}
    (tmp_path / "out").write_text(json.dumps(line) + "\n", encoding="utf-8")
    report(tmp_path / "out")
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| drain | 1 | 2 (1) | 20 | 3 | 0 | 0 | 0 |")
    assert row.endswith("| 1.00 s | 1.00 s | 1.00 s |")
