"""Which file of a directory is taken, what a file is, and files that are broken or hostile."""

import base64
import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.errors import ModelError
from streamer.whisper.tokens import vocabulary
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.tokens.vocabulary import BYTE_CHARACTERS, MAX_BYTES
from tests.unit.whisper.support import NANO
from tests.unit.whisper.tokens.published import MULTILINGUAL

N_VOCAB = 2022
FILES = ("tokenizer.json", "vocab.json", "nano.tiktoken")
TEXT = " the Commission's 19 facts, naïve 🙂"


CHARACTER_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def nano_table() -> list[bytes]:
    backend = vocabulary.load(NANO, N_VOCAB)
    words: list[bytes] = []
    for i in range(512):
        text = backend.id_to_token(i)
        assert text is not None
        words.append(bytes(CHARACTER_BYTES[c] for c in text))
    return words


TABLE = nano_table()
RANKS = "".join(f"{base64.b64encode(token).decode()} {i}\n" for i, token in enumerate(TABLE))
EXPECTED = Tokenizer.load(NANO, n_vocab=N_VOCAB)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A directory with the shipped model's tokenizer in every form."""
    directory = tmp_path / "copy"
    directory.mkdir()
    for name in FILES[:2]:
        shutil.copy(NANO / name, directory)
    (directory / "nano.tiktoken").write_text(RANKS, encoding="utf-8")
    return directory


def check_message(message: str, path: Path = NANO) -> None:
    """However long or strange what a file holds."""
    assert "\n" not in message
    assert len(message) < 400 + 2 * len(str(path))


def refuse(path: Path, *parts: str, n_vocab: int = N_VOCAB) -> None:
    with pytest.raises(ModelError) as caught:
        vocabulary.load(path, n_vocab)
    message = str(caught.value)
    check_message(message, path)
    for part in parts:
        assert part in message


