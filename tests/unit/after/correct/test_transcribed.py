"""Recordings transcribed with a glossary, by the embedded model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

from streamer.constants import SAMPLE_RATE
from streamer.events import Final, from_json
from tests.daemon import SAMPLE, Outcome, pause_after, recording
from tests.promises import check_promises, transcript


@pytest.mark.slow
def test_files_are_written_as_the_glossary_says_whichever_way_they_are_transcribed(
    tmp_path: Path, run_here: Callable[..., Outcome]
) -> None:
    sentence, glossary = tmp_path / "sentence.wav", tmp_path / "terms.yaml"
    soundfile.write(sentence, recording(SAMPLE, 0.0, pause_after(1)), SAMPLE_RATE)
    glossary.write_text("- {find: the commission, replace: the Kommission}\n- {mask: danger}", encoding="utf-8")

    streamed = run_here("transcribe", "--stream", "--format", "jsonl", "--glossary", glossary, sentence)
    events = [from_json(line) for line in streamed.stdout.splitlines()]
    check_promises(events)
    assert transcript(events).startswith("The Kommission regards"), transcript(events)
    assert transcript(events).rstrip(".,").endswith("******"), transcript(events)
    assert any(isinstance(event, Final) for event in events)

    written = run_here("transcribe", "--glossary", glossary, sentence)
    assert written.stdout.startswith("The Kommission regards"), written.stdout

    glossary.write_text("- {find: the commission}", encoding="utf-8")
    refused = run_here("transcribe", "--glossary", glossary, sentence)
    assert refused.exit_code == 2
    assert "terms.yaml:1: found find: expected text, or one of" in refused.stderr
