"""Measures streamer on recordings of people, beside other programs if they can be installed (docs/operations.md).

    python tools/benchmark.py stream     delay, stability, accuracy and cost at real-time pace
    python tools/benchmark.py report DIR the figures of timelines that `stream --timelines DIR` kept
    python tools/benchmark.py simulate   the same in simulated time, to compare settings: --curve draws them
    python tools/benchmark.py sessions   how many clients are served in real time at once
    python tools/benchmark.py files      word errors of whole recordings, beside other programs
    python tools/benchmark.py turns      pauses taken for the end of a turn, by silence and by the turn model

The daemon is measured as its clients see it: a process of its own that receives audio at the pace of speech. A corpus
is a folder of NAME.flac with what is said in NAME.txt, empty for sounds without speech; without one, nano.en's sample
is played.
"""

import argparse
import dataclasses
import functools
import json
import math
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script it sees its own folder only

try:
    from rich.console import Console

    from streamer.errors import StreamerError, UsageError
    from tools.benchmarks import recordings
    from tools.benchmarks.peers.environment import default_folder
    from tools.benchmarks.peers.whisper_live import WhisperLive
    from tools.benchmarks.peers.whisperlivekit import WhisperLiveKit
    from tools.benchmarks.published import PublishedModel
    from tools.benchmarks.recordings import Recording, SpokenWord
    from tools.benchmarks.systems import Streamer, StreamingSystem
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    sys.exit(f"benchmark: error: {error.name} is not installed: `make bench` installs what is needed")

if TYPE_CHECKING:
    from tools.benchmarks.results import Folder

