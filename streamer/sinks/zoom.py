"""Finals as the closed captions of a Zoom meeting.

Source: Zoom's support article "Using a third-party closed captioning service" (POST of plain text with `seq` and
`lang`; GET .../seq for the last number).
"""

import re

from streamer.errors import RefusalError
from streamer.events import Event, Final, Ready
from streamer.outside import one_line
from streamer.sinks.post import PostingSink

# Zoom's `lang` names a country, too: of these languages one that is not called like the language.
_COUNTRIES = dict(
    re.findall(
        r"(\w+)-(\w+)",
        "ar-SA bn-BD ca-ES cs-CZ da-DK el-GR en-US et-EE fa-IR he-IL hi-IN ja-JP ko-KR ms-MY pt-BR sl-SI sv-SE ta-IN"
        " te-IN uk-UA ur-PK vi-VN zh-CN",
    )
)


class Zoom(PostingSink):
    """A sink that posts each final as a line. Posts are numbered; one that is tried again keeps its number."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "outputs.zoom_url")

        # Number of the next post; None before Zoom was asked for that of the last.
        self._next: int | None = None

    def handle(self, event: Event) -> None:
        """Post a final. Raises PeerError."""
        if self._next is None and isinstance(event, Ready | Final):
            self._next = self._last() + 1
        if isinstance(event, Final) and (text := one_line(event.text)):
            assert self._next is not None
            headers = {"Content-Type": "text/plain; charset=utf-8"}
            query = f"seq={self._next}&lang={language_tag(event.language)}"
            self.post(f"{text}\n".encode(), headers, query)
            self._next += 1

    def _last(self) -> int:
        """Return the number of the meeting's last post, by an earlier run of ours maybe; 0 where there is none."""
        try:
            answer = self.get("seq").strip()
        except RefusalError:  # the meeting has not begun
            return 0
        return int(answer) if re.fullmatch(r"[0-9]{1,15}", answer) else 0


def language_tag(code: str) -> str:
    """Return a language as Zoom names it, such as `en-US`."""
    return f"{code}-{_COUNTRIES.get(code, code.upper())}"
