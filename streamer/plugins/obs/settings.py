"""Settings of `--to obs`."""

from typing import Annotated

import msgspec

from streamer.settings.setting import Help


class ObsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How OBS Studio is reached."""

    obs_url: Annotated[str, Help("obs-websocket of OBS Studio", metavar="URL")] = "ws://127.0.0.1:4455"
    obs_password: Annotated[str, Help("its password; empty: it asks for none", secret=True)] = ""
    obs_text_source: Annotated[str, Help("text source that shows the newest final; empty: stream captions only")] = ""
