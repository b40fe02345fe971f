"""`streamer docs`: the documentation, which comes with the program."""

import sys
from pathlib import Path

import streamer
from streamer.errors import UsageError

# In a wheel beside the modules, in a source tree beside the package.
_PACKAGE = Path(streamer.__file__).parent
FOLDERS = (_PACKAGE / "docs", _PACKAGE.parent / "docs")


def show_page(page: str | None) -> int:
    """Print a page as it is written, in Markdown; without a name, the names of all. Returns the exit code.

    Raises UsageError if there is no such page.
    """
    folder = next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])
    pages = {path.stem: path for path in sorted(folder.glob("*.md"))}
    if page is None:
        sys.stdout.write("".join(f"{name}\n" for name in pages))
    elif page in pages:
        sys.stdout.write(pages[page].read_text(encoding="utf-8"))
    else:
        raise UsageError(f"page {page!r:.60} not found: expected one of {', '.join(pages)}")
    return 0
