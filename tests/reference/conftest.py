"""nano.en's weights, its model in transformers, and features of its sample, as the tests of the model have them."""

from tests.unit.whisper.conftest import checkpoint, mel, processor, reference

__all__ = ["checkpoint", "mel", "processor", "reference"]
