"""Settings of `streamer chat`."""

from typing import Annotated

import msgspec

from streamer.settings.setting import Help, within


class ChatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The chatbot that is asked what was said."""

    url: Annotated[str, Help("OpenAI-compatible endpoint, up to and including /v1", flag="--to", metavar="URL")] = ""
    model: Annotated[str, Help("name of the model there", metavar="M")] = "default"
    system: Annotated[str, Help("system prompt of the model; empty: none", metavar="S")] = ""
    api_key: Annotated[
        str, Help("sent as a Bearer token; better set in STREAMER_CHAT_API_KEY than written here", secret=True)
    ] = ""
    pause_s: Annotated[float, within(0.0, 60.0, "s"), Help("silence before half a sentence is asked, too")] = 1.5
    timeout_s: Annotated[
        float, within(1.0, 3600.0, "s"), Help("silence from the endpoint after which a reply is given up")
    ] = 60.0
    history_turns: Annotated[int, within(0, 1000), Help("questions and answers that the model is reminded of")] = 20
