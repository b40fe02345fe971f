"""Clustering of speaker vectors, with stand-ins for people."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.after.speakers.clusters import ClusteringSettings, Clusters, Speaker, VoiceWindow
from streamer.arrays import Float32Array
from tests.unit.after.speakers.voices import heard, voice, window


def add(clusters: Clusters, *vectors: Float32Array, speech_s: float = 1.5) -> list[str | None]:
    """Add windows of half a second each; return whose each is by now."""
    for vector in vectors:
        start_s = 0.5 * len(clusters.windows)
        clusters.add(VoiceWindow(start_s, start_s + 1.5, vector), speech_s)
    return [each.speaker.label if each.speaker else None for each in clusters.windows]


def region(clusters: Clusters, people: list[int]) -> list[str | None]:
    """Add a region with a window of each of these people in turn; return whose each is at its end."""
    add(clusters, *(heard({person: 1.0}, seed=seed) for seed, person in enumerate(people)))
    clusters.end_region()
    return add(clusters)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(2, 6)), min_size=1, max_size=12))
def test_each_person_has_a_label_of_their_own_however_often_they_come_back(turns: list[tuple[int, int]]) -> None:
    people = [person for person, n_windows in turns for _ in range(n_windows)]
    order = list(dict.fromkeys(people))
    assert region(Clusters({}), people) == [f"S{order.index(person) + 1}" for person in people]


def test_a_window_of_somebody_new_has_no_label_until_a_second_one_comes() -> None:
    clusters = Clusters({})
    assert add(clusters, heard({1: 1.0})) == [None]
    assert add(clusters, heard({2: 1.0}, seed=1)) == [None, None]
    assert add(clusters, heard({2: 1.0}, seed=2)) == [None, "S1", "S1"]


def test_too_little_speech_makes_no_new_speaker_but_may_be_of_a_known_one() -> None:
    clusters = Clusters({})
    vectors = [heard({1: 1.0}, seed=seed) for seed in range(6)]
    assert add(clusters, *vectors[:4], speech_s=0.8) == [None] * 4
    add(clusters, *vectors[4:], speech_s=0.9)
    clusters.end_region()
    assert add(clusters) == ["S1"] * 6


def test_of_very_many_people_those_who_spoke_least_are_forgotten_and_no_label_comes_twice() -> None:
    clusters = Clusters({"Anna": voice(0)}, ClusteringSettings(n_kept=2))
    region(clusters, [1, 1, 1, 2, 2, 3, 3, 3])
    assert [speaker.label for speaker in clusters.speakers] == ["Anna", "S1", "S3"]


def test_a_window_of_two_people_moves_neither_voice() -> None:
    clusters = Clusters({})
    region(clusters, [1, 1, 1, 2, 2, 2])
    before = [speaker.total.copy() for speaker in clusters.speakers]
    assert add(clusters, heard({1: 0.5, 2: 0.5}, noise=0.1))[-1] is None
    np.testing.assert_array_equal([speaker.total for speaker in clusters.speakers], before)


def test_speakers_who_turn_out_to_be_one_are_merged_into_the_earlier() -> None:
    clusters = Clusters({})
    # The voice changes within the region, and then is found to be between the two.
    apart = [heard({1: 1.0, 2: 0.0}, 0.0), heard({1: 0.3, 2: 1.0}, 0.0)]
    add(clusters, apart[0], apart[0], apart[1], apart[1])
    assert clusters.end_region() == []
    for share in [0.5, 0.5, 0.55, 0.6, 0.6, 0.6] * 4:
        add(clusters, between := heard({1: 1.0, 2: share}, 0.0))
        clusters.speakers[0].total = clusters.speakers[0].total + between
    n_windows = sum(speaker.n_windows for speaker in clusters.speakers)
    assert clusters.end_region() == [("S2", "S1")]
    assert set(add(clusters)) == {"S1"}
    assert [(speaker.label, speaker.n_windows >= n_windows) for speaker in clusters.speakers] == [("S1", True)]


def test_a_voice_that_was_learnt_from_two_people_at_once_becomes_two() -> None:
    # As on a telephone, both voices have something in common.
    clusters = Clusters({})
    mixed = [heard({1: 0.8, 2: 0.8, 3: 0.7}, seed=number) for number in range(4)]
    turns = [heard({1 + number // 6 % 2: 1.0, 3: 0.7}, seed=number) for number in range(4, 60)]
    for number, vector in enumerate(mixed + turns):
        add(clusters, vector)
        if number % 6 == 5:
            clusters.end_region()
    assert [speaker.label for speaker in clusters.speakers] == ["S1", "S2"]
    labels = add(clusters)[12:]
    speakers_of_turns = [set(labels[first : first + 6]) for first in range(0, 48, 6)]
    assert speakers_of_turns[0] != speakers_of_turns[1]
    assert speakers_of_turns == speakers_of_turns[:2] * 4


@pytest.mark.parametrize(("n_windows", "labels"), [(3, ["S1"]), (15, ["S1"]), (16, ["S1", "S2"])])
def test_a_similar_voice_of_few_windows_is_the_same_one(n_windows: int, labels: list[str]) -> None:
    clusters = Clusters({})
    first, second = voice(1), heard({1: 0.6, 2: 0.8}, noise=0.0)
    clusters.speakers = [Speaker("S1", 40 * first, 40), Speaker("S2", n_windows * second, n_windows)]
    clusters.end_region()
    assert [speaker.label for speaker in clusters.speakers] == labels


def test_who_is_enrolled_has_their_name_and_is_never_merged_into_another() -> None:
    clusters = Clusters({"Anna": voice(1), "Her twin": voice(1)})
    assert set(region(clusters, [1, 1, 2, 2])[2:]) == {"S1"}
    assert [speaker.label for speaker in clusters.speakers] == ["Anna", "Her twin", "S1"]
    assert region(Clusters({"Anna": voice(1)}), [1, 2, 2, 1]) == ["Anna", "S1", "S1", "Anna"]


def test_old_windows_are_forgotten_and_the_speakers_are_not() -> None:
    clusters = Clusters({}, ClusteringSettings(keep_s=10.0))
    region(clusters, [1, 1, 1])
    clusters.add(window(100.0, 1), 1.5)
    clusters.end_region()
    assert [each.start_s for each in clusters.windows] == [100.0]
    assert clusters.windows[0].speaker is clusters.speakers[0]
