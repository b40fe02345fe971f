import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.after.speakers.clusters import ClusteringSettings, Clusters, Speaker, VoiceWindow
from tests.unit.after.speakers.voices import heard, voice, window


def told(clusters: Clusters, people: list[int]) -> list[str | None]:
    """Take a window of each of these people in turn and return whose each is at the end."""
    for number, person in enumerate(people):
        clusters.add(window(0.5 * number, person, seed=number), 1.5)
    clusters.end_region()
    return [each.speaker.label if each.speaker is not None else None for each in clusters.windows]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(2, 6)), min_size=1, max_size=12))
def test_each_person_has_a_label_of_their_own_however_often_they_come_back(turns: list[tuple[int, int]]) -> None:
    people = [person for person, n_windows in turns for _ in range(n_windows)]
    labels = told(Clusters({}), people)
    order = list(dict.fromkeys(people))
    assert labels == [f"S{order.index(person) + 1}" for person in people]


def test_a_single_window_of_somebody_new_is_nobody_until_a_second_one_comes() -> None:
    clusters = Clusters({})
    clusters.add(window(0.0, 1), 1.5)
    assert clusters.speakers == []
    clusters.add(window(0.5, 2, seed=1), 1.5)
    assert clusters.speakers == []
    clusters.add(window(1.0, 2, seed=2), 1.5)
    assert [each.speaker and each.speaker.label for each in clusters.windows] == [None, "S1", "S1"]


def test_too_little_speech_makes_no_new_speaker_but_may_be_of_a_known_one() -> None:
    clusters = Clusters({})
    for number in range(4):
        clusters.add(window(0.5 * number, 1, seed=number), 0.8)
    assert clusters.speakers == []
    for number in range(4, 6):
        clusters.add(window(0.5 * number, 1, seed=number), 0.9)
    clusters.end_region()
    assert [each.speaker and each.speaker.label for each in clusters.windows] == ["S1"] * 6


def test_of_very_many_people_those_who_were_heard_least_are_forgotten_and_no_label_comes_twice() -> None:
    clusters = Clusters({"Anna": voice(0)}, ClusteringSettings(n_kept=2))
    told(clusters, [1, 1, 1, 2, 2, 3, 3, 3])
    assert [speaker.label for speaker in clusters.speakers] == ["Anna", "S1", "S3"]


def test_a_window_of_two_people_moves_neither_voice() -> None:
    clusters = Clusters({})
    told(clusters, [1, 1, 1, 2, 2, 2])
    before = [speaker.total.copy() for speaker in clusters.speakers]
    clusters.add(VoiceWindow(10.0, 11.5, heard({1: 0.5, 2: 0.5}, noise=0.1)), 1.5)
    assert clusters.windows[-1].speaker is None
    assert all(np.array_equal(speaker.total, old) for speaker, old in zip(clusters.speakers, before, strict=True))


def test_speakers_who_turn_out_to_be_one_are_merged_into_the_earlier() -> None:
    clusters = Clusters({})
    # The voice changes within the region, and then is found to be between the two.
    apart = [heard({1: 1.0, 2: 0.0}, 0.0), heard({1: 0.3, 2: 1.0}, 0.0)]
    for number, vector in enumerate([apart[0], apart[0], apart[1], apart[1]]):
        clusters.add(VoiceWindow(number, number + 1.5, vector), 1.5)
    assert clusters.end_region() == []
    for number, share in enumerate([0.5, 0.5, 0.55, 0.6, 0.6, 0.6] * 4, start=4):
        clusters.add(VoiceWindow(number, number + 1.5, heard({1: 1.0, 2: share}, 0.0)), 1.5)
        clusters.speakers[0].total = clusters.speakers[0].total + heard({1: 1.0, 2: share}, 0.0)
    assert clusters.end_region() == [("S2", "S1")]
    assert {each.speaker.label for each in clusters.windows if each.speaker} == {"S1"}


def test_a_voice_that_was_learnt_from_two_people_at_once_becomes_two() -> None:
    # As on a telephone, both voices have something in common.
    clusters = Clusters({})
    mixed = [heard({1: 0.8, 2: 0.8, 3: 0.7}, seed=number) for number in range(4)]
    turns = [heard({1 + number // 6 % 2: 1.0, 3: 0.7}, seed=number) for number in range(4, 60)]
    for number, vector in enumerate(mixed + turns):
        clusters.add(VoiceWindow(0.5 * number, 0.5 * number + 1.5, vector), 1.5)
        if number % 6 == 5:
            clusters.end_region()
    assert [speaker.label for speaker in clusters.speakers] == ["S1", "S2"]
    labels = [each.speaker.label if each.speaker else None for each in clusters.windows[12:]]
    speakers_of_turns = [set(labels[first : first + 6]) for first in range(0, 48, 6)]
    assert speakers_of_turns[0] != speakers_of_turns[1]
    assert speakers_of_turns == speakers_of_turns[:2] * 4


@pytest.mark.parametrize(("n_windows", "labels"), [(3, ["S1"]), (15, ["S1"]), (16, ["S1", "S2"])])
def test_a_similar_voice_that_was_little_heard_is_the_same_one(n_windows: int, labels: list[str]) -> None:
    clusters = Clusters({})
    first, second = voice(1), heard({1: 0.6, 2: 0.8}, noise=0.0)
    clusters.speakers = [Speaker("S1", 40 * first, 40), Speaker("S2", n_windows * second, n_windows)]
    clusters.end_region()
    assert [speaker.label for speaker in clusters.speakers] == labels


def test_who_is_enrolled_is_told_by_name_and_never_merged_into_another() -> None:
    clusters = Clusters({"Anna": voice(1), "Her twin": voice(1)})
    assert set(told(clusters, [1, 1, 2, 2])[2:]) == {"S1"}
    assert [speaker.label for speaker in clusters.speakers] == ["Anna", "Her twin", "S1"]
    assert told(Clusters({"Anna": voice(1)}), [1, 2, 2, 1]) == ["Anna", "S1", "S1", "Anna"]


def test_old_windows_are_forgotten_and_the_speakers_are_not() -> None:
    clusters = Clusters({}, ClusteringSettings(keep_s=10.0))
    told(clusters, [1, 1, 1])
    clusters.add(window(100.0, 1), 1.5)
    clusters.end_region()
    assert [each.start_s for each in clusters.windows] == [100.0]
    assert clusters.windows[0].speaker is clusters.speakers[0]
