"""The same tokens as openai-whisper's with its published weights, on people's recordings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import whisper

from tests.reference.published.parity import TIE, WORD_TIME_S, Pair, recordings
from tests.unit.whisper.support import SAMPLE, Untyped, read

pytestmark = pytest.mark.real

ENGLISH = recordings("en")
OTHERS = [(language, path) for language in ("de", "es", "fr", "ja", "pt") for path in recordings(language)]
SOME = ENGLISH[:4]

# By name; `condition_on_previous_text` is openai-whisper's default, so that all windows but the first have a prompt.
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "five beams": {"beam_size": 5},
    "a prompt before each window": {
        "initial_prompt": "Mr. Speaker, the Earhart letters.",
        "carry_initial_prompt": True,
    },
    "word times": {"word_timestamps": True, "beam_size": 5},
}
CASES = [
    *(("greedy", "en", path) for path in ENGLISH),
    *(("greedy", *case) for case in OTHERS),
    *(("five beams", "en", path) for path in ENGLISH),
    *(("five beams", *case) for case in OTHERS[:2]),
    *((name, "en", path) for name in ("a prompt before each window", "word times") for path in SOME),
]


@pytest.mark.parametrize(("name", "language", "path"), CASES, ids=lambda value: getattr(value, "stem", value))
def test_tokens_are_openai_whispers(
    pair: Pair, name: str, language: str, path: Path, record_property: Callable[[str, object], None]
) -> None:
    if language != "en" and not pair.ours.generation.multilingual:
        pytest.skip("knows English only")
    found = pair.compare(read(path), language=language, **OPTIONS[name])
    about = f"{pair.name}, {name}"
    record_property(f"{about}: tokens", (found.n_equal, found.n_tokens))
    if found.difference:
        record_property("note", f"{about}, {path.stem}, token {found.n_equal}: {found.difference}")
    assert found.is_tie or not found.difference, found.difference
    late = [(word, seconds) for word, seconds in found.words if seconds > WORD_TIME_S]
    worst_s = max((seconds for _, seconds in found.words), default=0.0)
    if found.words:
        record_property(f"{about}: within 20 ms, words", (len(found.words) - len(late), len(found.words)))
    # Paths through the attention that cost the same to some digits may differ by a frame more.
    assert len(late) <= len(found.words) // 50
    assert worst_s <= 2 * WORD_TIME_S


def test_a_tie_is_judged_by_openai_whispers_own_log_probabilities(pair: Pair) -> None:
    untyped: Untyped = whisper
    mel = untyped.log_mel_spectrogram(untyped.pad_or_trim(read(SAMPLE)))
    chosen = untyped.DecodingOptions(language="en", fp16=False)
    window = untyped.decode(pair.theirs, mel, chosen)
    assert pair.log_probs(mel, chosen, window.tokens).mean() == pytest.approx(window.avg_logprob, abs=1e-4)
    # Another second token is no tie.
    changed = [window.tokens[0], window.tokens[1] + 1, *window.tokens[2:]]
    text, gap = pair.difference(mel, chosen, changed, window.tokens)
    assert gap > TIE
    assert "log-probabilities differ by" in text
