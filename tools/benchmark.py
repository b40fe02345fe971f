"""Measures streamer on recordings of people, beside other programs if they can be installed.

    python tools/benchmark.py stream     delay, stability, accuracy and cost at real-time pace
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
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script it sees its own folder only

from rich.console import Console  # noqa: E402

from streamer.errors import StreamerError, UsageError  # noqa: E402
from tools.benchmarks import recordings  # noqa: E402
from tools.benchmarks.peers.environment import default_folder  # noqa: E402
from tools.benchmarks.peers.whisper_live import WhisperLive  # noqa: E402
from tools.benchmarks.peers.whisperlivekit import WhisperLiveKit  # noqa: E402
from tools.benchmarks.published import PublishedModel  # noqa: E402
from tools.benchmarks.recordings import Recording  # noqa: E402
from tools.benchmarks.systems import Streamer, System, play_all, transcribe_offline  # noqa: E402
from tools.benchmarks.text import normaliser  # noqa: E402
from tools.benchmarks.timeline import Timeline  # noqa: E402

# By the name that --peers takes.
PEERS: dict[str, Callable[[PublishedModel], System]] = {
    "whisper-live": WhisperLive,
    "whisperlivekit-agreement": lambda model: WhisperLiveKit(model, "localagreement"),
    "whisperlivekit-alignatt": lambda model: WhisperLiveKit(model, "simulstreaming"),
}

# How the offline decoder is asked. With timestamps nano.en leaves out a tenth of what is said, which would make every
# stream look good beside it.
NANO_OFFLINE_FLAGS = ("--without-timestamps",)


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
                raise UsageError(f"{path.absolute().parent} is not a directory: expected one for --{flag}")
        measure(args, console)
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

    def add(name: str, help: str, measure: Callable[[argparse.Namespace, Console], object]) -> Callable[..., object]:
        command = commands.add_parser(name, help=help, description=help)
        command.set_defaults(measure=measure)
        command.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to a file")
        command.add_argument("--corpus", type=Path, metavar="DIR", help="recordings (default: nano.en's sample)")
        command.add_argument(
            "--only", type=_names, default=("*",), metavar="NAME,NAME", help="recordings, such as 'fleurs-*'"
        )
        return command.add_argument

    stream = add("stream", "delay, stability, accuracy and cost at real-time pace", _stream)
    simulate = add("simulate", "delay and stability in simulated time, to compare settings", _simulate)
    sessions = add("sessions", "how many clients are served in real time at once", _sessions)
    files = add("files", "word errors of whole recordings, and words written without any speech", _files)
    turns = add("turns", "pauses that are taken for the end of a turn, by silence and by the turn model", _turns)

    for option in (stream, simulate):
        option("--no-offline", action="store_true", help="do not run the offline decoder beside")
        option("--curve", type=Path, metavar="FILE", help="draw wrong words over delay, as SVG")
    simulate("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting")
    simulate("--inference-s", type=float, default=0.1, help="duration of an inference (default: %(default)s)")
    points = "settings to compare; given again, those too"
    simulate("--point", action="append", default=[], metavar="POINT:NAME=VALUE,NAME=VALUE", help=points)

    for option in (stream, sessions):
        option("--model", help="published model on this machine, or a path, for all (default: nano.en, ours only)")
        option("--flags", default="", help="more flags of `streamer run`: --flags='--pace 1'")
        option("--peers", nargs="+", choices=PEERS, default=(), help="others")
    sessions("--most", type=int, default=64, help="clients to try at most (default: %(default)s)")

    names = {"nargs": "+", "default": ["tiny.en", "base"], "metavar": "NAME"}
    files("--model", help="models on this machine, or paths", **names)
    files("--language", default="en", help="of recordings whose names do not end with one, as NAME-de does")
    files("--peers", nargs="+", choices=("faster-whisper", "openai-whisper"), default=(), help="others")
    files("--flags", default="", help="more flags of `streamer transcribe`: --flags='--beam-size 1'")
    files("--output", type=Path, metavar="DIR", help="keep the texts; existing ones are not made again")
    for option in (stream, sessions, files):
        option("--peers-folder", type=Path, default=default_folder(), metavar="DIR", help="where peers are installed")

    turns("--model", required=True, help="finds the times of words if they are unknown")
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _stream(args: argparse.Namespace, console: Console) -> None:
    found = _recordings(args, args.model)
    with tempfile.TemporaryDirectory() as temporary:
        systems = _systems(args, Path(temporary))
        flags = [*_model(args), *(() if args.model else NANO_OFFLINE_FLAGS)]
        offline = {} if args.no_offline else transcribe_offline(found, flags)
        timelines, failures = play_all(systems, found, console)
    _report(args, timelines, found, offline, failures, console)


def _simulate(args: argparse.Namespace, console: Console) -> None:
    from streamer.whisper.shipped import SAMPLE_OF
    from tools.benchmarks.simulate import points, simulate

    compared = points(args.set, args.point)
    settings = next(iter(compared.values()))
    found = _recordings(args, settings.model.name)
    flags = ["--model", settings.model.name, "--language", settings.decoding.language]
    flags += ["--tokenizer", settings.model.tokenizer] if settings.model.tokenizer else []
    flags += NANO_OFFLINE_FLAGS if settings.model.name == SAMPLE_OF else ()
    offline = {} if args.no_offline else transcribe_offline(found, flags)
    timelines = simulate(compared, found, inference_s=args.inference_s)
    _report(args, timelines, found, offline, {}, console)


def _report(
    args: argparse.Namespace,
    timelines: Sequence[Timeline],
    found: Sequence[Recording],
    offline: Mapping[str, str],
    failures: Mapping[str, str],
    console: Console,
) -> None:
    """Print figures, and write them and their picture to the files that are named."""
    from whisper.normalizers import EnglishTextNormalizer

    from tools.benchmarks import report
    from tools.benchmarks.curve import draw

    figures = report.compute(timelines, found, offline, EnglishTextNormalizer())
    report.show(figures, found, failures, console)
    _write_json(args, report.as_json(figures, found, failures))
    if args.curve:
        args.curve.write_text(draw(report.pooled(figures, found, spoken=True)), encoding="utf-8")


def _sessions(args: argparse.Namespace, console: Console) -> None:
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
    _write_json(args, figures)


def _files(args: argparse.Namespace, console: Console) -> None:
    from tools.benchmarks import files

    found = recordings.find(args.corpus, args.only, args.language)
    show = functools.partial(print, flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        output = args.output or Path(temporary)
        rows = files.measure_files(args.model, found, args.peers, args.peers_folder, output, _flags(args), show)
    _write_json(args, [dataclasses.asdict(row) for row in rows])


def _turns(args: argparse.Namespace, console: Console) -> None:
    from streamer.after.turn_model import TurnModel
    from streamer.packed_models import TURNS
    from streamer.settings.table import SpeechSettings
    from streamer.whisper.device.devices import the_core
    from tools.benchmarks import turns

    model = TurnModel(TURNS.find(), the_core())
    spoken = [recording for recording in _recordings(args, args.model) if recording.text]
    pauses = [pause for recording in spoken for pause in turns.pauses_of(recording, model.probability)]
    _write_json(args, turns.show(pauses, SpeechSettings(), console))


def _recordings(args: argparse.Namespace, model_name: str | None) -> list[Recording]:
    """Return the recordings in English, with the times of their words if a model is named that finds them."""
    from streamer.settings.table import ModelSettings
    from streamer.setup.loading import load
    from tools.benchmarks.word_times import words_of

    found = [each for each in recordings.find(args.corpus, args.only) if each.language == "en"]
    if not model_name or all(each.words or not each.text for each in found):
        return found
    model = load(ModelSettings(name=model_name), n_beams=5)

    def timed(each: Recording) -> Recording:
        if each.words or not each.text:
            return each
        words = words_of(model, each.samples(), each.text, normaliser("en"), language="en")
        return dataclasses.replace(each, words=tuple(words))

    return [timed(each) for each in found]


def _systems(args: argparse.Namespace, temporary: Path) -> list[System]:
    """Return ours and the others that were named; their formats of a model are written to a folder."""
    if args.peers and not args.model:
        raise UsageError("--peers needs a published model that all can load: name one, such as --model base")
    model = PublishedModel(args.model or "", temporary, args.peers_folder)
    return [Streamer([*_model(args), *_flags(args)]), *(PEERS[name](model) for name in args.peers)]


def _model(args: argparse.Namespace) -> list[str]:
    """Return the flags for the model, in the language that peers are given too."""
    return ["--model", args.model or "nano.en", "--language", "en"]


def _flags(args: argparse.Namespace) -> list[str]:
    """Return the flags of our program."""
    try:
        return shlex.split(args.flags)
    except ValueError as error:
        raise UsageError(f"--flags {args.flags!r:.80}: {error}; write them as in a shell") from None


def _write_json(args: argparse.Namespace, figures: object) -> None:
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
