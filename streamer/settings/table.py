"""The one table of settings: each with its type, default, range, unit, help, flag, and the program that it comes from.

Everything else about a setting is made of this table: its place in the configuration file, its environment variable
and its flag (`load`, `flags`), config.yaml, the JSON Schema and the tables of docs/options.md (`documents`), and what
a client may choose for its session (`client`, read by `protocols.native`). A new setting is one entry here, and the
name of a section's class is the only other thing to know: some sections have many fields, as each is a block of the
configuration file with a line for each setting. The table imports nothing of the program but `setting`, so that every
part may read its sections. `registry` adds what plug-ins declare.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from streamer.settings.setting import Setting, section, setting

T = TypeVar("T", bound=msgspec.Struct)

# `model.name` of the model that is chosen for the machine.
AUTO = "auto"

OPENAI = "openai-whisper"

# How options of other programs are declared.
_openai = partial(setting, source=OPENAI)
_whisper_cpp = partial(setting, source="whisper.cpp")
_faster_whisper = partial(setting, source="faster-whisper")


def _device(default: str, help: str, **known: Any) -> Any:  # noqa: ANN401 - as setting
    """Declare an inference device; empty if it may be left to another setting."""
    choices = ("AUTO", "NPU", "GPU", "CPU") if default else ("AUTO", "NPU", "GPU", "CPU", "")
    pattern = "|".join((*choices, r"(NPU|GPU|CPU)(\.[0-9]+)+"))
    return setting(default, help, choices=choices, pattern=pattern, example="GPU.1", **{"metavar": "D", **known})


# How a list of OpenVINO properties is declared.
_properties = partial(setting, (), pattern=r"\w+=.*", example="NPU_TURBO=YES")


@section
class InputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where audio comes from."""

    source: str = setting(
        "mic",
        "mic, system (all sound), app:NAME, mic+system, mic+app:NAME, file, URL, - (stdin) or none",
        flag="--input",
        metavar="mic|system|app:NAME|FILE|URL|-|none",
    )
    fallback: str = setting(
        "", "audio file played without a microphone; empty: a missing microphone is an error", metavar="FILE"
    )
    microphone: str = setting(
        "", "part of its name, or its number in `streamer devices`; empty: the system's default", metavar="NAME"
    )
    speed: float = setting(
        1.0, "pace at which a file plays; 1 is real time, 0 as fast as it can be transcribed", within=(0.0, 1000.0)
    )
    exit_at_end: bool = setting(False, "leave when a file or standard input has been transcribed")
    buffer_s: float = setting(
        90.0, "audio kept; room for a slow device to catch up before anything is lost", unit="s", within=(60.0, 3600.0)
    )
    min_battery: int = setting(
        0, "charge below which a microphone pauses on battery; 0: it never does", unit="%", within=(0, 100)
    )
    stdin_format: Literal["s16le", "f32le"] = setting(
        "s16le", "standard input: s16le (16-bit integers) or f32le (floats), little-endian"
    )
    stdin_sample_rate: int = setting(16_000, "standard input: samples a second", unit="Hz", within=(4_000, 384_000))
    stdin_channels: int = setting(1, "standard input: channels, interleaved; they are mixed to one", within=(1, 32))


