"""What loaders say of models that are damaged, of another kind, or more than they read."""

from pathlib import Path

from tests.refusals import Refusal, refusals
from tests.unit.whisper.weights.checks import at_most
from tests.unit.whisper.weights.models import prepare

# Of the file that a sentence is about, and of what is shown of its content.
MOST_CHARACTERS = 600


@refusals("weights")
def test_a_model_that_is_refused(tmp_path: Path, refusal: Refusal) -> None:
    read = prepare(tmp_path, **refusal.given)
    with refusal.expected(tmp_path), at_most(8 << 20):
        read()
    assert refusal.says.isprintable()
    assert len(refusal.says) < MOST_CHARACTERS