def check(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(TEXT) == EXPECTED.encode(TEXT)
    assert tokenizer.decode(EXPECTED.encode(TEXT)) == TEXT
    assert tokenizer.special == EXPECTED.special
    assert tokenizer.languages == {"en": 514}
    assert tokenizer.n_vocab == N_VOCAB


def test_the_first_of_the_kinds_is_taken(copy: Path) -> None:
    for name in ("tokenizer.json", "vocab.json", "nano.tiktoken"):
        assert vocabulary.find(copy) == copy / name
        tokenizer = Tokenizer.load(copy, n_vocab=N_VOCAB)
        check(tokenizer)
        assert tokenizer.where == str(copy / name)
        (copy / name).unlink()
    refuse(copy, "tokenizer.json is missing", "or vocab.json", "--tokenizer FILE")


@pytest.mark.parametrize("name", FILES)
def test_a_file_under_a_name_of_ones_own(copy: Path, name: str) -> None:
    (copy / name).rename(copy / "my own")
    if name == "vocab.json":  # that is what an ordinary word tells
        data = json.loads((copy / "my own").read_text(encoding="utf-8"))
        data["model"] = data.pop("op")
        (copy / "my own").write_text(json.dumps(data), encoding="utf-8")
    check(Tokenizer.load(copy / "my own", n_vocab=N_VOCAB))


def test_lines_that_end_as_on_windows(copy: Path) -> None:
    path = copy / "nano.tiktoken"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    check(Tokenizer.load(path, n_vocab=N_VOCAB))


def test_what_may_be_merged_follows_from_the_numbers(copy: Path) -> None:
    """Many published files lack their first merge."""
    data = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    del data["model"]["merges"]
    (copy / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    check(Tokenizer.load(copy, n_vocab=N_VOCAB))


def test_several_rank_files_are_too_many(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.tiktoken").write_text(RANKS, encoding="utf-8")
    refuse(tmp_path, "has a.tiktoken and b.tiktoken: expected one tokenizer", "--tokenizer FILE")


def all_tokens() -> list[str]:
    """Return all tokens of the shipped model in the order of their numbers, as CTranslate2 lists them."""
    backend = vocabulary.load(NANO, N_VOCAB)
    return [backend.id_to_token(i) or "" for i in range(N_VOCAB)]


def write_list(path: Path, tokens: object) -> Path:
    listed = json.dumps(tokens) if path.suffix == ".json" else "".join(f"{token}\n" for token in tokens)  # type: ignore[attr-defined]
    path.write_text(listed, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize("name", ["vocabulary.json", "vocabulary.txt"])
def test_a_list_of_all_tokens(tmp_path: Path, name: str) -> None:
    write_list(tmp_path / name, all_tokens())
    check(Tokenizer.load(tmp_path, n_vocab=N_VOCAB))
    check(Tokenizer.load(tmp_path / name, n_vocab=N_VOCAB))


@pytest.mark.parametrize("tokens", [[], ["a", "b"], {"a": 1}, 5, [*"ab", 5, "<|endoftext|>"], ["<|endoftext|>"] * 2])
def test_a_list_of_other_things(tmp_path: Path, tokens: object) -> None:
    refuse(write_list(tmp_path / "vocabulary.json", tokens))


def test_a_broken_list(tmp_path: Path) -> None:
    tokens = all_tokens()
    refuse(write_list(tmp_path / "vocabulary.txt", tokens[1:]), "no token for some of the 256 bytes")
    refuse(write_list(tmp_path / "vocabulary.txt", [*tokens, "more"]), "has 2023 tokens, the model 2022")
    (tmp_path / "vocabulary.json").write_text("[" * 100_000, encoding="utf-8")
    refuse(tmp_path / "vocabulary.json", "it is not JSON")


def test_a_table() -> None:
    check(Tokenizer(vocabulary.from_table(TABLE, N_VOCAB, "model.bin"), where="model.bin"))


@pytest.mark.parametrize("name", ["nothing", "no/such/file", "x" * 5000, "a\0b"])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    refuse(tmp_path / name, " cannot be read" if os.name == "posix" and len(name) == 5000 else " is missing: ")


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_gigabyte_is_not_read(copy: Path, name: str) -> None:
    with (copy / name).open("ab") as file:
        file.truncate(1 << 30)  # a hole
    tracemalloc.start()
    refuse(copy / name, f"has more than {MAX_BYTES >> 20} MiB")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * MAX_BYTES


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json"])
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is not JSON"),
        ("[" * 500_000, "is not JSON"),
        ('{"a":' * 500_000, "is not JSON"),
        ("[1]", "holds a JSON list"),
        ("{", "is not JSON"),
        ('{"a": 1e999}', "is no tokenizer"),
        ('{"a": ' + "1" * 5000 + "}", "is not JSON"),
        ('{"\\ud800": 0}', ": expected "),
        ("\0", "is not JSON"),
    ],
    ids=range(9),
)
def test_json_that_is_no_tokenizer(copy: Path, name: str, text: str, part: str) -> None:
    (copy / name).write_text(text, encoding="utf-8")
    refuse(copy / name, name, part)


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    data: dict[str, Any] = json.loads((NANO / "tokenizer.json").read_text(encoding="utf-8"))
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda d: d.pop("model"), "its model is no BPE"),
        (lambda d: d["model"].update(type="WordPiece"), "its model is no BPE"),
        (lambda d: d.update(decoder=None), "its decoder is not ByteLevel"),
        (lambda d: d.update(pre_tokenizer={"type": "Split"}), "its pre_tokenizer is not ByteLevel"),
        (lambda d: d["model"].update(vocab=[]), "its model lacks vocab"),
        (lambda d: d["model"].update(vocab={}) or d.update(added_tokens=[]), "it has no tokens"),
        (lambda d: d["model"]["vocab"].pop("!"), "it has no token for some of the 256 bytes"),
        (lambda d: d["model"]["vocab"].update(zz=7), "both have the number 7"),
        (lambda d: d["model"]["vocab"].update(zz=-1), "the token 'zz' has the number -1"),
        (lambda d: d["model"]["vocab"].update(zz="7"), "the token 'zz' has the number '7'"),
        (lambda d: d["model"]["vocab"].update(zz=True), "the token 'zz' has the number True"),
        (lambda d: d["model"]["vocab"].update(zz=2**70), "tokens, the model 2022: the files are from different"),
        (lambda d: d["model"]["vocab"].update(zz=2022), "has 2023 tokens, the model 2022"),
        (lambda d: d.update(added_tokens={}) or d.update(added_tokens=5), "its added_tokens are no list"),
        (lambda d: d["added_tokens"].append(5), "its added_tokens are no list"),
        (lambda d: d["added_tokens"].append({}), "it adds the token None"),
        (lambda d: d["added_tokens"].append({"content": "a", "id": 5000}), "the token 'a' has the numbers"),
        (lambda d: d["added_tokens"].append({"content": "new", "id": 5}), "both have the number 5"),
        (lambda d: d["added_tokens"].append({"content": "\ud800", "id": 2021}), "both have the number 2021"),
    ],
    ids=range(19),
)
def test_a_broken_tokenizer_json(tmp_path: Path, change: Callable[[dict[str, Any]], object], part: str) -> None:
    (tmp_path / "tokenizer.json").write_text(edited(change), encoding="utf-8")
    refuse(tmp_path, part)


