"""The corpus is read shard by shard, as far as it is finished."""

from pathlib import Path

import numpy as np
import pytest

from tests.tools.train_nano.support import Said, write_shard
from tools.train_nano.corpus import Corpus


def counted(text: str, start: int, count: int) -> Said:
    """A text whose samples count from `start`."""
    words = [(float(i), i + 0.5) for i in range(len(text.split()))]
    samples = np.arange(start, start + count, dtype=np.int16)
    return Said(text, words, [("pau", 0.25), ("ah", 1.0)], samples, before=f"Before {text}")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    said = [counted("One two.", 0, 800), counted("Three.", 5000, 1600)]
    write_shard(tmp_path, "flite-slt-0000", said)
    corpus = Corpus(tmp_path)
    corpus.refresh()
    assert list(corpus.voices) == ["flite-slt"]
    for utterance, expected in zip(corpus.voices["flite-slt"], said, strict=True):
        assert utterance.voice == "flite-slt"
        assert utterance.text == expected.text
        assert utterance.before == expected.before
        assert utterance.words == expected.words
        assert utterance.phones == expected.phones
        assert utterance.samples.dtype == np.int16
        assert np.array_equal(utterance.samples, expected.samples)
    assert [utterance.seconds for utterance in corpus.voices["flite-slt"]] == [0.05, 0.1]


def test_voices_are_told_apart_also_where_their_names_have_hyphens(tmp_path: Path) -> None:
    for name in ("espeak-en-us-0000", "espeak-en-us+f3-0000", "espeak-en-us-0001", "espeak-en-gb-x-rp+m7-0003"):
        write_shard(tmp_path, name, [counted(name, 0, 160)])
    corpus = Corpus(tmp_path)
    corpus.refresh()
    assert {voice: [utterance.text for utterance in said] for voice, said in corpus.voices.items()} == {
        "espeak-en-us": ["espeak-en-us-0000", "espeak-en-us-0001"],
        "espeak-en-us+f3": ["espeak-en-us+f3-0000"],
        "espeak-en-gb-x-rp+m7": ["espeak-en-gb-x-rp+m7-0003"],
    }


def test_a_refresh_takes_in_what_is_new_and_nothing_twice(tmp_path: Path) -> None:
    write_shard(tmp_path, "flite-slt-0000", [counted("One.", 0, 160)])
    corpus = Corpus(tmp_path)
    corpus.refresh()
    before = corpus.voices["flite-slt"][0]
    write_shard(tmp_path, "flite-slt-0001", [counted("Two.", 0, 160)])
    corpus.refresh()
    corpus.refresh()
    assert [utterance.text for utterance in corpus.voices["flite-slt"]] == ["One.", "Two."]
    assert corpus.voices["flite-slt"][0] is before


@pytest.mark.parametrize("left", [".pcm", ".part"])
def test_an_unfinished_shard_is_not_read(tmp_path: Path, left: str) -> None:
    write_shard(tmp_path, "flite-slt-0000", [counted("One.", 0, 160)])
    (tmp_path / "flite-slt-0000.jsonl").rename(tmp_path / f"flite-slt-0000{left}")
    corpus = Corpus(tmp_path)
    corpus.refresh()
    assert corpus.voices == {}


def test_a_folder_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "later")
    corpus.refresh()
    assert corpus.voices == {}
    write_shard(tmp_path / "later", "flite-slt-0000", [counted("One.", 0, 160)])
    corpus.refresh()
    assert list(corpus.voices) == ["flite-slt"]
