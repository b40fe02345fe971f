"""What is added to a session's events, as the settings ask for it; and all of it at once, by the embedded model."""

import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import soundfile

from streamer.after.postprocessing import PostProcessing
from streamer.after.second_pass import SecondPass
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.daemon.sessions import SessionSource, open_session, ready_event
from streamer.engine.decoder import make_engine
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.events import End, Event, Final, Partial, Ready, Revision, Speech, Translation, Turn
from streamer.packed_models import PackedModel
from streamer.plugins.proofread.language_model import LanguageModel
from streamer.settings.load import load_settings
from streamer.settings.options import NO_OPTIONS, SessionOptions
from streamer.settings.table import DecodingSettings, Settings
from streamer.whisper.model import WhisperModel
from tests.builders import final, partial
from tests.daemon import SAMPLE, Outcome, events_of, pause_after, recording
from tests.promises import check_promises, transcript
from tests.turn_model import write_turn_model
from tests.unit.after.live import Live
from tests.unit.whisper.support import load_on_cpu
from tests.waiting import WAIT_S


def post_processing_of(glossary: Path, **settings: object) -> PostProcessing:
    model = MagicMock()
    model.tokenizer.encode.return_value = [99_999]  # no usual word
    chosen = load_settings(None, {}, {"correction.glossary": str(glossary), **settings})
    return PostProcessing(chosen, model, MagicMock())


def test_a_glossary_spells_texts_and_revises_finals_if_that_was_too_late(tmp_path: Path) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text("- Port Dravenholt\n- Quorbix\n- {mask: damn}", encoding="utf-8")
    processing = post_processing_of(path)
    live = Live(language="en", translated=False)
    live.follow(*processing.followers(live.session, live.log))
    text = "damn quarbex at pord"
    live.publish(partial(text, len(text), segment=1))
    live.publish(final(f"{text} draven hold", segment=1))
    texts = [event.text for event in live.finish() if isinstance(event, Partial | Final | Revision)]
    assert texts == [
        "**** Quorbix at pord",
        "**** Quorbix at pord draven hold",
        "**** Quorbix at Port Dravenholt",
    ]
    assert [(revision.of, revision.by) for revision in live.revisions] == [(2, "glossary")]


