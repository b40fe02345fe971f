"""The models that come with the program."""

from importlib import resources
from pathlib import Path

# The one that has a sample of speech beside it, with its text and its times.
SAMPLE_OF = "nano.en"


def shipped() -> dict[str, Path]:
    """Return name and directory of each model that came with the program, by name."""
    package = Path(str(resources.files("streamer")))
    # In an installed program, and in a checkout of the repository.
    folders = (package.parent / "models", package / "models")
    found = {child.name: child for folder in folders if folder.is_dir() for child in folder.iterdir() if child.is_dir()}
    return dict(sorted(found.items()))
