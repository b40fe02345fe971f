"""Stand-ins for the programs of a desktop: scripts on PATH that write down what they get."""

from pathlib import Path


class StandIns:
    """A folder of programs, and what they got."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        # cat and the like; nothing else of this machine may be found.
        (folder / "cat").symlink_to("/bin/cat")

    def add(self, name: str, then: str = "") -> None:
        """Add a program that writes down its arguments and standard input; `then` is more of its shell script."""
        script = self.folder / name
        script.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$*" >> {script}.arguments\ncat > {script}.input.new\n'
            f"cat {script}.input.new >> {script}.input\n{then}\n",
            encoding="utf-8",
        )
        script.chmod(0o755)

    def fail(self, name: str, message: str) -> None:
        """Let a program fail from now on."""
        self.add(name, f"echo {message} >&2; exit 1")

    def arguments(self, name: str) -> list[str]:
        """Return the arguments of each call."""
        path = self.folder / f"{name}.arguments"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def input(self, name: str, *, newest: bool = False) -> str:
        """Return all that a program read, or what it read last."""
        path = self.folder / f"{name}.input{'.new' if newest else ''}"
        return path.read_text(encoding="utf-8") if path.exists() else ""