@section
class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which Whisper, on which device; `streamer devices` shows what comes of it."""

    name: str = setting(
        AUTO,
        "a name such as base.en, a directory or a file; auto: the best model that keeps pace here",
        flag="--model",
        metavar="NAME|PATH",
    )
    tokenizer: str = setting(
        "", "file such as tokenizer.json, for a checkpoint that has none; empty: the model's own", metavar="FILE"
    )
    lora: str = setting(
        "", "LoRA adapter that goes into a checkpoint's weights, a directory or a name on the Hub", metavar="DIR|NAME"
    )
    adapter: str = setting(
        "auto",
        "adapter for windows of less than 30 s; auto: one that comes with streamer, if any; none",
        metavar="DIR|auto|none",
    )
    weights: Literal["auto", "f32", "f16", "int8", "int8-sym"] = setting(
        "auto",
        "f32, f16, int8, int8-sym; auto: int8 for tiny and base (NPU: int8-sym), else as they are",
        metavar="W",
    )
    device: str = _device(
        "AUTO",
        "where it computes: NPU, GPU, CPU, a full name such as GPU.1, or AUTO: the first there is",
        metavar="NPU|GPU|CPU|AUTO",
    )
    encoder_device: str = _device("", "where the encoder computes, if elsewhere")
    decoder_device: str = _device("", "where text is written, a token at a time, if elsewhere")
    properties: tuple[str, ...] = _properties(
        "OpenVINO's, for all stages, such as [NPU_TURBO=YES]; NPU_..., GPU_... go to these only"
    )
    encoder_properties: tuple[str, ...] = _properties("more for the encoder, which win over those for all")
    decoder_properties: tuple[str, ...] = _properties("the same for the decoder")
    windows_s: tuple[int, ...] = setting(
        (),
        "windows of live captions beside 30, such as 5 and 10; empty: the model's own",
        unit="s",
        within=(2, 30),
        flag="--windows",
        metavar="S,S",
    )
    npu_through_cpu: bool = setting(
        False, "run the NPU's graphs on the CPU, as its plugin does; to test them without an NPU"
    )
    also: tuple[str, ...] = setting(
        ("all",),
        "models that a request with a file may name: names, paths, or all: each that is here",
        metavar="NAME,NAME",
    )
    unload_s: float = setting(
        0.0,
        "time without a session after which the model leaves memory; 0: never",
        unit="s",
        within=(0.0, 604_800.0),
        flag="--unload-after",
        metavar="S",
    )
    cache_dir: str = setting("", "where compiled models are kept; empty: the user's cache directory", metavar="DIR")


@section
class DecodingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How audio becomes text; docs/options.md says more, and which options live captions use."""

    # Names and defaults are openai-whisper's if it has the option.

    language: str = _openai(
        "auto",
        "spoken language, such as german, de or de-AT; auto finds it out",
        metavar="L",
        group="Decoding",
        live=True,
        more="`auto` looks at the first 30 s. YAML takes `no` (Norwegian) for false: quote it",
        client="language",
    )
    task: Literal["transcribe", "translate", "both"] = _openai(
        "transcribe",
        "transcribe; translate, into English; both, the one with the other beside it",
        metavar="T",
        live=True,
        more="Of a file `both` makes two texts; live the translation follows each sentence (docs/streaming.md)",
        client="task",
    )
    beam_size: int | None = _openai(
        None,
        "beams at temperature 0; none: 5 in files, live as many as the model asks for",
        within=(1, 16),
        live=True,
        more="Live nano.en asks for 4, most models for 1. 1 is greedy: faster, with more errors",
        client="beam_size",
    )
    patience: float | None = _openai(
        None,
        "factor on the number of texts that end a beam search; none: 1",
        within=(0.1, 10.0),
        live=True,
        more="The search ends when `beam_size` times this many texts have ended",
    )
    length_penalty: float | None = _openai(
        None,
        "how much long texts gain when texts are compared; none: mean log-probability",
        within=(0.0, 1.0),
        metavar="A",
        live=True,
        more="Log-probability is divided by ((5 + length) / 6) to this power; with none, by the length",
    )
    sample_len: int | None = _openai(
        None, "longest text of one window; none: half of the model's context, 224", unit="tokens", within=(1, 448)
    )
    without_timestamps: bool = _openai(False, "text without times: each window of 30 s becomes one segment")
    max_initial_timestamp: float | None = _openai(
        1.0, "latest beginning of a window's text; none: any", unit="s", within=(0.0, 30.0), metavar="S"
    )

    temperature: float = _openai(
        0.0,
        "0 takes the likeliest token; above, tokens are drawn, flatter towards 1",
        within=(0.0, 1.0),
        metavar="T",
        group="Fallback",
        more="Live captions begin at 0 whatever it is",
    )
    temperature_increment_on_fallback: float | None = _openai(
        0.2, "added, up to 1, after a doubtful text; none: it is kept", within=(0.01, 1.0), metavar="T", live=True
    )
    best_of: int | None = _openai(
        None, "texts drawn above temperature 0, the best counts; none: 5 in files, live 1", within=(1, 100), live=True
    )
    compression_ratio_threshold: float | None = _openai(
        2.4, "text that zlib shrinks by more is a loop; none: off", within=(1.0, 100.0), live=True
    )
    logprob_threshold: float | None = _openai(
        -1.0, "mean log-probability of tokens below which text is doubtful; none: off", within=(-100.0, 0.0), live=True
    )
    no_speech_threshold: float | None = _openai(
        0.6,
        'probability of "no speech" above which doubtful text is dropped; none: off',
        within=(0.0, 1.0),
        metavar="P",
        live=True,
    )
    entropy_threshold: float | None = _whisper_cpp(
        None,
        "last 32 tokens of less variety are a loop, such as 2.4; none: off",
        unit="nats",
        within=(0.0, 10.0),
        more="whisper.cpp has 2.4",
    )
    keep_failed: Literal["best", "last"] = setting(
        "best",
        "text if every temperature fails: best, the most probable that is no loop; last",
        metavar="W",
        more="openai-whisper keeps that of the last temperature",
    )
    keep_notes: bool = setting(
        False,
        "keep segments without a word too, such as `...`, `♪` or `[Music]`",
        more="openai-whisper keeps them; live captions never do",
    )
    seed: int = setting(0, "what the random draws above temperature 0 begin with", within=(0, 2**32 - 1), live=True)

    condition_on_previous_text: Literal["auto", "always", "never"] = _openai(
        "auto",
        "show the model what was said last: always, never, or auto: as it was trained",
        metavar="W",
        group="Prompt",
        live=True,
        more="A model's `generation_config.json` says where it was trained without",
    )
    initial_prompt: str = _openai(
        "",
        "text before the first window, as if it had been said; its last 223 tokens count",
        metavar="TEXT",
        live=True,
        client="initial_prompt",
    )
    carry_initial_prompt: bool = _openai(
        False, "show it before every window", live=True, more="What was said last gets the room that is left"
    )
    prefix: str = _openai("", "text that every window is taken to begin with; not part of the result", metavar="TEXT")
    hotwords: tuple[str, ...] = _faster_whisper(
        (),
        "words and phrases that are likely to be said, such as NPU,OpenVINO",
        metavar="A,B",
        live=True,
        more="They are made likelier while they are being spelled, and shown before the first window to a model that"
        " heeds a prompt",
        client="hotwords",
    )
    hotwords_boost: float = setting(
        3.0,
        "what each of them gains",
        unit="logits",
        within=(0.0, 20.0),
        live=True,
        more="For a whole phrase, spread over its tokens",
    )

    suppress_tokens: str = _openai(
        "-1",
        "numbers of tokens never written, such as 5,7; -1: the model's list of what is not spoken",
        metavar="N,N",
        group="Suppression",
        live=True,
        more="The list is that of `generation_config.json`, or openai-whisper's if that has none",
    )
    suppress_blank: bool = _openai(
        True,
        "let no window begin with a blank, or with its end",
        live=True,
        more="The model names them: nano.en may begin with its end, so that it writes nothing without speech",
    )
    suppress_regex: str = _whisper_cpp(
        "",
        "tokens whose whole text matches are never written, such as `[ ]?[0-9]+`",
        metavar="RE",
        live=True,
        more="A regular expression in the syntax of Rust's regex crate, without `\\b`; a leading space is part of the"
        " text",
    )
    grammar: str = _whisper_cpp(
        "",
        "a GBNF file with all that may be said, such as commands; empty: anything",
        metavar="FILE",
        live=True,
        more="Text that does not follow it becomes unlikely. A leading space is free; rules may contain themselves",
    )
    grammar_rule: str = _whisper_cpp("root", "rule of the grammar that a text follows", metavar="NAME", live=True)
    grammar_penalty: float = _whisper_cpp(
        100.0, "what tokens that do not fit lose", unit="logits", within=(0.0, 1000.0), live=True
    )

    vad_filter: bool = _faster_whisper(
        True,
        "transcribe only what the speech detector finds; off: all, as openai-whisper",
        group="Long files",
        more="`speech:` in `config.yaml` sets the detector up; pauses of less than 2 s stay",
    )
    allow_skips: bool = setting(
        False,
        "keep a text that leaves out detected speech; off: transcribe that speech again",
        more="A second of speech without text counts, and a segment with fewer tokens than one a second of speech."
        " Needs vad_filter",
    )
    batch_size: int = _faster_whisper(
        1,
        "windows decoded at once; above 1 they are cut at silences, as with vad_filter",
        within=(1, 64),
        more="Each is up to 30 s long; none sees what was said before. A window takes 0.1 GB at small",
    )
    clip_timestamps: str = _openai(
        "0", "start,end,start,end,... of what is transcribed; a missing end is the file's", unit="s", metavar="S,S"
    )
    word_timestamps: bool = _openai(
        False, "let words, which always have times, decide where segments end and where to go on"
    )
    prepend_punctuations: str = _openai(
        "\"'“¿([{-", "marks that belong to the word behind them, with word_timestamps", metavar="CHARS"
    )
    append_punctuations: str = _openai(
        "\"'.。,，!！?？:：”)]}、", "marks that belong to the word before them, with word_timestamps", metavar="CHARS"
    )
    hallucination_silence_threshold: float | None = _openai(
        None,
        "skip longer silence at doubtful words; needs word_timestamps",
        unit="s",
        within=(0.0, 3600.0),
        metavar="S",
    )

    max_len: int = _whisper_cpp(
        0,
        "longest segment; 0: no limit",
        unit="characters",
        within=(0, 100_000),
        group="Output",
        more="A word is never divided",
    )
    split_on_word: bool = _whisper_cpp(False, "let max_len cut only where a word begins with a space")
    token_probabilities: bool = _whisper_cpp(False, "each token with its probability, in json and jsonl")