# By the name that --peers takes.
PEERS: dict[str, Callable[[PublishedModel], StreamingSystem]] = {
    "whisper-live": WhisperLive,
    "whisperlivekit-agreement": lambda model: WhisperLiveKit(model, "localagreement"),
    "whisperlivekit-alignatt": lambda model: WhisperLiveKit(model, "simulstreaming"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit code."""
    args = _parser().parse_args(argv)
    measure: Callable[[argparse.Namespace, Console], object] = args.measure
    # A pipe has no width; 80 columns would fold what a table says.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    try:
        for flag in ("json", "curve"):  # now, and not when all is measured
            path = getattr(args, flag, None)
            if path and not path.absolute().parent.is_dir():
                raise UsageError(f"{path.absolute().parent} is no directory: expected one for --{flag}; make it first")
        figures = measure(args, console)
        if args.json and figures is not None:
            args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    except StreamerError as error:
        print(f"benchmark: error: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        print(f"benchmark: error: {error.name} is not installed: `make bench` installs what is needed", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"benchmark: error: {error}: check that it can be read or written", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("benchmark: interrupted", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, help: str, measure: Callable[[argparse.Namespace, Console], object]) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help, description=help)
        command.set_defaults(measure=measure)
        command.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to a file")
        command.add_argument("--corpus", type=Path, metavar="DIR", help="recordings (default: nano.en's sample)")
        command.add_argument(
            "--only", type=_names, default=("*",), metavar="NAME,NAME", help="recordings, such as 'fleurs-*'"
        )
        return command

    stream = add("stream", "delay, stability, accuracy and cost at real-time pace", _stream)
    _systems_arguments(stream)

    report = add("report", "the figures of timelines that were kept", _report)
    report.add_argument("timelines", type=Path, metavar="DIR", help="filled by `stream --timelines DIR`")
    report.add_argument("--model", help="finds the times of words if they are unknown, as in `stream`")

    simulate = add("simulate", "delay and stability in simulated time, to compare settings", _simulate)
    simulate.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting")
    simulate.add_argument(
        "--inference-s", type=_seconds, default=0.1, help="duration of an inference (default: %(default)s)"
    )
    simulate.add_argument(
        "--point",
        action="append",
        default=[],
        metavar="POINT:NAME=VALUE,NAME=VALUE",
        help="settings to compare; given again, those too",
    )
    for command in (stream, simulate):
        command.add_argument(
            "--timelines", type=Path, metavar="DIR", help="keep what was displayed, of one model, for `report`"
        )
        command.add_argument("--no-offline", action="store_true", help="do not run the offline decoder beside")
    for command in (stream, simulate, report):
        command.add_argument("--curve", type=Path, metavar="FILE", help="draw wrong words over delay, as SVG")

    sessions = add("sessions", "how many clients are served in real time at once", _sessions)
    _systems_arguments(sessions)
    sessions.add_argument("--most", type=_count, default=64, help="clients to try at most (default: %(default)s)")

    files = add("files", "word errors of whole recordings, and words written without any speech", _files)
    files.add_argument(
        "--model", nargs="+", default=["tiny.en", "base"], metavar="NAME", help="models on this machine, or paths"
    )
    files.add_argument(
        "--language", default="en", help="of recordings whose names do not end with one, as NAME-de does"
    )
    files.add_argument("--peers", type=_names, default=(), metavar="P,P", help="faster-whisper,openai-whisper")
    files.add_argument("--peers-folder", type=Path, metavar="DIR", help="where they are installed")
    files.add_argument("--flags", default="", help="more flags of `streamer transcribe`: --flags='--beam-size 1'")
    files.add_argument("--output", type=Path, metavar="DIR", help="keep the texts; existing ones are not made again")

    turns = add("turns", "pauses that are taken for the end of a turn, by silence and by the turn model", _turns)
    turns.add_argument("--model", required=True, help="finds the times of words if they are unknown")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text} is not a duration: expected 0 or more")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is too few: expected 1 or more")
    return value


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _systems_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", help="published model on this machine, or a path, for all systems (default: nano.en, ours only)"
    )
    parser.add_argument("--flags", default="", help="more flags of `streamer run`: --flags='--pace 1'")
    parser.add_argument(
        "--windows",
        action="append",
        metavar="S,S",
        help="window lengths of ours; given again, ours is also measured with these (default: the model's)",
    )
    parser.add_argument("--peers", type=_names, default=(), metavar="P,P", help=f"others: {', '.join(PEERS)}")
    parser.add_argument("--peers-folder", type=Path, metavar="DIR", help="where they are installed")
    parser.add_argument("--without-ours", action="store_true", help="measure the others only")


def _stream(args: argparse.Namespace, console: Console) -> None:
    from tools.benchmarks.results import Folder
    from tools.benchmarks.stream import OFFLINE_FLAGS, play, transcribe_offline

    with tempfile.TemporaryDirectory() as temporary:
        folder = Folder(args.timelines or Path(temporary))
        found = _recordings(args, args.model, folder)
        systems = _systems(args, Path(temporary))
        if not args.no_offline:
            flags = [*(() if args.model else OFFLINE_FLAGS), *_model(args), *_model_flags(_flags(args))]
            transcribe_offline(found, folder, flags)
        play(systems, found, folder, console)
        _show(args, folder, found, console)


def _report(args: argparse.Namespace, console: Console) -> None:
    from tools.benchmarks.results import Folder

    folder = Folder(args.timelines)
    _show(args, folder, _recordings(args, args.model, folder), console)


def _show(args: argparse.Namespace, folder: "Folder", found: Sequence[Recording], console: Console) -> None:
    """Print the figures of a folder, and write them and their picture to the files that are named."""
    from tools.benchmarks.results import compute, picture, show, to_json

    results = compute(folder, found)
    show(results, console)
    if args.json:
        args.json.write_text(to_json(results), encoding="utf-8")
    if args.curve:
        args.curve.write_text(picture(results), encoding="utf-8")


def _simulate(args: argparse.Namespace, console: Console) -> None:
    from streamer.whisper.shipped import SAMPLE_OF
    from tools.benchmarks.results import Folder
    from tools.benchmarks.simulate import points, simulate
    from tools.benchmarks.stream import OFFLINE_FLAGS, transcribe_offline

    compared = points(args.set, args.point)
    settings = next(iter(compared.values()))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Folder(args.timelines or Path(temporary))
        found = _recordings(args, settings.model.name, folder)
        if not args.no_offline:
            flags = ["--model", settings.model.name, "--language", settings.decoding.language]
            flags += ["--tokenizer", settings.model.tokenizer] if settings.model.tokenizer else []
            transcribe_offline(found, folder, [*(OFFLINE_FLAGS if settings.model.name == SAMPLE_OF else ()), *flags])
        simulate(compared, found, folder, inference_s=args.inference_s)
        _show(args, folder, found, console)


def _sessions(args: argparse.Namespace, console: Console) -> list[object]:
    from whisper.normalizers import EnglishTextNormalizer

    from tools.benchmarks.sessions import measure_sessions

    found = [recording for recording in _recordings(args, args.model) if recording.words]
    if not found:
        raise UsageError("the times of words are unknown: name a --model, which finds them, or a corpus that has them")
    figures: list[object] = []
    with tempfile.TemporaryDirectory() as temporary:
        for system in _systems(args, Path(temporary)):
            try:
                figures.append(measure_sessions(system, found, EnglishTextNormalizer(), console, args.most))
            except StreamerError as error:
                console.print(f"{system.name}: {error}", markup=False, highlight=False)
                figures.append({"system": system.name, "error": str(error)})
    return figures


def _files(args: argparse.Namespace, console: Console) -> list[dict[str, object]]:
    from tools.benchmarks import files

    if unknown := [name for name in args.peers if name not in files.PEERS]:
        raise UsageError(f"no peer is called {unknown[0]!r:.40}: expected some of {', '.join(files.PEERS)}")
    found = recordings.find(args.corpus, args.only, args.language)
    folder = args.peers_folder or default_folder()
    with tempfile.TemporaryDirectory() as temporary:
        output = args.output or Path(temporary)
        show = functools.partial(print, flush=True)
        rows = files.measure_files(args.model, found, args.peers, folder, output, _flags(args), show)
    return [dataclasses.asdict(row) for row in rows]


def _turns(args: argparse.Namespace, console: Console) -> list[dict[str, float]]:
    from streamer.after.turn_model import TurnModel
    from streamer.packed_models import TURNS
    from streamer.settings.table import SpeechSettings
    from streamer.whisper.device.devices import the_core
    from tools.benchmarks import turns

    model = TurnModel(TURNS.find(), the_core())
    spoken = [recording for recording in _recordings(args, args.model) if recording.text]
    found = [turns.pauses_of(recording, model.probability) for recording in spoken]
    return turns.show([pause for pauses in found for pause in pauses], SpeechSettings(), console)


def _recordings(args: argparse.Namespace, model_name: str | None, folder: "Folder | None" = None) -> list[Recording]:
    """Return the recordings in English, with the times of their words if a model is named that finds them.

    folder : keeps these times
    """
    from streamer.settings.table import ModelSettings
    from streamer.setup.loading import load
    from tools.benchmarks.files import normaliser
    from tools.benchmarks.word_times import words_of

    model = functools.cache(lambda: load(ModelSettings(name=model_name or ""), n_beams=5))

    def timed(recording: Recording) -> Recording:
        words: Sequence[SpokenWord] = folder.words(recording.name) if folder and not recording.words else ()
        if not words and not recording.words and recording.text and model_name:
            words = words_of(model(), recording.samples(), recording.text, normaliser("en"), language="en")
            if folder:
                folder.save_words(recording.name, words)
        return dataclasses.replace(recording, words=tuple(words or recording.words))

    return [timed(each) for each in recordings.find(args.corpus, args.only) if each.language == "en"]


def _systems(args: argparse.Namespace, temporary: Path) -> list[StreamingSystem]:
    """Return ours and the others that were named; their formats of a model are written to a folder."""
    from tools.benchmarks.results import OURS

    if unknown := [name for name in args.peers if name not in PEERS]:
        raise UsageError(f"no peer is called {unknown[0]}: expected some of {', '.join(PEERS)}")
    if args.peers and not args.model:
        raise UsageError("--peers needs a published model that all can load: name one, such as --model base")
    ours: list[StreamingSystem] = []
    for windows in args.windows or [""]:
        flags = [*_model(args), *_flags(args), *(["--windows", windows] if windows else [])]
        ours.append(Streamer(flags, f"{OURS} {windows}" if ours else OURS))
    model = PublishedModel(args.model or "", temporary, args.peers_folder or default_folder())
    return [*([] if args.without_ours else ours), *(PEERS[name](model) for name in args.peers)]


def _model(args: argparse.Namespace) -> list[str]:
    """Return the flags for the model, in the language that peers are given too."""
    return ["--model", args.model or "nano.en", "--language", "en"]


def _flags(args: argparse.Namespace) -> list[str]:
    """Return the flags of our daemon."""
    try:
        return shlex.split(args.flags)
    except ValueError as error:
        raise UsageError(f"--flags {args.flags!r:.80} is not written as in a shell ({error}): mend it") from None


def _model_flags(flags: Sequence[str]) -> list[str]:
    """Return the daemon's flags that choose its model."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--model")
    parser.add_argument("--tokenizer")
    try:
        known, _ = parser.parse_known_args(list(flags))
    except argparse.ArgumentError:  # the daemon says what is wrong
        return []
    return [part for name, value in vars(known).items() if value is not None for part in (f"--{name}", value)]


if __name__ == "__main__":
    sys.exit(main())
