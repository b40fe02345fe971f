"""Short recordings through three workers of which two are killed on the way: are the texts the local command's?"""

import argparse
import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import soundfile

from streamer.cluster.local import local_nats

SAMPLE = Path(__file__).parents[2] / "models" / "nano.en" / "sample.flac"
FORMATS = 5  # of `-f all`
WAIT_S = 1800.0  # for all of it
READY_S = 120.0  # for a worker to have its model


def cut(corpus: Path | None, folder: Path, number: int, chance: random.Random) -> float:
    """Write pieces of a corpus (None: of the sample), of 2 to 8 s and in 16 bits or more; return how long all are."""
    sources = sorted(corpus.rglob("*.flac")) if corpus else [SAMPLE]
    folder.mkdir(parents=True)
    total_s = 0.0
    for i in range(number):
        source = chance.choice(sources)
        duration_s = soundfile.info(source).duration
        length_s = min(duration_s, chance.uniform(2.0, 8.0))
        begin_s = chance.uniform(0.0, duration_s - length_s)
        with soundfile.SoundFile(source) as file:
            file.seek(int(begin_s * file.samplerate))
            samples, rate = file.read(int(length_s * file.samplerate), dtype="float32"), file.samplerate
        subtype = chance.choice(("PCM_16", "PCM_24", "FLOAT"))
        soundfile.write(folder / f"{i:04}.wav", samples * (1.0 if subtype == "PCM_16" else 0.7), rate, subtype=subtype)
        total_s += length_s
    return total_s


def started(log: Path, *arguments: str | Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as output:
        command = [sys.executable, "-m", "streamer", *map(str, arguments)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)


async def ended(process: "subprocess.Popen[bytes]") -> int:
    async with asyncio.timeout(WAIT_S):
        while process.poll() is None:
            await asyncio.sleep(0.1)
    return process.returncode


@contextlib.asynccontextmanager
async def workers(url: str, folder: Path) -> AsyncIterator[dict[str, "subprocess.Popen[bytes]"]]:
    """Run three, each with its model."""
    processes = {
        name: started(folder / f"{name}.log", "worker", "--nats", url, "--name", name) for name in ("w1", "w2", "w3")
    }
    try:
        async with asyncio.timeout(READY_S):
            while not all("transcribes with" in (folder / f"{name}.log").read_text("utf-8") for name in processes):
                await asyncio.sleep(0.1)
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


async def run(folder: Path, number: int, corpus: Path | None, chance: random.Random) -> int:
    """Compare, and print what was found; return the exit code."""
    recordings, here, there = folder / "recordings", folder / "here", folder / "there"
    total_s = cut(corpus, recordings, number, chance)
    begin_s = time.monotonic()
    local = await ended(started(folder / "here.log", "transcribe", recordings, "-f", "all", "-o", f"{here}/"))
    local_s = time.monotonic() - begin_s
    async with local_nats() as url, workers(url, folder) as processes:
        begin_s = time.monotonic()
        options = ("--nats", url, "-f", "all", "-o", f"{there}/")
        batch = started(folder / "there.log", "transcribe", recordings, *options)
        names = chance.sample(sorted(processes), 2)
        moments = sorted(chance.randrange(number // 20, number * 3 // 4) for _ in names)
        for name, moment in zip(names, moments, strict=True):
            while batch.poll() is None and len(list(there.glob("*.json"))) < moment:
                await asyncio.sleep(0.02)
            n_written = len(list(there.glob("*.json")))
            processes[name].kill()
            print(f"{name} killed with {n_written} of {number} written, {time.monotonic() - begin_s:.1f} s on the way")
        cluster = await ended(batch)
        cluster_s = time.monotonic() - begin_s
    files = {path.name for each in (here, there) for path in each.iterdir()}
    found = Counter(
        "missing"
        if not ((here / name).exists() and (there / name).exists())
        else ("equal" if (here / name).read_bytes() == (there / name).read_bytes() else "different")
        for name in sorted(files)
    )
    told = (folder / "there.log").read_text("utf-8").strip()
    print(
        f"{number} recordings, {total_s:.0f} s: {local_s:.1f} s here, {cluster_s:.1f} s there; exit {local}, {cluster}"
    )
    print(f"texts of all formats: {dict(found)} of {FORMATS * number}; said there: {told or 'nothing'}")
    passed = found == Counter(equal=FORMATS * number) and local == cluster == 0
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.cluster batch", description=__doc__)
    parser.add_argument("--number", type=int, default=300, metavar="N")
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="folder of .flac files (default: nano.en's sample)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="a new folder for all that is written (default: nothing is kept)")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="streamer-batch-") as temporary:
        folder = args.folder or Path(temporary)
        return asyncio.run(run(folder, args.number, args.corpus, random.Random(args.seed)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
