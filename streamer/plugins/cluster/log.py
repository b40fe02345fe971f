"""The log of each session: events and checkpoints, stored by NATS so that only the session's owner can add to it."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable
from typing import NamedTuple

import msgspec
from nats import errors
from nats.js.api import DiscardPolicy, Header, RawStreamMsg, RetentionPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import APIError, BadRequestError, NoStreamResponseError, NotFoundError

from streamer.errors import ClusterError, ClusterMessageError, FencedError, UnknownSessionError
from streamer.outside import one_line
from streamer.plugins.cluster.bus import API_TIMEOUT_S, Bus, cancellable
from streamer.plugins.cluster.messages import EVENTS, VERSION, Record, decoded, encoded
from streamer.plugins.cluster.settings import ClusterSettings

logger = logging.getLogger(__name__)

STREAM = "SESSIONS"

# Errors of JetStream: what is expected to be the last message of a subject is not; another is just being stored.
_WRONG_LAST = (10071, 10164)
_IN_PROCESS = 10158

MOST_REPLICAS = 3
_ONE_SERVER = 10074  # JetStream's error if a single server is asked for several copies

_RETRY_S = (0.02, 0.5)  # between two tries to store: the first, and the longest


class Stored(NamedTuple):
    """A record, and its sequence: its number among all that the stream holds."""

    record: Record
    sequence: int


class SessionLog:
    """The logs of all sessions: a stream of NATS, in which each has a subject; of each version of messages its own.

    A writer says behind which sequence of the subject its record belongs. That is the fence: of several writers that
    saw the same last record one wins, and the others learn that they own the session no longer. (JetStream's own way to
    leave out what comes twice, `Nats-Msg-Id`, is of no use beside it: a single server looks at the sequence first.)
    """

    def __init__(self, bus: Bus, settings: ClusterSettings) -> None:
        self._bus = bus
        self._keep_s = settings.keep_s
        self._replicas = settings.replicas or MOST_REPLICAS

        # Whether it was reported that nothing can be stored.
        self._troubled = False

    async def prepare(self) -> None:
        """Make the stream, or use it as it is. Raises ClusterError if NATS can do neither."""
        what = f"the stream {STREAM}"
        wanted = StreamConfig(
            name=STREAM,
            description="events and checkpoints of each session (docs/cluster.md)",
            subjects=[f"{EVENTS}.*"],
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.OLD,
            storage=StorageType.FILE,
            max_age=self._keep_s,
            num_replicas=self._replicas,
            # Copies that lag behind would answer, too.
            allow_direct=False,
        )

        async def add() -> StreamInfo:
            try:
                return await self._bus.jetstream.add_stream(wanted)
            except APIError as error:
                if error.err_code != _ONE_SERVER:
                    raise
                wanted.num_replicas = 1
                return await self._bus.jetstream.add_stream(wanted)

        try:
            info = await self._bus.patiently(lambda: self._bus.jetstream.stream_info(STREAM), what)
        except NotFoundError:
            info = await self._bus.patiently(add, what)
        found = info.config
        n_copies = self._replicas if info.cluster and info.cluster.name else 1
        if (found.max_age, found.num_replicas) != (self._keep_s, n_copies):
            self._bus.on_trouble(
                f"the stream {STREAM} keeps sessions for {found.max_age:g} s in {found.num_replicas} copies, the"
                f" settings say {self._keep_s:g} s in {n_copies}: change it with `nats stream edit {STREAM}`"
            )

    async def last(self, session: str) -> Stored | None:
        """Return a session's newest record, as the stream's leader has it; None if none is stored.

        Raises ClusterMessageError if it is malformed, and ClusterError if NATS does not answer.
        """
        return await self._get(session)

    async def read(self, session: str, *, seq: int = 0) -> list[Stored]:
        """Return a session's records, oldest first, or those behind one that is malformed.

        seq : number of the newest event that is known: records without one behind it are left out

        Raises ClusterError if NATS does not answer.

        It reads backwards: a client that comes back to a long session lacks little of it.
        """
        records: list[Stored] = []
        try:
            stored = await self.last(session)
            while stored is not None and (stored.record.checkpoint.seq > seq or not seq):
                records.append(stored)
                previous = stored.record.previous
                stored = await self._get(session, previous) if previous else None
        except ClusterMessageError as error:
            logger.warning("a record of a session is left out: %s", one_line(error))
        return records[::-1]

    async def store(self, session: str, record: Record, *, after: int) -> int:
        """Store a record behind the session's record at sequence `after` (0: the first); return its sequence.

        Retries while NATS is away, full or without a leader. Raises FencedError if another machine has stored a record,
        and ClusterError if this one can never be stored.
        """
        subject, wait_s = log_subject(session), _RETRY_S[0]
        while True:
            data = encoded(msgspec.structs.replace(record, previous=after))
            headers = {Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(after), Header.EXPECTED_STREAM.value: STREAM}
            try:
                if not self._bus.connected:
                    raise errors.ConnectionReconnectingError
                with cancellable():
                    answer = await self._bus.jetstream.publish(subject, data, API_TIMEOUT_S, headers=headers)
            except errors.MaxPayloadError as error:
                raise ClusterError(f"a record of {len(data)} bytes is too large for NATS: raise max_payload") from error
            except APIError as error:
                if error.err_code in _WRONG_LAST:
                    sequence, after = await self._look_back(session, record, after)
                    if sequence:
                        return sequence
                elif isinstance(error, BadRequestError) and error.err_code != _IN_PROCESS:
                    raise ClusterError(f"NATS refuses to store a record: {one_line(error)}") from error
                else:
                    self._trouble(error)
            except NoStreamResponseError as error:
                self._trouble(error)
                with contextlib.suppress(ClusterError):  # NATS may have come back without its files
                    await self.prepare()
            except (errors.Error, OSError, TimeoutError, ValueError) as error:
                self._trouble(error)
            else:
                self._troubled = False
                return answer.seq
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _RETRY_S[1])

    async def _look_back(self, session: str, record: Record, after: int) -> tuple[int, int]:
        """Return the sequence at which an earlier try has stored a record, or 0, and the last sequence.

        Raises FencedError if another machine has stored a record behind `after`.
        """
        try:
            last = await self.last(session)
        except ClusterMessageError as error:
            raise FencedError("another machine has written into the session's log") from error
        except ClusterError as error:
            self._trouble(error)
            return 0, after
        if last is None:  # the first is being stored, or NATS has lost all that it had
            return 0, 0
        found = last.record
        if (found.epoch, found.previous, found.worker) == (record.epoch, after, record.worker):
            return last.sequence, after
        if last.sequence > after or found.epoch > record.epoch:
            raise FencedError(f"{one_line(found.worker):.64} owns the session, with epoch {found.epoch}")
        return 0, last.sequence  # another write is under way, or NATS has lost some

    async def _get(self, session: str, sequence: int | None = None) -> Stored | None:
        """Return a session's last record, or the one at a sequence, as the stream's leader has it."""
        subject = log_subject(session)

        def ask() -> Awaitable[RawStreamMsg]:
            return self._bus.jetstream.get_msg(STREAM, seq=sequence, subject=None if sequence else subject)

        try:
            found = await self._bus.patiently(ask, "a session's log")
        except NotFoundError:
            return None
        return Stored(decoded(found.data or b"", Record), found.seq or 0) if found.subject == subject else None

    def _trouble(self, error: Exception) -> None:
        if not self._troubled:
            self._troubled = True
            reason = one_line(error) or type(error).__name__
            self._bus.on_trouble(f"NATS cannot store events, trying again: {reason}")


def log_subject(session: str) -> str:
    """Return the subject of a session's log; clients give names, which must not stand for several subjects."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", session):
        raise UnknownSessionError("malformed name of a session: expected the one in `ready`")
    return f"{EVENTS}.{VERSION}-{session}"
