"""Transformers' model of the same weights as ours, loaded once."""

import pytest
import transformers

from tests.whisper.support import NANO, Untyped, load_reference


@pytest.fixture(scope="session")
def reference() -> Untyped:
    return load_reference()


@pytest.fixture(scope="session")
def processor() -> Untyped:
    return transformers.WhisperProcessor.from_pretrained(NANO)
