"""Recordings transcribed with a glossary, by the embedded model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

from streamer.constants import SAMPLE_RATE
from tests.daemon import SAMPLE, Outcome, events_of, pause_after, recording
from tests.promises import check_promises, transcript


@pytest.mark.slow
def test_files_are_written_as_the_glossary_says_whichever_way_they_are_transcribed(
    tmp_path: Path, run_here: Callable[..., Outcome]
) -> None:
    sentence, glossary = tmp_path / "sentence.wav", tmp_path / "terms.yaml"
    soundfile.write(sentence, recording(SAMPLE, 0.0, pause_after(1)), SAMPLE_RATE)
    glossary.write_text("- {find: the commission, replace: the Kommission}\n- {mask: danger}", encoding="utf-8")
    events = events_of(run_here("transcribe", "--stream", "--format", "jsonl", "--glossary", glossary, sentence).stdout)
    check_promises(events)
    assert transcript(events).startswith("The Kommission regards"), transcript(events)
    assert transcript(events).rstrip(".,").endswith("******"), transcript(events)
    written = run_here("transcribe", "--glossary", glossary, sentence)
    assert written.stdout.startswith("The Kommission regards"), written.stdout