@section
class OutputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Subtitles."""

    subtitle_style: Literal["broadcast", "whisper"] = setting(
        "broadcast",
        "how subtitles are divided and how long they stand",
        metavar="STYLE",
        live=True,
        more="broadcast: two lines that can be read; whisper: one a segment, as openai-whisper writes them, as with any"
        " limit of the next three",
    )
    max_line_width: int | None = _openai(
        None, "longest line; 0, or none beside another of the three: no limit", unit="characters", within=(0, 100_000)
    )
    max_line_count: int | None = _openai(
        None,
        "most lines of a subtitle; beside max_line_width, it goes on across segments",
        within=(0, 100_000),
        more="0: no limit",
    )
    max_words_per_line: int | None = _openai(None, "most words of a subtitle; 0: no limit", within=(0, 100_000))
    highlight_words: bool = _openai(False, "underline each word while it is spoken (srt, vtt)")


@section
class SpeechSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When audio counts as speech."""

    threshold: float = setting(
        0.5,
        "probability at which speech begins; higher in noise, lower for soft voices",
        within=(0.01, 0.99),
        client="vad_threshold",
    )
    min_speech_s: float = setting(0.1, "shorter bursts are clicks", unit="s", within=(0.0, 10.0))
    min_silence_s: float = setting(
        0.6, "silence that ends speech", unit="s", within=(0.1, 10.0), client="min_silence_s"
    )
    pad_s: float = setting(
        0.3, "added before and after speech, so that soft first and last sounds are kept", unit="s", within=(0.0, 2.0)
    )
    turns: bool = setting(
        False, "a model judges at each pause whether the speaker has finished; if not, speech goes on", client="turns"
    )
    turn_threshold: float = setting(
        0.5, "probability from which the speaker has finished", within=(0.01, 0.99), client="turn_threshold"
    )
    turn_silence_s: float = setting(
        2.0,
        "silence that ends speech if the speaker has not finished",
        unit="s",
        within=(0.1, 10.0),
        client="turn_silence_s",
    )


