"""`streamer docs` and `streamer completion`: the documentation, which comes with the program, and a shell's help."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import streamer
from streamer.commands.signature import Arg
from streamer.errors import UsageError
from streamer.extras import requires

# In a wheel beside the modules, in a source tree beside the package.
_PACKAGE = Path(streamer.__file__).parent
FOLDERS = (_PACKAGE / "docs", _PACKAGE.parent / "docs")


def docs(page: Annotated[str | None, Arg("such as clients/openai; without it, the list", "PAGE")] = None) -> int:
    """Print a page of the documentation, or the list of pages.

    Example: streamer docs models
    """
    folder = next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])
    paths = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.md")}
    pages = dict(sorted(paths.items()))
    if page is None:
        sys.stdout.write("".join(f"{name}\n" for name in pages))
    elif page in pages:
        sys.stdout.write(pages[page].read_text(encoding="utf-8"))
    else:
        raise UsageError(f"page {page!r:.60} not found: expected one of {', '.join(pages)}")
    return 0


def completion(shell: Annotated[Literal["bash", "zsh", "fish", "powershell"], Arg("which shell")]) -> int:
    """Let a shell complete commands and flags.

    Prints what a shell has to read at its start, in ~/.bashrc, ~/.zshrc, ~/.config/fish/config.fish or $PROFILE.

    Example: streamer completion bash
    """
    requires("argcomplete", extra="completion", purpose="streamer completion")
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["streamer"], shell=shell))
    return 0
