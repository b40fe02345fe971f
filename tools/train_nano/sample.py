"""Speaks models/nano.en/sample.flac: python -m tools.train_nano.sample --text DIR --out DIR

Held-out lines that follow each other in the text, from the beginning of a sentence that chance has chosen, so none was
picked for being easy. Beside the sound: `sample.txt`, what is said, and `sample.json`, when, by
which voice, and where each word begins.
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np
import soundfile

from streamer.audio.constants import SAMPLE_RATE
from tools.train_nano import sentences
from tools.train_nano.flite import FliteVoice
from tools.train_nano.speech import SynthesisError

VOICES = ("slt", "rms", "awb", "kal16")
SECONDS = 45.0  # about
SEED = 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Speak the sample that comes with the model.")
    parser.add_argument("--text", type=Path, required=True, help="the folder with heldout.txt")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write sample.* to")
    options = parser.parse_args()
    path = options.text / "heldout.txt"
    if not path.is_file():
        raise SystemExit(f"{path} is missing; it holds the held-out sentences, one a line (README.md)")
    try:
        voices = [FliteVoice(name) for name in VOICES]
    except SynthesisError as error:
        raise SystemExit(str(error)) from None
    held_out = sentences.read(path)
    rng = random.Random(SEED)
    begins = [number for number in range(1, len(held_out)) if held_out[number - 1].endswith(".")]
    first = begins[rng.randrange(len(begins) // 2)] if begins else 0
    pieces = [np.zeros(SAMPLE_RATE // 2, dtype=np.int16)]
    said = []
    position = len(pieces[0])
    for number, text in enumerate(held_out[first:]):
        if position > SECONDS * SAMPLE_RATE:
            break
        speech = voices[number % len(voices)].say(text)
        starts = [round(position / SAMPLE_RATE + start, 3) for start, _ in speech.words]
        end = round(position / SAMPLE_RATE + speech.words[-1][1], 3)
        voice = VOICES[number % len(voices)]
        said.append({"start": starts[0], "end": end, "voice": voice, "text": text, "words": starts})
        pause = np.zeros(round(rng.uniform(0.0, 0.8) * SAMPLE_RATE), dtype=np.int16)
        pieces += [speech.samples, pause]
        position += len(speech.samples) + len(pause)
    soundfile.write(options.out / "sample.flac", np.concatenate(pieces), SAMPLE_RATE, subtype="PCM_16")
    lines = "".join(f"{entry['text']}\n" for entry in said)
    (options.out / "sample.txt").write_text(lines, encoding="utf-8")
    entries = ",\n".join(map(json.dumps, said))
    (options.out / "sample.json").write_text(f"[\n{entries}\n]\n", encoding="utf-8")
    print(f"{len(said)} sentences, {position / SAMPLE_RATE:.1f} s")


if __name__ == "__main__":
    main()
