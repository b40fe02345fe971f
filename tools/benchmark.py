"""Measures live captions, beside other programs where they can be had (docs/operations.md).

    python tools/benchmark.py corpus DIR         make recordings with exact word times
    python tools/benchmark.py stream             delay, flicker, accuracy and cost at real-time pace
    python tools/benchmark.py hallucination      the same where nobody speaks
    python tools/benchmark.py report DIR         the figures of timelines that were kept, once more
    python tools/benchmark.py sizes SIZE=FILE .. tables and a picture of what was streamed at several sizes
    python tools/benchmark.py simulate           the same in simulated time, to compare settings
    python tools/benchmark.py doubled            what is said once and told twice, at several paces, in simulated time
    python tools/benchmark.py sessions           how many clients are served in real time at once
    python tools/benchmark.py soak [--hours H]   memory and delay of a long session
    python tools/benchmark.py raw                speed of the offline decoder
    python tools/benchmark.py memory             what each graph and the daemon take in memory
    python tools/benchmark.py files --corpus DIR word errors on recordings of people, beside other programs
    python tools/benchmark.py weights --model DIR --corpus DIR
                                                 what f16 and int8 weights cost on recordings of people
    python tools/benchmark.py beams [--beams N]  beam search beside greedy decoding
    python tools/benchmark.py names              names that a glossary sets right, and words that it harms
    python tools/benchmark.py protocols          the delay that each protocol adds to the native one's
    python tools/benchmark.py speakers DIR       who speaks, in conversations of people

What is measured is the daemon as its clients see it: a process of its own, with audio at the pace at which it was
spoken. Without a corpus the sample that comes with nano.en is played.
"""

import argparse
import dataclasses
import json
import math
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script it sees its own folder only

try:
    from rich.console import Console

    from streamer.errors import StreamerError, UsageError
    from tools.benchmarks import corpus, model_files
    from tools.benchmarks.corpus import Recording
    from tools.benchmarks.peers.environment import default_folder
    from tools.benchmarks.peers.peer import Files
    from tools.benchmarks.peers.whisper_live import WhisperLive
    from tools.benchmarks.peers.whisperlivekit import WhisperLiveKit
    from tools.benchmarks.published import PublishedModel
    from tools.benchmarks.systems import Streamer, StreamingSystem
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    sys.exit(f"benchmark: error: {error.name} is not installed: `make bench` installs what is needed")

if TYPE_CHECKING:
    from streamer.engine.settings import SessionSettings
    from tools.benchmarks.results import Folder
    from tools.benchmarks.simulate import Simulator

# By the name that --peers takes.
PEERS: dict[str, Callable[[Path, Files | None], StreamingSystem]] = {
    "whisper-live": WhisperLive,
    "whisperlivekit-agreement": lambda folder, files: WhisperLiveKit(folder, "localagreement", files),
    "whisperlivekit-alignatt": lambda folder, files: WhisperLiveKit(folder, "simulstreaming", files),
}

