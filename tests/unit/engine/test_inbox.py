from streamer.audio.vad import CHUNK_SAMPLES
from streamer.engine.inbox import MAX_WAITING, Inbox


def taken(inbox: Inbox, position: int) -> list[object]:
    found: list[object] = []
    while (apply := inbox.take(position)) is not None:
        found += list(apply() or ())
    return found


def filled(*commands: tuple[str, int]) -> Inbox:
    inbox = Inbox()
    for command in commands:
        inbox.put(*command, lambda command=command: [command])  # type: ignore[misc]
    return inbox


def test_commands_come_out_in_order_and_at_their_positions() -> None:
    inbox = filled(("flush", 10), ("pause", 20), ("resume", 5000))
    assert taken(inbox, 9) == []
    assert inbox.next_position == 10
    assert taken(inbox, 20) == [("flush", 10), ("pause", 20)]
    assert inbox.next_position == 5000
    assert taken(inbox, 5000) == [("resume", 5000)]
    assert inbox.next_position is None


def test_each_counts_also_of_the_same_within_a_chunk() -> None:
    commands = [("change", 1), ("flush", 1), ("change", 2), ("flush", 2), ("flush", 2)]
    assert taken(filled(*commands), CHUNK_SAMPLES) == commands


def test_of_a_flood_the_first_count_and_then_the_last_of_each_name_in_a_chunk() -> None:
    first = [("flush", 1)] * MAX_WAITING
    flood = [("flush", 1), ("pause", 2)] * 1000 + [("", 3), ("", 3), ("flush", 4), ("flush", CHUNK_SAMPLES)]
    kept = [("pause", 2), ("", 3), ("", 3), ("flush", 4), ("flush", CHUNK_SAMPLES)]
    assert taken(filled(*first, *flood), CHUNK_SAMPLES) == first + kept
