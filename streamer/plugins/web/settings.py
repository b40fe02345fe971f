"""Settings of outputs at web addresses."""

import msgspec

from streamer.settings.setting import section, setting


@section
class WebSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where finals are posted to."""

    zoom_url: str = setting("", "the API token (an address) that Zoom shows for a meeting's captions", secret=True)
    youtube_url: str = setting("", "captions ingestion URL of a YouTube live stream", secret=True)
    webhook_url: str = setting("", "address that each final is posted to as JSON", secret=True)
    webhook_secret: str = setting("", "what posts are signed with; empty: they are not", secret=True)