@section
class StreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When to transcribe, and when a word is settled."""

    pace_s: float = setting(
        0.25,
        "least new audio from one pass to the next; costly passes take more",
        unit="s",
        within=(0.1, 10.0),
        client="pace_s",
    )
    max_pace_s: float = setting(
        2.0, "clients' audio is refused if it would make passes rarer than this", unit="s", within=(0.1, 60.0)
    )
    max_delay_s: float = setting(
        30.0, "live audio that waits longer becomes a gap; at most input.buffer_s - 30", unit="s", within=(5.0, 3600.0)
    )
    captions: Literal["early", "balanced", "exact"] = setting(
        "balanced", "early: stable sooner, more wrong words; exact: later, fewer", flag="--captions", metavar="HOW"
    )
    policy: Literal["auto", "agreement", "alignatt"] = setting(
        "auto", "agreement: passes agree on a word; alignatt: the decoder is sure; auto: by the model"
    )
    agreement: int = setting(2, "agreement: passes in a row that must agree on a word", within=(1, 5))
    attention_margin_s: float | None = setting(
        None, "alignatt: end of the audio that is never stable; none: by captions", unit="s", within=(0.0, 5.0)
    )
    commit_probability: float | None = setting(
        None, "alignatt: probability of a word that is stable at once; none: by captions", within=(0.0, 1.0)
    )
    second_look_s: float | None = setting(
        None, "alignatt: audio behind a less probable word; none: by captions", unit="s", within=(0.0, 5.0)
    )
    show_probability: float = setting(
        0.65, "least probability of a word shown before it settles; 0 shows all, and flickers", within=(0.0, 1.0)
    )
    trim_after_s: float = setting(
        8.0, "speech after which stable text is final; half of it at a sentence's end", unit="s", within=(5.0, 28.0)
    )
    final_silence_s: float = setting(
        1.5, "silence that makes all that was said final; before it, whole sentences are", unit="s", within=(0.1, 10.0)
    )
    window_s: float | None = setting(
        None, "longest window; none: 28, or 2 less than the model's longest below 30", unit="s", within=(3.0, 28.0)
    )


@section
class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The WebSocket and HTTP front."""

    host: str = setting(
        "127.0.0.1", "address to listen on; beyond this machine (0.0.0.0) a token is required", metavar="H"
    )
    port: int = setting(8765, "port to listen on; 0 picks a free one", within=(0, 65_535))
    token: str = setting(
        "", "what clients must show, 16 characters or more; empty: nothing, on loopback only", metavar="T", secret=True
    )
    origins: tuple[str, ...] = setting(
        (), "web pages that may connect: https://captions.example, http://localhost:* or null (files)"
    )
    max_streams: int = setting(
        64, "clients that send their own audio at once, if time allows; 7 MB each", within=(0, 1000)
    )
    max_subscribers: int = setting(100, "clients that read captions at once", within=(1, 100_000))
    queue_events: int = setting(
        256, "events a client may fall behind; then it is disconnected, to catch up later", within=(8, 100_000)
    )
    history_events: int = setting(10_000, "events kept in memory for clients that come back", within=(100, 1_000_000))
    resume_s: float = setting(
        30.0, "how long a disconnected client may resume its stream; 0: not at all", unit="s", within=(0.0, 3600.0)
    )
    token_file: str = setting(
        "", "file of `streamer token`, or of one token alone; empty: tokens.json beside config.yaml", metavar="FILE"
    )
    proxies: tuple[str, ...] = setting(
        (), "reverse proxies whose X-Forwarded-* are believed, such as 10.0.0.0/8, or unix"
    )
    tls: Literal["auto", "on", "off", "self-signed"] = setting(
        "auto", "auto (on if tls_certificate is set), on, off, or self-signed (made for this machine)", metavar="HOW"
    )
    tls_certificate: str = setting("", "PEM file with the certificate and its chain", metavar="FILE")
    tls_key: str = setting(
        "", "PEM file with its private key, not encrypted; empty: it is in tls_certificate", metavar="FILE"
    )
    unix_socket: str = setting(
        "", "path of a Unix socket to listen on besides the port; empty: none (not on Windows)", metavar="PATH"
    )
    wyoming_port: int = setting(0, "port for Wyoming (Home Assistant), 10300 by custom; 0: none", within=(0, 65_535))
    wyoming_host: str = setting(
        "127.0.0.1",
        "address for Wyoming, which knows no tokens: 0.0.0.0 serves every client that reaches it",
        metavar="H",
    )
    max_connections: int = setting(1000, "connections at once, of all kinds", within=(1, 1_000_000))
    max_connections_per_address: int = setting(64, "connections at once from one address", within=(1, 1_000_000))
    header_timeout_s: float = setting(
        10.0, "time for the head of a request, or for its body", unit="s", within=(0.1, 3600.0)
    )
    first_message_s: float = setting(30.0, "time for the first message of a stream", unit="s", within=(0.1, 86_400.0))
    idle_s: float = setting(
        1800.0, "time without audio or a command after which a stream is ended", unit="s", within=(1.0, 86_400.0)
    )
    max_recordings: int = setting(16, "uploaded recordings at once, of which one is transcribed", within=(1, 1000))
    max_upload_mb: float = setting(500.0, "largest recording that is taken", unit="MB", within=(1.0, 100_000.0))
    history: str = setting(
        "", "file that keeps finals and gaps; auto: in the user's data directory; empty: none is kept", metavar="FILE"
    )
    history_audio: Literal["none", "own", "all"] = setting(
        "none",
        "whose audio is kept with text: none, own (the input's) or all (clients' kept streams)",
        metavar="WHOSE",
    )
    history_days: float = setting(
        30.0, "what is older is deleted from the history; 0: nothing is", unit="days", within=(0.0, 36_500.0)
    )
    history_mb: float = setting(
        500.0, "size beyond which the oldest is deleted from the history", unit="MB", within=(1.0, 1_000_000.0)
    )


