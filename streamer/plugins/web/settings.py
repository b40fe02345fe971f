"""Settings of outputs at web addresses."""

from typing import Annotated

import msgspec

from streamer.settings.setting import Help


class WebSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where finals are posted to."""

    zoom_url: Annotated[
        str, Help("the API token (an address) that Zoom shows for a meeting's captions", secret=True)
    ] = ""
    youtube_url: Annotated[str, Help("captions ingestion URL of a YouTube live stream", secret=True)] = ""
    webhook_url: Annotated[str, Help("address that each final is posted to as JSON", secret=True)] = ""
    webhook_secret: Annotated[str, Help("what posts are signed with; empty: they are not", secret=True)] = ""
