"""Commands of a session, in their order and at their positions in the audio."""

from typing import Any

from streamer.audio.vad import CHUNK_SAMPLES
from streamer.constants import SAMPLE_RATE
from streamer.engine.inlet import MAX_WAITING, AudioKind, Command, Commands
from streamer.events import Error
from tests.unit.engine.simulation import Machine

WARNING = Error(code="device", message="a cable is loose", fatal=False)


def taken(commands: Commands, position: int = CHUNK_SAMPLES) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    while (command := commands.take(position)) is not None:
        found.append((command.what, command.position))
    return found


def filled(*those: tuple[Any, int]) -> Commands:
    commands = Commands()
    for what, position in those:
        commands.put(Command(what=what, position=position, events=(WARNING,) if what == "mark" else ()))
    return commands


def test_each_counts_in_its_order_also_of_the_same_within_a_chunk() -> None:
    those = [("change", 1), ("flush", 1), ("change", 2), ("flush", 2), ("flush", 2), ("pause", 5000)]
    commands = filled(*those)
    assert taken(commands, 0) == []
    assert (taken(commands), commands.next_position) == (those[:-1], 5000)
    assert (taken(commands, 5000), commands.next_position) == (those[-1:], None)


def test_of_a_flood_the_first_count_and_then_the_last_of_each_kind_in_a_chunk() -> None:
    first = [("flush", 1)] * MAX_WAITING
    flood = [("flush", 1), ("pause", 2)] * 1000 + [("miss", 3), ("mark", 3), ("mark", 3)]
    flood += [("flush", 4), ("flush", CHUNK_SAMPLES)]
    kept = [("pause", 2), ("miss", 3), ("mark", 3), ("mark", 3), ("flush", 4), ("flush", CHUNK_SAMPLES)]
    assert taken(filled(*first, *flood)) == first + kept


def test_audio_that_comes_faster_than_it_can_be_spoken_is_recorded_and_what_follows_is_not() -> None:
    talker = Machine().talker(60.0, kind=AudioKind.EITHER)
    assert talker.live.recorded is False
    talker.write(30 * SAMPLE_RATE)
    assert talker.live.recorded is True
    talker.machine.wait(30.0)
    talker.speak_until(32.0)
    assert talker.live.recorded is False


def test_there_is_news_when_audio_or_a_command_has_come_or_it_is_time_to_look() -> None:
    talker = Machine().talker(0.0)
    machine, live = talker.machine, talker.live
    machine.work()
    assert not live.has_news(machine.clock())
    live.do("flush")
    assert live.has_news(machine.clock())
    machine.work()
    assert not live.has_news(machine.clock())
    talker.write(CHUNK_SAMPLES)
    assert live.has_news(machine.clock())
    machine.work()
    assert not live.has_news(machine.clock())
    assert live.has_news(machine.clock() + 1.0)
