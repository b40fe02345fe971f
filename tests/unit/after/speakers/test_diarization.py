"""Which windows of a session's speech are due, and whose words are whose, with stand-in vectors."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyannote.core import Annotation, Segment, Timeline
from pyannote.metrics.diarization import DiarizationErrorRate

from streamer.after.speakers.clusters import Clusters
from streamer.after.speakers.diarization import HOP_SAMPLES, Diarization
from streamer.after.speakers.fbank import WINDOW_SAMPLES
from streamer.constants import SAMPLE_RATE
from tests.builders import words
from tests.unit.after.live import Hanging
from tests.unit.after.speakers.voices import converse, voice
from tests.waiting import WAIT_S

HOUR = 3600 * SAMPLE_RATE

SOON_S = 5.0  # for what waits for nothing


def due(diarization: Diarization, head: int = HOUR) -> list[tuple[int, int]]:
    """Return all windows that are due; none has a vector."""
    windows = []
    while (window := diarization.next_window(head)) is not None:
        windows.append(window)
        diarization.take(window, None, None)
    return windows


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 700_000)), min_size=1, max_size=5))
def test_all_speech_is_due_in_order_and_nothing_else(regions: list[tuple[int, int]]) -> None:
    diarization, at, spoken = Diarization({}), 0, []
    for pause, length in regions:
        spoken.append((at + pause, at + pause + length))
        at += pause + length
        diarization.begin(spoken[-1][0])
        diarization.end(spoken[-1][1])
    windows = due(diarization)
    assert windows == sorted(windows)
    assert not diarization.is_open
    assert all(end - start <= WINDOW_SAMPLES for start, end in windows)
    for start, end in spoken:
        inside = [window for window in windows if start <= window[0] and window[1] <= end]
        # What is shorter than a quarter of a second tells no voice; a tenth may be left over.
        assert bool(inside) == (end - start >= SAMPLE_RATE // 4)
        if inside:
            assert inside[0][0] == start
            assert end - inside[-1][1] <= SAMPLE_RATE // 10
            assert all(b[0] <= a[1] for a, b in itertools.pairwise(inside))
    assert all(any(start <= a and b <= end for start, end in spoken) for a, b in windows)


def test_speech_without_a_silence_is_assigned_again_in_parts() -> None:
    diarization = Diarization({})
    diarization.begin(0)
    windows = due(diarization, 100 * SAMPLE_RATE)
    assert windows == [(n * HOP_SAMPLES, n * HOP_SAMPLES + WINDOW_SAMPLES) for n in range(len(windows))]
    assert due(diarization, windows[-1][1] + HOP_SAMPLES - 1) == []
    assert len(due(diarization, windows[-1][1] + HOP_SAMPLES)) == 1
    assert (diarization.n_settled, diarization.is_open) == (3, True)


def test_no_session_waits_for_clustering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captions of all sessions call these, under the locks of their sessions."""
    converse(diarization := Diarization({}), [(1, 0.0, 5.0), (2, 6.0, 11.0)])
    hanging, end_region = Hanging(), Clusters.end_region

    def slow(clusters: Clusters) -> list[tuple[str, str]]:
        hanging()
        return end_region(clusters)

    monkeypatch.setattr(Clusters, "end_region", slow)
    diarization.begin(12 * SAMPLE_RATE)
    diarization.end(14 * SAMPLE_RATE)
    with ThreadPoolExecutor(2) as threads:
        clustering = threads.submit(due, diarization)
        assert hanging.begun.wait(WAIT_S)
        try:
            assert threads.submit(diarization.speaker, 1.0, 1.3).result(SOON_S) == "S1"
            threads.submit(diarization.begin, 15 * SAMPLE_RATE).result(SOON_S)
            threads.submit(diarization.end, 17 * SAMPLE_RATE).result(SOON_S)
            assert not clustering.done()
        finally:
            hanging.let_go.set()
        assert clustering.result(WAIT_S)[-1][1] == 17 * SAMPLE_RATE


def test_a_word_has_the_label_of_who_says_it_and_none_if_that_is_not_known() -> None:
    diarization = Diarization({"Anna": voice(2)})
    converse(diarization, [(1, 0.0, 5.0), (2, 6.0, 11.0), (1, 12.0, 17.0)])
    times = (0.0, 2.0, 4.7, 6.0, 8.0, 10.7, 13.0, 30.0)
    assert [diarization.speaker(at, at + 0.3) for at in times] == [*["S1"] * 3, *["Anna"] * 3, "S1", None]
    labelled = diarization.label(words("some words", 4.0, step=3.0))
    assert [word.speaker for word in labelled] == ["S1", "Anna"]
    assert diarization.label(labelled) == labelled


@pytest.mark.parametrize(("speech_s", "label"), [(0.6, None), (1.2, "S1")])
def test_what_is_silent_beside_the_rest_of_a_window_is_not_speech(speech_s: float, label: str | None) -> None:
    diarization = Diarization({})
    diarization.begin(0)
    for _ in range(3):
        window = diarization.next_window(HOUR)
        assert window is not None
        samples = np.full(WINDOW_SAMPLES, 1e-3, np.float32)
        samples[: round(speech_s * SAMPLE_RATE)] = 0.1
        diarization.take(window, samples, voice(1))
    assert diarization.speaker(0.5, 1.0) == label


@pytest.mark.parametrize(("n_people", "pauses", "worst"), [(2, True, 0.01), (5, True, 0.01), (4, False, 0.06)])
def test_diarisation_error_on_stand_in_vectors(n_people: int, pauses: bool, worst: float) -> None:
    """By pyannote.metrics, without a collar: turns of 3 to 6 s; without pauses the border is found within 0.25 s."""
    turns, at = [], 0.0
    for number in range(20):
        length = 3.0 + number * 1.7 % 3.0
        turns.append((number * 7 % n_people, at, at + length))
        at += length + (0.7 if pauses else 0.0)
    diarization = Diarization({})
    same = dict(converse(diarization, turns, pauses))
    reference, answer = Annotation(), Annotation()
    for who, start, end in turns:
        reference[Segment(start, end), start] = str(who)
        for step in range(round((end - start) * 20)):
            begin, until = start + step / 20, start + (step + 1) / 20
            if (label := diarization.speaker(begin, until)) is not None:
                answer[Segment(begin, until), f"{start} {step}"] = same.get(label, label)
    assert DiarizationErrorRate()(reference, answer.support(), uem=Timeline([Segment(0.0, at)])) <= worst
