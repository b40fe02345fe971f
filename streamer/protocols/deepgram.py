"""Deepgram's live and pre-recorded transcription, `/v1/listen`, as its SDK uses it.

`Live` serves a WebSocket, `write_answer` a recording. Live results have no gaps: each begins at the end of the last
final one, the first at 0 s.
"""

import hashlib
import math
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec

from streamer.audio.pcm import BYTES_PER_SAMPLE
from streamer.audio.stream import StreamDecoder
from streamer.constants import MAX_CHANNELS, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, SAMPLE_RATE, PcmEncoding
from streamer.errors import AudioFileError, ConfigError, IdleError, StreamerError
from streamer.events import End, Error, Event, Final, Flushed, Gap, Partial, Ready, Speech, Word
from streamer.outside import one_line
from streamer.protocols import adapter
from streamer.protocols.adapter import FLUSH_SKEW_S, Action, Do, Finish, Hangup, Open, Write, say_json
from streamer.protocols.native import StreamStart
from streamer.protocols.recordings import RecordedSegment, RecordingOptions
from streamer.protocols.text import bare, hotwords, note_model

# Seconds without audio and text after which a connection is closed.
TIMEOUT_S = 10.0

# Range of the silence that ends speech in a session, in milliseconds.
MIN_SILENCE_MS, MAX_SILENCE_MS = 100, 10_000

# Of raw samples. Other audio is recognised by its first bytes.
ENCODINGS: dict[str, PcmEncoding] = {"linear16": "s16le", "linear32": "f32le", "mulaw": "mulaw", "alaw": "alaw"}

# Deepgram's own names of HTTP errors; the others have the standard's.
_ERROR_CODES = {
    400: "Bad Request",
    401: "INVALID_AUTH",
    403: "INSUFFICIENT_PERMISSIONS",
    413: "PAYLOAD_TOO_LARGE",
}

_CHANNEL = [0, 1]  # the first of one

# Numbers of speakers, from 0 in the order in which they first spoke; None if not requested.
Speakers = dict[str, int] | None

_SENTENCE_ENDS = (".", "?", "!", "。", "？", "！")


# Up to 100, one line each.
Terms = Annotated[
    list[Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=r"\A[^\x00-\x1f\x7f-\x9f]*\Z")]],
    msgspec.Meta(max_length=100),
]


class ListenQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the address that have an effect here; others are ignored."""

    model: str = ""
    encoding: Literal["linear16", "linear32", "mulaw", "alaw", "flac", "opus", "ogg-opus"] | None = None
    sample_rate: Annotated[int, msgspec.Meta(ge=MIN_SAMPLE_RATE, le=MAX_SAMPLE_RATE)] | None = None
    channels: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHANNELS)] = 1
    language: Annotated[str, msgspec.Meta(max_length=32)] = ""
    # `true`, or the languages to choose from.
    detect_language: Annotated[list[Annotated[str, msgspec.Meta(max_length=32)]], msgspec.Meta(max_length=100)] = []
    # Words and phrases that are likely; `keywords` have a weight: `word:2`.
    keyterm: Terms = []
    keywords: Terms = []
    # The model always writes punctuation; it is removed only for an explicit `false`.
    punctuate: bool = True
    smart_format: bool = False
    interim_results: bool = False
    # Milliseconds of silence that end speech and a result; False: no result has `speech_final`.
    endpointing: Annotated[int, msgspec.Meta(ge=0)] | bool | None = None
    utterance_end_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    vad_events: bool = False
    utterances: bool = False
    # Seconds between the words of a recording that end an utterance.
    utt_split: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.8
    paragraphs: bool = False
    # Whether words name their speaker, if the session knows it.
    diarize: bool = False

    @property
    def punctuated(self) -> bool:
        """Whether transcripts have punctuation and capitals."""
        return self.punctuate or self.smart_format

    @property
    def hotwords(self) -> tuple[str, ...] | None:
        """Likely words and phrases, as many as a session takes; None if not given."""
        return hotwords((*self.keyterm, *(word.partition(":")[0] for word in self.keywords)))

    @property
    def options(self) -> RecordingOptions:
        """How to transcribe a recording. Raises ConfigError for an unknown language."""
        detect = [language for language in self.detect_language if language.lower() != "false"]
        return RecordingOptions(
            language="auto" if detect else self.language,
            languages=tuple(language for language in detect if language.lower() != "true"),
            hotwords=self.hotwords,
        )


class _Command(msgspec.Struct):
    """A text frame."""

    type: Literal["KeepAlive", "Finalize", "CloseStream"]


def read_query(query: adapter.Query) -> ListenQuery:
    """Read an address. Raises ConfigError for an invalid value."""
    read = adapter.read_query(query, ListenQuery)
    if read.encoding in ENCODINGS and not read.sample_rate:
        raise ConfigError(f"encoding is {read.encoding!r} and sample_rate is missing: expected both")
    if read.model:
        note_model(read.model)
    return read


def describe_error(status: int, message: str) -> dict[str, str]:
    code = _ERROR_CODES.get(status) or HTTPStatus(status).name
    return {"err_code": code, "err_msg": message, "request_id": str(uuid.uuid4())}


def make_live(query: adapter.Query, headers: Mapping[str, str]) -> "Live":
    """Make the adapter of a connection. Raises ConfigError for an invalid address."""
    return Live(read_query(query), request_id=str(uuid.uuid4()), created=_now())


class Live(adapter.Adapter):
    """Live transcription over a WebSocket."""

    timeout_s: float | None = TIMEOUT_S

    def __init__(self, query: ListenQuery, *, request_id: str, created: str) -> None:
        self._query = query
        self._metadata = {"transaction_key": "deprecated", "request_id": request_id, "created": created}
        self._sha256 = hashlib.sha256()
        self._start, self._opened = _start(query), False
        # Decodes a file; None for raw samples. And how much audio came.
        self._decoder = None if query.encoding in ENCODINGS else StreamDecoder()
        self._received_s = 0.0
        # Whether further messages are ignored.
        self._finished = False
        self._model = ""
        self._speakers: Speakers = {} if query.diarize else None
        # End of the newest final, in seconds.
        self._final_until = 0.0
        # Start and end (infinite: not known yet) of each utterance that is not final.
        self._utterances: deque[tuple[float, float]] = deque()
        # End of the last final word; None after its UtteranceEnd.
        self._last_word_end: float | None = None
        # Position of the last Finalize that is not answered yet.
        self._finalizing_until: float | None = None
        # The newest final since then: it may be the answer.
        self._held: Final | None = None

    def begin(self) -> list[Action]:
        return self._open()

    def receive(self, message: str | bytes) -> list[Action]:
        if self._finished:
            return []
        if isinstance(message, str):
            return self._command(message)
        return [*self._write(message), *self._utterance_end(self._received_s)] if message else self._finish()

    def refused(self, error: StreamerError) -> list[Action]:
        if isinstance(error, IdleError):
            reason = f"NET-0001: no audio and no text for {TIMEOUT_S:g} s: expected audio, or KeepAlive every 3 to 5 s"
            return self._hang_up(1011, reason)
        return self._hang_up(error.close_code, f"{error.code}: {error}")

    def on_event(self, event: Event) -> list[Action]:
        match event:
            case Ready():
                self._model = event.model
            case Speech(state="start"):
                actions = self._utterance_end(event.time)
                self._utterances.append((event.time, math.inf))
                if self._query.vad_events:
                    actions.append(say_json({"type": "SpeechStarted", "channel": _CHANNEL, "timestamp": event.time}))
                return actions
            case Speech(state="end") if self._utterances:
                self._utterances[-1] = (self._utterances[-1][0], event.time)
            case Partial():
                said = self._release()
                if self._query.interim_results:
                    said.append(self._result(event.words, event.end))
                return said
            case Final():
                said = self._release()
                self._held = event
                return said if self._finalizing_until is not None else [*said, *self._release()]
            case Gap():
                self._drop_utterances(event.end)
            case Flushed():
                if self._finalizing_until is not None and event.time >= self._finalizing_until - FLUSH_SKEW_S:
                    self._finalizing_until = None
                return self._release(from_finalize=True) or [
                    self._result((), event.time, final=True, from_finalize=True)
                ]
            case Error(fatal=True):
                self.fail(event)
            case End():
                return self._conclude()
        return []

    def _open(self) -> list[Action]:
        if self._opened or (self._decoder is not None and not self._decoder.begun):
            return []
        self._opened = True
        return [Open(self._start)]

    def _write(self, data: bytes) -> list[Action]:
        """Write audio to the session; without any, which is its end, what the decoder still holds."""
        self._sha256.update(data)
        decoder, audio, start = self._decoder, data, self._start
        if decoder is None:
            self._received_s += len(data) / BYTES_PER_SAMPLE[start.format] / start.channels / start.sample_rate
        else:
            audio = (decoder.decode(data) if data else decoder.finish()).astype("<f4").tobytes()
            self._received_s = decoder.decoded_s
        written = [Write(audio)] if audio else self._alive() if data else []
        actions = [*self._open(), *written]
        if decoder is not None:
            actions += [_error("DataError", problem) for _, problem in decoder.take_problems()]
            actions += self._fail(decoder.failure) if decoder.failure is not None else []
        return actions

    def _fail(self, error: AudioFileError) -> list[Action]:
        """Hang up because of what was sent, after the results of what came before."""
        if not self._opened:
            return self._hang_up(1008, f"DATA-0000: {error}")
        self._finished, self.timeout_s = True, None
        self.hangup = Hangup(1008, one_line(f"DATA-0000: {error}"))
        return [Finish()]

    def _alive(self) -> list[Action]:
        """Reset the idle timeout of the session, which is not paused, so nothing else happens."""
        return [Do("resume")] if self._opened else []

    def _command(self, text: str) -> list[Action]:
        try:
            kind = msgspec.json.decode(text, type=_Command).type
        except (ValueError, RecursionError):  # RecursionError: brackets nested thousands deep
            fault = "invalid text frame: expected a JSON object of type KeepAlive, Finalize or CloseStream"
            return [_error("SchemaError", fault, text[:1000])]
        match kind:
            case "CloseStream":
                return self._finish()
            case "Finalize" if self._opened:
                self._finalizing_until = self._received_s
                return [Do("flush")]
            case "Finalize":
                return []
        return self._alive()

    def _finish(self) -> list[Action]:
        self._finished, self.timeout_s = True, None
        actions = self._write(b"")
        if self._decoder is not None and self._decoder.failure is not None:
            return actions
        return [*actions, Finish()] if self._opened else self._conclude()

    def _conclude(self) -> list[Action]:
        """Send the remaining results and the metadata, and hang up."""
        self._finished = True
        said = self._release()
        if self._model and self._received_s - self._final_until >= 0.001:
            said.append(self._result((), self._received_s, final=True))
        audio = {"sha256": self._sha256.hexdigest(), "duration": round(self._received_s, 3), "channels": 1}
        return [*said, say_json({"type": "Metadata", **self._metadata, **audio}), self.hangup]

    def _hang_up(self, code: int, reason: str) -> list[Action]:
        self._finished = True
        return [Hangup(code, one_line(reason))]

    def _release(self, *, from_finalize: bool = False) -> list[Action]:
        """Send the held final, if there is one."""
        final, self._held = self._held, None
        if final is None:
            return []
        if final.words:
            self._last_word_end = final.words[-1].end
        speech_final = self._drop_utterances(final.end) and self._query.endpointing is not False
        result = self._result(
            final.words, final.end, final=True, speech_final=speech_final, from_finalize=from_finalize
        )
        return [result, *self._utterance_end(self._received_s)]

    def _drop_utterances(self, until: float) -> bool:
        """Remove the utterances that are final, or lost, up to a time; return whether there were any."""
        n_before = len(self._utterances)
        while self._utterances and self._utterances[0][1] <= until:
            self._utterances.popleft()
        return len(self._utterances) < n_before

    def _utterance_end(self, now: float) -> list[Action]:
        """Return an UtteranceEnd if the silence since the last final word is as long as requested."""
        silent_until = self._utterances[0][0] if self._utterances else now
        pause_ms, last = self._query.utterance_end_ms, self._last_word_end
        if pause_ms is None or last is None or silent_until - last < pause_ms / 1000:
            return []
        self._last_word_end = None
        return [say_json({"type": "UtteranceEnd", "channel": _CHANNEL, "last_word_end": last})]

    def _result(
        self,
        words: Sequence[Word],
        end: float,
        *,
        final: bool = False,
        speech_final: bool = False,
        from_finalize: bool = False,
    ) -> Action:
        start = self._final_until
        end = max(start, end)
        if final:
            self._final_until = end
        return say_json(
            {
                "type": "Results",
                "channel_index": _CHANNEL,
                "start": start,
                "duration": round(end - start, 3),
                "is_final": final,
                "speech_final": speech_final,
                "from_finalize": from_finalize,
                "channel": {"alternatives": [_alternative(words, self._query.punctuated, start, self._speakers)]},
                "metadata": {"request_id": self._metadata["request_id"], **_model(self._model)},
            }
        )


def write_answer(
    query: ListenQuery,
    segments: Sequence[RecordedSegment],
    *,
    sha256: str,
    duration_s: float,
    model: str,
    language: str,
) -> dict[str, Any]:
    """Return the JSON that answers a recording."""
    used = _model(model)
    words = [word for segment in segments for word in segment.final.words]
    speakers: Speakers = {} if query.diarize else None
    best = _alternative(words, query.punctuated, speakers=speakers)
    utterances = _split(words, lambda word, following: following.start - word.end >= query.utt_split)
    if query.paragraphs:
        best["paragraphs"] = _paragraphs(utterances, query.punctuated)
    channel: dict[str, Any] = {"alternatives": [best]}
    if query.options.language == "auto":
        channel["detected_language"] = language
    results: dict[str, Any] = {"channels": [channel]}
    if query.utterances:
        results["utterances"] = [
            {
                **_span(part),
                **_alternative(part, query.punctuated, speakers=speakers),
                "channel": 0,
                "id": str(uuid.uuid4()),
            }
            for part in utterances
        ]
    metadata = {
        "transaction_key": "deprecated",
        "request_id": str(uuid.uuid4()),
        "sha256": sha256,
        "created": _now(),
        "duration": round(duration_s, 3),
        "channels": 1,
        "models": [used["model_uuid"]],
        "model_info": {used["model_uuid"]: used["model_info"]},
    }
    return {"metadata": metadata, "results": results}


def _alternative(
    words: Sequence[Word], punctuated: bool, from_s: float = 0.0, speakers: Speakers = None
) -> dict[str, Any]:
    """Return transcript, confidence and words; no word begins before `from_s`."""
    written: list[dict[str, Any]] = []
    transcript = ""
    for word in words:
        letters = bare(word.word)
        transcript += word.word if punctuated else word.word[: word.word[:1].isspace()] + letters
        if letters or not written:
            times = {"start": max(word.start, from_s), "end": max(word.end, from_s)}
            written.append({"word": letters or word.word.strip(), **times, "confidence": round(word.probability, 4)})
            if punctuated:
                written[-1]["punctuated_word"] = word.word.strip()
            if speakers is not None and word.speaker:
                written[-1]["speaker"] = speakers.setdefault(word.speaker, len(speakers))
        elif punctuated:  # a dash between spaces, for example, is no word
            written[-1]["punctuated_word"] += word.word.rstrip()
    confidence = round(sum(word.probability for word in words) / len(words), 4) if words else 0.0
    return {"transcript": transcript.strip(), "confidence": confidence, "words": written}


def _paragraphs(parts: Sequence[Sequence[Word]], punctuated: bool) -> dict[str, Any]:
    """Return parts of a recording as paragraphs of sentences."""
    paragraphs = []
    for part in parts:
        sentences = _split(part, lambda word, _: word.word.rstrip().endswith(_SENTENCE_ENDS))
        written = [{"text": _alternative(words, punctuated)["transcript"], **_span(words)} for words in sentences]
        paragraphs.append({"sentences": written, "num_words": len(part), **_span(part)})
    transcript = "\n\n".join(_alternative(part, punctuated)["transcript"] for part in parts)
    return {"transcript": transcript, "paragraphs": paragraphs}


def _split(words: Sequence[Word], ends: Callable[[Word, Word], bool]) -> list[list[Word]]:
    """Divide words between those for which `ends(word, following)`."""
    parts: list[list[Word]] = []
    for word in words:
        if not parts or ends(parts[-1][-1], word):
            parts.append([])
        parts[-1].append(word)
    return parts


def _span(words: Sequence[Word]) -> dict[str, float]:
    return {"start": words[0].start, "end": words[-1].end}


def _model(name: str) -> dict[str, Any]:
    """Return the description of a model; its UUID is always the same."""
    number = str(uuid.uuid5(uuid.NAMESPACE_OID, name))
    return {"model_uuid": number, "model_info": {"name": name, "version": "1", "arch": "whisper"}}


def _start(query: ListenQuery) -> StreamStart:
    """Return what a session is opened with: for raw samples, or for those of `StreamDecoder`."""
    options, raw = query.options, ENCODINGS.get(query.encoding or "")
    silence_ms = query.endpointing if query.endpointing and query.endpointing is not True else None
    return StreamStart(
        format=raw or "f32le",
        sample_rate=(raw and query.sample_rate) or SAMPLE_RATE,
        channels=query.channels if raw else 1,
        language=options.language,
        languages=options.languages,
        hotwords=options.hotwords,
        words=True,
        min_silence_s=silence_ms and min(max(silence_ms, MIN_SILENCE_MS), MAX_SILENCE_MS) / 1000,
    )


def _error(variant: str, description: str, message: str = "") -> Action:
    return say_json({"type": "Error", "variant": variant, "description": description, "message": message})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