SAMPLE = ROOT / "models" / "nano.en" / "sample.flac"


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit code."""
    args = _parser().parse_args(argv)
    measure: Callable[[argparse.Namespace, Console], object] = args.measure
    # A pipe has no width; 80 columns would fold what a table says.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    try:
        if args.json and not args.json.absolute().parent.is_dir():  # now, and not when all is measured
            raise UsageError(f"{args.json.absolute().parent} is no directory: expected one for --json; make it first")
        figures = measure(args, console)
        if args.json and figures is not None:
            text = figures if isinstance(figures, str) else json.dumps(figures, indent=1) + "\n"
            args.json.write_text(text, encoding="utf-8")
    except StreamerError as error:
        print(f"benchmark: error: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        print(f"benchmark: error: {error.name} is not installed: `make bench` installs what is needed", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"benchmark: error: {error}: expected to read or write there; name another place", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("benchmark: interrupted", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(json=None)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, help: str, measure: Callable[[argparse.Namespace, Console], object]) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help, description=help)
        command.set_defaults(measure=measure)
        command.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file as well")
        return command

    make = add("corpus", "make recordings with exact word times", _corpus)
    make.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    make.add_argument("--minutes", type=float, default=6.0, help="of speech in each half (default: %(default)s)")
    make.add_argument("--sounds-minutes", type=float, default=10.0, help="of each sound (default: %(default)s)")
    make.add_argument("--seed", type=int, default=1, help="what the choice of voices and sentences begins with")

    for name, help, measure in (
        ("stream", "delay, flicker, accuracy and cost at real-time pace", _stream),
        ("hallucination", "what is made up where nobody speaks, at real-time pace", _hallucination),
    ):
        command = add(name, help, measure)
        _recordings_arguments(command)
        _systems_arguments(command)
        command.add_argument("--timelines", type=Path, metavar="DIR", help="keep what was shown, for `report`")
        command.add_argument("--plots", type=Path, metavar="DIR", help="draw pictures into a folder")
        command.add_argument("--no-offline", action="store_true", help="do not ask the offline decoder")

    report = add("report", "the figures of timelines that were kept, once more", _report)
    report.add_argument("timelines", type=Path, metavar="DIR", help="what `stream --timelines DIR` has filled")
    report.add_argument("--model", help="finds when words are said where that is not known, as in `stream`")
    _recordings_arguments(report)
    report.add_argument("--plots", type=Path, metavar="DIR", help="draw pictures into a folder")
    report.add_argument("--format", choices=("png", "svg"), default="png", help="of pictures (default: %(default)s)")

    sizes = add("sizes", "tables and a picture of what `stream --json` has told of several sizes", _compare)
    sizes.add_argument("runs", nargs="+", metavar="SIZE=FILE", help="such as small=small.json")
    sizes.add_argument("--plot", type=Path, metavar="FILE", help="draw delay and memory over size, as PNG or SVG")

    simulate = add("simulate", "delay and flicker in simulated time, to compare settings", _simulate)
    _recordings_arguments(simulate)
    _simulator_arguments(simulate)
    simulate.add_argument("--timelines", type=Path, metavar="DIR", help="keep what was shown, for `report`")

    doubled = add("doubled", "what is said once and told twice, at several paces, in simulated time", _doubled)
    doubled.add_argument("--corpus", type=Path, nargs="+", metavar="DIR", help="folders that `corpus` made")
    doubled.add_argument(
        "--kinds", default="", metavar="K,K", help="kinds of recordings (default: all that are spoken)"
    )
    doubled.add_argument("--only", default="", metavar="NAME,NAME", help="names of recordings (default: all)")
    doubled.add_argument(
        "--paces",
        type=_paces,
        default=(1.0, 8.0, 0.0),
        metavar="P,P",
        help="seconds of audio that come in a second; 0: all are there at once (default: 1,8,0)",
    )
    _simulator_arguments(doubled)

    sessions = add("sessions", "how many clients are served in real time at once", _sessions)
    _recordings_arguments(sessions)
    _systems_arguments(sessions)
    sessions.add_argument("--most", type=_count, default=64, help="clients to try at most (default: %(default)s)")
    sessions.add_argument(
        "--crowd", type=_count, metavar="N", help="how many of N that come at once are let in and kept"
    )

    soak = add("soak", "memory and delay of a long session", _soak)
    _recordings_arguments(soak)
    _systems_arguments(soak)
    soak.add_argument("--hours", type=_positive, default=1.0, help="of audio, at real-time pace (default: %(default)s)")

    raw = add("raw", "speed of the offline decoder, with weights of 8 bits", _raw)
    raw.add_argument(
        "--size", "--models", default="nano.en,tiny,base,small", metavar="M,M", help="default: %(default)s"
    )
    raw.add_argument("--rounds", type=_count, default=5, help="in which all take turns (default: %(default)s)")
    raw.add_argument("--tokens", type=_count, default=100, help="to sample for each window (default: %(default)s)")
    raw.add_argument("--threads", type=_count, default=2, help="of each system (default: %(default)s)")
    raw.add_argument("--peers-folder", type=Path, metavar="DIR", help="where the others are installed")

    memory = add("memory", "memory by stage and graph, of tensors, and of the daemon; on Linux", _memory)
    _recordings_arguments(memory)
    memory.add_argument("--size", default="small", metavar="M,M", help="default: %(default)s")
    memory.add_argument("--weights", default="int8", metavar="W,W", help="f32, f16, int8 (default: %(default)s)")
    memory.add_argument("--windows", default="", metavar="S,S", help="of live captions (default: the model's)")
    memory.add_argument("--peers-folder", type=Path, metavar="DIR", help="where the models are kept")

    files = add("files", "word errors on recordings of people, and words written where no one speaks", _files)
    files.add_argument("--corpus", type=Path, required=True, metavar="DIR", help="folders of NAME.flac with NAME.txt")
    files.add_argument("--only", default="*", metavar="GLOB", help="names of recordings, such as 'fleurs-*'")
    files.add_argument(
        "--model", nargs="+", default=["tiny.en", "base"], metavar="NAME", help="models on this machine, or paths"
    )
    files.add_argument(
        "--language", default="en", help="of recordings whose names do not end with one, as NAME-de does"
    )
    files.add_argument("--peers", default="", metavar="P,P", help="others: faster-whisper,openai-whisper")
    files.add_argument("--peers-folder", type=Path, metavar="DIR", help="where they are installed")
    files.add_argument("--flags", default="", help="more flags of `streamer transcribe`: --flags='--beam-size 1'")
    files.add_argument("--output", type=Path, metavar="DIR", help="keep the texts; those in it are not made again")

    weights = add("weights", "what f16 and int8 weights cost on recordings of people, as Markdown", _weights)
    weights.add_argument("--model", nargs="+", required=True, metavar="DIR", help="checkpoints, or names of them")
    weights.add_argument(
        "--corpus", nargs="+", required=True, metavar="DIR", help="recordings and folders of them, with a NAME.txt each"
    )
    weights.add_argument(
        "--weights",
        default="f16,int8",
        metavar="W,W",
        help="logits are compared with the first (default: %(default)s)",
    )
    weights.add_argument(
        "--beams", type=_counts, default=(1, 5), metavar="N,N", help="to transcribe with (default: 1,5)"
    )
    weights.add_argument("--language", default="en", metavar="L", help="that is spoken (default: %(default)s)")
    weights.add_argument("--device", default="CPU", metavar="D", help="where it computes (default: %(default)s)")

    beams = add("beams", "time of beam search over that of greedy decoding", _beams)
    _recordings_arguments(beams)
    beams.add_argument("--beams", type=_count, default=5, help="beams that are followed (default: %(default)s)")

    names = add("names", "names that a glossary sets right, and words that it harms", _names)
    _recordings_arguments(names)

    protocols = add("protocols", "the delay that each protocol adds to the native one's", _protocols)
    _recordings_arguments(protocols)
    protocols.add_argument("--flags", default="", help="more flags of `streamer run`: --flags='--model base.en'")
    protocols.add_argument("--names", default="", metavar="N,N", help="protocols besides the native one (default: all)")
    protocols.add_argument("--rounds", type=_count, default=2, help="in which all take turns (default: %(default)s)")

    speakers = add("speakers", "who speaks, in conversations of people", _speakers)
    speakers.add_argument(
        "people",
        type=Path,
        metavar="DIR",
        help="recordings of one person each, and conversations with NAME.rttm beside",
    )
    speakers.add_argument("--half", choices=corpus.HALVES, default="held", help="whose people (default: %(default)s)")
    speakers.add_argument("--number", type=_count, default=3, help="made of each kind and size (default: %(default)s)")
    speakers.add_argument("--seed", type=int, default=1, help="what they begin with (default: %(default)s)")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text} is no length of time: expected 0 or more")
    return value


def _positive(text: str) -> float:
    value = _seconds(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0 is too little: expected more")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is too few: expected 1 or more")
    return value


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(n) for n in text.split(","))


def _paces(text: str) -> tuple[float, ...]:
    return tuple(_seconds(pace) for pace in text.split(","))


def _simulator_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting")
    parser.add_argument(
        "--pass-s", type=_seconds, default=0.1, help="what a pass costs, in seconds (default: %(default)s)"
    )


def _recordings_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="recordings that `corpus` made")
    parser.add_argument("--half", choices=corpus.HALVES, help="half of the corpus (default: both)")
    parser.add_argument("--kinds", default="", metavar="K,K", help="kinds of recordings (default: all that apply)")
    parser.add_argument("--only", default="", metavar="NAME,NAME", help="names of recordings (default: all)")


def _systems_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", help="published model on this machine, or a path, for all systems (default: nano.en)"
    )
    parser.add_argument("--flags", default="", help="more flags of `streamer run`: --flags='--pace 1'")
    parser.add_argument(
        "--windows",
        action="append",
        metavar="S,S",
        help="windows of ours; given again, ours is measured once more with these (default: the model's, 5,10)",
    )
    parser.add_argument("--peers", default="", metavar="P,P", help=f"others: {', '.join(PEERS)}")
    parser.add_argument("--peers-folder", type=Path, metavar="DIR", help="where they are installed")
    parser.add_argument("--without-ours", action="store_true", help="measure the others only")


def _corpus(args: argparse.Namespace, console: Console) -> None:
    corpus.make(
        args.folder,
        minutes=args.minutes,
        sounds_minutes=args.sounds_minutes,
        seed=args.seed,
        tell=lambda line: console.print(line, markup=False, highlight=False),
    )


def _stream(args: argparse.Namespace, console: Console) -> str:
    return _play(args, _recordings(args, spoken=True), console)


def _hallucination(args: argparse.Namespace, console: Console) -> str:
    return _play(args, _recordings(args, spoken=False), console)


def _play(args: argparse.Namespace, recordings: Sequence[Recording], console: Console) -> str:
    from tools.benchmarks.results import Folder
    from tools.benchmarks.stream import OFFLINE_FLAGS, play, transcribe_offline

    with tempfile.TemporaryDirectory() as temporary:
        folder = Folder(args.timelines or Path(temporary))
        systems = _systems(args, Path(temporary))
        if not args.no_offline:
            flags = [*(() if args.model else OFFLINE_FLAGS), *_model(args), *_model_flags(_flags(args))]
            transcribe_offline(recordings, folder, flags)
        play(systems, recordings, folder, console)
        return _tell(args, folder, recordings, console)


def _report(args: argparse.Namespace, console: Console) -> str:
    from tools.benchmarks.results import Folder

    folder = Folder(args.timelines)
    recordings = _recordings(args)
    return _tell(args, folder, recordings, console)


def _tell(args: argparse.Namespace, folder: "Folder", recordings: Sequence[Recording], console: Console) -> str:
    from tools.benchmarks.results import compute, draw, show, to_json

    results = compute(folder, recordings)
    show(results, console)
    if args.plots:
        draw(results, folder, recordings, args.plots, getattr(args, "format", "png"))
    return to_json(results)


def _compare(args: argparse.Namespace, console: Console) -> None:
    from tools.benchmarks.sizes import as_markdown, plot_sizes, read_run

    runs = {}
    for named in args.runs:
        size, equals, path = named.partition("=")
        if not equals:
            raise UsageError(
                f"{named!r:.80} does not say what size it is: expected SIZE=FILE, such as small=small.json"
            )
        runs[size] = read_run(Path(path))
    for size, run in runs.items():
        print(as_markdown(size, run), end="\n\n")
    if args.plot:
        plot_sizes(runs, args.plot)


def _simulate(args: argparse.Namespace, console: Console) -> str:
    from tools.benchmarks.results import Folder

    simulator, settings = _simulator(args)
    recordings = _recordings(args)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Folder(args.timelines or Path(temporary))
        for recording in recordings:
            folder.save(simulator.play(recording.name, recording.samples, settings))
        args.plots = None
        return _tell(args, folder, recordings, console)


def _doubled(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from tools.benchmarks.doubling import measure_doubling

    recordings = []
    for folder in args.corpus or [None]:
        chosen = argparse.Namespace(corpus=folder, half=None, kinds=args.kinds, only=args.only)
        recordings += [(folder.name if folder else "", found) for found in _recordings(chosen, spoken=True)]
    simulator, settings = _simulator(args)
    return measure_doubling(simulator, recordings, settings, args.paces, console)


def _simulator(args: argparse.Namespace) -> "tuple[Simulator, SessionSettings]":
    """Return a simulator with the model of the settings, and a session's settings."""
    from streamer.commands.loading import load
    from streamer.sessions.sessions import session_settings
    from streamer.settings.load import load_settings
    from tools.benchmarks.simulate import Simulator

    overrides = dict(item.partition("=")[::2] for item in args.set)
    settings = load_settings(None, {}, overrides)
    model = load(settings.model, n_beams=settings.decoding.beam_size)
    return Simulator(model, settings.decoding, pass_s=args.pass_s), session_settings(settings, model)


