"""One machine's connection to NATS: what is published, asked and subscribed to goes over it.

Each connection has a client of nats-py of its own, which is replaced when the connection is lost. A client that
reconnects by itself closes for ever after some server errors, and waits for minutes to close a dead line. nats-py has
no public method to abort a connection, so two things are given up: messages that wait to be sent when it is lost are
lost, and those in a dead line's buffer may arrive late. The protocol allows for both: audio has positions, sessions
have epochs, and requests are repeated.
"""

import asyncio
import contextlib
import logging
import random
import re
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from streamer.errors import ClusterError, ConfigError
from streamer.outside import one_line
from streamer.plugins.cluster.login import Login
from streamer.plugins.cluster.messages import EVENTS, Message, decoded, encoded
from streamer.plugins.cluster.settings import ClusterSettings

# Behind `login`, which says how to install it.
# isort: split
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

CONNECT_S = 2.0  # for a connection with all that is said at its beginning
PING_INTERVAL_S = 1.0  # a dead line is noticed after three of these
LOOK_S = 0.1  # between two looks whether the connection is lost
RETRY_S = (0.2, 0.8)  # between two rounds of all servers: many machines lose one at once
API_TIMEOUT_S = 2.0  # for one answer of JetStream
PATIENCE_S = 15.0  # for JetStream, which has no leader for 4 to 7 s when one is lost
CLOSE_S = 0.5

# That may wait to be sent; who publishes more waits.
BUFFER_BYTES = 8 * 1024 * 1024

# Error of JetStream: too few servers are there to keep that many copies. In a cluster that begins, they come.
_NO_PEERS = 10005

_T = TypeVar("_T")

Reply = Callable[[Message], Awaitable[None]]
Handler = Callable[[bytes, Reply], Awaitable[None]]

logger = logging.getLogger(__name__)


def machine_name(settings: ClusterSettings) -> str:
    """Return the name of this gateway or worker: the one in the settings, or one made of the machine's."""
    if settings.name:
        return settings.name
    host = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname().partition(".")[0])
    return f"{host[:32]}-{secrets.token_hex(3)}"


