"""Files that commands read and write: the recordings that names stand for, and the files of their texts."""

import contextlib
import glob
import os
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TextIO

from streamer.commands.signature import Arg
from streamer.errors import TruncatedAudioError, UsageError

# As the name of a file: audio in any format we read, on standard input; or standard output.
STANDARD_STREAM = Path("-")

# Arguments of commands that write.
Format = Literal["text", "json", "jsonl", "srt", "vtt", "tsv"]
Output = Annotated[Path, Arg("where to write; - is standard output", "FILE", ("-o",))]

# What is taken from a folder.
_RECORDINGS = (
    "3gp aac ac3 aif aifc aiff amr asf au avi caf flac flv m2ts m4a m4b m4v mka mkv mov mp2 mp3 mp4 mpeg mpg mts oga"
    " ogg ogv opus sph ts voc w64 wav webm wma wmv"
)

# Formats by the ending of the file.
_OF_ENDING = {f".{name}": name for name in ("json", "jsonl", "srt", "vtt", "tsv")}

# Names that openai-whisper has for formats.
_NAMED = {"txt": ("text",), "all": ("text", "vtt", "srt", "tsv", "json")}

# Formats of which several texts can follow each other in one stream.
_ENDLESS = ("text", "jsonl")


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a recording: its format, and the file that it goes to; None is standard output."""

    format: str
    target: Path | None
    task: str = ""  # `transcribe` or `translate` if these have files of their own


def find_recordings(names: Sequence[str]) -> list[Path]:
    """Return the files that names stand for: files, folders with all below them, and patterns.

    Not every shell expands patterns. Raises UsageError for a folder or a pattern that stands for no file.
    """
    found: dict[Path, None] = {}
    for name in names:
        files = [Path(name)]
        if os.path.isdir(name):  # noqa: PTH112 - Path.is_dir raises for names that cannot be
            files = sorted(_recordings_below(name))
        elif any(char in name for char in "*?[") and not os.path.lexists(name):
            files = sorted(file for file in map(Path, glob.glob(name, recursive=True)) if file.is_file())  # noqa: PTH207
        if not files:
            raise UsageError(
                f"no recordings found in {name}: expected files such as talk.mp4 or talk.wav; check the name"
            )
        found.update(dict.fromkeys(files))
    return list(found)


def _recordings_below(folder: str) -> Iterator[Path]:
    """Yield the recordings in a folder and its subfolders, without hidden ones; links to folders are not followed."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(place, name) for name in names if not name.startswith(".")):
            if path.suffix[1:].lower() in _RECORDINGS.split() and path.is_file():
                yield path


def check_recordings(paths: Sequence[Path]) -> None:
    """Look at recordings that are played: now, as a model may take minutes to compile for nothing.

    Raises UsageError for standard input, AudioFileError if there is no audio.
    """
    # Late, as the command line itself needs no codecs.
    from streamer.audio.sources.file import check_audio

    for path in paths:
        if path == STANDARD_STREAM:
            raise UsageError("standard input cannot be measured: expected the name of a file")
        check_audio(path)


def read_spoken(path: Path) -> str:
    """Return what is said in a recording, as a file has it. Raises UsageError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {path} ({error}): expected what is said in the recording, as plain text in UTF-8; correct or"
            " remove it"
        ) from None


def check_target(path: Path | None, flag: str) -> None:
    """Raise UsageError if the file of a flag could not be written at the end."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise UsageError(
            f"cannot write {path}: expected a file in an existing directory; choose another one with {flag}"
        )


def format_of(output: str | Path | None) -> str:
    """Return the format that the ending of a file asks for."""
    return _OF_ENDING.get(Path(output or "").suffix.lower(), "text")


