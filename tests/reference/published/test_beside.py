"""Words of people, as right as faster-whisper's with the same published weights and five beams."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reference.published.parity import recordings
from tests.unit.whisper.support import SAMPLE
from tools import benchmark
from tools.benchmarks.published import PublishedModel

pytestmark = pytest.mark.real

# Share of the words by which we may be worse: both cut windows at silences, but not at the same ones.
MORE_WRONG = 0.005


def test_no_more_words_are_wrong_than_faster_whispers(
    published: PublishedModel, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    people = [path for path in recordings("en") if path != SAMPLE]
    if not people:
        pytest.skip("shared/audio/people is not there")
    for path in people:
        folder = tmp_path / "people" / path.parent.name
        folder.mkdir(parents=True)
        for suffix in (".flac", ".txt"):
            shutil.copy(path.with_suffix(suffix), folder)
    figures = tmp_path / "figures.json"
    command = ["files", "--corpus", str(tmp_path / "people"), "--model", published.given, "--peers", "faster-whisper"]
    assert benchmark.main([*command, "--json", str(figures)]) == 0
    wrong: Counter[str] = Counter()
    n_words: Counter[str] = Counter()
    for row in json.loads(figures.read_text(encoding="utf-8")):
        counted = row["wrong"]
        wrong[row["system"]] += counted["substitutions"] + counted["deletions"] + counted["insertions"]
        n_words[row["system"]] += counted["n_reference"]
    assert set(n_words) == {"streamer", "faster-whisper"}
    assert n_words["streamer"] == n_words["faster-whisper"]
    told = ", ".join(f"{system} {100 * wrong[system] / n_words[system]:.1f} %" for system in wrong)
    record_property("note", f"{published.name}, word errors of {len(people)} recordings: {told}")
    assert wrong["streamer"] <= wrong["faster-whisper"] + MORE_WRONG * n_words["streamer"]