def _sessions(args: argparse.Namespace, console: Console) -> list[object]:
    from whisper.normalizers import EnglishTextNormalizer

    from tools.benchmarks.sessions import measure_crowd, measure_sessions

    recordings = [recording for recording in _recordings(args, spoken=True) if recording.words]
    if not recordings:
        raise UsageError("when words are said is not known of these recordings: name a corpus with --corpus DIR")
    normalise = EnglishTextNormalizer()
    if args.crowd:
        return _each(args, console, lambda system: measure_crowd(system, recordings, normalise, console, args.crowd))
    return _each(args, console, lambda system: measure_sessions(system, recordings, normalise, console, args.most))


def _soak(args: argparse.Namespace, console: Console) -> list[object]:
    from tools.benchmarks.soak import measure_soak

    recordings = _recordings(args, spoken=True)
    return _each(args, console, lambda system: measure_soak(system, recordings, args.hours, console))


def _each(
    args: argparse.Namespace, console: Console, measure: Callable[[StreamingSystem], Mapping[str, object]]
) -> list[object]:
    """Measure one system after the other; of one that fails the reason is told, and the others go on."""
    figures: list[object] = []
    with tempfile.TemporaryDirectory() as temporary:
        for system in _systems(args, Path(temporary)):
            try:
                figures.append({"system": system.name, **measure(system)})
            except StreamerError as error:
                console.print(f"{system.name}: {error}", markup=False, highlight=False)
                figures.append({"system": system.name, "error": str(error)})
    return figures


