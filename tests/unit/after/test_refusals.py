"""What is refused of post-processing, and with which sentence: tests/golden/refusals/after.toml."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
from huggingface_hub import constants

from streamer.after.correct.spelling import Glossary
from streamer.after.speakers.encoder import SpeakerEncoder
from streamer.after.speakers.enrolled import enrol, forget, path_of, read_enrolled
from streamer.after.turn_model import N_MELS, TurnModel
from streamer.check import check_options
from streamer.settings.load import load_settings
from streamer.settings.options import SessionOptions
from streamer.settings.table import Settings
from streamer.setup.session import session_settings
from streamer.whisper.device.devices import the_core
from streamer.whisper.model import WhisperModel
from tests.daemon import SAMPLE
from tests.refusals import Refusal, refusals
from tests.turn_model import write_turn_model
from tests.unit.after.speakers.voices import voice


def glossary(folder: Path, text: str, times: int = 1) -> None:
    (folder / "terms.yaml").write_text(text * times, encoding="utf-8")
    Glossary(folder / "terms.yaml", lambda word: False)


def glossary_file(folder: Path, name: str) -> None:
    (folder / "latin.yaml").write_bytes("- Wróbel".encode("latin-1"))
    Glossary(folder / name, lambda word: False)


def deep_glossary(folder: Path, depth: int) -> None:
    glossary(folder, "[", depth)


def name(folder: Path, name: str) -> None:
    try:
        enrol(folder, name, voice(1))
    finally:
        assert list(folder.iterdir()) == []


def voices(folder: Path, change: Mapping[str, Any]) -> None:
    """Read a file of Anna's, of which fields are changed; or `content` in its place."""
    enrol(folder, "Anna", voice(1))
    path = path_of(folder, "Anna")
    changed = {**json.loads(path.read_bytes()), **change}
    if "value" in change:
        changed["vector"] = [change["value"]] * change.get("n_values", 192)
    path.write_text(change.get("content", json.dumps(changed)) * change.get("times", 1), encoding="utf-8")
    read_enrolled(folder)


def turn_model(folder: Path, given: list[int] | str) -> None:
    """Compile a model of a shape, one with another output, or a file of this content; none if that is empty."""
    path = folder / "model.xml"
    if isinstance(given, list):
        write_turn_model(folder, shape=tuple(given)).rename(path)
        (folder / "turns.bin").rename(folder / "model.bin")
    elif given == "features":
        features = ops.parameter([1, N_MELS, 800], np.float32, "input_features")
        ov.save_model(ov.Model([ops.relu(features)], [features], "other"), path)
    elif given:
        path.write_text(given, encoding="utf-8")
    TurnModel(path, the_core())


def speaker_weights(folder: Path, names: list[str]) -> None:
    SpeakerEncoder({name: np.zeros((6, 7, 5), dtype=np.float32) for name in names}, the_core())


def no_speaker_model(folder: Path, _: object) -> None:
    check_options(load_settings(None, {}, {"speakers.enabled": True}), streaming=True)


KINDS: dict[str, Callable[[Path, Any], object]] = {
    each.__name__: each
    for each in (
        *(glossary, glossary_file, deep_glossary, name, voices, forget, turn_model, speaker_weights, no_speaker_model),
    )
}


@refusals("after")
def test_what_is_refused(
    refusal: Refusal, tmp_path: Path, model: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path))
    ((kind, given),) = refusal.given.items()
    with refusal.expected(tmp_path, SAMPLE.parent):
        if kind == "task":
            session_settings(Settings(), model, SessionOptions(task=given))
        else:
            KINDS[kind](tmp_path, given)
