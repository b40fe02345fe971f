"""Voices of eSpeak NG, through its shared library: many accents, spoken by rule.

The functions called, the events and the numbers of the enumerations are those of speak_lib.h, version 1.51.
"""

import ctypes
import sys
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tools.benchmarks.synthetic.speech import Speech, SynthesisError, resample

_FILES = {"en-gb": "en"}  # voices are found by the names of their files, which are their languages but for this one
_USUAL_RATE = 175  # words a minute; what eSpeak accepts is 80 to 450

_OUTPUT_SYNCHRONOUS = 2
_PHONEME_EVENTS, _DONT_EXIT = 0x0001, 0x8000
_CHARS_UTF8, _END_PAUSE = 1, 0x1000
_RATE = 1
_VOWELS = "aAeEiIoOuUV03@"  # what eSpeak's names of vowels begin with
_EVENT_END_OF_LIST, _EVENT_WORD, _EVENT_PHONEME = 0, 1, 7


class _Identity(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("phoneme", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("message", ctypes.c_uint),
        ("text_position", ctypes.c_int),  # in characters, the first is 1
        ("length", ctypes.c_int),  # of a word, in characters
        ("audio_position", ctypes.c_int),  # in milliseconds
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("identity", _Identity),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


@dataclass(frozen=True)
class _Mark:
    """When a word or a sound begins, in seconds."""

    start: float
    character: int = -1  # of a word: the index in the text
    length: int = 0  # of a word, in characters; 0 is also told at pauses, for a place before them
    phoneme: str = ""  # of a sound: its name; that of a pause begins with an underscore


@dataclass(frozen=True)
class _Sound:
    phoneme: str
    start: float
    end: float


class EspeakVoice:
    """A language of eSpeak and, after a plus sign, a variant: "en-us", "en-gb-scotland+f3", "en-029+klatt2"."""

    def __init__(self, name: str) -> None:
        """Raises SynthesisError where eSpeak NG or the voice is not installed. A variant that is not is ignored."""
        language, plus, variant = name.partition("+")
        self._name = _FILES.get(language, language) + plus + variant
        self._engine = _engine()
        self._engine.choose(self._name)

    def say(self, text: str, rate: float = 1.0) -> Speech:
        """Speak `text`, at half to two and a half times the usual speed; a rate beyond these is taken as the nearest.

        A written word begins with the first of the words it is spoken as, and ends with its last sound. Lengths vary by
        up to two percent from one time to the next, as eSpeak carries over a little of the last text. Raises
        SynthesisError where a piece of text.split() was not spoken, or has no letter or digit.
        """
        pieces = text.split()
        text = " ".join(pieces)
        if not text.isprintable() or not all(any(map(str.isalnum, piece)) for piece in pieces):
            raise SynthesisError(f"{text!r} has a piece that cannot be spoken; each must have a letter or a digit")
        self._engine.choose(self._name)
        samples, marks = self._engine.speak(text, rate)
        ends = [mark.start for mark in marks[1:]] + [len(samples) / self._engine.sample_rate]
        return Speech(resample(samples, self._engine.sample_rate), self._words(pieces, marks, ends))

    def _words(self, pieces: list[str], marks: list[_Mark], ends: list[float]) -> list[tuple[float, float]]:
        starts = list(accumulate((len(piece) + 1 for piece in pieces[:-1]), initial=0))
        # A word event comes before its first sound, where that is a stop's closure: the word begins there.
        sounds: list[list[_Sound]] = [[] for _ in pieces]
        current, begin = 0, 0.0
        for mark, end in zip(marks, ends, strict=True):
            if not mark.phoneme:
                piece = bisect_right(starts, mark.character) - 1
                if piece < current and mark.length == 0:
                    continue
                if piece < current:
                    raise SynthesisError(f"eSpeak spoke the words of {' '.join(pieces)!r} in another order")
                current, begin = piece, mark.start
                continue
            if not mark.phoneme.startswith("_"):
                sounds[current].append(_Sound(mark.phoneme, begin, end))
            begin = end
        self._divide(pieces, sounds)
        return [(of_piece[0].start, of_piece[-1].end) for of_piece in sounds]

    def _divide(self, pieces: list[str], sounds: list[list[_Sound]]) -> None:
        """Give the later words of a group such as "of the" their own sounds: eSpeak tells of it as one word."""
        for index in range(len(pieces) - 1, -1, -1):
            if sounds[index]:
                continue
            first = max((before for before in range(index) if sounds[before]), default=0)
            count = _last_word(sounds[first], self._engine.alone(self._name, pieces[index]))
            if count == 0:
                raise SynthesisError(f"eSpeak did not speak {pieces[index]!r} of {' '.join(pieces)!r}")
            sounds[index] = sounds[first][-count:]
            del sounds[first][-count:]


def _last_word(group: list[_Sound], alone: list[str]) -> int:
    """How many of the group's sounds are those of its last word, which is spoken as `alone` where it stands alone.

    In a group its vowels may be others, a sound may follow that links it to the next word, and the first may be lost.
    It is 0 where the word cannot be found.
    """
    for count, heard in ((len(alone), alone), (len(alone) + 1, alone), (len(alone) - 1, alone[1:])):
        if 0 < count < len(group) and _alike(group[-count].phoneme, heard[0]):
            return count
    return 0


def _alike(phoneme: str, other: str) -> bool:
    return phoneme[0] == other[0] or (phoneme[0] in _VOWELS and other[0] in _VOWELS)


class _Engine:
    """The library, which a process has once: its voice and its parameters are set before each text."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_SONAME)
        except OSError:
            raise SynthesisError("eSpeak NG is not here; it is Debian's package libespeak-ng1") from None
        for name, result, arguments in (
            ("espeak_Initialize", ctypes.c_int, (ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int)),
            ("espeak_SetSynthCallback", None, (_Callback,)),
            ("espeak_SetVoiceByName", ctypes.c_int, (ctypes.c_char_p,)),
            ("espeak_SetParameter", ctypes.c_int, (ctypes.c_int, ctypes.c_int, ctypes.c_int)),
            (
                "espeak_TextToPhonemes",
                ctypes.c_char_p,
                (ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int),
            ),
            (
                "espeak_Synth",
                ctypes.c_int,
                (
                    ctypes.c_char_p,
                    ctypes.c_size_t,
                    ctypes.c_uint,
                    ctypes.c_int,
                    ctypes.c_uint,
                    ctypes.c_uint,
                    ctypes.c_void_p,
                    ctypes.c_void_p,
                ),
            ),
        ):
            function = getattr(self._library, name)
            function.restype = result
            function.argtypes = arguments
        self.sample_rate: int = self._library.espeak_Initialize(
            _OUTPUT_SYNCHRONOUS, 0, None, _PHONEME_EVENTS | _DONT_EXIT
        )
        if self.sample_rate <= 0:
            raise SynthesisError("eSpeak NG cannot start without its data; it is Debian's package espeak-ng-data")
        self._chunks: list[NDArray[np.int16]] = []
        self._marks: list[_Mark] = []
        self._callback = _Callback(self._hear)  # the library holds only its address
        self._library.espeak_SetSynthCallback(self._callback)
        self._alone: dict[tuple[str, str], list[str]] = {}

    def choose(self, voice: str) -> None:
        """Raises SynthesisError where there is no such voice."""
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise SynthesisError(f"eSpeak NG has no voice {voice}; `espeak-ng --voices=en` lists those for English")

    def speak(self, text: str, rate: float) -> tuple[NDArray[np.int16], list[_Mark]]:
        """Samples, and the starts of words and sounds in order. Raises SynthesisError where eSpeak reports an error."""
        self._library.espeak_SetParameter(_RATE, min(max(round(_USUAL_RATE * rate), 80), 450), 0)
        self._chunks.clear()
        self._marks.clear()
        data = text.encode()
        if self._library.espeak_Synth(data, len(data) + 1, 0, 0, 0, _CHARS_UTF8 | _END_PAUSE, None, None) != 0:
            raise SynthesisError(f"eSpeak could not speak {text!r}")
        return np.concatenate([np.zeros(0, np.int16), *self._chunks]), self._marks.copy()

    def alone(self, voice: str, word: str) -> list[str]:
        """The sounds that the chosen voice speaks `word` with when it stands alone."""
        if (voice, word) not in self._alone:
            text = ctypes.c_char_p(word.encode())
            spoken = self._library.espeak_TextToPhonemes(ctypes.byref(text), _CHARS_UTF8, ord("_") << 8)
            sounds = spoken.decode().replace("_", " ").split()
            self._alone[voice, word] = [sound for sound in (sound.lstrip("',%=") for sound in sounds) if sound]
        return self._alone[voice, word]

    def _hear(self, samples: "ctypes._Pointer[ctypes.c_short]", count: int, events: "ctypes._Pointer[_Event]") -> int:
        if samples and count:
            self._chunks.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())
        index = 0
        while events[index].type != _EVENT_END_OF_LIST:
            event = events[index]
            start = event.audio_position / 1000
            if event.type == _EVENT_WORD:
                self._marks.append(_Mark(start, character=event.text_position - 1, length=event.length))
            elif event.type == _EVENT_PHONEME and event.identity.phoneme:
                self._marks.append(_Mark(start, phoneme=event.identity.phoneme.decode()))
            index += 1
        return 0


_SONAME = {"win32": "libespeak-ng.dll", "darwin": "libespeak-ng.1.dylib"}.get(sys.platform, "libespeak-ng.so.1")


@cache
def _engine() -> _Engine:
    return _Engine()
