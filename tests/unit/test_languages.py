"""Languages by the names that people and programs give them."""

import locale

import pytest
import whisper.tokenizer

from streamer.errors import ConfigError
from streamer.languages import _CODES, _NAMES, LANGUAGE_NAMES, _folded, code_of, codes_of, name_of, nearest

SPELLINGS = {
    "en": "en EN en-US en_US eng English en_GB.UTF-8",
    "de": "de de-AT German deutsch DEUTSCH deu ger de_DE@euro",
    "pt": "pt-BR pt_BR Português portugues",
    "zh": "zh-CN zh_Hant zh-Hant-TW cmn cmn-Hans 中文 mandarin chi",
    "no": "no nb nb-NO nob norsk Bokmål Norwegian-Bokmål",
    "nn": "nn nn-NO nynorsk",
    "he": "iw he heb עברית",
    "id": "in ind Bahasa_Indonesia",
    "fr": "fre fra français FRANCAIS fr-CA",
    "yi": "ji yi",
    "jw": "jv jw javanese",
    "tl": "fil fil-PH tl",
    "ht": "haitian-creole Haitian_Creole ht",
    "yue": "yue yue-HK Cantonese",
    "auto": "auto Auto und mul multi",
    "tlh": "tlh tlh-Latn",  # a fine-tune may have it
}


@pytest.mark.parametrize("code", SPELLINGS)
def test_a_language_is_known_however_it_is_spelled(code: str) -> None:
    assert {code_of(spelling) for spelling in SPELLINGS[code].split()} == {code}
    assert (code_of(f" {code}\n"), code_of("Haitian Creole"), code_of("")) == (code, "ht", "auto")


def test_names_are_those_of_openai_whisper_and_of_the_system() -> None:
    assert list(LANGUAGE_NAMES) == list(whisper.tokenizer.LANGUAGES)
    assert {name: code_of(name) for name in whisper.tokenizer.TO_LANGUAGE_CODE} == whisper.tokenizer.TO_LANGUAGE_CODE
    named = {name: code_of(alias) for name, alias in locale.locale_alias.items() if _folded(name) in _CODES}
    assert len(named) > 100
    assert {name: code_of(name) for name in named} == named


def test_each_name_is_of_one_language() -> None:
    names = [(_folded(name), code) for code, *others in _NAMES for name in {code, *others}]
    assert len({name for name, _ in set(names)}) == len(set(names))


def test_what_is_long_is_refused_in_a_short_line() -> None:
    with pytest.raises(ConfigError) as refusal:
        code_of("x" * 10**6)
    assert len(str(refusal.value)) < 250


def test_languages_to_choose_from_are_codes_each_once() -> None:
    assert codes_of(["German", "de-AT", "EN"]) == ("de", "en")
    assert (nearest("germ", {"de"}), nearest("germ", {"en"})) == ("; did you mean de (German)?", "")
    assert (name_of("ht"), name_of("tlh")) == ("Haitian Creole", "Tlh")
