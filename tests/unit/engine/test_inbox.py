from streamer.audio.vad import CHUNK_SAMPLES
from streamer.engine.inbox import Inbox


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


def test_of_the_same_within_a_chunk_only_the_last_counts() -> None:
    inbox = filled(("flush", 1), ("pause", 2), ("flush", 3), ("flush", CHUNK_SAMPLES))
    assert taken(inbox, CHUNK_SAMPLES) == [("pause", 2), ("flush", 3), ("flush", CHUNK_SAMPLES)]


def test_what_has_no_name_counts_each_time() -> None:
    assert len(filled(("", 1), ("", 1), ("", 2))) == 3
