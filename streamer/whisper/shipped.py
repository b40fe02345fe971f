"""The models that come with the program."""

from importlib import resources
from pathlib import Path

# The one that has a sample of speech beside it, with its text and its times.
SAMPLE_OF = "nano.en"

# What that one says it is published as.
EMBEDDED_ORIGIN = "streamer/nano.en"


def shipped() -> dict[str, Path]:
    """Return name and directory of each model that came with the program, by name."""
    return {path.name: path for path in _folders_in("models") if path.name != "adapters"}


def shipped_adapters() -> list[Path]:
    """Return the directory of each adapter that came with the program; see `adapters`."""
    return _folders_in("models/adapters")


def speech() -> Path | None:
    """Return the sample of speech that came with the program; None if the installation lacks it."""
    sample = shipped().get(SAMPLE_OF, Path()) / "sample.flac"
    return sample if sample.is_file() else None


def _folders_in(where: str) -> list[Path]:
    """Return the folders in a folder of an installed program, or of a checkout of the repository, by name."""
    package = Path(str(resources.files("streamer")))
    places = (package.parent / where, package / where)
    return sorted(child for place in places if place.is_dir() for child in place.iterdir() if child.is_dir())


def limits(origin: str) -> str:
    """Return what people should know before they speak to a model of this origin; empty for any other."""
    if origin != EMBEDDED_ORIGIN:
        return ""
    return (
        "nano.en is for trying things out: it understands synthetic voices, not people; `streamer models pull base`"
        " fetches a model for people, or fetch one elsewhere and name its directory with --model"
    )
