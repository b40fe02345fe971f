"""Every voice the model is trained on, by name: which synthesiser speaks it and how often it is heard."""

from tools.train_nano.speech import SynthesisError, Voice

# Name -> share of the speech. The best of Flite's voices come first: they are what the model is promised to know.
VOICES: dict[str, float] = {
    "flite:slt": 4.0,
    "flite:rms": 4.0,
    "flite:awb": 4.0,
    "flite:kal16": 3.0,
    "flite:kal": 2.5,
    "festival:ked_diphone": 1.5,
    "festival:cmu_us_slt_arctic_hts": 1.0,
    "espeak:en-us": 1.0,
    "espeak:en-us+f3": 1.0,
    "espeak:en-us+m3": 0.5,
    "espeak:en-gb": 1.0,
    "espeak:en-gb+f2": 0.5,
    "espeak:en-gb-scotland": 0.5,
    "espeak:en-gb-x-rp+m7": 0.5,
    "espeak:en-029": 0.5,
}


def open_voice(name: str) -> Voice:
    """One of VOICES, or any other "synthesiser:voice". Raises SynthesisError where it is not installed."""
    synthesiser, _, voice = name.partition(":")
    if synthesiser == "flite":
        from tools.train_nano.flite import FliteVoice

        return FliteVoice(voice)
    if synthesiser == "espeak":
        from tools.train_nano.espeak import EspeakVoice

        return EspeakVoice(voice)
    if synthesiser == "festival":
        from tools.train_nano.festival import FestivalVoice

        return FestivalVoice(voice)
    raise SynthesisError(f"{name}: no such synthesiser; it is flite, espeak or festival, then a colon and the voice")
