"""What submitters of recordings and workers say to each other."""

import msgspec

from streamer.events import Ready
from streamer.outside import one_line
from streamer.plugins.cluster.messages import PREFIX, VERSION, Message
from streamer.protocols.recordings import RecordedSegment, RecordingOptions
from streamer.settings.table import DecodingSettings, SpeechSettings

JOBS = f"{PREFIX}.jobs.{VERSION}"
SUBMITTERS = f"{PREFIX}.submitter"


class FreeSlot(Message, frozen=True, kw_only=True):
    """Request: a worker with a model, as in WorkerAlive, has a free slot. Answer: RecordingJob, if there is one."""

    worker: str
    model: str


class JobSettings(msgspec.Struct, frozen=True):
    """How a recording is decoded."""

    decoding: DecodingSettings = DecodingSettings()
    speech: SpeechSettings = SpeechSettings()


class RecordingJob(Message, frozen=True, kw_only=True):
    """A recording that is to be transcribed."""

    submitter: str = ""
    number: int = 0  # the submitter's own
    words: bool = True  # whether segments have words with times

    # Settings for it; None: the worker's.
    settings: JobSettings | None = None
    options: RecordingOptions = RecordingOptions()  # that replace the worker's settings


class JobEnd(Message, frozen=True, kw_only=True):
    """How a run has ended."""

    n_segments: int = 0  # in all
    ready: Ready | None = None  # with which the recording's session opens
    code: str = ""  # of the error; empty if there was none
    message: str = ""
    retry: bool = False  # whether another worker might succeed


class JobReport(Message, frozen=True, kw_only=True):
    """Request of a run, at least every few seconds. Answer: JobAnswer."""

    job: int
    worker: str
    run: str  # unique name of the worker's try
    begins: bool = False
    position: int | None = None  # of the first sample of the next audio; None: none is asked for

    n_before: int = 0  # segments reported before these
    segments: tuple[RecordedSegment, ...] = ()
    done: int = 0  # samples that are transcribed
    n_samples: int = 0  # that were read
    language: str = ""
    work_s: float = 0.0

    end: JobEnd | None = None


class JobAnswer(Message, frozen=True, kw_only=True):
    """Answer of a submitter."""

    wanted: bool  # else the worker stops
    data: bytes = b""  # samples as in AudioBlock; none at the end of the recording
    wide: bool = False


UNWANTED = JobAnswer(wanted=False)


def shown(model: str) -> str:
    """Return a model's name, without the hash of WorkerAlive."""
    return one_line(model.rpartition(" ")[0] or model)
