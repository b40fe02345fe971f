"""Voices by name."""

from tools.benchmarks.synthetic.speech import SynthesisError, Voice


def open_voice(name: str) -> Voice:
    """Return the voice "synthesiser:voice". Raises SynthesisError where it is not installed."""
    synthesiser, _, voice = name.partition(":")
    if synthesiser == "flite":
        from tools.benchmarks.synthetic.flite import FliteVoice

        return FliteVoice(voice)
    if synthesiser == "espeak":
        from tools.benchmarks.synthetic.espeak import EspeakVoice

        return EspeakVoice(voice)
    if synthesiser == "festival":
        from tools.benchmarks.synthetic.festival import FestivalVoice

        return FestivalVoice(voice)
    raise SynthesisError(f"{name}: no such synthesiser; it is flite, espeak or festival, then a colon and the voice")
