"""Voices of Festival: one process for each, which is told in Scheme what to say and prints when it was said.

The functions and the variables used are those of Festival's manual, version 2.5, and of its hts.scm.
"""

import re
import subprocess
import tempfile
import threading
import wave
from contextlib import suppress
from pathlib import Path

import numpy as np

from tools.benchmarks.synthetic.speech import Speech, SynthesisError, resample

VOICES = ("kal_diphone", "ked_diphone", "cmu_us_slt_arctic_hts")
TIMEOUT_S = 10.0  # for a text; Festival speaks a sentence in a fraction of a second

_HEAP_CELLS = "1000000"  # a tenth of what Festival takes by itself: enough for long texts in less memory
_END = "end"  # the line that ends each answer

_SPEAK = """
(define (tell_word word)
  (if (item.daughter1 (item.relation word 'SylStructure))
      (format t "word %f %f\\n" (item.feat word "word_start") (item.feat word "word_end"))))
(define (tell_tokens token)
  (while token
    (format t "token\\n")
    (mapcar tell_word (item.daughters token))
    (set! token (item.next token))))
(define (speak text rate path)
  (choose rate)
  (let ((utt (utt.synth (eval (list 'Utterance 'Text text)))))
    (utt.save.wave utt path 'riff)
    (tell_tokens (utt.relation.first utt 'Token))
    t))
"""

_CHOOSE_DIPHONE = """
(define usual_stretch (Parameter.get 'Duration_Stretch))
(define (choose rate) (Parameter.set 'Duration_Stretch (/ usual_stretch rate)))
"""

# The statistical voices ignore that parameter.
_CHOOSE_HTS = """
(define usual_params hts_engine_params)
(define (choose rate)
  (set! hts_engine_params (append usual_params (list (list "-r" rate)))))
"""


class FestivalVoice:
    """One of VOICES, or another diphone or HTS voice that is installed: `slt` is a woman, the others are men."""

    def __init__(self, name: str) -> None:
        """Raises SynthesisError where Festival or the voice is not installed."""
        self._name = name
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if not re.fullmatch(r"\w+", name, re.ASCII):
            raise SynthesisError(f"{name!r} is no voice of Festival; try one of {', '.join(VOICES)}")
        self._start()

    def say(self, text: str, rate: float = 1.0) -> Speech:
        """Speak `text`, which is ASCII.

        A written word begins with the first of the words it is spoken as and ends with the last of them.
        Raises SynthesisError where Festival divided it into other pieces than text.split() does, where a piece was
        not spoken, and where the answer took longer than TIMEOUT_S; the next call starts Festival again.
        """
        pieces = text.split()
        line = " ".join(pieces)
        if not line.isascii() or not line.isprintable() or not line:
            raise SynthesisError(f"Festival cannot speak {text!r}; it speaks ASCII")
        if self._process is None:
            self._start()
        assert self._folder is not None
        path = Path(self._folder.name) / "speech.wav"
        path.unlink(missing_ok=True)
        answer = self._ask(f"(speak {_quoted(line)} {rate:f} {_quoted(str(path))})")
        try:
            with wave.open(str(path)) as file:
                sample_rate = file.getframerate()
                samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.int16)
        except (OSError, EOFError, wave.Error):
            raise SynthesisError(f"Festival could not speak {text!r}") from None
        words = _words(answer)
        if len(words) != len(pieces):
            raise SynthesisError(f"Festival divided {text!r} into {len(words)} pieces")
        if not all(words):
            raise SynthesisError(f"Festival did not speak {pieces[words.index([])]!r} of {text!r}")
        return Speech(resample(samples, sample_rate), [(times[0][0], times[-1][1]) for times in words])

    def close(self) -> None:
        """End the process. The next text starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

    def __del__(self) -> None:
        self.close()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="festival-")
        try:
            self._process = subprocess.Popen(
                ["festival", "--heap", _HEAP_CELLS, "--pipe"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="ascii",
                errors="replace",
            )
        except OSError:
            self.close()
            raise SynthesisError("Festival is not here; it is Debian's package festival") from None
        choose = _CHOOSE_HTS if self._name.endswith("_hts") else _CHOOSE_DIPHONE
        if "ready" not in self._ask(f'(begin (voice_{self._name}) (format t "ready\\n"))\n{choose}{_SPEAK}'):
            self.close()
            raise SynthesisError(
                f"Festival has no voice {self._name}; {', '.join(VOICES)} are in Debian's packages"
                " festvox-kallpc16k, festvox-kdlpc16k and festvox-us-slt-hts"
            )

    def _ask(self, commands: str) -> list[str]:
        """The lines that the commands print. Raises SynthesisError where Festival ends or does not answer in time."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.start()
        lines: list[str] = []
        try:
            process.stdin.write(f'{commands}\n(format t "{_END}\\n")\n(fflush nil)\n')
            process.stdin.flush()
            for line in process.stdout:
                if line.rstrip("\n") == _END:
                    return lines
                lines.append(line.rstrip("\n"))
        except OSError:
            pass  # it has ended, and is started again below
        finally:
            timer.cancel()
        self.close()
        raise SynthesisError(f"Festival ended, or did not answer within {TIMEOUT_S:.0f} s")


def _words(answer: list[str]) -> list[list[tuple[float, float]]]:
    """For each token the start and the end, in seconds, of each word that it is spoken as."""
    tokens: list[list[tuple[float, float]]] = []
    for line in answer:
        kind, *fields = line.split()
        if kind == "token":
            tokens.append([])
        elif kind == "word":
            tokens[-1].append((float(fields[0]), float(fields[1])))
    return tokens


def _quoted(text: str) -> str:
    """A string of Scheme."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
