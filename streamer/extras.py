"""Packages that a plain install does not bring: what an option says if its package is missing."""

import importlib.util

from streamer.errors import MissingExtraError


def requires(module: str, *, extra: str, purpose: str) -> None:
    """Raise MissingExtraError if a module is not installed. Nothing is imported, except the package around a submodule.

    module : name that is imported, such as `nats` or `livekit.agents`
    extra : of pyproject.toml, which brings it
    purpose : what needs it, in the user's words, such as `--grammar`
    """
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # the package around it
        found = None
    if found is None:
        raise MissingExtraError(module, extra, purpose)
