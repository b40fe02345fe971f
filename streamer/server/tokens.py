"""Tokens: which client may do what. Their hashes are kept in a file, which the daemon reads again when it changes.

A token of `streamer token new` has 256 random bits, so its plain SHA-256 is kept: salts and slow hashes protect
passwords, which can be guessed (NIST SP 800-63B, 5.1.1.2, requires neither from 112 bits on). `server.token`, which
users choose, is plain text in the settings, has at least 16 characters, and guessing it is slowed (`guesses`).
"""

import contextlib
import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from streamer.errors import ConfigError
from streamer.outside import one_line
from streamer.protocols.native import NAME
from streamer.server.watched import MAX_FILE_BYTES, read_file, stamp

logger = logging.getLogger(__name__)

# What a token allows: to read captions, metrics and history; to send audio; to control the daemon's own input and to
# delete history.
Scope = Literal["read", "stream", "control"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

# The name of `server.token`.
DEFAULT = "default"

TOKEN_BYTES = 32  # 256 bits
MIN_LENGTH = 16  # characters of a token that users choose
MAX_LENGTH = 512  # longer ones are not hashed
PREFIX = "streamer_"  # so that scanners find leaked tokens, and no token begins with a dash

_TIME = msgspec.Meta(tz=True)


class AccessToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A token as it is kept: without its secret."""

    # Unique, and safe in a log or a label of a metric; empty for `ANYBODY`.
    name: Annotated[str, msgspec.Meta(pattern=rf"\A({NAME.pattern})?\Z")]
    sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    scopes: tuple[Scope, ...] = SCOPES
    created: Annotated[datetime, _TIME] | None = None
    expires: Annotated[datetime, _TIME] | None = None  # None: never

    def __repr__(self) -> str:
        return f"AccessToken({self.name})"

    def is_expired(self, now: float) -> bool:
        """Return whether it has expired at `now`, in seconds since 1970."""
        return self.expires is not None and self.expires.timestamp() <= now


# Stands for the token of each request if none is required.
ANYBODY = AccessToken(name="", sha256=64 * "0")


class _Contents(msgspec.Struct, forbid_unknown_fields=True):
    tokens: tuple[AccessToken, ...]
    version: Literal[1] = 1


def hashed(token: str) -> str:
    """Return the SHA-256 of a token's UTF-8 bytes in hexadecimal digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def new_token(name: str, **known: Any) -> tuple[str, AccessToken]:  # noqa: ANN401 - the fields of AccessToken
    """Return a new token's secret, and the token. Raises ConfigError for a bad name."""
    if NAME.fullmatch(name) is None or name == DEFAULT:
        raise ConfigError(
            f"token name {name!r:.80} is not valid: expected 1 to 64 letters, digits, dots, dashes and underscores,"
            f" such as kitchen-display; {DEFAULT} is reserved for server.token"
        )
    secret = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    return secret, AccessToken(name=name, sha256=hashed(secret), **known)


def chosen_token(text: str, where: str = "server.token") -> AccessToken:
    """Return the token of a secret that a user chose. Raises ConfigError, which does not repeat it."""
    fact = ""
    if not (text.isascii() and text.isprintable()):
        fact = "has characters that are not printable ASCII"
    elif text != text.strip():
        fact = "begins or ends with a space"
    elif not MIN_LENGTH <= len(text) <= MAX_LENGTH:
        fact = f"has {len(text)} characters"
    if fact:
        raise ConfigError(
            f"{where} {fact}: expected {MIN_LENGTH} to {MAX_LENGTH} printable ASCII characters without spaces at the"
            " ends; make one with `streamer token new NAME`"
        )
    return AccessToken(name=DEFAULT, sha256=hashed(text))


class TokenFile:
    """A file of tokens: JSON of `streamer token`, or the secret of one token alone, as secret stores provide it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[AccessToken, ...]:
        """Return the tokens. Raises ConfigError if the file cannot be read or is something else."""
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
                f"token file {self.path} has a duplicate, empty or reserved name ({DEFAULT}): rename or delete that"
                " token"
            )
        return tokens

    def change(self, change: Callable[[tuple[AccessToken, ...]], tuple[AccessToken, ...]]) -> None:
        """Replace the tokens by what `change` returns for them, in one step.

        Raises ConfigError if the file cannot be read or written, or contains a token alone, and what `change` raises.
        """
        # The new file is the lock as well: of two commands at once, one would undo the other's change.
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            with contextlib.suppress(FileExistsError):  # if it is no directory, the next line raises
                self.path.parent.mkdir(parents=True, mode=0o700)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(
                f"{new} exists: another `streamer token` is running; try again, or delete that file if one was killed"
            ) from None
        except OSError as error:
            raise self._unwritten(error) from None
        try:
            with os.fdopen(descriptor, "wb") as file:
                old = self.read() if self.path.exists() else ()
                if any(token.name == DEFAULT for token in old):
                    raise ConfigError(
                        f"{self.path} contains a single token without a name: name another file in server.token_file"
                    )
                file.write(msgspec.json.format(msgspec.json.encode(_Contents(change(old))), indent=2) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
        except BaseException as error:
            with contextlib.suppress(OSError):
                new.unlink()
            if isinstance(error, OSError):
                raise self._unwritten(error) from None
            raise

    def is_open(self) -> bool:
        """Return whether other users of this machine may read the file; on Windows this is not checked."""
        with contextlib.suppress(OSError):
            return os.name == "posix" and bool(self.path.stat().st_mode & 0o077)
        return False

    def _unwritten(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"token file {self.path} cannot be written ({error.strerror}): expected a path that this user may write to;"
            " name another file in server.token_file"
        )


class Tokens:
    """The valid tokens: `server.token`, and those of a file, which is read again when it changes."""

    def __init__(self, chosen: str, path: Path | None, *, must_exist: bool = False) -> None:
        """Read `path`; `chosen` is `server.token`, or empty.

        Raises ConfigError if `chosen` is too short, or the file is broken, or missing although it must exist.
        """
        self._chosen = (chosen_token(chosen),) if chosen else ()
        self._file = TokenFile(path) if path is not None else None
        # The file's state when it was read last; and whether it has ever existed.
        self._stamp = stamp(self._file.path) if self._file is not None else None
        self._has_file = must_exist or self._stamp is not None
        self._filed: tuple[AccessToken, ...] = ()
        self._warned = False  # that other users may read the file
        if self._file is not None and self._has_file:
            self._filed = self._read(self._file)

    @property
    def required(self) -> bool:
        """Whether requests need a token: also if the last one of a file was revoked."""
        return bool(self._chosen) or self._has_file

    def __len__(self) -> int:
        return len(self._chosen) + len(self._filed)

    def refresh(self) -> bool:
        """Read the file again if it has changed; return whether the tokens have.

        A file that is broken or missing is logged once, and leaves the tokens as they are.
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

    def find(self, shown: str, now: float) -> AccessToken | None:
        """Return the token with a secret; None if it is wrong, or expired at `now` (seconds since 1970).

        All are compared, each in constant time, so that the time taken does not reveal how close a guess was.
        """
        self.refresh()  # a token may have been made, or revoked, this second
        if len(shown) > MAX_LENGTH:
            return None
        digest = hashed(shown)
        found = None
        for token in (*self._chosen, *self._filed):
            if hmac.compare_digest(digest, token.sha256) and not token.is_expired(now):
                found = token
        return found

    def holds(self, caller: AccessToken, now: float) -> bool:
        """Return whether a token that was valid still is: neither revoked, nor changed, nor expired."""
        if caller is ANYBODY:
            return not self.required
        return caller in (*self._chosen, *self._filed) and not caller.is_expired(now)

    def names(self, scope: Scope, now: float) -> frozenset[str]:
        """Return the names of the valid tokens that allow a scope, or that of `ANYBODY` if no token is required."""
        if not self.required:
            return frozenset({ANYBODY.name})
        known = (*self._chosen, *self._filed)
        return frozenset(token.name for token in known if scope in token.scopes and not token.is_expired(now))

    def _read(self, file: TokenFile) -> tuple[AccessToken, ...]:
        tokens = file.read()
        if file.is_open() and not self._warned:
            self._warned = True
            text = "token file %s can be read by other users of this machine: `chmod 600` it, unless that is intended"
            logger.warning(text, file.path)
        return tokens


def parse_scopes(text: str) -> tuple[Scope, ...]:
    """Parse scopes such as `read,stream`; return them in the order of SCOPES. Raises ConfigError."""
    named = {part.strip() for part in text.split(",") if part.strip()}
    unknown = sorted(named - set(SCOPES))
    if unknown or not named:
        fact = f"scope {unknown[0]!r:.40} is unknown" if unknown else "no scope was given"
        raise ConfigError(f"{fact}: expected one or more of {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in named)
