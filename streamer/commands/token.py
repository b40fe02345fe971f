"""`streamer token new`, `list` and `revoke`: the tokens of a daemon's clients."""

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from streamer.commands.signature import Arg, Flags
from streamer.commands.terminal import make_console, make_table, notice
from streamer.errors import ConfigError
from streamer.settings.load import token_path
from streamer.settings.table import Settings

if TYPE_CHECKING:
    from streamer.server.tokens import AccessToken


def new(
    name: Annotated[str, Arg("what it is called in lists and logs, such as kitchen-display", "NAME")],
    *,
    scopes: Annotated[
        str, Arg("what it is for: read (captions), stream (send audio), control (command the daemon)", "S")
    ] = "read,stream",
    expires: Annotated[
        float | None, Arg("days until the token expires (default: never)", "DAYS", within=(0.001, 36_500))
    ] = None,
    settings: Annotated[Settings, Flags()],
) -> int:
    """Make a token, and print it once.

    Only its hash is kept. A running daemon takes it up by itself.

    Example: streamer token new kitchen-display --scopes read
    """
    from streamer.server.tokens import TokenFile, new_token, parse_scopes

    path = token_path(settings.server)
    now = datetime.now(UTC).replace(microsecond=0)
    secret, token = new_token(
        name,
        scopes=parse_scopes(scopes),
        created=now,
        expires=now + timedelta(days=expires) if expires else None,
    )
    asked_before = bool(settings.server.token) or path.exists()

    def add(tokens: "tuple[AccessToken, ...]") -> "tuple[AccessToken, ...]":
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


def list_tokens(settings: Annotated[Settings, Flags()]) -> int:
    """List the tokens there are, and what each may do.

    Example: streamer token list
    """
    from streamer.server.tokens import DEFAULT, TokenFile, chosen_token

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
    make_console().print(table, markup=False)
    return 0


def revoke(name: Annotated[str, Arg("the token's name", "NAME")], *, settings: Annotated[Settings, Flags()]) -> int:
    """Take a token away.

    A running daemon closes its connections.

    Example: streamer token revoke kitchen-display
    """
    from streamer.server.tokens import TokenFile

    path = token_path(settings.server)
    left: tuple[AccessToken, ...] = ()

    def remove(tokens: "tuple[AccessToken, ...]") -> "tuple[AccessToken, ...]":
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
