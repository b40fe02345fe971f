"""LJ Speech's table becomes the sentences to train on and those that are held out."""

from pathlib import Path

import pytest

from tools.train_nano.lj_speech import main, split

METADATA = (
    "LJ001-0001|In 1455,|In fourteen fifty-five,\n"
    'LJ048-0289|the "Gutenberg"|the "Gutenberg"\n'
    "LJ049-0001|The motorcade.|The motorcade.\n"
    "LJ050-0001|Recommendations.|Recommendations.\n"
)


def test_chapter_49_is_held_out_and_chapter_50_left_out() -> None:
    train, held_out = split(METADATA)
    assert train == ["In fourteen fifty-five,", 'the "Gutenberg"']
    assert held_out == ["The motorcade."]


def test_a_line_of_another_shape_is_named() -> None:
    with pytest.raises(ValueError, match="line 2 has 1 columns"):
        split("LJ001-0001|a|a\nnonsense\n")


def test_the_program_writes_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = tmp_path / "metadata.csv"
    metadata.write_text(METADATA, encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["lj_speech", str(metadata), "--out", str(tmp_path / "text")])
    main()
    assert (tmp_path / "text" / "train.txt").read_text(encoding="utf-8").splitlines() == split(METADATA)[0]
    assert (tmp_path / "text" / "heldout.txt").read_text(encoding="utf-8") == "The motorcade.\n"
    assert "2 sentences to train on, 1 held out" in capsys.readouterr().out


def test_a_missing_table_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["lj_speech", str(tmp_path / "none.csv"), "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"none\.csv cannot be read"):
        main()
