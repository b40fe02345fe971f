"""One machine's connection to NATS, through nats-py: what is published, asked and subscribed to goes over it."""

import asyncio
import contextlib
import logging
import random
import re
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, overload
from urllib.parse import SplitResult, unquote, urlsplit

from streamer.errors import ClusterError, ConfigError, MissingExtraError
from streamer.outside import host_port, one_line
from streamer.plugins.cluster.messages import EVENTS, Message, decoded, encoded
from streamer.plugins.cluster.settings import ClusterSettings

try:
    import nkeys
    from nats import errors
    from nats.aio.client import Client, RawCredentials, Srv
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.aio.transport import TcpTransport
    from nats.js import JetStreamContext
    from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "nats", "cluster", "machines that are joined by NATS") from error

# Older servers, in a cluster, let several writers succeed that expect the same last sequence: none would be fenced.
OLDEST_SERVER = (2, 12)

CONNECT_TIMEOUT_S = 1.0
PING_INTERVAL_S = 1.0  # a dead line is noticed after three of these
RECONNECT_WAIT_S = (0.2, 0.8)  # between two tries at a server: many machines lose one at once
API_TIMEOUT_S = 2.0  # for one answer of JetStream
PATIENCE_S = 15.0  # for JetStream, which has no leader for 4 to 7 s when one is lost
CLOSE_S = 0.5

# That may wait to be sent while NATS is away; further messages are dropped.
BUFFER_BYTES = 8 * 1024 * 1024

# Error of JetStream: too few servers are there to keep that many copies. In a cluster that begins, they come.
_NO_PEERS = 10005

