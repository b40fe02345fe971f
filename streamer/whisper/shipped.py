"""The models that come with the program."""

from importlib import resources
from pathlib import Path

# The one that has a sample of speech beside it, with its text and its times.
SAMPLE_OF = "nano.en"

# What that one says it is published as.
EMBEDDED_ORIGIN = "streamer/nano.en"


def shipped() -> dict[str, Path]:
    """Return name and directory of each model that came with the program, by name."""
    package = Path(str(resources.files("streamer")))
    # In an installed program, and in a checkout of the repository.
    folders = (package.parent / "models", package / "models")
    found = {child.name: child for folder in folders if folder.is_dir() for child in folder.iterdir() if child.is_dir()}
    return dict(sorted(found.items()))


def limits(origin: str) -> str:
    """Return what people should know before they speak to a model of this origin; empty where it is any other."""
    if origin != EMBEDDED_ORIGIN:
        return ""
    return (
        "nano.en is for trying things out: it understands synthetic voices, not people; `streamer models pull base`"
        " fetches a model for people, or fetch one elsewhere and name its directory with --model"
    )