class Bus:
    """A connection to NATS that comes back by itself. All of it runs on one event loop."""

    jetstream: JetStreamContext

    def __init__(self, login: Login, name: str) -> None:
        """Begin without a connection: see `connect`."""
        self._login = login
        self._name = name
        # Names in the certificates of all servers that are known, by their addresses.
        self._servers = dict(login.servers)
        self._client = Client()
        # Whether its server is about to stop.
        self._is_leaving = False
        self._keeping: asyncio.Task[None] | None = None
        self._subscriptions: list[tuple[str, Callable[[Msg], Awaitable[None]]]] = []
        # Of requests under way.
        self._limits: set[asyncio.Timeout] = set()
        # What NATS has said last of a connection that failed; what it has forbidden, as it was logged.
        self._reason = ""
        self._forbidden: set[str] = set()
        # Inbox to which NATS answers if a subject has no subscriber, empty without `notice_absence`.
        self._absent = ""

        # Called with a line when NATS stores nothing for a while, and when the connection is back after it was lost.
        self.on_trouble: Callable[[str], None] = logger.warning
        self.on_reconnected: Callable[[], None] = lambda: None

    @classmethod
    async def connect(cls, settings: ClusterSettings, name: str) -> "Bus":
        """Connect as the settings say; `name` is this machine's, unique, and part of subjects.

        Raises ClusterError if no server can be reached, or all are too old or have no JetStream; and ConfigError.
        """
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise ConfigError(f"cluster.name is {name!r}: expected 1 to 64 characters of A-Z a-z 0-9 - and _")
        bus = cls(Login(settings), name)
        await bus._connect()
        bus._keeping = asyncio.create_task(bus._keep())
        try:
            await bus.patiently(lambda: bus.jetstream.account_info(), "JetStream")
        except BaseException:
            await bus.close()
            raise
        return bus

    @property
    def connected(self) -> bool:
        """Whether NATS is there, as far as is known by now."""
        return self._client.is_connected

    async def publish(self, subject: str, message: Message) -> None:
        """Send a message; it is dropped while NATS is away."""
        await self._send(subject, encoded(message), f"{self._absent}.{subject}" if self._absent else "")

    async def notice_absence(self, on_absent: Callable[[str], None]) -> None:
        """Have `on_absent(subject)` called at once if a message is published on a subject without a subscriber."""

        async def absent(message: Msg) -> None:
            on_absent(message.subject.removeprefix(f"{inbox}."))

        inbox = self._client.new_inbox()
        await self._add(f"{inbox}.>", absent)
        self._absent = inbox

    async def request(self, subject: str, message: Message, kind: Any, *, timeout_s: float) -> Any:  # noqa: ANN401
        """Ask the subscriber of `subject` for an answer of a type or a union of types.

        Raises ClusterError if there is no subscriber or no answer in time, ClusterMessageError if it is malformed.
        """
        if not self.connected:
            raise ClusterError(f"cannot send a request to {subject}: the connection to NATS is lost")
        limit = asyncio.timeout(timeout_s)
        try:
            with cancellable():
                async with limit:
                    self._limits.add(limit)
                    answer = await self._client.request(subject, encoded(message), timeout=timeout_s + 1.0)
        except errors.NoRespondersError:
            raise ClusterError(f"cannot send a request to {subject}: no machine subscribes to it") from None
        except (errors.Error, OSError, TimeoutError) as error:
            raise ClusterError(f"{subject} did not answer within {timeout_s:g} s: {one_line(error)}") from error
        finally:
            self._limits.discard(limit)
        return decoded(answer.data, kind)

    async def subscribe(self, subject: str, handle: Handler) -> None:
        """Have `handle(data, reply)` awaited for each message, in order; its exceptions are logged."""

        async def handle_one(message: Msg) -> None:
            async def reply(answer: Message) -> None:
                if message.reply:
                    await self._send(message.reply, encoded(answer))

            try:
                await handle(message.data, reply)
            except Exception:
                logger.exception("a message on %s could not be handled", _shown(message.subject))

        await self._add(subject, handle_one)

    async def patiently(self, ask: Callable[[], Awaitable[_T]], what: str) -> _T:
        """Ask JetStream until it answers, at most PATIENCE_S: its servers do not while they elect a leader.

        Raises ClusterError, which says `what` it was about; NotFoundError passes.
        """
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                with cancellable():
                    return await ask()
            except NotFoundError:
                raise
            except (errors.Error, OSError, TimeoutError) as error:
                is_refusal = isinstance(error, APIError) and not isinstance(error, ServiceUnavailableError)
                is_final = is_refusal and error.err_code != _NO_PEERS  # type: ignore[union-attr]
                if is_final or time.monotonic() > until_s:
                    raise ClusterError(
                        f"NATS does not provide {what}: {one_line(error)}; expected `jetstream` in its configuration,"
                        " enough servers, and permission for this machine (contrib/nats)"
                    ) from error
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Send what waits, and end the connection; within a second or so on a dead line, too."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self.connected:
            with contextlib.suppress(errors.Error, OSError, TimeoutError):
                await asyncio.wait_for(self._client.flush(), CLOSE_S)
        await _close(self._client)

    async def _send(self, subject: str, data: bytes, reply: str = "") -> None:
        if not self.connected:
            return
        try:
            with cancellable():
                await self._client.publish(subject, data, reply)
        except (errors.OutboundBufferLimitError, errors.ConnectionClosedError):
            pass  # it is lost by now
        except (errors.Error, OSError) as error:
            logger.warning("a message on %s of %d bytes is dropped: %s", _shown(subject), len(data), error)

    async def _add(self, subject: str, handle: Callable[[Msg], Awaitable[None]]) -> None:
        """Subscribe, on this connection and on all that follow."""
        self._subscriptions.append((subject, handle))
        with contextlib.suppress(errors.Error, OSError):  # if the connection is lost now, the next one has it
            if self.connected:
                await _subscribe(self._client, [(subject, handle)])

    async def _keep(self) -> None:
        """Connect again whenever the connection is lost, or its server is about to stop."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self.connected and not self._is_leaving:
                continue
            lost_s, old = time.monotonic(), self._client
            logger.warning("the connection to NATS is lost: trying until it is back")
            for limit in self._limits:  # answers are lost with it: requests fail now, and may be made again
                if not limit.expired():
                    limit.reschedule(0.0)
            closing = asyncio.create_task(_close(old))
            while self._client is old:
                try:
                    await self._connect()
                except ClusterError as error:
                    logger.debug("%s", error)
                    await asyncio.sleep(random.uniform(*RETRY_S))  # noqa: S311
            url = self._client.connected_url
            waited_s = time.monotonic() - lost_s
            logger.warning("connected to NATS again, to %s, after %.1f s", url.netloc if url else "?", waited_s)
            try:
                self.on_reconnected()
            except Exception:
                logger.exception("not all could be sent again")
            await closing

    async def _connect(self) -> None:
        """Connect to one of the servers, and subscribe to all that was subscribed to. Raises ClusterError."""
        reason = ""
        for address in random.sample(list(self._servers), len(self._servers)):
            client = Client()
            try:
                with cancellable():
                    async with asyncio.timeout(CONNECT_S):
                        await self._connect_to(address, client)
                self._client, self._is_leaving = client, False
                self.jetstream = client.jetstream(timeout=API_TIMEOUT_S)
                for server in client.discovered_servers:
                    self._servers.setdefault(server.netloc, self._servers[address])
                return
            except Exception as error:  # noqa: BLE001 - what nats-py raises where something speaks no NATS is endless
                reason = self._reason if isinstance(error, errors.NoServersError) else one_line(error)
                reason = reason or type(error).__name__
                logger.debug("NATS at %s: %s", address, reason)
            finally:
                if client is not self._client:
                    await _close(client)
        raise ClusterError(
            f"cannot connect to NATS at {', '.join(self._servers)}: {reason}; expected nats-server 2.12 or later with"
            " JetStream that accepts this machine's login (docs/cluster.md)"
        )

    async def _connect_to(self, address: str, client: Client) -> None:
        async def leave() -> None:
            self._is_leaving = True

        await client.connect(
            f"nats://{address}",
            name=self._name,
            # So that NATS' permissions can keep a machine from others' answers.
            inbox_prefix=f"_INBOX.{self._name}",
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=CONNECT_S,  # type: ignore[arg-type]
            ping_interval=PING_INTERVAL_S,  # type: ignore[arg-type]
            max_outstanding_pings=2,
            flush_timeout=CONNECT_S,
            pending_size=BUFFER_BYTES,
            tls_hostname=self._servers[address],
            error_cb=self._on_error,
            lame_duck_mode_cb=leave,
            **self._login.options(client),
        )
        n_done = 0
        while n_done < len(self._subscriptions):  # there may be more when the server has these
            n_before, n_done = n_done, len(self._subscriptions)
            await _subscribe(client, self._subscriptions[n_before:n_done])

    async def _on_error(self, error: Exception) -> None:
        text = _shown(one_line(error))
        if "permissions violation" not in text.lower():
            self._reason = text or type(error).__name__
            logger.debug("NATS: %s", self._reason)
        elif text not in self._forbidden and len(self._forbidden) < 100:
            self._forbidden.add(text)
            logger.error("NATS does not let this machine do all that it must (contrib/nats): %s", text)


async def _subscribe(client: Client, subscriptions: list[tuple[str, Callable[[Msg], Awaitable[None]]]]) -> None:
    """Subscribe; return when the server has it."""
    with cancellable():
        for subject, handle in subscriptions:
            await client.subscribe(subject, cb=handle)
        # nats-py may send a ping before what waits to be sent: only a second one is behind the subscriptions.
        for _ in range(2):
            await client.flush(API_TIMEOUT_S)  # type: ignore[arg-type]


async def _close(client: Client) -> None:
    """Close a connection; one that does not close in time, as its line is dead, is left to the system."""
    closing = asyncio.create_task(client.close())
    closing.add_done_callback(lambda task: None if task.cancelled() else task.exception())
    await asyncio.wait({closing}, timeout=CLOSE_S)
    closing.cancel()


@contextlib.contextmanager
def cancellable() -> Iterator[None]:
    """Raise CancelledError at the end of the block if the task was cancelled in it, whatever came of that.

    nats-py goes on if it is cancelled while it waits for the line; and `asyncio.wait_for` of Python 3.11 returns an
    answer that comes at the same moment.
    """
    task = asyncio.current_task()
    n_before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > n_before:
            raise asyncio.CancelledError


def _shown(text: str) -> str:
    """Return text without the names of sessions: they are secrets, with which a client resumes one."""
    return re.sub(rf"({re.escape(EVENTS)}\.)[^\s\"']+", r"\1...", text)
