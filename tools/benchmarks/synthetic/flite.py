"""Voices of CMU Flite, through its shared library: fast.

The functions called are those of flite.h and cst_features.h, version 2.2.
"""

import ctypes
import sys

import numpy as np

from tools.benchmarks.synthetic.speech import Speech, SynthesisError, resample

VOICES = ("slt", "rms", "awb", "kal16", "kal")


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


class _Voice(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("features", ctypes.c_void_p))


class FliteVoice:
    """One of VOICES. `slt` is a woman, the others are men; `awb` is a Scot; `kal` speaks at 8 kHz."""

    def __init__(self, name: str) -> None:
        """Raises SynthesisError where Flite or the voice is not installed."""
        try:
            self._library = _library()
            voices = ctypes.CDLL(_soname(f"flite_cmu_us_{name}"))
        except OSError:
            raise SynthesisError(
                f"the voice {name} of Flite is not here; {', '.join(VOICES)} are in Debian's package libflite1"
            ) from None
        register = getattr(voices, f"register_cmu_us_{name}")
        register.restype = ctypes.POINTER(_Voice)
        register.argtypes = (ctypes.c_void_p,)
        self._voice = register(None)
        # kal16 has a pitch of its own. The measured corpora have Flite's usual one.
        self._library.flite_feat_remove(self._voice.contents.features, b"int_f0_target_mean")

    def say(self, text: str, rate: float = 1.0) -> Speech:
        """Speak `text`. Raises SynthesisError where Flite divided it into other pieces than text.split() does."""
        if not text.isascii() or not text.isprintable():
            raise SynthesisError(f"{text!r} has a character that Flite cannot speak; it knows those of ASCII")
        features = self._voice.contents.features
        self._library.flite_feat_set_float(features, b"duration_stretch", 1.0 / rate)
        utterance = self._library.flite_synth_text(text.encode("ascii"), ctypes.cast(self._voice, ctypes.c_void_p))
        if not utterance:
            raise SynthesisError(f"Flite could not speak {text!r}")
        try:
            wave = self._library.utt_wave(utterance).contents
            samples = np.ctypeslib.as_array(wave.samples, shape=(wave.num_samples,)).copy()
            rate_of_wave = int(wave.sample_rate)
            words = self._words(utterance)
        finally:
            self._library.delete_utterance(utterance)
        if len(words) != len(text.split()) or any(end <= start for start, end in words):
            raise SynthesisError(f"Flite did not speak each piece of {text!r}")
        return Speech(resample(samples, rate_of_wave), words)

    def _items(self, utterance: int, relation: bytes) -> list[int]:
        items = []
        item = self._library.relation_head(self._library.utt_relation(utterance, relation))
        while item:
            items.append(item)
            item = self._library.item_next(item)
        return items

    def _words(self, utterance: int) -> list[tuple[float, float]]:
        first = b"daughter1.R:SylStructure.daughter1.daughter1.R:Segment.p.end"
        last = b"daughtern.R:SylStructure.daughtern.daughtern.R:Segment.end"
        number = self._library.ffeature_float
        return [(number(token, first), number(token, last)) for token in self._items(utterance, b"Token")]


def _soname(library: str) -> str:
    return f"{library}.dll" if sys.platform == "win32" else f"lib{library}.so.1"


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(_soname("flite"), mode=ctypes.RTLD_GLOBAL)
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_float
    for name, result, arguments in (
        ("flite_init", ctypes.c_int, ()),
        ("flite_synth_text", pointer, (text, pointer)),
        ("flite_feat_set_float", None, (pointer, text, number)),
        ("flite_feat_remove", ctypes.c_int, (pointer, text)),
        ("delete_utterance", None, (pointer,)),
        ("utt_wave", ctypes.POINTER(_Wave), (pointer,)),
        ("utt_relation", pointer, (pointer, text)),
        ("relation_head", pointer, (pointer,)),
        ("item_next", pointer, (pointer,)),
        ("ffeature_float", number, (pointer, text)),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    library.flite_init()
    return library