def plan_texts(
    paths: Sequence[Path], format: str | None, output: str | Path | None, *, task: str = ""
) -> dict[Path, list[Text]]:
    """Return the texts of each recording, and make the folders for them.

    format : one of the formats, txt or all; None: that of the ending of `output`
    output : a file; or a folder, if it exists as one, ends with a slash, or several texts go into it
    task : with `both` a translation goes into a file of its own, except for JSON, which names the task

    Raises UsageError if that would destroy a recording or a text.
    """
    formats = _NAMED.get(format or "", (format or format_of(output),))
    several = len(paths) > 1 or len(formats) > 1
    folder: Path | None = None
    if output is not None:
        ends = os.fspath(output).endswith(("/", os.sep))
        if ends or Path(output).is_dir() or (several and not Path(output).suffix):
            folder = Path(output)
        elif several:
            raise UsageError(f"cannot write several texts to the file {output}: expected a folder such as texts/")
    elif format == "all":
        folder = Path()
    if folder is None and len(paths) > 1 and formats[0] not in _ENDLESS:
        raise UsageError(
            f"cannot write {len(paths)} texts as {formats[0]} to standard output: name a folder with --output, or"
            f" choose the format {' or '.join(_ENDLESS)}"
        )
    plan: dict[Path, list[Text]] = {}
    taken: set[Path] = set()
    for path, name in zip(paths, _names(paths), strict=True):
        targets = [(each, _target(output, folder, name, each)) for each in formats]
        plan[path] = [text for target in targets for text in (_apart(*target) if task == "both" else [Text(*target)])]
        for target in (text.target for text in plan[path] if text.target is not None):
            if target in taken:
                raise UsageError(
                    f"two texts would be written to {target}: expected recordings with different names; transcribe"
                    f" {path} alone, with another --output"
                )
            taken.add(target)
            with contextlib.suppress(OSError):
                if target.samefile(path):
                    raise UsageError(f"the text would replace the recording {path}: choose another file with --output")
    for place in {target.parent for target in taken} if folder is not None else ():
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot create the folder {place} ({error.strerror}): choose another one with --output"
            ) from None
    return plan


def _names(paths: Sequence[Path]) -> list[str]:
    """Return what the texts of recordings are called, without a suffix.

    The first of these that no other recording has: `talk`; with its folder, `monday/talk`; with its suffix, `talk.mp4`.
    """
    folders = [path.absolute().parent for path in paths]
    try:
        common = os.path.commonpath(folders)
    except ValueError:  # several drives of Windows
        places = [Path()] * len(paths)
    else:
        places = [folder.relative_to(common) for folder in folders]
    stems = ["stdin" if path == STANDARD_STREAM else path.stem for path in paths]
    choices = [
        stems,
        [str(place / stem) for place, stem in zip(places, stems, strict=True)],
        [str(place / path.name) for place, path in zip(places, paths, strict=True)],
    ]
    numbers = [Counter(choice) for choice in choices]
    return [
        next((name for name, number in zip(names, numbers, strict=True) if number[name] == 1), names[-1])
        for names in zip(*choices, strict=True)
    ]


def _target(output: str | Path | None, folder: Path | None, name: str, format: str) -> Path | None:
    if folder is not None:
        return folder / f"{name}.{'txt' if format == 'text' else format}"
    return Path(output) if output is not None else None


def _apart(format: str, target: Path | None) -> list[Text]:
    """Return a transcript and its translation."""
    if format in ("json", "jsonl") or (format == "text" and target is None):
        return [Text(format, target)]
    if target is None:
        raise UsageError(
            f"cannot write both transcript and translation as {format} to standard output: name a file with --output"
        )
    translation = target.with_name(f"{target.stem}.en{target.suffix}")
    return [Text(format, target, "transcribe"), Text(format, translation, "translate")]


@contextlib.contextmanager
def opened(target: Path | None, flag: str = "--output") -> Iterator[TextIO]:
    """Open the target of a text: standard output, a pipe or device, or a file that appears when it is complete.

    Raises UsageError, which names the `flag`, if it cannot be written.
    """
    if target is None or target == STANDARD_STREAM:
        yield sys.stdout
        return
    truncated: TruncatedAudioError | None = None
    try:
        if target.exists() and not target.is_file():
            with target.open("w", encoding="utf-8", newline="\n") as stream:
                yield stream  # a pipe or a device cannot be replaced
            return
        target = target.resolve()  # a link stays one
        partial = target.with_name(f"{target.name[:200]}.{uuid.uuid4().hex[:8]}.partial")
        try:
            with partial.open("x", encoding="utf-8", newline="\n") as stream:
                try:
                    yield stream
                except TruncatedAudioError as error:
                    truncated = error  # all that there was is written
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        _replace(partial, target)
    except OSError as error:
        raise UsageError(
            f"{target} cannot be written ({error.strerror or error}): choose another file with {flag}"
        ) from None
    if truncated is not None:
        raise truncated


def _replace(partial: Path, target: Path) -> None:
    try:
        partial.replace(target)
    except OSError as error:
        # Such as on Windows, while another program has the file open: the work of hours is kept.
        raise UsageError(
            f"cannot replace {target} ({error.strerror}): the text is in {partial}; close {target.name} in other"
            f" programs, and rename {partial.name}"
        ) from None
