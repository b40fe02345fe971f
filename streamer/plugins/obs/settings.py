"""Settings of `--to obs`."""

import msgspec

from streamer.settings.setting import section, setting


@section
class ObsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How OBS Studio is reached."""

    obs_url: str = setting("ws://127.0.0.1:4455", "obs-websocket of OBS Studio", metavar="URL")
    obs_password: str = setting("", "its password; empty: it asks for none", secret=True)
    obs_text_source: str = setting("", "text source that shows the newest final; empty: stream captions only")
