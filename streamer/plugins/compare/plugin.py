"""What `compare` adds: a command."""

from pathlib import Path

from streamer.commands.table import MODEL_FILES, OUTPUT_FILE, Subcommand, argument

COMPARE = Subcommand(
    "compare",
    "recordings through several models or settings, side by side",
    "streamer.plugins.compare.command:compare_models",
    (
        argument("files", "recording", nargs="+", type=Path, metavar="FILE"),
        argument(
            "--models",
            "models with commas between them, each with settings of its own if MODEL@SECTION.KEY=VALUE is"
            " written, such as base.en,base.en@decoding.beam_size=5; in double quotes if a comma is in it",
            required=True,
            action="append",
            metavar="M,M",
        ),
        argument(
            "--reference",
            "what is said in the recording; again for each further one, in their order",
            dest="references",
            action="append",
            type=Path,
            metavar="FILE.txt",
        ),
        argument(
            "--stream",
            "as live captions, at real-time pace: delays are measured",
            dest="streaming",
            action="store_true",
        ),
        argument("--format", "what to write (default: %(default)s)", choices=("table", "json"), default="table"),
        *(OUTPUT_FILE, *MODEL_FILES),
    ),
    decoding="all",
    example="talk.wav --models tiny.en,base.en",
    more="Each transcribes in a process of its own. Shows their errors against a reference, else how far they"
    " disagree, word by word; their speed, their delays and their memory. The exit code is 1 if one of them"
    " could not transcribe everything.",
    ends_on_sigterm=True,
    needs="rapidfuzz",
    extra="compare",
)
