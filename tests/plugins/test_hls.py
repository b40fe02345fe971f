"""`--to hls:DIR`: what players of RFC 8216 need, with a hand-moved clock."""

import re
from collections.abc import Iterator
from pathlib import Path

import av
import pytest

from streamer.events import Event, Gap, Speech
from streamer.plugins import hls
from streamer.plugins.hls import N_SEGMENTS, PLAYLIST, Hls
from tests.builders import ready
from tests.targets import target
from tests.unit.outputs.finals import worded

BEGAN = 1_800_000_000.0  # Unix time of the first sample; a multiple of a segment's length
FIRST = 300_000_000
READY = ready()


class Show:
    """A playlist that is written while a clock goes on."""

    def __init__(self, directory: Path, began: float = BEGAN) -> None:
        self.directory = directory
        self.now = 1000.0
        self.output = Hls(target(str(directory), lambda position_s: began + position_s), clock=lambda: self.now)
        self.output.deliver(READY)

    def at(self, position_s: float, *events: Event) -> None:
        """Let events happen when a second of the audio has come."""
        self.now = 1000.0 + position_s
        for event in events:
            self.output.deliver(event)
        self.output.tick()

    def say(self, start: float, end: float, text: str) -> None:
        """Speak, and hear the final half a second later."""
        self.at(start + 0.2, Speech(state="start", time=start))
        self.at(end + 0.3, Speech(state="end", time=end))
        self.at(end + 0.5, worded((f" {text}", start, end)))

    @property
    def playlist(self) -> str:
        return (self.directory / PLAYLIST).read_text(encoding="utf-8")

    @property
    def segments(self) -> list[str]:
        """What the playlist names, read."""
        names = [line for line in self.playlist.splitlines() if not line.startswith("#")]
        return [(self.directory / name).read_text(encoding="utf-8") for name in names]


@pytest.fixture
def playing(tmp_path: Path) -> Iterator[Show]:
    made = Show(tmp_path / "hls")
    yield made
    made.output.close()


def texts(segment: str) -> list[str]:
    header, *cues = segment.split("\n\n")
    assert header == "WEBVTT\nX-TIMESTAMP-MAP=MPEGTS:0,LOCAL:00:00:00.000"
    assert cues.pop() == ""
    return [cue.split("\n", 1)[1] for cue in cues]


def test_the_playlist_is_as_rfc_8216_has_it(playing: Show) -> None:
    playing.say(1.0, 2.0, "Good morning.")
    playing.at(15.0)
    assert playing.playlist == (
        "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:6\n#EXT-X-MEDIA-SEQUENCE:300000000\n"
        "#EXT-X-PROGRAM-DATE-TIME:2027-01-15T08:00:00.000+00:00\n"
        "#EXTINF:6.000,\nsegment-300000000.vtt\n#EXTINF:6.000,\nsegment-300000001.vtt\n"
    )
    assert playing.segments[0] == (
        "WEBVTT\nX-TIMESTAMP-MAP=MPEGTS:0,LOCAL:00:00:00.000\n\n00:00:01.000 --> 00:00:02.000\nGood morning.\n\n"
    )
    assert texts(playing.segments[1]) == []


def test_a_segment_waits_until_all_that_was_said_in_it_is_final(playing: Show) -> None:
    playing.at(5.7, Speech(state="start", time=5.5))
    playing.at(14.0)
    assert not (playing.directory / PLAYLIST).exists()
    playing.at(14.0, worded((" Late but whole.", 5.5, 12.0)))
    assert [texts(segment) for segment in playing.segments] == [["Late but whole."]] * 2
    playing.at(20.0)
    assert len(playing.segments) == 2
    playing.at(20.0, Speech(state="end", time=19.0), Gap(start=12.0, end=19.0, reason="overload"))
    assert len(playing.segments) == 3


def test_what_becomes_final_too_late_is_shown_late(playing: Show) -> None:
    playing.at(1.2, Speech(state="start", time=1.0))
    playing.at(42.5)
    assert len(playing.segments) == 2
    playing.at(42.5, Speech(state="end", time=5.0), worded((" Better late.", 1.0, 5.0)))
    playing.at(50.0)
    assert [texts(segment) for segment in playing.segments[:4]] == [[], [], ["Better late."], []]
    assert "00:00:12.000 --> 00:00:16.000" in playing.segments[2]


def test_old_segments_leave_the_playlist_and_later_the_disk(playing: Show) -> None:
    (playing.directory / "segment-1.vtt").write_text("somebody else's")
    for i in range(100):
        playing.at(6.0 * i)
    first = FIRST + 98 - N_SEGMENTS
    assert re.findall(r"segment-(\d+)", playing.playlist) == [str(first + i) for i in range(N_SEGMENTS)]
    assert f"#EXT-X-MEDIA-SEQUENCE:{first}\n" in playing.playlist
    kept = {int(path.stem.split("-")[1]) for path in playing.directory.glob("segment-*.vtt")}
    assert kept == {1, *range(first - N_SEGMENTS, first + N_SEGMENTS)}


def test_ffmpeg_reads_each_cue_once(playing: Show) -> None:
    playing.say(1.0, 2.0, "One.")
    playing.say(4.0, 8.0, "Over the edge.")
    playing.say(13.0, 14.0, "Three & more.")
    playing.output.close()
    assert playing.playlist.endswith("\n#EXT-X-ENDLIST\n")
    with av.open(str(playing.directory / PLAYLIST)) as container:
        packets = [packet for packet in container.demux() if packet.size]
    assert [(packet.pts, packet.duration, bytes(packet).decode()) for packet in packets] == [
        (1000, 1000, "One."),
        (4000, 4000, "Over the edge."),
        (13000, 1000, "Three &amp; more."),
    ]


def test_numbers_go_on_when_the_daemon_starts_again(playing: Show) -> None:
    playing.at(100.0)
    numbers = re.findall(r"segment-(\d+)", playing.playlist)
    playing.output.close()
    again = Show(playing.directory, BEGAN + 120)
    again.at(20.0)
    assert min(re.findall(r"segment-(\d+)", again.playlist)) > max(numbers)
    again.output.close()


def test_a_final_that_could_not_be_written_is_there_once(playing: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    event = worded((" Once.", 1.0, 2.0))
    with monkeypatch.context() as patched:
        patched.setattr(hls, "replace", lambda path, text: (_ for _ in ()).throw(OSError(28, "No space left")))
        playing.now = 1021.0
        for _ in range(2):
            with pytest.raises(OSError):  # noqa: PT011 - its text is the system's
                playing.output.deliver(event)
        with pytest.raises(OSError):  # noqa: PT011
            playing.output.tick()
    playing.output.deliver(event)
    assert [texts(segment) for segment in playing.segments] == [["Once."], [], []]
