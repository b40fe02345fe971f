"""`streamer token new`, `list` and `revoke`: the tokens of a daemon's clients. And how commands read one."""

import getpass
import sys
from datetime import UTC, datetime, timedelta

from rich.console import Console

from streamer.commands.terminal import make_table, notice
from streamer.errors import ConfigError, UsageError
from streamer.outside import one_line
from streamer.server.tokens import DEFAULT, AccessToken, TokenFile, chosen_token, new_token, parse_scopes
from streamer.server.watched import MAX_FILE_BYTES
from streamer.settings.load import token_path
from streamer.settings.table import Settings


def new(settings: Settings, name: str, *, scopes: str, expires_days: float | None) -> int:
    """Make a token, and print it: alone on standard output, once. Returns the exit code.

    scopes : such as `read,stream`

    Raises ConfigError if the name is taken or the file cannot be written.
    """
    path = token_path(settings.server)
    now = datetime.now(UTC).replace(microsecond=0)
    secret, token = new_token(
        name,
        scopes=parse_scopes(scopes),
        created=now,
        expires=now + timedelta(days=expires_days) if expires_days else None,
    )
    asked_before = bool(settings.server.token) or path.exists()

    def add(tokens: tuple[AccessToken, ...]) -> tuple[AccessToken, ...]:
        if any(other.name == name for other in tokens):
            raise ConfigError(f"token {name} exists already: choose another name, or revoke that token first")
        return (*tokens, token)

    TokenFile(path).change(add)
    sys.stdout.write(f"{secret}\n")
    notice(f"this is the token {name}: it is shown once, and only its hash is kept, in {path}")
    notice("a daemon that runs with these settings takes it up by itself")
    if not asked_before:
        notice("it is the first: from now on every client needs a token")
    return 0


def list_tokens(settings: Settings, console: Console) -> int:
    """Print the tokens there are, without what could be used. Returns the exit code."""
    path = token_path(settings.server)
    tokens = TokenFile(path).read() if path.exists() else ()
    if settings.server.token:
        tokens = (chosen_token(settings.server.token), *tokens)
    table = make_table(f"Tokens in {path}", "Name", "Scopes", "Created", "Expires")
    now = datetime.now(UTC)
    for token in tokens:
        expired = " (expired)" if token.is_expired(now.timestamp()) else ""
        table.add_row(
            token.name,
            ", ".join(token.scopes),
            f"{token.created:%Y-%m-%d}" if token.created else "server.token" if token.name == DEFAULT else "",
            f"{token.expires:%Y-%m-%d %H:%M} UTC{expired}" if token.expires else "never",
        )
    console.print(table, markup=False)
    return 0


def revoke(settings: Settings, name: str) -> int:
    """Delete a token. Returns the exit code. Raises ConfigError if there is no token of that name."""
    path = token_path(settings.server)
    left: tuple[AccessToken, ...] = ()

    def remove(tokens: tuple[AccessToken, ...]) -> tuple[AccessToken, ...]:
        nonlocal left
        left = tuple(token for token in tokens if token.name != name)
        if len(left) == len(tokens):
            names = ", ".join(token.name for token in tokens)
            expected = f"expected one of {names:.300}" if names else "the file holds no token"
            raise ConfigError(f"token {name!r:.80} not found in {path}: {expected}")
        return left

    TokenFile(path).change(remove)
    notice(f"token {name} is revoked: a daemon that runs with these settings closes its connections")
    if not left and not settings.server.token:
        notice(f"no token is left, so no client may connect; delete {path} to require none")
    return 0


def read_token(file: str) -> str:
    """Return the token that a file holds alone; `-` is standard input. Raises UsageError."""
    try:
        if file == "-":
            hidden = sys.stdin is not None and sys.stdin.isatty()
            text = getpass.getpass("token: ") if hidden else sys.stdin.read(MAX_FILE_BYTES) if sys.stdin else ""
        else:
            with open(file, encoding="utf-8") as opened:  # noqa: PTH123 - a name as it was given
                text = opened.read(MAX_FILE_BYTES)
    except (OSError, ValueError, EOFError) as error:  # ValueError: not UTF-8, or a name with a NUL in it
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(
            f"token file {one_line(file):.200} cannot be read ({reason}): expected a file that holds the token alone"
        ) from None
    token = text.strip()
    if not token or token.startswith("{") or not (token.isascii() and token.isprintable()):
        raise UsageError(
            f"token file {one_line(file):.200} holds no token: expected the token alone, as `streamer token new`"
            " prints it"
        )
    return token
