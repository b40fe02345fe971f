"""`--to hls:DIR`: captions as segmented WebVTT, for players of HTTP Live Streaming.

Source: RFC 8216, 3.5 (WebVTT) and 6.2 (server). `captions.m3u8` is a media playlist; the master playlist of a video
names it as `EXT-X-MEDIA` of `TYPE=SUBTITLES`.
"""

import io
import math
import re
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from streamer.errors import ConfigError
from streamer.events import Event, Final, Gap, Ready, Speech
from streamer.outputs.files import replace
from streamer.outputs.sink import Answer, Delivered, Sink, Target
from streamer.outputs.subtitles import SubtitleOptions
from streamer.outputs.subtitles.timed import VttWriter

PLAYLIST = "captions.m3u8"
SEGMENT_S = 6  # of Apple's authoring specification
N_SEGMENTS = 20  # in the playlist; as many older ones are kept for players that have read an older playlist
MARGIN_S = 2.0  # delay after which a start of speech is known
MAX_WAIT_S = 30.0  # for a final; longer than an utterance takes, later finals are shown late
CLOCK_EVENTS = 64

# The first sample is time 0 of the video's clock, whose real relation to the audio is unknown.
_HEADER = "WEBVTT\nX-TIMESTAMP-MAP=MPEGTS:0,LOCAL:00:00:00.000\n\n"


class Hls(Sink):
    """A playlist and its segments of 6 s of audio, each published when all speech in it is final."""

    tick_s = 1.0

    def __init__(self, target: Target, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin. Raises ConfigError if the directory cannot be made."""
        self._directory = folder = Path(target.argument)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--to hls: cannot create the directory {folder} ({error.strerror}): choose another path"
            ) from None
        self._said_at = target.said_at
        self._clock = clock
        self._writer = _Cues(target.lines)
        # Lead of the audio over the clock according to each of the newest events; the largest is the right one.
        self._ahead: deque[float] = deque(maxlen=CLOCK_EVENTS)
        # Whether there is speech now; start of the speech that is not final, if there is any.
        self._speaking = False
        self._open_s: float | None = None
        # Published segments; number of the first, from the wall clock, so that numbers grow across restarts.
        self._n_segments = 0
        self._first = 0
        # The newest event.
        self._handled: Event | None = None

    def deliver(self, event: Event) -> Answer:
        """Note an event, and publish the segments that are due. Raises OSError if a file cannot be written."""
        if event is not self._handled:
            self._add(event)
            self._handled = event
        self.tick()
        return Delivered()

    def tick(self) -> None:
        """Publish the segments that are due. Raises OSError."""
        self._publish(self._final_s())

    def close(self) -> None:
        """Publish the rest, and mark the end of the playlist."""
        self._writer.close()
        self._publish(max((end_ms / 1000 + SEGMENT_S for _, end_ms, _ in self._writer.cues), default=0.0))
        if self._n_segments:
            self._write_playlist(self._n_segments, "#EXT-X-ENDLIST\n")

    def _add(self, event: Event) -> None:
        match event:
            case Ready():
                self._ahead.append(-self._clock())
            case Speech():
                self._ahead.append(event.time - self._clock())
                self._speaking = event.state == "start"
                if self._speaking and self._open_s is None:
                    self._open_s = event.time
            case Final() | Gap():
                self._ahead.append(event.end - self._clock())
                self._open_s = event.end if self._speaking else None
                self._writer.handle(event)

    def _final_s(self) -> float:
        """Return the second of the audio before which all speech is final."""
        now_s = self._clock() + max(self._ahead, default=-math.inf)
        return now_s - MARGIN_S if self._open_s is None else max(self._open_s, now_s - MAX_WAIT_S)

    def _publish(self, until_s: float) -> None:
        """Publish the segments before a second of the audio."""
        while (self._n_segments + 1) * SEGMENT_S <= until_s:
            self._writer.close()
            self._first = self._first or int(self._said_at(0) / SEGMENT_S)
            path = self._directory / f"segment-{self._first + self._n_segments}.vtt"
            replace(path, self._writer.segment(self._n_segments * SEGMENT_S * 1000))
            self._write_playlist(self._n_segments + 1)
            self._n_segments += 1
            self._writer.forget(self._n_segments * SEGMENT_S * 1000)

    def _write_playlist(self, n_segments: int, end: str = "") -> None:
        oldest = max(0, n_segments - N_SEGMENTS)
        numbers = range(self._first + oldest, self._first + n_segments)
        began = datetime.fromtimestamp(self._said_at(oldest * SEGMENT_S), UTC)
        text = (
            f"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:{SEGMENT_S}\n#EXT-X-MEDIA-SEQUENCE:{numbers[0]}\n"
            f"#EXT-X-PROGRAM-DATE-TIME:{began.isoformat(timespec='milliseconds')}\n"
        )
        text += "".join(f"#EXTINF:{SEGMENT_S:.3f},\nsegment-{number}.vtt\n" for number in numbers)
        replace(self._directory / PLAYLIST, text + end)
        for path in self._directory.iterdir():
            found = re.fullmatch(r"segment-(\d{9,12})\.vtt", path.name)
            if found and not numbers[0] - N_SEGMENTS <= int(found[1]) <= numbers[-1]:
                path.unlink(missing_ok=True)


class _Cues(VttWriter):
    """WebVTT cues that are kept until their segments are published."""

    def __init__(self, options: SubtitleOptions) -> None:
        super().__init__(io.StringIO(), options)

        # Start, end and text.
        self.cues: list[tuple[int, int, str]] = []
        # Start of the first segment that is not published.
        self._first_ms = 0

    def segment(self, begin_ms: int) -> str:
        """Return the segment that begins at a time: a cue is in each one that it is shown in."""
        shown = [cue for cue in self.cues if cue[1] > begin_ms and cue[0] < begin_ms + 1000 * SEGMENT_S]
        return _HEADER + "".join(f"{self._time(a)} --> {self._time(b)}\n{text}\n\n" for a, b, text in shown)

    def forget(self, end_ms: int) -> None:
        """Drop the cues that end before a time."""
        self._first_ms = end_ms
        self.cues = [cue for cue in self.cues if cue[1] > end_ms]

    def _show(self, start_ms: int, end_ms: int, text: str) -> None:
        late_ms = max(0, self._first_ms - start_ms)
        self.cues.append((start_ms + late_ms, end_ms + late_ms, text))
