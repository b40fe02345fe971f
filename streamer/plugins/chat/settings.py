"""Settings of `streamer chat`."""

import msgspec

from streamer.settings.setting import section, setting


@section
class ChatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The chatbot that is asked what was said."""

    url: str = setting("", "OpenAI-compatible endpoint, up to and including /v1", flag="--to", metavar="URL")
    model: str = setting("default", "name of the model there", metavar="M")
    system: str = setting("", "system prompt of the model; empty: none", metavar="S")
    api_key: str = setting(
        "", "sent as a Bearer token; better set in STREAMER_CHAT_API_KEY than written here", secret=True
    )
    pause_s: float = setting(1.5, "silence before half a sentence is asked, too", unit="s", within=(0.0, 60.0))
    timeout_s: float = setting(
        60.0, "silence from the endpoint after which a reply is given up", unit="s", within=(1.0, 3600.0)
    )
    history_turns: int = setting(20, "questions and answers that the model is reminded of", within=(0, 1000))
