"""Whose turn it is."""

import math

from streamer.stream.schedule import RECORDED_PATIENCE_S, Schedule, deadline


def order(schedule: Schedule[str, str], **deadlines_s: float) -> list[str]:
    return list(schedule.by_deadline(lambda owner: deadlines_s.get(owner, math.inf)))


def schedule_of(*owners: str) -> Schedule[str, str]:
    schedule: Schedule[str, str] = Schedule()
    for owner in owners:
        schedule.add(owner)
    return schedule


def test_a_final_is_due_at_once_a_partial_within_the_pace_and_a_recording_when_there_is_time() -> None:
    assert deadline(5.0, recorded=False, final_awaited=True, pace_s=1.5) == 5.0
    assert deadline(5.0, recorded=False, final_awaited=False, pace_s=1.5) == 6.5
    assert deadline(5.0, recorded=True, final_awaited=True, pace_s=1.5) == 5.0 + RECORDED_PATIENCE_S


def test_the_most_urgent_comes_first_and_of_equals_who_had_no_turn_for_longest() -> None:
    schedule = schedule_of("a", "b", "c", "d")
    assert order(schedule, a=2.0, b=1.0, d=2.0) == ["b", "a", "d"]
    schedule.take_turn("a")
    assert order(schedule, a=2.0, b=1.0, d=2.0) == ["b", "d", "a"]


def test_while_a_window_waits_only_a_newer_one_of_the_same_owner_takes_its_place() -> None:
    schedule = schedule_of("a", "b")
    buffer, replaced = schedule.take_turn("a")
    assert replaced is None
    schedule.put("a", "old", buffer)
    assert order(schedule, a=9.0, b=1.0) == ["a"]
    again, replaced = schedule.take_turn("a")
    assert (again, replaced) == (buffer, "old")
    schedule.put("a", "new", again)
    slotted = schedule.begin_decoding()
    assert slotted is not None
    assert (slotted.owner, slotted.work) == ("a", "new")
    assert order(schedule, a=9.0, b=1.0) == ["b", "a"]


def test_what_is_being_decoded_is_not_written_to() -> None:
    schedule = schedule_of("a", "b")
    first, _ = schedule.take_turn("a")
    schedule.put("a", "work", first)
    schedule.begin_decoding()
    second, _ = schedule.take_turn("b")
    assert second != first
    schedule.end_decoding()
    assert schedule.take_turn("b")[0] == first
    assert schedule.begin_decoding() is None


def test_who_is_removed_has_no_more_turns_and_what_it_has_in_the_slot_stays() -> None:
    schedule = schedule_of("a", "b")
    buffer, _ = schedule.take_turn("a")
    schedule.put("a", "work", buffer)
    schedule.remove("a")
    schedule.remove("a")
    assert schedule.owners == ("b",)
    assert order(schedule, a=1.0, b=1.0) == []
    slotted = schedule.begin_decoding()
    assert slotted is not None
    assert slotted.owner == "a"
    # It was removed while its window was encoded: it is not added again.
    schedule.take_turn("a")
    assert schedule.owners == ("b",)
