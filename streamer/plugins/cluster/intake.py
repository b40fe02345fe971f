"""Audio and commands of a session at its worker: they arrive by position, and are passed on in order."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

import msgspec

from streamer.arrays import Float32Array
from streamer.daemon.streams import MAX_WRITE_SAMPLES
from streamer.engine.live_session import LiveSession
from streamer.errors import UsageError
from streamer.events import Error
from streamer.outside import one_line
from streamer.plugins.cluster.messages import AudioBlock, SessionCheckpoint, SessionCommand, unpack_samples
from streamer.protocols.native import StreamStart
from streamer.session.settings import SessionSettings
from streamer.settings.options import SessionOptions

logger = logging.getLogger(__name__)


class Intake:
    """What has arrived for a session. Used on the event loop, except `_on_room`, which the engine's threads call."""

    def __init__(
        self,
        live: LiveSession,
        checkpoint: SessionCheckpoint,
        settings_for: Callable[[StreamStart], SessionSettings],
        on_restored: Callable[[LiveSession], object],
    ) -> None:
        """Expect what a checkpoint does not have.

        settings_for : returns the settings for a client's options; raises UsageError
        on_restored : called with the session when the audio that was processed elsewhere has arrived again
        """
        self._live = live
        self._settings_for = settings_for
        self._on_restored = on_restored
        self._loop = asyncio.get_running_loop()
        # Whether audio that another worker processed is still to arrive again.
        self.restoring = True
        # The client's options by the number of the command that set them; the first apply.
        self._starts: deque[tuple[int, StreamStart]] = deque([(checkpoint.command, checkpoint.start)])
        # End of the audio and number of the newest command that have arrived, and when something did; whether something
        # behind them is missing.
        self.head, self.command = checkpoint.state.needed_from, checkpoint.command
        self.came_s = self._loop.time()
        self.missing = False
        # Audio, shape (n,), and commands that wait for room in the buffer.
        self.waiting: deque[Float32Array | SessionCommand] = deque()
        live.ring.on_room = self._on_room

    def take(self, message: AudioBlock | SessionCommand) -> bool:
        """Take the next audio or command, and drop what is known; return whether something was found to be missing.

        Raises ClusterMessageError if audio is malformed.
        """
        item: Float32Array | SessionCommand
        if isinstance(message, AudioBlock):
            samples = unpack_samples(message.data, wide=message.wide)
            is_next = message.position <= self.head and message.command <= self.command
            if is_next and message.position + len(samples) <= self.head:
                return False
            item = samples[max(0, self.head - message.position) :]
            is_next &= self.head - self._live.ring.head <= self._live.ring.capacity_samples
        else:
            if message.command <= self.command:
                return False
            is_next = message.position <= self.head and message.command == self.command + 1
            item = message
        was_missing, self.missing = self.missing, not is_next
        if not is_next:
            return not was_missing
        self.came_s = self._loop.time()
        if isinstance(item, SessionCommand):
            self.command = item.command
        else:
            self.head += len(item)
        self.waiting.append(item)
        self.pass_on()
        return False

    def pass_on(self) -> None:
        """Pass what waits on, in order, as far as there is room."""
        live = self._live
        while self.waiting and not live.over:
            item = self.waiting[0]
            if isinstance(item, SessionCommand):
                self.waiting.popleft()
                self._do(item)
                continue
            piece, rest = item[:MAX_WRITE_SAMPLES], item[MAX_WRITE_SAMPLES:]
            if live.ring.free < len(piece):
                break
            self.waiting.popleft()
            if len(rest):
                self.waiting.appendleft(rest)
            live.write(piece)
        if self.restoring and not live.over and live.restored:
            self.restoring = False
            self._on_restored(live)

    def start_at(self, command: int) -> StreamStart:
        """Return the client's options after a command has taken effect."""
        while len(self._starts) > 1 and self._starts[1][0] <= command:
            self._starts.popleft()
        return self._starts[0][1]

    def close(self) -> None:
        """Take nothing more."""
        self._live.close()
        self._live.ring.on_room = None
        self.waiting.clear()

    def _do(self, do: SessionCommand) -> None:
        """Have a command take effect at the end of the audio so far."""
        live, number = self._live, do.command
        match do.what:
            case "flush" | "pause" | "resume" | "clear" as what:
                live.do(what, number)
            case "end":
                live.end(number)
            case "set":
                self._change(do.options or SessionOptions(), number)
            case "report":
                live.mark(number, (Error(code=one_line(do.code), message=one_line(do.message), fatal=do.fatal),))
            case unknown:
                logger.warning("a gateway asks for %s, which this version does not know", one_line(unknown)[:60])
                live.mark(number)

    def _change(self, options: SessionOptions, command: int) -> None:
        """Change the options, or publish why they cannot be."""
        chosen = {name: getattr(options, name) for name in SessionOptions.__struct_fields__}
        start = msgspec.structs.replace(self._starts[-1][1], **chosen)
        try:
            settings = self._settings_for(start)
        except UsageError as error:
            self._live.mark(command, (Error(code=error.code, message=one_line(error), fatal=False),))
            return
        self._starts.append((command, start))
        self._live.change(settings, command)

    def _on_room(self) -> None:
        if self.waiting:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self.pass_on)
