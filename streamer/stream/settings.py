"""Settings of a session."""

from dataclasses import dataclass

from streamer.stream.gate import GateSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """What a session chose of how its windows are decoded. Hashable: what is made of it is kept for later windows."""

    initial_prompt: str = ""  # text that the model sees before the first window, as if it had been said
    hotwords: tuple[str, ...] = ()  # words and phrases that are made likelier while they are being spelled
    beam_size: int = 1  # beams that are followed at temperature 0; 1: the likeliest token is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """What the decisions of a session depend on."""

    gate: GateSettings
    pace_s: float  # least new audio from one pass to the next

    # A word becomes stable if `n_agreeing` hypotheses in a row agree; with `alignatt` also at once, if the decoder did
    # not attend to the last `attention_margin_s` of the audio for it and finds it at least this probable.
    policy: str
    n_agreeing: int
    attention_margin_s: float
    commit_probability: float
    show_probability: float  # an unstable word is shown if it is at least this probable; 0 shows all
    trim_after_s: float  # length of a segment from which on any stable text is made final
    final_silence_s: float = 0.6  # silence after which all text is made final, sentence or not

    condition_on_previous_text: bool
    no_speech_threshold: float
    logprob_threshold: float
    compression_ratio_threshold: float

    # Language code, or `auto`: one of `languages`, or any if that is empty.
    language: str
    task: str
    languages: tuple[str, ...] = ()
    translated: bool = False  # whether finals are translated into English besides (see `live.translation`)

    # What the session chose of how its windows are decoded; None: what the daemon is set to.
    options: DecodeOptions | None = None
    window_s: float = 28.0  # longest window
    words: bool = True  # whether partials and finals tell the place of each word
