"""Tokens: who may ask for what, and how much of it. Kept as hashes in a file, which the daemon reads again by itself.

A token that `streamer token new` makes has 256 random bits. So its SHA-256 is kept as it is: salts and slow hashes are
there for passwords, which can be guessed, and 2^256 values cannot (NIST SP 800-63B, 5.1.1.2, asks for neither from 112
bits on). The one that people choose, `server.token`, stands in the settings in plain text, has at least 16 characters,
and guessing it over the network is slowed (`guesses`).
"""

import contextlib
import hashlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from streamer.errors import ConfigError
from streamer.outside import one_line
from streamer.server.watched import MAX_FILE_BYTES, read_file, stamp

logger = logging.getLogger(__name__)

# What a token may be for: to read captions, figures and history; to send audio; to command the daemon's own input and
# delete history.
Scope = Literal["read", "stream", "control"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

# The name of `server.token`.
DEFAULT = "default"

TOKEN_BYTES = 32  # 256 bits
MIN_LENGTH = 16  # characters of a token that people choose
MAX_LENGTH = 512  # longer ones are not hashed
PREFIX = "streamer_"  # so that a token which lies where it should not is found, and none begins with a dash

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TIME = msgspec.Meta(tz=True)


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is known of a token. A request that shows it carries this as its caller."""

    # Unique; safe in a log or a label of a metric. Empty for callers where no token is asked for.
    name: Annotated[str, msgspec.Meta(pattern=rf"\A({_NAME.pattern})?\Z")]

    # SHA-256 in hexadecimal digits.
    sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    scopes: tuple[Scope, ...] = SCOPES
    created: Annotated[datetime, _TIME] | None = None

    # From then on it counts as wrong; None: never.
    expires: Annotated[datetime, _TIME] | None = None

    def __repr__(self) -> str:
        return f"Token({self.name})"

    def is_expired(self, now: float) -> bool:
        """Return whether it has expired at `now`, in seconds since 1970."""
        return self.expires is not None and self.expires.timestamp() <= now


# The caller of every request where no token is asked for.
ANYBODY = Token(name="", sha256=64 * "0")


class _Contents(msgspec.Struct, forbid_unknown_fields=True):
    tokens: tuple[Token, ...]
    version: Literal[1] = 1


def hashed(token: str) -> str:
    """Return the SHA-256 of a token's UTF-8 bytes in hexadecimal digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def new_token(name: str, **known: Any) -> tuple[str, Token]:  # noqa: ANN401 - the fields of Token
    """Make a token; return it, to be shown once, and what is kept of it. Raises ConfigError for a bad name."""
    if _NAME.fullmatch(name) is None or name == DEFAULT:
        raise ConfigError(
            f"token name {name!r:.80} cannot be used: expected up to 64 letters, digits, dots, dashes and underscores,"
            f" such as kitchen-display, and not {DEFAULT}, which server.token is called"
        )
    secret = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    return secret, Token(name=name, sha256=hashed(secret), **known)


def chosen_token(text: str, where: str = "server.token") -> Token:
    """Return what is kept of a token that people chose. Raises ConfigError, which does not repeat it."""
    if not MIN_LENGTH <= len(text) <= MAX_LENGTH or not (text.isascii() and text.isprintable()) or text != text.strip():
        fact = f"has {len(text)} characters" if text.isascii() and text.isprintable() else "has other characters"
        raise ConfigError(
            f"{where} {fact}: expected {MIN_LENGTH} to {MAX_LENGTH} printable ASCII characters without spaces around"
            " them; `streamer token new NAME` makes one"
        )
    return Token(name=DEFAULT, sha256=hashed(text))


class TokenFile:
    """The file of tokens: JSON as `streamer token` writes it, or one token alone as secret stores hand it out."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[Token, ...]:
        """Return the tokens. Raises ConfigError where the file cannot be read or is something else."""
        data = read_file(self.path, f"token file {self.path}", "a file of `streamer token new` that this user may read")
        if not data.lstrip().startswith(b"{"):
            text = data.decode("utf-8", "replace").strip() if len(data) <= MAX_FILE_BYTES else ""
            return (chosen_token(text, f"token file {self.path}"),)
        try:
            tokens = msgspec.json.decode(data, type=_Contents).tokens
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(
                f"token file {self.path} is broken ({one_line(error):.200}): expected what `streamer token new` writes;"
                " restore it, or delete it and make new tokens"
            ) from None
        names = [token.name for token in tokens]
        if len(set(names)) < len(names) or not {"", DEFAULT}.isdisjoint(names):
            raise ConfigError(
                f"token file {self.path} has a name twice, an empty one, or {DEFAULT}: rename or delete that token"
            )
        return tokens

    def change(self, change: Callable[[tuple[Token, ...]], tuple[Token, ...]]) -> None:
        """Exchange the tokens for what `change` makes of them: all of it or, after a crash, nothing.

        Raises ConfigError where the file cannot be read or written, or holds a token alone, and what `change` raises.
        """
        # The new file is the lock as well: two commands at once would lose what one of them did.
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            with contextlib.suppress(FileExistsError):  # where it is no directory the next line says so
                self.path.parent.mkdir(parents=True, mode=0o700)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(
                f"{new} is there: expected no other `streamer token` at work; try again, and delete that file where one"
                " was cut off"
            ) from None
        except OSError as error:
            raise self._unwritten(error) from None
        done = False
        try:
            with os.fdopen(descriptor, "wb") as file:
                old = self.read() if self.path.exists() else ()
                if any(token.name == DEFAULT for token in old):
                    raise ConfigError(f"{self.path} holds a token alone: name another file in server.token_file")
                file.write(msgspec.json.format(msgspec.json.encode(_Contents(change(old))), indent=2) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            done = True
        except OSError as error:
            raise self._unwritten(error) from None
        finally:
            if not done:
                with contextlib.suppress(OSError):
                    new.unlink()

    def is_open(self) -> bool:
        """Return whether other users of this machine may read the file; on Windows that cannot be told this way."""
        with contextlib.suppress(OSError):
            return os.name == "posix" and bool(self.path.stat().st_mode & 0o077)
        return False

    def _unwritten(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"token file {self.path} cannot be written ({error.strerror}): expected a place where this user may write;"
            " name another file in server.token_file"
        )


class Tokens:
    """The tokens that hold now: `server.token`, and those of the file, which is read again when it changes."""

    def __init__(self, chosen: str, path: Path | None, *, must_exist: bool = False) -> None:
        """Read them; `chosen` is `server.token`, empty for none, and `path` the file.

        Raises ConfigError where the one is too short, or the other is broken, or not there though it must be.
        """
        self._chosen = (chosen_token(chosen),) if chosen else ()
        self._file = TokenFile(path) if path is not None else None
        # What the file was like when it was read last; and whether it has ever been there.
        self._stamp = stamp(self._file.path) if self._file is not None else None
        self._has_file = must_exist or self._stamp is not None
        self._filed: tuple[Token, ...] = ()
        # Whether it was said that others may read the file.
        self._warned = False
        if self._file is not None and self._has_file:
            self._filed = self._read(self._file)

    @property
    def required(self) -> bool:
        """Whether callers must show a token: also where the last one of a file was revoked."""
        return bool(self._chosen) or self._has_file

    def __len__(self) -> int:
        return len(self._chosen) + len(self._filed)

    def refresh(self) -> bool:
        """Read the file again where it has changed; return whether the tokens are others now.

        A file that is broken or gone leaves the tokens as they are, with one warning.
        """
        if self._file is None or (now := stamp(self._file.path)) == self._stamp:
            return False
        self._stamp = now
        before = (self._has_file, self._filed)
        try:
            self._filed = self._read(self._file)
        except ConfigError as error:
            logger.warning("%s; the tokens that were read before stay", error)
            return False
        self._has_file = True
        if (self._has_file, self._filed) == before:
            return False
        logger.info("tokens read again: %d in %s", len(self._filed), self._file.path)
        return True

    def find(self, shown: str, now: float) -> Token | None:
        """Return the token that a caller showed; None where it is none, or has expired at `now` (seconds since 1970).

        All are compared, each in constant time, so that the time taken says nothing of how close a guess was. The file
        is looked at before: a token may have been made, or revoked, this second.
        """
        self.refresh()
        if len(shown) > MAX_LENGTH:
            return None
        digest = hashed(shown)
        found = None
        for token in (*self._chosen, *self._filed):
            if hmac.compare_digest(digest, token.sha256) and not token.is_expired(now):
                found = token
        return found

    def holds(self, caller: Token, now: float) -> bool:
        """Return whether a caller that was let in may stay: its token is neither revoked, nor changed, nor expired."""
        if caller is ANYBODY:
            return not self.required
        return caller in (*self._chosen, *self._filed) and not caller.is_expired(now)

    def names(self, scope: Scope, now: float) -> frozenset[str]:
        """Return the names of the valid tokens that allow a scope, or that of `ANYBODY` if no token is required."""
        if not self.required:
            return frozenset({ANYBODY.name})
        known = (*self._chosen, *self._filed)
        return frozenset(token.name for token in known if scope in token.scopes and not token.is_expired(now))

    def _read(self, file: TokenFile) -> tuple[Token, ...]:
        tokens = file.read()
        if file.is_open() and not self._warned:
            self._warned = True
            logger.warning(
                "token file %s can be read by other users of this machine: `chmod 600` it, unless that is wanted",
                file.path,
            )
        return tokens


def parse_scopes(text: str) -> tuple[Scope, ...]:
    """Read `read,stream`; return them in the order of SCOPES. Raises ConfigError where one is no scope."""
    named = {part.strip() for part in text.split(",") if part.strip()}
    unknown = sorted(named - set(SCOPES))
    if unknown or not named:
        fact = f"scope {unknown[0]!r:.40} does not exist" if unknown else "no scope is named"
        raise ConfigError(f"{fact}: expected some of {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in named)
