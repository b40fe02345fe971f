"""Settings of corrections by a language model."""

from typing import Annotated

import msgspec

from streamer.extras import requires
from streamer.settings.setting import Help

# The commands of the core that have the flags.
_COMMANDS = ("run", "config show", "worker")


class ProofreadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The language model that proposes corrections of finals."""

    to: Annotated[
        str,
        Help(
            "OpenAI-compatible endpoint of a language model that proposes corrections; empty: none",
            flag="--correct-with",
            commands=_COMMANDS,
            metavar="URL",
        ),
    ] = ""
    to_model: Annotated[
        str, Help("name of the model there", flag="--correct-with-model", metavar="M", commands=_COMMANDS)
    ] = "default"
    api_key: Annotated[
        str, Help("sent as a Bearer token; better set in STREAMER_CORRECTION_API_KEY than written here", secret=True)
    ] = ""

    def check(self) -> None:
        """Raise ConfigError for an invalid endpoint."""
        if self.to:
            requires("rapidfuzz", extra="proofread", purpose="--correct-with")
            from streamer.plugins.completions import completions_url  # it takes 0.1 s, which others need not wait

            completions_url(self.to)
