import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from streamer.audio.constants import SAMPLE_RATE
from streamer.errors import UsageError
from tools.benchmarks.conversations import KINDS, conversations, make, read_rttm

# Of each person one utterance of 4 s at a level of their own, so that one sees who speaks when.
PEOPLE = {name: [np.full(4 * SAMPLE_RATE, level, np.float32)] for name, level in (("a", 0.1), ("b", 0.2), ("c", 0.3))}


def test_each_turn_is_heard_where_it_is_said_to_be() -> None:
    conversation = make(PEOPLE, "turns", 3, random.Random(1))
    assert {who for who, _, _ in conversation.turns} == set(PEOPLE)
    for who, start_s, end_s in conversation.turns:
        part = conversation.samples[round(start_s * SAMPLE_RATE) : round(end_s * SAMPLE_RATE)]
        assert np.allclose(part, PEOPLE[who][0][0], atol=0.01)
        assert 0.699 < end_s - start_s < 4.001


def test_nobody_takes_two_turns_and_only_who_interrupts_overlaps() -> None:
    for kind, about in KINDS.items():
        turns = make(PEOPLE, kind, 2, random.Random(2)).turns
        following = list(pairwise(turns))
        assert all(before[0] != after[0] for before, after in following)
        overlapping = any(after[1] < before[2] for before, after in following)
        assert overlapping == (about.pause_s[0] < 0)


def test_the_same_seed_makes_the_same_conversation() -> None:
    first, second = (make(PEOPLE, "interruptions", 3, random.Random("3")) for _ in range(2))
    assert first.turns == second.turns
    assert np.array_equal(first.samples, second.samples)


def test_rttm_is_read_in_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "meeting.rttm"
    path.write_text(
        "SPEAKER meeting 1 2.5 1.25 <NA> <NA> Zoë <NA> <NA>\nSPEAKER meeting 1 0.5 1.0 <NA> <NA> Bo <NA> <NA>\n",
        encoding="utf-8",
    )
    assert read_rttm(path) == (("Bo", 0.5, 1.5), ("Zoë", 2.5, 3.75))


def test_a_folder_with_too_few_people_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="recordings of 0 people for held: expected 4, each alone"):
        list(conversations(tmp_path, "held", 1, 1))
