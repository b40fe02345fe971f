"""How a gateway asks workers to take a session."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from streamer.errors import (
    BusyError,
    ClusterError,
    ConfigError,
    ModelError,
    ProtocolError,
    SessionStateError,
    StreamerError,
    UnknownSessionError,
)
from streamer.outside import one_line
from streamer.plugins.cluster.bus import Bus
from streamer.plugins.cluster.log import SessionLog
from streamer.plugins.cluster.messages import WORKERS, Opened, OpenSession, Refused, SessionCheckpoint
from streamer.plugins.cluster.placement import Workers
from streamer.session.state import SessionState

OPEN_S = 6.0  # that a worker has to open a session: a little longer than it gives itself
LOOK_S = 0.2  # between two looks whether a worker that is asked is alive

# Refusals of a new session that another worker would repeat.
FINAL = (ConfigError, ProtocolError, ModelError)

_KNOWN: tuple[type[StreamerError], ...] = (*FINAL, BusyError, SessionStateError, UnknownSessionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayContext:
    """What all sessions of a gateway share."""

    gateway: str
    bus: Bus
    log: SessionLog
    workers: Workers

    # Called with the reason of each move; and with the reason and the seconds of each stall.
    on_move: Callable[[str], None] = lambda why: None
    on_stall: Callable[[str, float], None] = lambda why, stall_s: None

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()


async def ask(context: GatewayContext, worker: str, request: OpenSession) -> Opened:
    """Ask a worker to own a session, while it is alive. Raises what it refuses with, BusyError without an answer."""
    asking: asyncio.Task[Opened | Refused] = asyncio.create_task(
        context.bus.request(f"{WORKERS}.{worker}", request, Opened | Refused, timeout_s=OPEN_S)
    )
    try:
        while not (await asyncio.wait({asking}, timeout=LOOK_S))[0]:
            if context.workers.is_lost(worker, context.now_s()):
                raise ClusterError(f"worker {worker} does not respond")
        answer = asking.result()
    except ClusterError as error:
        raise BusyError(f"no worker has taken the session: {one_line(error)}") from None
    finally:
        asking.cancel()
    if isinstance(answer, Refused):
        kind = next((kind for kind in _KNOWN if kind.code == answer.code), BusyError)
        raise kind(f"{one_line(answer.message):.500}")
    return answer


def offer(known: SessionCheckpoint, model: str, *, is_new: bool) -> SessionCheckpoint:
    """Return the checkpoint for a worker with a model; another model continues behind a gap."""
    if is_new or known.model == model:
        return msgspec.structs.replace(known, model=model)
    state = known.state
    until, segment = state.losses.published_until, state.text.segment
    behind = SessionState.behind_loss(until, state.received, segment, mark=state.mark)
    paused_from = None if state.paused_from is None else behind.needed_from
    behind = msgspec.structs.replace(behind, paused_from=paused_from, ended=state.ended)
    return msgspec.structs.replace(known, model=model, state=behind)