_M = TypeVar("_M", bound=Message)
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

    def __init__(self, client: "_Client", servers: list[SplitResult]) -> None:
        """Take over a client; `servers` are those that were given. See `connect`."""
        self._client = client
        self._n_given = len(servers)
        self._lost_at: float | None = None
        # Of requests under way.
        self._limits: set[asyncio.Timeout] = set()
        self._closing = False

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
            raise ConfigError(f"cluster.name is {name!r}: expected 1 to 64 letters of A-Z a-z 0-9 - and _")
        servers = [_server(url) for url in settings.nats]
        if not servers:
            raise ConfigError("cluster.nats names no server: give some with --nats URL, such as nats://10.0.0.1:4222")
        client = _Client(_tls(settings, servers))
        bus = cls(client, servers)
        login = _login(settings, servers)
        try:
            await client.connect(
                [f"{server.scheme}://{_host(server)}:{server.port}" for server in servers],
                name=name,
                # So that NATS' permissions can keep a machine from others' answers.
                inbox_prefix=f"_INBOX.{name}",
                connect_timeout=CONNECT_TIMEOUT_S,  # type: ignore[arg-type]
                ping_interval=PING_INTERVAL_S,  # type: ignore[arg-type]
                max_outstanding_pings=2,
                reconnect_time_wait=random.uniform(*RECONNECT_WAIT_S),  # type: ignore[arg-type]  # noqa: S311
                max_reconnect_attempts=1,
                flush_timeout=CONNECT_TIMEOUT_S,
                pending_size=BUFFER_BYTES,
                tls=client.tls,
                error_cb=client.on_error,
                disconnected_cb=bus._disconnected,
                reconnected_cb=bus._reconnected,
                lame_duck_mode_cb=client.force_reconnect,
                **login,
            )
        except (errors.Error, OSError, TimeoutError) as error:
            addresses = ", ".join(host_port(server.hostname or "", server.port or 0) for server in servers)
            raise ClusterError(
                f"NATS at {addresses} cannot be used: {client.reason or one_line(error)}; expected nats-server 2.12 or"
                " later, with JetStream, that takes this machine's login (docs/cluster.md)"
            ) from error
        client.options["max_reconnect_attempts"] = -1
        bus.jetstream = client.jetstream(timeout=API_TIMEOUT_S)
        try:
            await bus.patiently(bus.jetstream.account_info, "JetStream")
        except BaseException:
            await bus.close()
            raise
        return bus

    @property
    def connected(self) -> bool:
        """Whether NATS is there, as far as is known by now."""
        return self._client.is_connected

    @property
    def n_servers(self) -> int:
        """How many NATS servers there are: those given, or that know each other."""
        return max(self._n_given, self._client.n_known) if self._client.clustered else 1

    async def publish(self, subject: str, message: Message) -> None:
        """Send a message. While NATS is away it waits in a buffer, or is dropped if that is full."""
        await self._send(subject, encoded(message), f"{self._absent}.{subject}" if self._absent else "")

    async def notice_absence(self, on_absent: Callable[[str], None]) -> None:
        """Have `on_absent(subject)` called at once if a message is published on a subject without a subscriber."""

        async def absent(message: Msg) -> None:
            on_absent(message.subject.removeprefix(f"{inbox}."))

        inbox = self._client.new_inbox()
        await self._client.subscribe(f"{inbox}.>", cb=absent)
        self._absent = inbox

    @overload
    async def request(self, subject: str, message: Message, kind: type[_M], *, timeout_s: float) -> _M: ...

    @overload
    async def request(self, subject: str, message: Message, kind: UnionType, *, timeout_s: float) -> Any: ...  # noqa: ANN401

    async def request(self, subject: str, message: Message, kind: Any, *, timeout_s: float) -> Any:
        """Ask the subscriber of `subject` for an answer of a type or a union of types.

        Raises ClusterError if there is no subscriber or no answer in time, ClusterMessageError if it is malformed.
        """
        if not self.connected:
            raise ClusterError(f"{subject} cannot be asked: the connection to NATS is lost")
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                self._limits.add(limit)
                answer = await self._client.request(subject, encoded(message), timeout=timeout_s + 1.0)
        except errors.NoRespondersError:
            raise ClusterError(f"{subject} cannot be asked: it has no subscriber") from None
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

        await self._client.subscribe(subject, cb=handle_one)
        with contextlib.suppress(errors.Error):  # if NATS goes away now, nats-py subscribes when it is back
            if self.connected:
                # nats-py may send a ping before what waits to be sent: only a second one is behind the subscription.
                for _ in range(2):
                    await self._client.flush(API_TIMEOUT_S)

    async def patiently(self, ask: Callable[[], Awaitable[_T]], what: str) -> _T:
        """Ask JetStream until it answers, at most PATIENCE_S: its servers do not while they elect a leader.

        Raises ClusterError, which says `what` it was about; NotFoundError passes.
        """
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await ask()
            except NotFoundError:
                raise
            except (errors.Error, OSError, TimeoutError) as error:
                passing = not isinstance(error, APIError) or isinstance(error, ServiceUnavailableError)
                passing = passing or error.err_code == _NO_PEERS  # type: ignore[union-attr]
                # Without a code it has no subscriber: no server has JetStream.
                if isinstance(error, ServiceUnavailableError) and error.err_code is None and self.n_servers == 1:
                    passing = False
                if not passing or time.monotonic() > until:
                    raise ClusterError(
                        f"NATS does not answer about {what}: {one_line(error)}; expected `jetstream` in its"
                        " configuration, enough servers, and that this machine may ask (contrib/nats)"
                    ) from error
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Send what waits, and end the connection; within a second or so on a dead line, too."""
        self._closing = True
        with contextlib.suppress(errors.Error, OSError, TimeoutError):
            if self.connected:
                await asyncio.wait_for(self._client.flush(), CLOSE_S)
        with contextlib.suppress(errors.Error, OSError, TimeoutError):
            await asyncio.wait_for(self._client.close(), CLOSE_S)
        self._client.abort()

    async def _send(self, subject: str, data: bytes, reply: str = "") -> None:
        try:
            await self._client.publish(subject, data, reply)
        except (errors.OutboundBufferLimitError, errors.ConnectionClosedError):
            pass  # NATS is away, as was logged, or we are closing
        except (errors.Error, OSError) as error:
            logger.warning("a message on %s of %d bytes is dropped: %s", _shown(subject), len(data), error)

    async def _disconnected(self) -> None:
        self._lost_at = time.monotonic()
        for limit in self._limits:  # answers are lost with it: requests fail now, and may be made again
            if not limit.expired():
                limit.reschedule(0.0)
        if not self._closing:
            logger.warning("the connection to NATS is lost: trying until it is back")

    async def _reconnected(self) -> None:
        lost_s = time.monotonic() - (self._lost_at or time.monotonic())
        url = self._client.connected_url
        logger.warning("connected to NATS again, to %s, after %.1f s", url.netloc if url else "?", lost_s)
        self.on_reconnected()


class _Transport(TcpTransport):
    """A connection that is aborted: closed politely, a dead one keeps nats-py from other servers for minutes."""

    def close(self) -> None:
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)

    @property
    def encrypted(self) -> bool:
        return self._io_writer is not None and self._io_writer.get_extra_info("ssl_object") is not None


class _Client(Client):
    """nats-py's client; it never gives up, never waits for a dead line, and refuses unsuitable servers.

    Its calls can be cancelled, and so can JetStream's, which are made of them.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self.tls = tls
        self._logged: set[str] = set()

        # The last error; whether the connected server is in a cluster; how many servers it knows, itself included.
        self.reason = ""
        self.clustered = False
        self.n_known = 0

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]

    async def publish(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - see nats-py
        with _cancellable():
            await super().publish(*args, **options)

    async def request(self, *args: Any, **options: Any) -> Msg:  # noqa: ANN401
        with _cancellable():
            return await super().request(*args, **options)

    async def subscribe(self, *args: Any, **options: Any) -> Subscription:  # noqa: ANN401
        with _cancellable():
            return await super().subscribe(*args, **options)

    async def flush(self, *args: Any, **options: Any) -> None:  # noqa: ANN401
        with _cancellable():
            await super().flush(*args, **options)

    async def on_error(self, error: Exception) -> None:
        text = _shown(one_line(error))
        if "permissions violation" in text.lower():
            if text not in self._logged and len(self._logged) < 100:
                self._logged.add(text)
                logger.error("NATS does not let this machine do all that it must (contrib/nats): %s", text)
            return
        self.reason = text or type(error).__name__
        logger.debug("NATS: %s", self.reason)

    async def _connect_to_server(self, s: Srv) -> None:
        self.abort()
        s.last_attempt = time.monotonic()
        self._transport = _Transport()  # type: ignore[no-untyped-call]
        await self._transport.connect(s.uri, 32_768, CONNECT_TIMEOUT_S)  # type: ignore[arg-type]

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except (ValueError, TypeError, AttributeError, nkeys.NkeysError) as error:  # nats-py would give up
            raise errors.Error(f"it speaks no NATS, or asks for another login: {one_line(error)}") from error

    def _connect_command(self) -> bytes:
        """Refuse a server that is too old or has no TLS, before anything is sent to it."""
        version = str(self._server_info.get("version"))
        found = re.match(r"(\d{1,9})\.(\d{1,9})\.", version)
        if not found or (int(found[1]), int(found[2])) < OLDEST_SERVER:
            raise errors.Error(f"it is nats-server {one_line(version):.40}, too old to fence one machine from another")
        if self.tls is not None and not (isinstance(self._transport, _Transport) and self._transport.encrypted):
            raise errors.Error("it offers no TLS, and nothing is sent to it without")
        return super()._connect_command()

    async def _process_err(self, err_msg: str) -> None:
        """Try other servers: nats-py closes for ever, for example when a login has expired or a server is full."""
        if "permissions violation" in err_msg.lower():
            await self.on_error(errors.Error(err_msg.strip("'")))
        else:
            await self.on_error(errors.Error(err_msg))
            await self._process_op_err(errors.Error(err_msg))

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        self.clustered = bool(info.get("cluster")) if initial_connection else self.clustered
        self.n_known = len(info.get("connect_urls") or ())


@contextlib.contextmanager
def _cancellable() -> Iterator[None]:
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


def _server(url: str) -> SplitResult:
    """Read the address of a server. Raises ConfigError, without what may be a password."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        if parts.port is None:
            parts = parts._replace(netloc=f"{parts.netloc.rstrip(':')}:4222")
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        raise ConfigError(
            "cluster.nats holds a malformed address: expected nats://HOST:PORT or tls://HOST:PORT, each with"
            " USER:PASSWORD@ or TOKEN@ before HOST if NATS asks for it"
        )
    return parts


def _host(server: SplitResult) -> str:
    return f"[{server.hostname}]" if ":" in (server.hostname or "") else server.hostname or ""


def _login(settings: ClusterSettings, servers: list[SplitResult]) -> dict[str, Any]:
    """Return nats-py's options for the login. Raises ConfigError."""
    if settings.nkey_file and settings.credentials:
        raise ConfigError("cluster.nkey_file and cluster.credentials are both set: keep one, each is a whole login")
    if settings.nkey_file:
        seed = _read(settings.nkey_file).strip()
        try:
            nkeys.from_seed(bytearray(seed.encode()))
        except (nkeys.NkeysError, ValueError, LookupError, TypeError):
            raise ConfigError(f"{settings.nkey_file} holds no NKey: expected a user's seed, SU...") from None
        return {"nkeys_seed_str": seed}
    if settings.credentials:
        text = _read(settings.credentials)
        # nats-py looks for them until it finds them.
        if not all(f"BEGIN {part}" in text for part in ("NATS USER JWT", "USER NKEY SEED")):
            raise ConfigError(f"{settings.credentials} holds no credentials: expected what `nsc generate creds` writes")
        return {"user_credentials": RawCredentials(text)}
    # Addresses of servers that others report hold no user: the one of the settings holds for all.
    user, password = next(((server.username, server.password) for server in servers if server.username), ("", None))
    if password is None:
        return {"token": unquote(user) if user else None}
    return {"user": unquote(user), "password": unquote(password)}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}, from section `cluster`, cannot be read: {one_line(error)}") from None


def _tls(settings: ClusterSettings, servers: list[SplitResult]) -> ssl.SSLContext | None:
    """Return the TLS context; None if neither addresses nor settings ask for TLS."""
    if not (settings.ca or settings.certificate or any(server.scheme == "tls" for server in servers)):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ca or None)
        if settings.certificate:
            context.load_cert_chain(settings.certificate, settings.key or None)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"cluster.ca, certificate and key cannot be used: {one_line(error)}; expected PEM files of one another"
        ) from error
    return context


def _shown(text: str) -> str:
    """Return text without the names of sessions: they are secrets, with which a client resumes one."""
    return re.sub(rf"({re.escape(EVENTS)}\.)[^\s\"']+", r"\1...", text)
