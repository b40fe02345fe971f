"""What is lost of a session's audio, and what is still to be said of it: gaps, and the answers to flushes. Pure."""

from typing import Self

import msgspec
from msgspec.structs import replace

from streamer.events import Event, Flushed, Gap, GapReason, seconds

# Flushes that wait for one answer each; those behind them have one.
MAX_FLUSHES = 100


class Loss(msgspec.Struct, frozen=True, array_like=True):
    """Audio that is not transcribed."""

    start: int
    end: int
    reason: GapReason


class Losses(msgspec.Struct, frozen=True, array_like=True):
    """Losses that are not published yet, in order: speech before them is not final, or they are not over."""

    waiting: tuple[Loss, ...] = ()

    # Positions that `flushed` is to be published for.
    flushes: tuple[int, ...] = ()

    # Whether the newest audio is missing: more may be, and that is one loss.
    missing: bool = False

    # End of the newest final or gap: later ones begin there at the earliest.
    published_until: int = 0

    def flush(self, position: int) -> Self:
        """Have an answer published when all before a position is."""
        return replace(self, flushes=(*self.flushes[:MAX_FLUSHES], position))

    def growing(self, *, missing: bool) -> Self:
        return self if self.missing == missing else replace(self, missing=missing)

    def add(self, loss: Loss, first: int | None, *, outage: bool) -> Self:
        """Note a loss; it absorbs those within it, and extends one of the same reason that it adjoins.

        first : start of the oldest speech that is not final; None for none
        outage : whether windows fail: until one succeeds, all that is lost is one loss
        """
        start, end, reason = loss.start, loss.end, loss.reason
        if start >= end:
            return self
        if outage and reason in ("overload", "overrun"):
            reason = "device"
        kept = [other for other in self.waiting if not start <= other.start <= other.end <= end]
        before = next((other for other in reversed(kept) if other.start <= start), None)
        goes_on = outage and before in kept[-1:] and (first is None or first >= start)
        if before is not None and before.reason == reason and (before.end >= start or goes_on):
            kept.remove(before)
            start = before.start
        waiting = sorted([*kept, Loss(start, end, reason)], key=lambda other: other.start)
        return replace(self, waiting=tuple(waiting))

    def publish(self, first: int | None, *, growing: int | None, outage: bool) -> tuple[Self, list[Event]]:
        """Publish losses that are over, once all speech before them is final, and then flushes.

        first, outage : as in `add`
        growing : end of the audio, if more of it may be missing
        """
        if not (self.waiting or self.flushes):
            return self, []
        waiting, flushes, until = list(self.waiting), list(self.flushes), self.published_until
        events: list[Event] = []
        while waiting and (first is None or first >= waiting[0].start):
            loss = waiting[0]
            if (self.missing and loss.end == growing) or (outage and loss.reason == "device"):
                break
            del waiting[0]
            gap = Gap(start=seconds(loss.start), end=seconds(loss.end), reason=loss.reason)
            if gap.start < gap.end:  # not rounded to nothing
                events.append(gap)
            until = max(until, loss.end)
        awaited = [first] if first is not None else []
        awaited += [loss.start for loss in waiting]
        while flushes and all(start >= flushes[0] for start in awaited):
            events.append(Flushed(time=seconds(flushes.pop(0))))
        return replace(self, waiting=tuple(waiting), flushes=tuple(flushes), published_until=until), events
