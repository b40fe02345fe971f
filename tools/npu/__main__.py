"""Compiles the graphs that `streamer run` asks an Intel NPU for, and compares with what was measured before.

    python -m tools.npu base                 compile each graph for three generations, and compare with results.json
    python -m tools.npu base --write         keep the results there

Intel's own compiler runs under wine64 (Debian: apt install wine64 gcc-mingw-w64-x86-64); it comes with the Windows
wheel of openvino and is fetched by its digest. It reports which graphs it accepts, their size, and its estimate of
their time. Only a real NPU can show whether the results are right.

The exit code is 1 if a graph is refused, or an estimate is a tenth above the one in results.json.
"""

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import openvino as ov
import platformdirs

from streamer.errors import StreamerError, UsageError
from streamer.whisper import adapters
from streamer.whisper.decode.window import FILE_BEAMS
from streamer.whisper.device.devices import StagePlan, properties_for
from streamer.whisper.device.sizes import build_graphs, sizes_of, with_whole
from streamer.whisper.generation import DEFAULT_WINDOWS_S
from streamer.whisper.graphs.compress import PRECISIONS
from streamer.whisper.graphs.ports import STAGES
from streamer.whisper.locate import find_model
from streamer.whisper.source import read_model
from tools.npu.compiler import PLATFORMS, Compiled, Unavailable, compile_graph, install

RESULTS = Path(__file__).with_name("results.json")

# By "MODEL WEIGHTS PLATFORM", then by graph.
Results = dict[str, dict[str, Compiled]]

# An estimate may rise by this factor.
MOST_RISE = 1.1

PLANS = {stage: StagePlan(stage, ("NPU",), {}, "NPU", npu_through_cpu=False) for stage in STAGES}


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit code."""
    args = _parser().parse_args(argv)
    results = msgspec.json.decode(RESULTS.read_bytes(), type=Results) if RESULTS.is_file() else {}
    os.nice(10)
    try:
        install(args.folder)
        worse = 0
        for model, weights in itertools.product(args.models, args.weights):
            for key, graph, compiled in _compile(model, weights, args):
                worse += _print(key, graph, compiled, results.get(key, {}).get(graph))
                if args.write:
                    results.setdefault(key, {})[graph] = compiled
                    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    except Unavailable as error:
        print(f"npu: skipped: {error}")
        return 0
    except StreamerError as error:
        print(f"npu: error: {error}", file=sys.stderr)
        return error.exit_code
    return 1 if worse else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="models on this machine, or paths")
    weights = ("f16", "int8", "int8-sym")
    parser.add_argument("--weights", nargs="+", choices=PRECISIONS, default=weights, help="default: all but f32")
    parser.add_argument("--platforms", nargs="+", choices=PLATFORMS, default=PLATFORMS, help="default: all")
    parser.add_argument("--graphs", default="", metavar="TEXT", help="only graphs whose names contain this")
    parser.add_argument("--write", action="store_true", help="keep the results in results.json")
    folder = platformdirs.user_cache_path("streamer") / "npu"
    parser.add_argument("--folder", type=Path, default=folder, metavar="DIR", help="folder of the compiler")
    return parser


def _compile(name: str, weights: str, args: argparse.Namespace) -> Iterator[tuple[str, str, Compiled]]:
    """Yield the results of each graph for each platform as (key, graph, result)."""
    path = find_model(name)
    if path is None:
        raise UsageError(f"{name!r:.80} is not on this machine: fetch it with `streamer models pull NAME`")
    source = read_model(path, name, None, None).with_adapter(adapters.NONE).with_weights(weights)
    windows_s = with_whole(source.generation.windows_s or DEFAULT_WINDOWS_S[-1:])
    for stage in STAGES:
        graphs = build_graphs(source.graphs, sizes_of(source.graphs, stage, "NPU", windows_s, FILE_BEAMS), "NPU")
        for sizes, graph in graphs.items():
            if args.graphs not in str(sizes):
                continue
            with tempfile.TemporaryDirectory(prefix="streamer-npu-") as temporary:
                saved = Path(temporary) / "graph.xml"
                ov.save_model(graph, saved, compress_to_fp16=False)
                for platform in args.platforms:
                    properties = properties_for("NPU", PLANS[stage])
                    compiled = compile_graph(args.folder, saved, platform, properties)
                    yield f"{Path(name).name} {weights} {platform}", str(sizes), compiled


def _print(key: str, graph: str, compiled: Compiled, before: Compiled | None) -> bool:
    """Print a line; return whether the graph is refused, or slower than before."""
    if compiled.refused:
        print(f"{key}: {graph}: REFUSED: {compiled.refused}", flush=True)
        return True
    estimate_us, known_us = compiled.estimate_us or 0.0, (before and before.estimate_us) or 0.0
    slower = 0 < known_us * MOST_RISE < estimate_us
    took = f"compiled in {compiled.seconds:.0f} s with {compiled.peak_mb:.0f} MB"
    line = f"{key}: {graph}: {estimate_us / 1000:.2f} ms, {compiled.blob_mb:.0f} MB, {took}"
    print(line + (f"; SLOWER than {known_us / 1000:.2f} ms" if slower else ""), flush=True)
    return slower


if __name__ == "__main__":
    sys.exit(main())
