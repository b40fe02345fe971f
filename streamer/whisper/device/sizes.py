"""Which graphs a stage has on a device, and which calls each of them computes.

CPUs have graphs for any size, other devices one for each size that is used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import openvino as ov

from streamer.constants import CHUNK_LENGTH_S
from streamer.whisper.device.devices import kind_of
from streamer.whisper.dims import MAX_BEAMS, ModelDimensions
from streamer.whisper.generation import MIN_WINDOW_S
from streamer.whisper.graphs.build import (
    ModelGraphs,
    fix_sizes,
    logits_of,
    without_logits,
    without_lookup,
)
from streamer.whisper.graphs.ports import (
    BLOCK_TOKENS,
    HIDDEN,
    MAX_WINDOWS,
    MOST_TOKENS,
    NPU_BLOCK_TOKENS,
    SLOTS_STEP,
    Shape,
    beam_slots,
    ports,
)

# Windows that there are graphs for, in seconds, if nothing else is asked for.
WHOLE_WINDOW = (CHUNK_LENGTH_S,)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Which calls a compiled graph computes."""

    stage: str

    # Length of its windows, in seconds; None: any.
    window_s: int | None = CHUNK_LENGTH_S

    # Of a decoder: tokens of a call, and slots of its cache; None: any.
    n_tokens: int | None = None
    n_slots: int | None = None

    # Whether it makes the decoder's logits, and nothing else: so only of tokens whose logits are wanted.
    logits: bool = False

    # Whether it takes a window second by second, whatever its length: what it computes into is kept, and small then.
    by_second: bool = False

    def __str__(self) -> str:
        """Return the stage, with what is not usual: `encoder`, `encoder (7 s)`, `decoder (16 tokens, 447 slots)`."""
        if self.logits:
            return f"{self.stage} (logits)"
        sizes = [f"{self.window_s} s"] if self.window_s not in (None, CHUNK_LENGTH_S) else []
        if self.n_tokens is not None:
            sizes += [f"{self.n_tokens} token{'s' if self.n_tokens > 1 else ''}", f"{self.n_slots} slots"]
        return f"{self.stage} ({', '.join(sizes)})" if sizes else self.stage

    def inputs(self, dims: ModelDimensions) -> list[Mapping[str, Shape]]:
        """Return the shapes of its inputs; of a graph for any size those of its smallest calls and of its largest."""
        if self.logits:
            return [{HIDDEN: (n_tokens, dims.n_text_state)} for n_tokens in (1, MOST_TOKENS)]
        calls = [(1 if self.by_second else self.window_s or CHUNK_LENGTH_S, self.n_tokens or 1, self.n_slots or 1, 1)]
        if self.window_s is None and not self.by_second:
            n_slots = beam_slots(dims, MAX_BEAMS) + SLOTS_STEP
            calls = [(MIN_WINDOW_S, 1, 1, 1), (CHUNK_LENGTH_S, MOST_TOKENS, n_slots, MAX_WINDOWS)]
        return [
            ports(self.stage, dims, window_s=window_s, n_tokens=n_tokens, n_slots=n_slots, n_windows=n_windows).inputs
            for window_s, n_tokens, n_slots, n_windows in calls
        ]


def with_whole(windows_s: Sequence[int]) -> tuple[int, ...]:
    """Return lengths of windows in seconds and that of whole ones, the shortest first."""
    return tuple(sorted({*windows_s, *WHOLE_WINDOW}))


def sizes_of(graphs: ModelGraphs, stage: str, device: str, windows_s: Sequence[int], n_beams: int) -> list[Sizes]:
    """Return of which sizes the graphs of a stage are on a device.

    windows_s : lengths of windows in seconds, the shortest first; the last is 30
    n_beams : sequences that beam search follows at once, at most, if the graphs have fixed sizes
    """
    dims, shorter_s = graphs.dims, windows_s[:-1]
    if stage != "decoder":
        if device != "CPU":
            return [Sizes(stage, window_s) for window_s in (CHUNK_LENGTH_S, *shorter_s)]
        is_cross_kv = stage == "cross_kv"
        whole, any_length = (Sizes(stage, window_s, by_second=is_cross_kv) for window_s in (CHUNK_LENGTH_S, None))
        if not shorter_s:
            return [whole]
        # Each graph has its own copy of the weights.
        return [whole, any_length] if stage in graphs.build_short else [any_length]
    if device == "CPU":
        return [Sizes(stage, None), Sizes(stage, None, logits=True)]
    block = NPU_BLOCK_TOKENS if kind_of(device) == "NPU" else BLOCK_TOKENS
    calls = [(1, dims.cache_size), (block, dims.cache_size)]
    if n_beams > 1:
        calls.append((BLOCK_TOKENS, beam_slots(dims, n_beams)))
    return [Sizes(stage, window_s, *call) for window_s in windows_s for call in calls]


def build_graphs(graphs: ModelGraphs, sizes: Sequence[Sizes], device: str) -> dict[Sizes, ov.Model]:
    """Build the graphs of a stage for a device, see `sizes_of`. Raises what the graphs' readers raise."""
    stage = sizes[0].stage
    whole = graphs.build[stage]()
    if stage == "decoder":
        apart = {True: logits_of(whole), False: without_logits(whole)} if device == "CPU" else {False: whole}
        models = {each: fix_sizes(apart[each.logits], *each.inputs(graphs.dims)) for each in sizes}
    else:
        # Once for all lengths, which then share its weights.
        is_short = stage in graphs.build_short and any(each.window_s != CHUNK_LENGTH_S for each in sizes)
        short = graphs.build_short[stage]() if is_short else whole
        models = {
            each: fix_sizes(whole if each.window_s == CHUNK_LENGTH_S else short, *each.inputs(graphs.dims))
            for each in sizes
        }
    if not has_lookup(stage, device):
        return models
    return {each: without_lookup(model) for each, model in models.items()}


def has_lookup(stage: str, device: str) -> bool:
    """Return whether the CPU looks tokens up for a stage's graphs.

    An NPU's compiler would unpack the table of tokens to float16, in each graph, beside that of the logits.
    """
    return stage == "decoder" and kind_of(device) == "NPU"
