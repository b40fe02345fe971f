"""Which file of a directory is taken, and what each kind of file is; refusals are rows of `whisper_files.toml`."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.errors import ModelError
from streamer.whisper.tokens import vocabulary
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.whisper.support import NANO, check_one_line, damage, nano_table
from tests.unit.whisper.tokens.published import MULTILINGUAL

N_VOCAB = 2022
TEXT = " the Commission's 19 facts, naïve 🙂"
TABLE = nano_table()
EXPECTED = Tokenizer.load(NANO, n_vocab=N_VOCAB)


def all_tokens() -> list[str]:
    """Return all tokens of nano.en in the order of their numbers, as CTranslate2 lists them."""
    backend = vocabulary.load(NANO, N_VOCAB)
    return [backend.id_to_token(i) or "" for i in range(N_VOCAB)]


# nano.en's vocabulary in every kind of file, in the order in which they are looked for.
FILES = {
    "tokenizer.json": (NANO / "tokenizer.json").read_bytes(),
    "vocab.json": (NANO / "vocab.json").read_bytes(),
    "vocabulary.json": json.dumps(all_tokens()).encode(),
    "vocabulary.txt": "".join(f"{token}\n" for token in all_tokens()).encode(),
    "nano.tiktoken": vocabulary.to_ranks(TABLE),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A directory with nano.en's tokenizer in every kind of file."""
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def check(tokenizer: Tokenizer) -> None:
    """Hold a tokenizer against nano.en's."""
    assert (tokenizer.spelled, tokenizer.special) == (EXPECTED.spelled, EXPECTED.special)
    assert (tokenizer.languages, tokenizer.n_vocab) == ({"en": 514}, N_VOCAB)
    assert tokenizer.encode(TEXT) == EXPECTED.encode(TEXT)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_the_first_of_the_kinds_is_taken(copy: Path) -> None:
    for name in FILES:
        assert vocabulary.find(copy) == copy / name
        tokenizer = Tokenizer.load(copy, n_vocab=N_VOCAB)
        check(tokenizer)
        assert tokenizer.where == str(copy / name)
        (copy / name).unlink()
    with pytest.raises(ModelError):
        vocabulary.load(copy, N_VOCAB)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "nano.tiktoken"])
def test_a_file_under_a_name_of_ones_own_is_known_by_its_content(copy: Path, name: str) -> None:
    path = (copy / name).rename(copy / "my own")
    if name == "vocab.json":  # an ordinary word distinguishes it from tokenizer.json
        data = json.loads(path.read_text(encoding="utf-8"))
        data["model"] = data.pop("op")
        path.write_text(json.dumps(data), encoding="utf-8")
    tokenizer = Tokenizer.load(path, n_vocab=N_VOCAB)
    assert (tokenizer.encode(TEXT), tokenizer.special) == (EXPECTED.encode(TEXT), EXPECTED.special)


@pytest.fixture(scope="module")
def multilingual() -> str:
    """A tokenizer.json of the published multilingual models."""
    return vocabulary.load(MULTILINGUAL.path, MULTILINGUAL.n_vocab).to_str()


@pytest.mark.parametrize("n_vocab", [51864, 51866])
def test_a_whole_tokenizer_of_another_published_model_is_refused(
    tmp_path: Path, multilingual: str, n_vocab: int
) -> None:
    """One with fewer tokens would fit a larger model, and be off by one."""
    (tmp_path / "tokenizer.json").write_text(multilingual, encoding="utf-8")
    with pytest.raises(ModelError):
        vocabulary.load(tmp_path, n_vocab)


def test_a_fine_tune_may_add_a_token_and_be_of_large_v3s_size_by_that(tmp_path: Path, multilingual: str) -> None:
    data = json.loads(multilingual)
    data["added_tokens"].append({"id": 51865, "content": "<|gsw|>", "special": True})
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path, n_vocab=51866)
    assert (tokenizer.languages["gsw"], tokenizer.special.timestamp_begin) == (51865, 50364)


class PanicException(BaseException):
    """What a panic in Rust becomes; it cannot be imported."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [(Exception("it\nfailed"), ModelError), (PanicException(), ModelError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_a_failure_of_the_library_is_an_error_and_an_interrupt_stays_one(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, expected: type[BaseException]
) -> None:
    def fail(**arguments: object) -> None:
        raise error

    monkeypatch.setattr("tokenizers.models.BPE", fail)
    with pytest.raises(expected):
        vocabulary.load(NANO, N_VOCAB)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "nano.tiktoken"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_changed_anywhere_give_a_tokenizer_or_one_line(copy: Path, name: str, data: st.DataObject) -> None:
    content = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        new = data.draw(st.binary(max_size=3) | st.sampled_from([b'"', b"{"]))
        content[at : at + data.draw(st.integers(0, 3))] = new
    (copy / name).write_bytes(content)
    try:
        tokenizer = Tokenizer.load(copy / name, n_vocab=N_VOCAB)
    except ModelError as error:
        check_one_line(error)
    else:
        tokenizer.decode(tokenizer.encode(TEXT))


def test_a_table_is_a_tokenizer_unless_it_is_another_models() -> None:
    check(Tokenizer(vocabulary.from_table(TABLE, N_VOCAB, "model.bin"), where="model.bin"))
    for table in (TABLE[:300], [b"zzz", *TABLE[1:]], [*TABLE, b"more"]):
        with pytest.raises(ModelError):
            vocabulary.from_table(table, N_VOCAB, "model.bin")


def test_what_may_be_merged_and_normalised_is_not_read(copy: Path) -> None:
    """Many published files lack their first merge, and a pattern may never end."""
    slow = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
    damage(copy / "tokenizer.json", {"model.merges": "...", "normalizer": slow})
    tokenizer = Tokenizer.load(copy, n_vocab=N_VOCAB)
    check(tokenizer)
    assert tokenizer.decode(tokenizer.encode("a" * 200 + "!")) == "a" * 200 + "!"
