"""Transformers' model of the same weights as ours, loaded once."""

from collections.abc import Iterator

import pytest
import torch
import transformers

from tests.whisper.support import NANO, Untyped, load_reference


@pytest.fixture(scope="session", autouse=True)
def few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(min(2, before))
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def reference() -> Untyped:
    return load_reference()


@pytest.fixture(scope="session")
def processor() -> Untyped:
    return transformers.WhisperProcessor.from_pretrained(NANO)
