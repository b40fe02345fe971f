"""Languages by their names."""

from streamer.languages import code_of
from streamer.settings.load import load_settings


def test_a_language_may_be_named_as_openai_whisper_names_it() -> None:
    assert [code_of(name) for name in ("German", "mandarin", "haitian creole", "en", "auto", "klingon")] == [
        *("de", "zh", "ht", "en", "auto", "klingon")
    ]
    assert load_settings(None, {"STREAMER_DECODING_LANGUAGE": "German"}, {}).decoding.language == "de"