def test_the_first_event_says_what_the_daemon_can_add(
    model: WhisperModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def capabilities(processing: PostProcessing | None) -> tuple[str, ...]:
        log = EventLog("abc", 100)
        source = SessionSource(kind=AudioKind.RECORDED)
        open_session(load_settings(None, {}, {"model.name": "nano.en"}), model, log, source, enrichment=processing)
        (ready,) = log.subscribe(print).backlog
        assert isinstance(ready, Ready)
        return ready.capabilities

    (tmp_path / "terms.yaml").write_text("- Quorbix", encoding="utf-8")
    monkeypatch.setattr(PackedModel, "path", tmp_path / "turns.onnx")
    processing = post_processing_of(tmp_path / "terms.yaml")
    assert (capabilities(None), capabilities(processing)) == ((), ("revisions",))
    write_turn_model(tmp_path).rename(tmp_path / "turns.onnx")
    assert capabilities(processing) == ("turns", "revisions")
    multilingual: Any = SimpleNamespace(
        name="base", runtime=model.runtime, tokenizer=SimpleNamespace(known_languages=["en", "de"])
    )
    assert ready_event(multilingual, "auto").capabilities == ("languages", "translation")


def test_the_endpoint_is_given_the_terms_that_the_glossary_has_by_now(tmp_path: Path) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text("- Quorbix", encoding="utf-8")
    processing = post_processing_of(path, **{"correction.to": "http://127.0.0.1:1/v1"})
    path.write_text("- Grafana", encoding="utf-8")
    processing.reread()()
    assert processing.corrections is not None
    (endpoint,) = processing.corrections.slow
    assert isinstance(endpoint, LanguageModel)
    assert list(endpoint._terms()) == ["Grafana"]


def test_the_second_passs_model_is_unloaded_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    unloaded: list[SecondPass] = []
    monkeypatch.setattr(SecondPass, "unload", lambda second_pass: unloaded.append(second_pass))
    model: Any = MagicMock()
    model.generation = SimpleNamespace(windows_s=(), prompted=True)
    processing = PostProcessing(Settings(), model, MagicMock())
    processing.unload()
    assert unloaded == [processing.second_pass]
    assert processing.reread()() is None


def transcribed(
    model: WhisperModel,
    samples: Float32Array,
    settings: dict[str, object],
    options: SessionOptions = NO_OPTIONS,
    captions: DecodingSettings | None = None,
) -> list[Event]:
    """Return what a session of a recording publishes; its promises are kept."""
    chosen = load_settings(None, {}, {"model.name": "nano.en", "stream.pace_s": 1.0, **settings})
    engine = make_engine(model, captions or chosen.decoding)
    processing = PostProcessing(chosen, model, engine)
    log, over, events = EventLog("abc", 10_000), Future[None](), list[Event]()
    log.subscribe(events.append)
    log.subscribe(lambda event: over.set_result(None) if isinstance(event, End) else None)
    source = SessionSource(kind=AudioKind.RECORDED, options=options)
    live = open_session(chosen, model, log, source, enrichment=processing)
    engine.start()
    try:
        if processing.second_pass is not None:
            processing.second_pass.model.result(WAIT_S)
        engine.add(live)
        live.write(samples)
        live.end()
        over.result(WAIT_S)
    finally:
        engine.stop()
    check_promises(events, duration_s=len(samples) / 16_000)
    assert str(processing.health) == ""
    return events


@pytest.mark.slow
def test_a_final_is_read_again_before_the_end(model: WhisperModel) -> None:
    # Captions cannot write this word: so there is something to mend.
    (the,) = model.tokenizer.encode(" the")
    correction = {"correction.model": "nano.en", "correction.beam_size": 5, "correction.deadline_s": WAIT_S}
    samples = recording(SAMPLE, pause_after(1), pause_after(2))
    events = transcribed(model, samples, correction, captions=DecodingSettings(suppress_tokens=f"-1,{the}"))
    assert model.n_beams == 1, "what captions compute stays as it was"
    assert " the " not in " ".join(event.text for event in events if isinstance(event, Final))
    revisions = [event for event in events if isinstance(event, Revision)]
    assert any(" the " in revision.text and revision.by == "second_pass" for revision in revisions)


@pytest.mark.slow
def test_the_speech_of_a_recording_ends_with_its_turns(
    model: WhisperModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_model = write_turn_model(tmp_path)
    monkeypatch.setattr(PackedModel, "find", lambda _: turn_model)
    speech = {"speech.turns": True, "speech.turn_threshold": 0.01, "speech.turn_silence_s": 10.0}
    events = transcribed(model, recording(SAMPLE, 0.0, pause_after(2)), {"correction.model": "", **speech})
    turns = [event for event in events if isinstance(event, Turn)]
    assert turns
    assert all(turn.finished == (turn.probability >= 0.01) for turn in turns)
    assert sum(isinstance(event, Speech) and event.state == "end" for event in events) > 1


@pytest.mark.slow
def test_a_client_gets_what_was_said_and_its_translation(tmp_path: Path, cache_dir: Path) -> None:
    """nano.en under another language's name: what it reads if it is to translate is English, too."""
    german = shutil.copytree(SAMPLE.parent, tmp_path / "german")
    for file in german.glob("*.json"):
        file.write_text(file.read_text(encoding="utf-8").replace("<|en|>", "<|de|>"), encoding="utf-8")
    model = load_on_cpu(german, cache_dir)
    samples = recording(SAMPLE, pause_after(1), pause_after(2))
    events = transcribed(model, samples, {"correction.model": ""}, SessionOptions(task="both"))
    finals = [event for event in events if isinstance(event, Final) and event.text]
    found = [event for event in events if isinstance(event, Translation)]
    assert finals[-1].seq == found[-1].of
    assert {event.language for event in finals} == {"de"}
    assert {event.language for event in found} == {"en"}
    assert "Secret Service" in " ".join(event.text for event in found)


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