def _raw(args: argparse.Namespace, console: Console) -> list[dict[str, object]]:
    from tools.benchmarks.raw import measure_raw

    return measure_raw(
        _sizes(args),
        corpus.read(SAMPLE).samples,
        args.peers_folder or default_folder(),
        console,
        n_rounds=args.rounds,
        n_tokens=args.tokens,
        n_threads=args.threads,
    )


def _memory(args: argparse.Namespace, console: Console) -> list[dict[str, object]]:
    from tools.benchmarks.memory import measure_memory

    recording = _recordings(args, spoken=True)[0]
    folder = args.peers_folder or default_folder()
    figures = []
    for size in _sizes(args):
        # What random weights say is never good enough.
        flags = [] if size == "nano.en" else ["--temperature-increment-on-fallback", "none"]
        for weights in args.weights.split(","):
            model = model_files.ModelFiles(size, folder).streamer(weights)
            name = f"{size}, {weights}"
            figures.append(measure_memory(name, model, recording, console, windows=args.windows, flags=flags))
    return figures


def _files(args: argparse.Namespace, console: Console) -> list[dict[str, object]]:
    from tools.benchmarks import files

    peers = [name for name in args.peers.split(",") if name]
    if unknown := [name for name in peers if name not in files.PEERS]:
        raise UsageError(f"no peer is called {unknown[0]!r:.40}: expected some of {', '.join(files.PEERS)}")
    recordings = files.find(args.corpus, args.only, args.language)
    folder = args.peers_folder or default_folder()
    with tempfile.TemporaryDirectory() as temporary:
        output = args.output or Path(temporary)
        tell = partial(print, flush=True)
        rows = files.measure_files(args.model, recordings, peers, folder, output, _flags(args), tell)
    return [dataclasses.asdict(row) for row in rows]


