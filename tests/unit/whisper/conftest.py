"""The embedded model's weights, their model in transformers, and features of its sample, loaded once."""

import openvino as ov
import pytest
import transformers

from streamer.arrays import FloatArray
from streamer.audio.mel import log_mel
from streamer.constants import N_SAMPLES
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import NANO, SAMPLE, Untyped, load_reference, read


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    return huggingface.load(NANO)


@pytest.fixture(scope="session")
def mel() -> FloatArray:
    """Features of the sample's first 30 s, shape (80, 3000)."""
    return log_mel(read(SAMPLE)[:N_SAMPLES], 80)


@pytest.fixture(scope="session")
def reference() -> Untyped:
    return load_reference()


@pytest.fixture(scope="session")
def processor() -> Untyped:
    return transformers.WhisperProcessor.from_pretrained(NANO)


@pytest.fixture(scope="session")
def npu_plugin() -> None:
    """Skip where OpenVINO has no plugin for NPUs; it computes on the CPU in tests."""
    try:
        ov.Core().get_property("NPU", "SUPPORTED_PROPERTIES")
    except RuntimeError as error:
        pytest.skip(f"this openvino lacks the NPU plugin: {error}")
