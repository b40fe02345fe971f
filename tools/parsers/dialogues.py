"""Parsers of what clients of other people's protocols say: whole conversations, a message a line."""

from functools import partial
from pathlib import Path

from starlette.datastructures import Headers, QueryParams

from streamer.errors import ProtocolError, UsageError
from streamer.server.routes import SOCKETS
from tools.parsers.table import Parser, makes_parsers, text

CONVERSATIONS = (
    b'{"type":"session.update","session":{"type":"transcription","audio":{"input":{"format":{"type":"audio/pcm","rate":24000},'
    b'"transcription":{"model":"whisper-1","language":"en"},"turn_detection":{"type":"server_vad","threshold":0.5}}}}}\n'
    b'{"type":"input_audio_buffer.append","audio":"AAAAAAAA","event_id":"e1"}\n{"type":"input_audio_buffer.commit"}',
    b'{"type":"transcription_session.update","session":{"input_audio_format":"g711_ulaw","turn_detection":null}}\n'
    b'{"type":"input_audio_buffer.append","audio":"/////w=="}\n{"type":"input_audio_buffer.clear"}',
    b'\x00\x01\x02\x03\n{"type":"KeepAlive"}\n{"type":"Finalize","channel":0}\n\n{"type":"CloseStream"}',
    b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x80\x3e\x00\x00\x00\x7d\x00\x00\x02\x00\x10\x00data",
    b'{"uid":"a","language":null,"task":"transcribe","model":"small","send_last_n_segments":10,"hotwords":"a, b",'
    b'"word_timestamps":true,"audio_format":"int16"}\n\x00\x01\x02\x03\nEND_OF_AUDIO',
    b'{"config":{"sample_rate":16000.0,"words":1,"phrase_list":["a b"],"max_alternatives":3}}\n\x00\x01\n{"reset":1}\n'
    b'{"eof" : 1}',
)
QUERIES = (
    b"encoding=linear16&sample_rate=16000&channels=1&interim_results=true&endpointing=300&utterance_end_ms=1000",
    b"intent=transcription&model=x",
    b"endpointing=false&vad_events=True&language=multi&keywords=a:2&encoding=mulaw&sample_rate=8000",
)


@makes_parsers
def make_parsers(folder: Path) -> list[Parser]:
    return [
        *(
            Parser(f"conversations at {path}", CONVERSATIONS, partial(_talk, path), (ProtocolError,))
            for path in SOCKETS
        ),
        *(Parser(f"the query of {path}", QUERIES, partial(_make, path), (UsageError,)) for path in SOCKETS),
    ]


def _talk(path: str, data: bytes) -> None:
    adapter = SOCKETS[path].make(QueryParams(""), Headers({}))
    adapter.begin()
    for line in data.split(b"\n"):
        # Text frames are UTF-8, and binary ones hold anything.
        adapter.receive(line.decode("utf-8", "replace") if line[:1] == b"{" else line)


def _make(path: str, data: bytes) -> None:
    SOCKETS[path].make(QueryParams(text(data).encode("utf-8", "replace").decode("utf-8")), Headers({}))
