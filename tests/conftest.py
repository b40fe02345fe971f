"""What all tests share."""

import hypothesis

from tests.virtual_mic import virtual_microphone

__all__ = ["virtual_microphone"]

# Time never decides a test, and a machine that is busy with something else is no reason to fail.
hypothesis.settings.register_profile("untimed", deadline=None, max_examples=60)
hypothesis.settings.load_profile("untimed")
