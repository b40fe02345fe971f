"""The one table of settings: each with its type, default, range, unit, help, flag, and the program that it comes from.

A section of the configuration file is a struct here, and a setting is a field of it. All else is made of this table:
its environment variable and its flag (`load`, `flags`), config.yaml, the JSON Schema and the tables of docs/options.md
(`documents`). Some sections have many fields, as each is a block of the configuration file. The table imports nothing
of the program but `setting`, so that every part may read its sections; `registry` adds those of plug-ins.
"""

from functools import partial
from typing import Annotated, Literal, TypeVar

import msgspec

from streamer.settings.setting import Help, More, like, within

T = TypeVar("T", bound=msgspec.Struct)

# `model.name` of the model that is chosen for the machine.
AUTO = "auto"

OPENAI = "openai-whisper"

# Options of other programs.
_openai = partial(Help, source=OPENAI)
_whisper_cpp = partial(Help, source="whisper.cpp")
_faster_whisper = partial(Help, source="faster-whisper")

# An inference device; `OtherDevice` may be empty, which leaves it to another setting. OpenVINO's properties.
_FULL_NAME = r"(NPU|GPU|CPU)(\.[0-9]+)+"
Device = Annotated[str, like(f"AUTO|NPU|GPU|CPU|{_FULL_NAME}", "GPU.1", "AUTO", "NPU", "GPU", "CPU")]
OtherDevice = Annotated[str, like(f"AUTO|NPU|GPU|CPU||{_FULL_NAME}", "GPU.1", "AUTO", "NPU", "GPU", "CPU", "")]
Properties = tuple[Annotated[str, like(r"\w+=.*", "NPU_TURBO=YES")], ...]

# What a client may choose for its session, too: see `options`.
Task = Literal["transcribe", "translate", "both"]
Beams = Annotated[int, within(1, 16)]
Threshold = Annotated[float, within(0.01, 0.99)]
Silence = Annotated[float, within(0.1, 10.0, "s")]
Pace = Annotated[float, within(0.1, 10.0, "s")]


class InputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where audio comes from."""

    source: Annotated[
        str,
        Help(
            "mic, system (all sound), app:NAME, mic+system, mic+app:NAME, file, URL, - (stdin) or none",
            flag="--input",
            metavar="mic|system|app:NAME|FILE|URL|-|none",
        ),
    ] = "mic"
    fallback: Annotated[
        str, Help("audio file played without a microphone; empty: a missing microphone is an error", metavar="FILE")
    ] = ""
    microphone: Annotated[
        str, Help("part of its name, or its number in `streamer devices`; empty: the system's default", metavar="NAME")
    ] = ""
    speed: Annotated[
        float,
        within(0.0, 1000.0),
        Help("pace at which a file plays; 1 is real time, 0 as fast as it can be transcribed"),
    ] = 1.0
    exit_at_end: Annotated[bool, Help("leave when a file or standard input has been transcribed")] = False
    buffer_s: Annotated[
        float, within(60.0, 3600.0, "s"), Help("audio kept; room for a slow device to catch up before anything is lost")
    ] = 90.0
    min_battery: Annotated[
        int, within(0, 100, "%"), Help("charge below which a microphone pauses on battery; 0: it never does")
    ] = 0
    stdin_format: Annotated[
        Literal["s16le", "f32le"], Help("standard input: s16le (16-bit integers) or f32le (floats), little-endian")
    ] = "s16le"
    stdin_sample_rate: Annotated[int, within(4_000, 384_000, "Hz"), Help("standard input: samples a second")] = 16_000
    stdin_channels: Annotated[
        int, within(1, 32), Help("standard input: channels, interleaved; they are mixed to one")
    ] = 1


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which Whisper, on which device; `streamer devices` shows what comes of it."""

    name: Annotated[
        str,
        Help(
            "a name such as base.en, a directory or a file; auto: the best model that keeps pace here",
            flag="--model",
            metavar="NAME|PATH",
        ),
    ] = AUTO
    tokenizer: Annotated[
        str, Help("file such as tokenizer.json, for a checkpoint that has none; empty: the model's own", metavar="FILE")
    ] = ""
    lora: Annotated[
        str,
        Help(
            "LoRA adapter that goes into a checkpoint's weights, a directory or a name on the Hub", metavar="DIR|NAME"
        ),
    ] = ""
    adapter: Annotated[
        str,
        Help(
            "adapter for windows of less than 30 s; auto: one that comes with streamer, if any; none",
            metavar="DIR|auto|none",
        ),
    ] = "auto"
    weights: Annotated[
        Literal["auto", "f32", "f16", "int8", "int8-sym"],
        Help("f32, f16, int8, int8-sym; auto: int8 for tiny and base (NPU: int8-sym), else as they are", metavar="W"),
    ] = "auto"
    device: Annotated[
        Device,
        Help(
            "where it computes: NPU, GPU, CPU, a full name such as GPU.1, or AUTO: the first there is",
            metavar="NPU|GPU|CPU|AUTO",
        ),
    ] = "AUTO"
    encoder_device: Annotated[OtherDevice, Help("where the encoder computes, if elsewhere", metavar="D")] = ""
    decoder_device: Annotated[
        OtherDevice, Help("where text is written, a token at a time, if elsewhere", metavar="D")
    ] = ""
    properties: Annotated[
        Properties, Help("OpenVINO's, for all stages, such as [NPU_TURBO=YES]; NPU_..., GPU_... go to these only")
    ] = ()
    encoder_properties: Annotated[Properties, Help("more for the encoder, which win over those for all")] = ()
    decoder_properties: Annotated[Properties, Help("the same for the decoder")] = ()
    windows_s: Annotated[
        tuple[Annotated[int, within(2, 30, "s")], ...],
        Help(
            "windows of live captions beside 30, such as 5 and 10; empty: the model's own",
            flag="--windows",
            metavar="S,S",
        ),
    ] = ()
    npu_through_cpu: Annotated[
        bool, Help("run the NPU's graphs on the CPU, as its plugin does; to test them without an NPU")
    ] = False
    also: Annotated[
        tuple[str, ...],
        Help(
            "models that a request with a file may name: names, paths, or all: each that is here", metavar="NAME,NAME"
        ),
    ] = ("all",)
    unload_s: Annotated[
        float,
        within(0.0, 604_800.0, "s"),
        Help(
            "time without a session after which the model leaves memory; 0: never", flag="--unload-after", metavar="S"
        ),
    ] = 0.0
    cache_dir: Annotated[
        str, Help("where compiled models are kept; empty: the user's cache directory", metavar="DIR")
    ] = ""


class DecodingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How audio becomes text; docs/options.md says more, and which options live captions use."""

    # Names and defaults are openai-whisper's if it has the option.

    language: Annotated[
        str,
        _openai(
            "spoken language, such as german, de or de-AT; auto finds it out", metavar="L", group="Decoding", live=True
        ),
        More("`auto` looks at the first 30 s. YAML takes `no` (Norwegian) for false: quote it"),
    ] = "auto"
    task: Annotated[
        Task,
        _openai("transcribe; translate, into English; both, the one with the other beside it", metavar="T", live=True),
        More("Of a file `both` makes two texts; live the translation follows each sentence (docs/streaming.md)"),
    ] = "transcribe"
    beam_size: Annotated[
        Beams | None,
        _openai("beams at temperature 0; none: 5 in files, live as many as the model asks for", live=True),
        More("Live nano.en asks for 4, most models for 1. 1 is greedy: faster, with more errors"),
    ] = None
    patience: Annotated[
        Annotated[float, within(0.1, 10.0)] | None,
        _openai("factor on the number of texts that end a beam search; none: 1", live=True),
        More("The search ends when `beam_size` times this many texts have ended"),
    ] = None
    length_penalty: Annotated[
        Annotated[float, within(0.0, 1.0)] | None,
        _openai("how much long texts gain when texts are compared; none: mean log-probability", metavar="A", live=True),
        More("Log-probability is divided by ((5 + length) / 6) to this power; with none, by the length"),
    ] = None
    sample_len: Annotated[
        Annotated[int, within(1, 448, "tokens")] | None,
        _openai("longest text of one window; none: half of the model's context, 224"),
    ] = None
    without_timestamps: Annotated[bool, _openai("text without times: each window of 30 s becomes one segment")] = False
    max_initial_timestamp: Annotated[
        Annotated[float, within(0.0, 30.0, "s")] | None,
        _openai("latest beginning of a window's text; none: any", metavar="S"),
    ] = 1.0

    temperature: Annotated[
        float,
        within(0.0, 1.0),
        _openai(
            "0 takes the likeliest token; above, tokens are drawn, flatter towards 1", metavar="T", group="Fallback"
        ),
        More("Live captions begin at 0 whatever it is"),
    ] = 0.0
    temperature_increment_on_fallback: Annotated[
        Annotated[float, within(0.01, 1.0)] | None,
        _openai("added, up to 1, after a doubtful text; none: it is kept", metavar="T", live=True),
    ] = 0.2
    best_of: Annotated[
        Annotated[int, within(1, 100)] | None,
        _openai("texts drawn above temperature 0, the best counts; none: 5 in files, live 1", live=True),
    ] = None
    compression_ratio_threshold: Annotated[
        Annotated[float, within(1.0, 100.0)] | None,
        _openai("text that zlib shrinks by more is a loop; none: off", live=True),
    ] = 2.4
    logprob_threshold: Annotated[
        Annotated[float, within(-100.0, 0.0)] | None,
        _openai("mean log-probability of tokens below which text is doubtful; none: off", live=True),
    ] = -1.0
    no_speech_threshold: Annotated[
        Annotated[float, within(0.0, 1.0)] | None,
        _openai('probability of "no speech" above which doubtful text is dropped; none: off', metavar="P", live=True),
    ] = 0.6
    entropy_threshold: Annotated[
        Annotated[float, within(0.0, 10.0, "nats")] | None,
        _whisper_cpp("last 32 tokens of less variety are a loop, such as 2.4; none: off"),
        More("whisper.cpp has 2.4"),
    ] = None
    keep_failed: Annotated[
        Literal["best", "last"],
        Help("text if every temperature fails: best, the most probable that is no loop; last", metavar="W"),
        More("openai-whisper keeps that of the last temperature"),
    ] = "best"
    keep_notes: Annotated[
        bool,
        Help("keep segments without a word too, such as `...`, `♪` or `[Music]`"),
        More("openai-whisper keeps them; live captions never do"),
    ] = False
    seed: Annotated[
        int, within(0, 2**32 - 1), Help("what the random draws above temperature 0 begin with", live=True)
    ] = 0

    condition_on_previous_text: Annotated[
        Literal["auto", "always", "never"],
        _openai(
            "show the model what was said last: always, never, or auto: as it was trained",
            metavar="W",
            group="Prompt",
            live=True,
        ),
        More("A model's `generation_config.json` says where it was trained without"),
    ] = "auto"
    initial_prompt: Annotated[
        str,
        _openai(
            "text before the first window, as if it had been said; its last 223 tokens count", metavar="TEXT", live=True
        ),
    ] = ""
    carry_initial_prompt: Annotated[
        bool, _openai("show it before every window", live=True), More("What was said last gets the room that is left")
    ] = False
    prefix: Annotated[
        str, _openai("text that every window is taken to begin with; not part of the result", metavar="TEXT")
    ] = ""
    hotwords: Annotated[
        tuple[str, ...],
        _faster_whisper("words and phrases that are likely to be said, such as NPU,OpenVINO", metavar="A,B", live=True),
        More(
            "They are made likelier while they are being spelled, and shown before the first window to a model that"
            " heeds a prompt"
        ),
    ] = ()
    hotwords_boost: Annotated[
        float,
        within(0.0, 20.0, "logits"),
        Help("what each of them gains", live=True),
        More("For a whole phrase, spread over its tokens"),
    ] = 3.0

    suppress_tokens: Annotated[
        str,
        _openai(
            "numbers of tokens never written, such as 5,7; -1: the model's list of what is not spoken",
            metavar="N,N",
            group="Suppression",
            live=True,
        ),
        More("The list is that of `generation_config.json`, or openai-whisper's if that has none"),
    ] = "-1"
    suppress_blank: Annotated[
        bool,
        _openai("let no window begin with a blank, or with its end", live=True),
        More("The model names them: nano.en may begin with its end, so that it writes nothing without speech"),
    ] = True
    suppress_regex: Annotated[
        str,
        _whisper_cpp(
            "tokens whose whole text matches are never written, such as `[ ]?[0-9]+`", metavar="RE", live=True
        ),
        More(
            "A regular expression in the syntax of Rust's regex crate, without `\\b`; a leading space is part of the"
            " text"
        ),
    ] = ""
    grammar: Annotated[
        str,
        _whisper_cpp(
            "a GBNF file with all that may be said, such as commands; empty: anything", metavar="FILE", live=True
        ),
        More("Text that does not follow it becomes unlikely. A leading space is free; rules may contain themselves"),
    ] = ""
    grammar_rule: Annotated[str, _whisper_cpp("rule of the grammar that a text follows", metavar="NAME", live=True)] = (
        "root"
    )
    grammar_penalty: Annotated[
        float, within(0.0, 1000.0, "logits"), _whisper_cpp("what tokens that do not fit lose", live=True)
    ] = 100.0

    vad_filter: Annotated[
        bool,
        _faster_whisper(
            "transcribe only what the speech detector finds; off: all, as openai-whisper", group="Long files"
        ),
        More("`speech:` in `config.yaml` sets the detector up; pauses of less than 2 s stay"),
    ] = True
    allow_skips: Annotated[
        bool,
        Help("keep a text that leaves out detected speech; off: transcribe that speech again"),
        More(
            "A second of speech without text counts, and a segment with fewer tokens than one a second of speech."
            " Needs vad_filter"
        ),
    ] = False
    batch_size: Annotated[
        int,
        within(1, 64),
        _faster_whisper("windows decoded at once; above 1 they are cut at silences, as with vad_filter"),
        More("Each is up to 30 s long; none sees what was said before. A window takes 0.1 GB at small"),
    ] = 1
    clip_timestamps: Annotated[
        str,
        msgspec.Meta(extra={"unit": "s"}),
        _openai("start,end,start,end,... of what is transcribed; a missing end is the file's", metavar="S,S"),
    ] = "0"
    word_timestamps: Annotated[
        bool, _openai("let words, which always have times, decide where segments end and where to go on")
    ] = False
    prepend_punctuations: Annotated[
        str, _openai("marks that belong to the word behind them, with word_timestamps", metavar="CHARS")
    ] = "\"'“¿([{-"
    append_punctuations: Annotated[
        str, _openai("marks that belong to the word before them, with word_timestamps", metavar="CHARS")
    ] = "\"'.。,，!！?？:：”)]}、"
    hallucination_silence_threshold: Annotated[
        Annotated[float, within(0.0, 3600.0, "s")] | None,
        _openai("skip longer silence at doubtful words; needs word_timestamps", metavar="S"),
    ] = None

    max_len: Annotated[
        int,
        within(0, 100_000, "characters"),
        _whisper_cpp("longest segment; 0: no limit", group="Output"),
        More("A word is never divided"),
    ] = 0
    split_on_word: Annotated[bool, _whisper_cpp("let max_len cut only where a word begins with a space")] = False
    token_probabilities: Annotated[bool, _whisper_cpp("each token with its probability, in json and jsonl")] = False


class OutputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Subtitles."""

    subtitle_style: Annotated[
        Literal["broadcast", "whisper"],
        Help("how subtitles are divided and how long they stand", metavar="STYLE", live=True),
        More(
            "broadcast: two lines that can be read; whisper: one a segment, as openai-whisper writes them, as with any"
            " limit of the next three"
        ),
    ] = "broadcast"
    max_line_width: Annotated[
        Annotated[int, within(0, 100_000, "characters")] | None,
        _openai("longest line; 0, or none beside another of the three: no limit"),
    ] = None
    max_line_count: Annotated[
        Annotated[int, within(0, 100_000)] | None,
        _openai("most lines of a subtitle; beside max_line_width, it goes on across segments"),
        More("0: no limit"),
    ] = None
    max_words_per_line: Annotated[
        Annotated[int, within(0, 100_000)] | None, _openai("most words of a subtitle; 0: no limit")
    ] = None
    highlight_words: Annotated[bool, _openai("underline each word while it is spoken (srt, vtt)")] = False


class SpeechSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When audio counts as speech."""

    threshold: Annotated[
        Threshold, Help("probability at which speech begins; higher in noise, lower for soft voices")
    ] = 0.5
    min_speech_s: Annotated[float, within(0.0, 10.0, "s"), Help("shorter bursts are clicks")] = 0.1
    min_silence_s: Annotated[Silence, Help("silence that ends speech")] = 0.6
    pad_s: Annotated[
        float, within(0.0, 2.0, "s"), Help("added before and after speech, so that soft first and last sounds are kept")
    ] = 0.3
    turns: Annotated[
        bool, Help("a model judges at each pause whether the speaker has finished; if not, speech goes on")
    ] = False
    turn_threshold: Annotated[Threshold, Help("probability from which the speaker has finished")] = 0.5
    turn_silence_s: Annotated[Silence, Help("silence that ends speech if the speaker has not finished")] = 2.0


class StreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When to transcribe, and when a word is settled."""

    pace_s: Annotated[Pace, Help("least new audio from one pass to the next; costly passes take more")] = 0.25
    max_pace_s: Annotated[
        float, within(0.1, 60.0, "s"), Help("clients' audio is refused if it would make passes rarer than this")
    ] = 2.0
    max_delay_s: Annotated[
        float, within(5.0, 3600.0, "s"), Help("live audio that waits longer becomes a gap; at most input.buffer_s - 30")
    ] = 30.0
    captions: Annotated[
        Literal["early", "balanced", "exact"],
        Help("early: stable sooner, more wrong words; exact: later, fewer", flag="--captions", metavar="HOW"),
    ] = "balanced"
    policy: Annotated[
        Literal["auto", "agreement", "alignatt"],
        Help("agreement: passes agree on a word; alignatt: the decoder is sure; auto: by the model"),
    ] = "auto"
    agreement: Annotated[int, within(1, 5), Help("agreement: passes in a row that must agree on a word")] = 2
    attention_margin_s: Annotated[
        Annotated[float, within(0.0, 5.0, "s")] | None,
        Help("alignatt: end of the audio that is never stable; none: by captions"),
    ] = None
    commit_probability: Annotated[
        Annotated[float, within(0.0, 1.0)] | None,
        Help("alignatt: probability of a word that is stable at once; none: by captions"),
    ] = None
    second_look_s: Annotated[
        Annotated[float, within(0.0, 5.0, "s")] | None,
        Help("alignatt: audio behind a less probable word; none: by captions"),
    ] = None
    show_probability: Annotated[
        float, within(0.0, 1.0), Help("least probability of a word shown before it settles; 0 shows all, and flickers")
    ] = 0.65
    trim_after_s: Annotated[
        float, within(5.0, 28.0, "s"), Help("speech after which stable text is final; half of it at a sentence's end")
    ] = 8.0
    final_silence_s: Annotated[
        float,
        within(0.1, 10.0, "s"),
        Help("silence that makes all that was said final; before it, whole sentences are"),
    ] = 1.5
    window_s: Annotated[
        Annotated[float, within(3.0, 28.0, "s")] | None,
        Help("longest window; none: 28, or 2 less than the model's longest below 30"),
    ] = None


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The WebSocket and HTTP front."""

    host: Annotated[
        str, Help("address to listen on; beyond this machine (0.0.0.0) a token is required", metavar="H")
    ] = "127.0.0.1"
    port: Annotated[int, within(0, 65_535), Help("port to listen on; 0 picks a free one")] = 8765
    token: Annotated[
        str,
        Help(
            "what clients must show, 16 characters or more; empty: nothing, on loopback only", metavar="T", secret=True
        ),
    ] = ""
    origins: Annotated[
        tuple[str, ...],
        Help("pages that may connect: https://a.example, http://localhost:*, app://NAME or null (files)"),
    ] = ()
    max_streams: Annotated[
        int, within(0, 1000), Help("clients that send their own audio at once, if time allows; 7 MB each")
    ] = 64
    max_subscribers: Annotated[int, within(1, 100_000), Help("clients that read captions at once")] = 100
    queue_events: Annotated[
        int, within(8, 100_000), Help("events a client may fall behind; then it is disconnected, to catch up later")
    ] = 256
    history_events: Annotated[int, within(100, 1_000_000), Help("events kept in memory for clients that come back")] = (
        10_000
    )
    resume_s: Annotated[
        float, within(0.0, 3600.0, "s"), Help("how long a disconnected client may resume its stream; 0: not at all")
    ] = 30.0
    token_file: Annotated[
        str,
        Help("file of `streamer token`, or of one token alone; empty: tokens.json beside config.yaml", metavar="FILE"),
    ] = ""
    proxies: Annotated[
        tuple[str, ...], Help("reverse proxies whose X-Forwarded-* are believed, such as 10.0.0.0/8, or unix")
    ] = ()
    tls: Annotated[
        Literal["auto", "on", "off", "self-signed"],
        Help("auto (on if tls_certificate is set), on, off, or self-signed (made for this machine)", metavar="HOW"),
    ] = "auto"
    tls_certificate: Annotated[str, Help("PEM file with the certificate and its chain", metavar="FILE")] = ""
    tls_key: Annotated[
        str, Help("PEM file with its private key, not encrypted; empty: it is in tls_certificate", metavar="FILE")
    ] = ""
    unix_socket: Annotated[
        str, Help("path of a Unix socket to listen on besides the port; empty: none (not on Windows)", metavar="PATH")
    ] = ""
    wyoming_port: Annotated[
        int, within(0, 65_535), Help("port for Wyoming (Home Assistant), 10300 by custom; 0: none")
    ] = 0
    wyoming_host: Annotated[
        str,
        Help("address for Wyoming, which knows no tokens: 0.0.0.0 serves every client that reaches it", metavar="H"),
    ] = "127.0.0.1"
    max_connections: Annotated[int, within(1, 1_000_000), Help("connections at once, of all kinds")] = 1000
    max_connections_per_address: Annotated[int, within(1, 1_000_000), Help("connections at once from one address")] = 64
    header_timeout_s: Annotated[
        float, within(0.1, 3600.0, "s"), Help("time for the head of a request, or for its body")
    ] = 10.0
    first_message_s: Annotated[float, within(0.1, 86_400.0, "s"), Help("time for the first message of a stream")] = 30.0
    idle_s: Annotated[
        float, within(1.0, 86_400.0, "s"), Help("time without audio or a command after which a stream is ended")
    ] = 1800.0
    max_recordings: Annotated[
        int, within(1, 1000), Help("uploaded recordings at once, of which one is transcribed")
    ] = 16
    max_upload_mb: Annotated[float, within(1.0, 100_000.0, "MB"), Help("largest recording that is taken")] = 500.0
    history: Annotated[
        str,
        Help(
            "file that keeps finals and gaps; auto: in the user's data directory; empty: none is kept", metavar="FILE"
        ),
    ] = ""
    history_audio: Annotated[
        Literal["none", "own", "all"],
        Help("whose audio is kept with text: none, own (the input's) or all (clients' kept streams)", metavar="WHOSE"),
    ] = "none"
    history_days: Annotated[
        float, within(0.0, 36_500.0, "days"), Help("what is older is deleted from the history; 0: nothing is")
    ] = 30.0
    history_mb: Annotated[
        float, within(1.0, 1_000_000.0, "MB"), Help("size beyond which the oldest is deleted from the history")
    ] = 500.0


class OutputsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where captions of the daemon's own input go, too (docs/outputs.md); a secret may be @FILE."""

    to: Annotated[
        tuple[str, ...],
        Help(
            "finals go to: FILE.srt|.vtt|.txt|.jsonl, obs, zoom, youtube, webhook[:URL], hls:DIR",
            metavar="KIND[:WHERE]",
            secret=True,
            repeated=True,
        ),
    ] = ()


class CorrectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What corrects finals later, as `revision` events."""

    glossary: Annotated[str, Help("YAML file of terms as they are to be spelled; empty: none", metavar="FILE")] = ""
    model: Annotated[
        str, Help("transcribes finals again in idle time; auto: the captions' model; empty: none", flag="--second-pass")
    ] = "auto"
    device: Annotated[
        OtherDevice, Help("where it computes, if elsewhere than the first", flag="--second-pass-device", metavar="D")
    ] = ""
    beam_size: Annotated[
        int, within(1, 32), Help("beams of the second pass", flag="--second-pass-beams", metavar="N")
    ] = 5
    deadline_s: Annotated[
        float, within(0.5, 600.0, "s"), Help("time after a final beyond which its correction is given up")
    ] = 10.0


class SpeakersSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who speaks: a label for each word."""

    enabled: Annotated[bool, Help("label each word with who says it", flag="--speakers")] = False
    enrolled: Annotated[
        str, Help("folder of people's voices by name; empty: in the user's data directory", metavar="DIR")
    ] = ""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is logged, on standard error."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Help("how much is logged", flag="--debug")] = "info"
    format: Annotated[Literal["text", "json"], Help("how a line is written: text, or json for programs")] = "text"
    access: Annotated[bool, Help("log each request: address, name of the token, path, status, duration")] = False


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

    # Those of plug-ins that are not the default.
    plugins: tuple[msgspec.Struct, ...] = ()

    def of(self, struct: type[T]) -> T:
        """Return the settings of a section or of a plug-in, by their struct."""
        parts = (*msgspec.structs.astuple(self), *self.plugins)
        return next((part for part in parts if isinstance(part, struct)), struct())
