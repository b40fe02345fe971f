"""A speech-to-text plugin for LiveKit Agents, `STT`, which may find the turns too: `turn_detection` is then "stt"."""

import asyncio
import contextlib
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from streamer.client.connection import STREAM_PATH, parse_address
from streamer.client.options import Options
from streamer.errors import MissingExtraError, StreamerError
from streamer.events import Error, Event, Final, Partial, Ready, Speech, Turn
from streamer.outside import one_line
from streamer.plugins.agents.live import LiveStream

try:
    from livekit import rtc
    from livekit.agents import NOT_GIVEN, APIConnectionError, APIConnectOptions, APIError, LanguageCode, NotGivenOr, stt
    from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, TimedString
    from livekit.agents.utils import AudioBuffer, is_given, shortuuid
    from livekit.agents.voice.events import ConversationItemAddedEvent
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "livekit", "livekit", "streamer.plugins.agents.livekit") from error

Kind = stt.SpeechEventType

# Silence before a `turn` event, in seconds.
PAUSE_S = 0.3

# End of what the agent said last that the model is shown, in characters: about 50 tokens.
CONTEXT_CHARACTERS = 200


class STT(stt.STT):
    """Speech to text by a daemon, with interim text and the user's turns."""

    def __init__(
        self, address: str = "localhost", *, token: str = "", fingerprint: str = "", **options: Unpack[Options]
    ) -> None:
        """Prepare; each stream connects. Raises UsageError for an invalid address.

        address, token, fingerprint : see `streamer.listen`
        options : such as language="en"; see *Sending audio* in docs/protocol.md
        """
        super().__init__(
            capabilities=stt.STTCapabilities(
                streaming=True,
                interim_results=True,
                aligned_transcript="word",
                manual_flush=True,
                keyterms=True,
                chat_context=True,
            )
        )
        self._address = parse_address(address, token, fingerprint, path=STREAM_PATH)
        self._options: dict[str, Any] = {**options}
        # Terms that the agent's session is about, which it may change, beside the `hotwords` of the options.
        self._keyterms: list[str] = []
        self._streams: weakref.WeakSet[SpeechStream] = weakref.WeakSet()
        # The daemon's, once a session was opened.
        self.model_name = "unknown"

    @property
    def model(self) -> str:
        return self.model_name

    @property
    def provider(self) -> str:
        return "streamer"

    def update_options(self, **options: Unpack[Options]) -> None:
        """Change options, of open streams as well; None: the daemon's."""
        self._options |= options
        self._change([*options])

    def _update_session_keyterms(self, keyterms: list[str]) -> None:
        """Expect terms that the session names, beside those of the options."""
        self._keyterms = list(keyterms)
        self._change(["hotwords"])

    def _push_conversation_item(self, ev: ConversationItemAddedEvent) -> None:
        """Show the model what the agent said last: an answer has its names and terms."""
        item = ev.item
        if item.type == "message" and item.role == "assistant" and (text := item.text_content):
            self.update_options(initial_prompt=one_line(text)[-CONTEXT_CHARACTERS:])

    def _chosen(self) -> dict[str, Any]:
        """Return the options with the session's terms."""
        if not self._keyterms:
            return self._options
        return {
            **self._options,
            "hotwords": [*dict.fromkeys([*(self._options.get("hotwords") or ()), *self._keyterms])],
        }

    def _change(self, names: Sequence[str]) -> None:
        chosen = self._chosen()
        for opened in self._streams:
            opened.live.change({name: chosen.get(name) for name in names})

    def open(
        self, language: NotGivenOr[str], conn_options: APIConnectOptions, on_lost: Callable[[str], Any]
    ) -> LiveStream:
        """Return a stream to the daemon, which is waited for as long as all attempts of `conn_options` may take."""
        chosen = {"language": language} if is_given(language) else {}
        wait_s = (conn_options.max_retry + 1) * (conn_options.timeout + conn_options.retry_interval)
        return LiveStream(self._address, {**self._chosen(), **chosen}, wait_s=wait_s, on_lost=on_lost)

    def stream(
        self, *, language: NotGivenOr[str] = NOT_GIVEN, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> "SpeechStream":
        """Open a stream."""
        opened = SpeechStream(self, language, conn_options)
        self._streams.add(opened)
        return opened

    async def _recognize_impl(
        self, buffer: AudioBuffer, *, language: NotGivenOr[str] = NOT_GIVEN, conn_options: APIConnectOptions
    ) -> stt.SpeechEvent:
        frame = rtc.combine_audio_frames(buffer)
        live = self.open(language, conn_options, on_lost=lambda notice: None)
        try:
            live.audio(bytes(frame.data), frame.sample_rate, frame.num_channels)
            live.finish()
            finals = [event async for batch in live.events() for event in batch if isinstance(event, Final)]
        except StreamerError as error:
            raise APIConnectionError(str(error), retryable=False) from None
        return stt.SpeechEvent(Kind.FINAL_TRANSCRIPT, alternatives=[_data(finals)])


class SpeechStream(stt.RecognizeStream):
    """A stream to a daemon. A connection that breaks is resumed; nothing that was said meanwhile is lost."""

    def __init__(self, plugin: STT, language: NotGivenOr[str], conn_options: APIConnectOptions) -> None:
        super().__init__(stt=plugin, conn_options=conn_options)
        self._plugin = plugin
        self.live = plugin.open(
            language,
            conn_options,
            on_lost=lambda notice: self._emit_error(APIConnectionError(notice), recoverable=True),
        )
        self._request_id = shortuuid()
        # Seconds of audio that no usage event has reported.
        self._unreported_s = 0.0
        # The newest open text, the newest pause if the speaker had finished, the text that an answer may begin with.
        self._partial: Partial | None = None
        self._finished: Turn | None = None
        self._preflight = ""

    async def _run(self) -> None:
        reading = asyncio.create_task(self._read_input())
        try:
            async with contextlib.aclosing(self.live.events()) as batches:
                async for batch in batches:
                    for event in batch:
                        self._publish(event)
            await reading
        except StreamerError as error:
            raise APIConnectionError(str(error), retryable=False) from None
        finally:
            reading.cancel()

    async def _read_input(self) -> None:
        begun = False
        try:
            async for item in self._input_ch:
                if not isinstance(item, rtc.AudioFrame):
                    self.live.flush()
                    continue
                if not begun:
                    begun, self.start_time = True, time.time() - item.duration
                self._unreported_s += item.duration
                self.live.audio(bytes(item.data), item.sample_rate, item.num_channels)
        finally:  # an impossible frame ends the stream, too
            self.live.finish()

    def _publish(self, event: Event) -> None:
        match event:
            case Ready(model=model):
                self._plugin.model_name = model
            case Speech(state="start", time=time_s):
                self._send(Kind.START_OF_SPEECH, speech_start_time=self.start_time + time_s)
            case Speech(time=time_s):
                self._send(Kind.END_OF_SPEECH, speech_end_time=self.start_time + time_s)
            case Turn():
                self._finished = event if event.finished else None
                self._publish_preflight()
            case Partial(text=text):
                self._partial = event
                if text != self._preflight:  # as interim text it would withdraw the answer
                    self._preflight = ""
                    if not self._publish_preflight():
                        self._send(Kind.INTERIM_TRANSCRIPT, alternatives=[_data([event], self.start_time_offset)])
            case Final():
                self._partial, self._preflight = None, ""
                usage, self._unreported_s = stt.RecognitionUsage(self._unreported_s), 0.0
                self._send(Kind.RECOGNITION_USAGE, recognition_usage=usage)
                self._send(Kind.FINAL_TRANSCRIPT, alternatives=[_data([event], self.start_time_offset)])
            case Error(message=message, fatal=False):
                self._emit_error(APIError(one_line(message)), recoverable=True)

    def _publish_preflight(self) -> bool:
        """Publish the open text as one that an answer may begin with; return whether it is.

        It is if the speaker has finished, and the text of all the audio until then cannot change. A doubtful last
        word may still come: LiveKit then begins the answer anew.
        """
        partial, turn = self._partial, self._finished
        if partial is None or turn is None or self._preflight:
            return False
        is_complete = partial.end >= turn.time - PAUSE_S and partial.stable == len(partial.text)
        if not is_complete or (partial.words and partial.words[-1].end > turn.time):
            return False
        self._preflight = partial.text
        self._send(Kind.PREFLIGHT_TRANSCRIPT, alternatives=[_data([partial], self.start_time_offset)])
        return True

    def _send(self, kind: stt.SpeechEventType, **fields: Any) -> None:  # noqa: ANN401 - of SpeechEvent
        self._event_ch.send_nowait(stt.SpeechEvent(kind, self._request_id, **fields))


def _data(texts: Sequence[Partial | Final], offset_s: float = 0.0) -> stt.SpeechData:
    """Return texts as one, with the times of their words in seconds from `offset_s` on."""
    words = [word for text in texts for word in text.words]
    return stt.SpeechData(
        language=LanguageCode(getattr(texts[0], "language", "") if texts else ""),
        text=" ".join(one_line(text.text) for text in texts),
        start_time=texts[0].start + offset_s if texts else 0.0,
        end_time=texts[-1].end + offset_s if texts else 0.0,
        confidence=sum(word.probability for word in words) / max(1, len(words)),
        words=[
            TimedString(word.word.strip(), word.start + offset_s, word.end + offset_s, word.probability, offset_s)
            for word in words
        ],
    )