@section
class OutputsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where captions of the daemon's own input go, too (docs/clients.md); a secret may be @FILE."""

    to: tuple[str, ...] = setting(
        (),
        "finals go to: FILE.srt|.vtt|.txt|.jsonl, obs, zoom, youtube, webhook[:URL], hls:DIR",
        metavar="KIND[:WHERE]",
        secret=True,
        repeated=True,
    )


@section
class CorrectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What corrects finals later, as `revision` events."""

    glossary: str = setting("", "YAML file of terms as they are to be spelled; empty: none", metavar="FILE")
    model: str = setting(
        "auto", "transcribes finals again in idle time; auto: the captions' model; empty: none", flag="--second-pass"
    )
    device: str = _device("", "where it computes, if elsewhere than the first", flag="--second-pass-device")
    beam_size: int = setting(5, "beams of the second pass", within=(1, 32), flag="--second-pass-beams", metavar="N")
    deadline_s: float = setting(
        10.0, "time after a final beyond which its correction is given up", unit="s", within=(0.5, 600.0)
    )


@section
class SpeakersSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who speaks: a label for each word."""

    enabled: bool = setting(False, "label each word with who says it", flag="--speakers")
    enrolled: str = setting("", "folder of people's voices by name; empty: in the user's data directory", metavar="DIR")


