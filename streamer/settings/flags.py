"""Flags of the options of decoding and output: what each does, where it comes from, and what it applies to.

Defaults and ranges are the settings' own (config.py); docs/decoding.md has the same list in more words.
"""

import argparse
from dataclasses import dataclass

from streamer.settings.table import all_settings

OPENAI = "openai-whisper"
WHISPER_CPP = "whisper.cpp"
FASTER_WHISPER = "faster-whisper"
STREAMER = "streamer"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that sets a setting; one without a metavar is a switch."""

    setting: str
    metavar: str
    help: str

    # Program whose name, meaning and default it has.
    source: str

    # Whether live captions heed it as well as the transcription of files.
    streaming: bool = False

    @property
    def option(self) -> str:
        """As it is written on the command line."""
        return "--" + self.setting.partition(".")[2].replace("_", "-")

    @property
    def default(self) -> str:
        """The default in words."""
        value = all_settings()[self.setting].default
        if isinstance(value, bool):
            return "on" if value else "off"
        if value is None:
            return "none"
        return str(value) if value not in ("", ()) else "empty"


GROUPS: dict[str, tuple[Flag, ...]] = {
    "Decoding": (
        Flag("decoding.language", "L", "language that is spoken, such as en; auto: found out", OPENAI, True),
        Flag("decoding.task", "T", "transcribe; translate, into English; both, each in its turn", OPENAI, True),
        Flag(
            "decoding.beam_size",
            "N",
            "beams followed at temperature 0; none: greedy, live as many as the model asks for",
            OPENAI,
            True,
        ),
        Flag("decoding.patience", "X", "factor on the number of texts that end a beam search", OPENAI, True),
        Flag("decoding.length_penalty", "A", "0 to 1, how much long texts gain; none: their mean", OPENAI, True),
        Flag("decoding.sample_len", "N", "most tokens of one window; none: half of the context", OPENAI),
        Flag("decoding.without_timestamps", "", "text without times; each window is one segment", OPENAI),
        Flag("decoding.max_initial_timestamp", "S", "latest beginning of a window's text, in seconds", OPENAI),
    ),
    "Fallback": (
        Flag("decoding.temperature", "T", "0: the likeliest token; above: drawn, flatter towards 1", OPENAI),
        Flag(
            "decoding.temperature_increment_on_fallback",
            "T",
            "added after a doubtful text, up to 1; none: it is kept",
            OPENAI,
            True,
        ),
        Flag("decoding.best_of", "N", "texts drawn at temperatures above 0, of which the best counts", OPENAI, True),
        Flag("decoding.compression_ratio_threshold", "X", "text that shrinks more is a loop", OPENAI, True),
        Flag("decoding.logprob_threshold", "X", "mean log-probability below which a text is doubtful", OPENAI, True),
        Flag("decoding.no_speech_threshold", "P", "probability from which doubtful text is silence", OPENAI, True),
        Flag(
            "decoding.entropy_threshold", "X", "nats; last tokens of less variety are a loop (there 2.4)", WHISPER_CPP
        ),
        Flag("decoding.seed", "N", "what the random draws begin with", STREAMER, True),
    ),
    "Prompt": (
        Flag(
            "decoding.condition_on_previous_text",
            "W",
            "show the model what was said last: always, never, or auto: where it was trained so",
            OPENAI,
            True,
        ),
        Flag("decoding.initial_prompt", "TEXT", "text shown before the first window, as if said before", OPENAI, True),
        Flag("decoding.carry_initial_prompt", "", "show it before every window", OPENAI, True),
        Flag("decoding.prefix", "TEXT", "text that each window is taken to begin with", OPENAI),
        Flag("decoding.hotwords", "A,B", "words and phrases that are likely to be said", FASTER_WHISPER, True),
        Flag("decoding.hotwords_boost", "X", "what each of them gains, in logits", STREAMER, True),
    ),
    "Suppression": (
        Flag("decoding.suppress_tokens", "N,N", "tokens never written; -1: what is not spoken", OPENAI, True),
        Flag("decoding.suppress_blank", "", "let no window begin with a blank or its end", OPENAI, True),
        Flag("decoding.suppress_regex", "RE", "tokens never written, by what they spell", WHISPER_CPP, True),
        Flag("decoding.grammar", "FILE", "all that may be said, in GBNF", WHISPER_CPP, True),
        Flag("decoding.grammar_rule", "NAME", "rule of the grammar that a text follows", WHISPER_CPP, True),
        Flag("decoding.grammar_penalty", "X", "what other tokens lose, in logits", WHISPER_CPP, True),
    ),
    "Long files": (
        Flag("decoding.clip_timestamps", "S,S", "start,end,start,end,... of what is transcribed, in seconds", OPENAI),
        Flag("decoding.word_timestamps", "", "let words decide where segments end and where to go on", OPENAI),
        Flag("decoding.prepend_punctuations", "CHARS", "marks that belong to the word behind them", OPENAI),
        Flag("decoding.append_punctuations", "CHARS", "marks that belong to the word before them", OPENAI),
        Flag(
            "decoding.hallucination_silence_threshold",
            "S",
            "skip silence longer than this around doubtful words; needs --word-timestamps",
            OPENAI,
        ),
    ),
    "Output": (
        Flag("decoding.max_len", "N", "most characters of a segment; 0: any number", WHISPER_CPP),
        Flag("decoding.split_on_word", "", "let --max-len cut before spaces only", WHISPER_CPP),
        Flag("decoding.token_probabilities", "", "each token with its probability, in json and jsonl", WHISPER_CPP),
        Flag("decoding.diarize", "", "say which channel of a stereo file speaks", WHISPER_CPP),
        Flag("output.max_line_width", "N", "most characters of a subtitle's line; 0: any number", OPENAI),
        Flag("output.max_line_count", "N", "most lines of a subtitle; 0: any number", OPENAI),
        Flag("output.max_words_per_line", "N", "most words of a subtitle; all three none: 2 x 42 characters", OPENAI),
        Flag("output.highlight_words", "", "underline each word of a subtitle while it is spoken (srt, vtt)", OPENAI),
        Flag("output.karaoke", "", "tag each word with its time (vtt, lrc)", STREAMER),
    ),
}


def add_decoding_flags(parser: argparse.ArgumentParser, *, streaming: bool) -> None:
    """Add the flags in their groups; with `streaming` only those that live captions heed.

    A flag leaves text, or for a switch a bool, under its setting's name, and None where it was not given.
    """
    for title, flags in GROUPS.items():
        heeded = [flag for flag in flags if flag.streaming or not streaming]
        if not heeded:
            continue
        group = parser.add_argument_group(title)
        for flag in heeded:
            help = f"{flag.help} (default: {flag.default}; {flag.source})".replace("%", "%%")
            if flag.metavar:
                group.add_argument(flag.option, dest=flag.setting, metavar=flag.metavar, help=help)
            else:
                group.add_argument(flag.option, dest=flag.setting, action=argparse.BooleanOptionalAction, help=help)