def _weights(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    from whisper.normalizers import BasicTextNormalizer, EnglishTextNormalizer

    from tools.benchmarks.weights import measure_weights

    normalise = EnglishTextNormalizer() if args.language == "en" else BasicTextNormalizer()
    rows = measure_weights(
        args.model, args.corpus, args.weights.split(","), args.beams, args.language, args.device, normalise
    )
    return [dataclasses.asdict(row) for row in rows]


def _sizes(args: argparse.Namespace) -> list[str]:
    """Return the sizes that were asked for. Raises UsageError where one of them is not known."""
    sizes: list[str] = args.size.split(",")
    if unknown := [name for name in sizes if name not in model_files.NAMES]:
        raise UsageError(f"--size has {unknown[0]!r:.40}: expected some of {','.join(model_files.NAMES)}")
    return sizes


def _beams(args: argparse.Namespace, console: Console) -> dict[str, float]:
    from tools.benchmarks.beams import measure_beams

    return measure_beams(_recordings(args, spoken=True), args.beams, console)


def _names(args: argparse.Namespace, console: Console) -> Mapping[str, object]:
    from tools.benchmarks.names import measure_names

    return measure_names(_recordings(args, spoken=True), console)


def _protocols(args: argparse.Namespace, console: Console) -> list[dict[str, object]]:
    from tools.benchmarks.protocols import PROTOCOLS, measure_protocols

    wanted = [name for name in args.names.split(",") if name] or list(PROTOCOLS)
    if unknown := [name for name in wanted if name not in PROTOCOLS]:
        raise UsageError(f"--names has {unknown[0]!r:.40}: expected some of {','.join(PROTOCOLS)}")
    names = [name for name in PROTOCOLS if name in ("native", *wanted)]
    return measure_protocols(_recordings(args, spoken=True), _flags(args), names, args.rounds, console)


def _speakers(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from streamer.sessions.speakers import load_vectors
    from tools.benchmarks.conversations import conversations
    from tools.benchmarks.speakers import measure_speakers

    wanted = conversations(args.people, args.half, args.number, args.seed)
    return measure_speakers(load_vectors(), wanted, f"Who speaks, {args.half}", console)


def _recordings(args: argparse.Namespace, *, spoken: bool | None = None) -> list[Recording]:
    """Return the recordings that were asked for; with `spoken` only those in which somebody, or nobody, speaks."""
    kinds = [kind for kind in args.kinds.split(",") if kind]
    paths = [SAMPLE] if args.corpus is None else corpus.find(args.corpus, args.half, kinds)
    names = [name for name in args.only.split(",") if name]
    recordings = [corpus.read(path) for path in paths if not names or path.stem in names]
    recordings = [r for r in recordings if spoken is None or bool(r.text) == spoken]
    if not recordings:
        raise UsageError(
            f"{args.corpus or SAMPLE} has no such recording: name a folder that `corpus` has made, and kinds or names"
            " that it has"
        )
    return _with_times(recordings, args.model) if getattr(args, "model", None) else recordings


def _with_times(recordings: Sequence[Recording], name: str) -> list[Recording]:
    """Return recordings with the times of their words, where these are not known, by forced alignment with a model."""
    if all(recording.words or not recording.text for recording in recordings):
        return list(recordings)
    from streamer.commands.loading import load
    from streamer.settings.table import ModelSettings
    from tools.benchmarks.files import normaliser
    from tools.benchmarks.word_times import words_of

    model = load(ModelSettings(name=name), n_beams=5)
    return [
        recording
        if recording.words or not recording.text
        else dataclasses.replace(
            recording,
            words=tuple(words_of(model, recording.samples, recording.text, normaliser("en"), language="en")),
        )
        for recording in recordings
    ]


def _systems(args: argparse.Namespace, temporary: Path) -> list[StreamingSystem]:
    """Return ours and the others that were asked for; their formats of a published model are written to a folder."""
    from tools.benchmarks.results import OURS

    names = [name for name in args.peers.split(",") if name]
    if unknown := [name for name in names if name not in PEERS]:
        raise UsageError(f"no peer is called {unknown[0]}: expected some of {', '.join(PEERS)}")
    folder = args.peers_folder or default_folder()
    model = PublishedModel(args.model, temporary, folder) if args.model else None
    ours: list[StreamingSystem] = []
    for windows in args.windows or [""]:
        flags = [*_model(args), *_flags(args), *(["--windows", windows] if windows else [])]
        ours.append(Streamer(flags, f"{OURS} {windows}" if ours else OURS))
    peers = [PEERS[name](folder, model) for name in names]
    return [*([] if args.without_ours else ours), *peers]


def _model(args: argparse.Namespace) -> list[str]:
    """Return the flags for the model that was asked for, in the language that peers are told."""
    return ["--model", args.model or "nano.en", "--language", "en"]


def _flags(args: argparse.Namespace) -> list[str]:
    """Return the flags of our daemon."""
    try:
        return shlex.split(args.flags)
    except ValueError as error:
        raise UsageError(f"--flags {args.flags!r:.80} is not written as in a shell ({error}): mend it") from None


def _model_flags(flags: Sequence[str]) -> list[str]:
    """Return those of the daemon's flags that say which model it is."""
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