@section
class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is logged, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", "how much is logged", flag="--debug")
    format: Literal["text", "json"] = setting("text", "how a line is written: text, or json for programs")
    access: bool = setting(False, "log each request: address, name of the token, path, status, duration")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All of them, section by section."""

    input: InputSettings = InputSettings()
    model: ModelSettings = ModelSettings()
    decoding: DecodingSettings = DecodingSettings()
    output: OutputSettings = OutputSettings()
    speech: SpeechSettings = SpeechSettings()
    stream: StreamSettings = StreamSettings()
    server: ServerSettings = ServerSettings()
    outputs: OutputsSettings = OutputsSettings()
    correction: CorrectionSettings = CorrectionSettings()
    speakers: SpeakersSettings = SpeakersSettings()
    log: LogSettings = LogSettings()

    # What plug-ins have declared, as far as it is not the default.
    plugins: tuple[Any, ...] = ()

    def of(self, plugin: type[T]) -> T:
        """Return what a plug-in has declared, by its struct."""
        return next((part for part in self.plugins if isinstance(part, plugin)), plugin())

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - any type of setting
        """Return a value by its dotted name."""
        section, _, key = name.partition(".")
        return getattr(self.of(OWNERS[name]) if name in OWNERS else getattr(self, section), key)

    def having(self, values: Mapping[str, Any]) -> "Settings":
        """Return the settings with other values for some, by their dotted names."""
        changed: dict[Any, dict[str, Any]] = {}
        for name, value in values.items():
            section, _, key = name.partition(".")
            changed.setdefault(OWNERS.get(name, section), {})[key] = value
        replace = msgspec.structs.replace
        plugins = {type(part): part for part in self.plugins}
        sections = {}
        for of, keys in changed.items():
            if isinstance(of, str):
                sections[of] = replace(getattr(self, of), **keys)
            else:
                plugins[of] = replace(self.of(of), **keys)
        changed_plugins = tuple(part for part in plugins.values() if part != type(part)())
        return replace(self, **sections, plugins=changed_plugins)


# The struct of each section, and every setting by its dotted name, in the order of the configuration file.
SECTIONS: dict[str, Any] = {
    field.name: field.type for field in msgspec.structs.fields(Settings) if field.name != "plugins"
}
SETTINGS: dict[str, Setting] = {
    f"{name}.{key}": msgspec.structs.replace(known, name=f"{name}.{key}")
    for name, cls in SECTIONS.items()
    for key, known in cls.settings.items()
}

# The structs of plug-ins by the dotted names of the settings in them, which `registry` puts here.
OWNERS: dict[str, Any] = {}

# Settings that a client may choose otherwise for its session, by the names of the options.
CLIENT_OPTIONS = {known.client: known for known in SETTINGS.values() if known.client}