def test_a_pattern_that_never_ends_is_not_run(tmp_path: Path) -> None:
    slow = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    text = edited(lambda d: d.update(normalizer={"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}))
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path, n_vocab=N_VOCAB)
    text = "a" * 200 + "!"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    (tmp_path / "tokenizer.json").write_text(edited(lambda d: d.update(pre_tokenizer=slow)), encoding="utf-8")
    refuse(tmp_path, "its pre_tokenizer is not ByteLevel")


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("added_tokens.json", "[]", "added_tokens.json holds a JSON list"),
        ("added_tokens.json", '{"new": 5}', "both have the number 5"),
        ("added_tokens.json", '{"<|en|>": 5000}', "has 5001 tokens, the model 2022"),
        ("added_tokens.json", '{"op": 2021}', "the token 'op' has the numbers 511 and 2021"),
        ("tokenizer_config.json", "[", "tokenizer_config.json is not JSON"),
        ("tokenizer_config.json", '{"added_tokens_decoder": [1]}', "its added_tokens_decoder is no object"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}', "it adds the token 'x'"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"5": 1}}', "it adds the token '5'"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"5": {}}}', "it adds the token None"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"1' + "0" * 99 + '": {}}}', "it adds the token '1000"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"²": {}}}', "it adds the token '²'"),
    ],
)
def test_broken_gpt2_files(copy: Path, name: str, text: str, part: str) -> None:
    (copy / "tokenizer.json").unlink()
    (copy / name).write_text(text, encoding="utf-8")
    refuse(copy, part)


LINES = RANKS.split("\n")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "it has no tokens"),
        ("IQ==", "line 1 is 'IQ=='"),
        ("IQ== 0 0", "line 1 is"),
        ("IQ== 1", "line 1 is 'IQ== 1', not token 0"),
        ("IQ== 0\nIQ== 0", "line 2 is 'IQ== 0', not token 1"),
        ("IQ== 0\nIQ== 1", "the token '!' has the numbers 0 and 1"),
        ("I!== 0", "line 1 is 'I!== 0'"),
        ("IQ 0", "line 1 is 'IQ 0'"),
        ("ÄÄÄÄ 0", "line 1 is 'ÄÄÄÄ 0'"),
        ("IQ== ٠", "line 1 is"),
        ("IQ== " + "9" * 9999, "line 1 is"),
        ("\n".join(LINES[1:]), "line 1 is"),
        (RANKS.replace("IQ== 0", "enp6 0"), "it has no token for some of the 256 bytes"),
        ("\n".join(LINES[:300]), "has 300 tokens of text, the model 2022 tokens in all"),
        ("some text that is no rank file", "line 1 is 'some text that is no rank file'"),
    ],
    ids=range(15),
)
def test_a_broken_rank_file(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "r.tiktoken").write_text(text, encoding="utf-8")
    refuse(tmp_path, "r.tiktoken", part)


def test_a_table_that_is_larger_than_the_model() -> None:
    with pytest.raises(ModelError, match="here has 512 tokens, the model 500: the files are from different models"):
        vocabulary.from_table(TABLE, 500, "here")


@pytest.fixture(scope="module")
def multilingual() -> str:
    """A tokenizer.json of the published multilingual models."""
    return vocabulary.load(MULTILINGUAL.path, MULTILINGUAL.n_vocab).to_str()


@pytest.mark.parametrize("n_vocab", [51864, 51866])
def test_a_whole_tokenizer_of_another_published_model(tmp_path: Path, multilingual: str, n_vocab: int) -> None:
    """One with fewer tokens would fit a larger model, and be off by one."""
    (tmp_path / "tokenizer.json").write_text(multilingual, encoding="utf-8")
    refuse(tmp_path, f"has 51865 tokens, the model {n_vocab}: the files are from different models", n_vocab=n_vocab)


def test_a_fine_tune_may_add_a_token(tmp_path: Path, multilingual: str) -> None:
    """And be of large-v3's size by that."""
    data = json.loads(multilingual)
    data["added_tokens"].append({"id": 51865, "content": "<|gsw|>", "special": True})
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path, n_vocab=51866)
    assert tokenizer.languages["gsw"] == 51865
    assert tokenizer.special.timestamp_begin == 50364


class PanicException(BaseException):
    """What a panic in Rust becomes; it cannot be imported."""


@pytest.mark.parametrize("error", [Exception("it\nfailed"), PanicException("it failed")])
def test_a_failure_of_the_library_is_one_line(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(**arguments: object) -> None:
        raise error

    monkeypatch.setattr("tokenizers.models.BPE", fail)
    refuse(NANO, "tokenizer.json is no tokenizer (it failed)")


def test_an_interrupt_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tokenizers.models.BPE", interrupt)
    with pytest.raises(KeyboardInterrupt):
        vocabulary.load(NANO, N_VOCAB)


SOURCES = {name: (NANO / name).read_bytes() if name != "nano.tiktoken" else RANKS.encode() for name in FILES}
bounded = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def load_or_refuse(path: Path) -> None:
    """A file may turn out whole, else it is one line."""
    try:
        tokenizer = Tokenizer.load(path, n_vocab=N_VOCAB)
    except ModelError as error:
        check_message(str(error), path)
    else:
        tokenizer.decode(tokenizer.encode(TEXT))


@pytest.mark.parametrize("name", FILES)
@bounded
@given(data=st.data())
def test_bytes_changed_anywhere(copy: Path, name: str, data: st.DataObject) -> None:
    content = bytearray(SOURCES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b'"', b"{"])
        )
    (copy / name).write_bytes(content)
    load_or_refuse(copy / name)
