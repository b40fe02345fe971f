"""Our model and transformers' on the same weights, each loaded once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.model import WhisperModel, load_model
from tests.whisper.support import NANO, Untyped, load_reference


@pytest.fixture(scope="session", autouse=True)
def few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(min(2, before))
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="session")
def model(cache_dir: Path) -> WhisperModel:
    return load_model(str(NANO), DeviceSettings("CPU"), cache_dir=str(cache_dir))


@pytest.fixture(scope="session")
def reference() -> Untyped:
    return load_reference()


@pytest.fixture(scope="session")
def processor() -> Untyped:
    return transformers.WhisperProcessor.from_pretrained(NANO)
