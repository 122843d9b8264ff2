"""Pseudonyms of users: a keyed hash, so that only who holds the key can tell who is who.

HMAC-SHA-256 (RFC 2104) of the user id as UTF-8, the first 128 bits in hex. The key is never written
beside the data; a store keeps only the key's own fingerprint, so that another key is noticed.

The key is looked for in SEQSCALE_PSEUDONYM_KEY (the key itself), SEQSCALE_PSEUDONYM_KEY_FILE (a
file that holds it), then in the user's configuration folder, where one is made when there is none.
64 hex digits stand for 32 bytes, everything else for its own bytes, at least 16 of them; the end of
line of a file does not count.

Before: the environment, a file or the configuration folder.   After: coding.py, erasure.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from analytics.errors import ConfigError

SCHEME = "hmac-sha256-128"
KEY_VARIABLE = "SEQSCALE_PSEUDONYM_KEY"
FILE_VARIABLE = "SEQSCALE_PSEUDONYM_KEY_FILE"
MIN_KEY_BYTES = 16
_MADE_KEY_BYTES = 32
_MAX_FILE_BYTES = 4096  # a longer file is another file
_BLOCK_BYTES = 64  # of SHA-256
_HEX_DIGITS = 32
_FINGERPRINT = b"seqscale pseudonym key"
_HEX_KEY = re.compile(rb"[0-9a-fA-F]{64}")


class PseudonymKey:
    """A secret and where it came from; nothing that prints, copies or stores it shows the secret.

    No dataclass: `dataclasses.asdict` would hand the secret out.
    """

    __slots__ = ("_secret", "where")

    def __init__(self, *, secret: bytes, where: str) -> None:
        """where: for a person, an environment variable's name or a file's path."""
        self._secret = secret
        self.where = where

    def __repr__(self) -> str:
        return f"PseudonymKey(key_id={self.key_id!r}, where={self.where!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a pseudonym key is neither copied nor stored")

    @property
    def key_id(self) -> str:
        """The key's fingerprint, 16 hex digits; says nothing of a random key."""
        return hmac.digest(self._secret, _FINGERPRINT, "sha256").hex()[:16]

    def pseudonym(self, user_id: str) -> str:
        """What stands for a user id."""
        return hmac.digest(self._secret, user_id.encode(), "sha256").hex()[:_HEX_DIGITS]

    def pads(self) -> tuple[bytes, bytes]:
        """The inner and the outer block of RFC 2104, for a hash over many ids at once."""
        secret = self._secret
        if len(secret) > _BLOCK_BYTES:
            secret = hashlib.sha256(secret).digest()
        padded = secret.ljust(_BLOCK_BYTES, b"\0")
        return bytes(b ^ 0x36 for b in padded), bytes(b ^ 0x5C for b in padded)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedKey:
    """A key, and whether it was made just now, which a person is told."""

    key: PseudonymKey
    is_new: bool


def pseudonym_sql(text: str) -> str:
    """SQL of the pseudonym of a VARCHAR expression; takes the parameters $inner and $outer."""
    inner = f"unhex(sha256($inner::BLOB || encode({text})))"
    return f"left(sha256($outer::BLOB || {inner}), {_HEX_DIGITS})"


def load_key(environment: Mapping[str, str] | None = None) -> LoadedKey:
    """The user's key; made in the configuration folder when there is none.

    Raises ConfigError for a key that cannot be used, is open to others, or cannot be made.
    """
    found = find_key(environment)
    if found is not None:
        return LoadedKey(key=found, is_new=False)
    path = default_key_path(environment)
    try:
        is_new = _make(path)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or path}: no key for pseudonyms could be made ({error.strerror}). "
            f"Give one with {FILE_VARIABLE} (a file of mode 0600) or {KEY_VARIABLE}, or keep user "
            "ids as they are with --keep-user-ids."
        ) from error
    return LoadedKey(key=_key_in_home(path), is_new=is_new)


def find_key(environment: Mapping[str, str] | None = None) -> PseudonymKey | None:
    """The user's key, None when there is none; nothing is made.

    Raises ConfigError for a key that cannot be used or is open to others.
    """
    source = os.environ if environment is None else environment
    text, file = source.get(KEY_VARIABLE), source.get(FILE_VARIABLE)
    if text is not None and file is not None:
        raise ConfigError(
            f"{KEY_VARIABLE} and {FILE_VARIABLE} are both set; unset the one that is not meant."
        )
    if text is not None:
        return PseudonymKey(secret=_secret_of(os.fsencode(text), KEY_VARIABLE), where=KEY_VARIABLE)
    if file is not None:
        if not file:
            raise ConfigError(f"{FILE_VARIABLE} is empty; name a file with it, or unset it.")
        return _key_in(Path(file), f"{FILE_VARIABLE}={file}")
    path = default_key_path(environment)
    return _key_in_home(path) if os.path.lexists(path) else None


def default_key_path(environment: Mapping[str, str] | None = None) -> Path:
    """Where a key is made: $XDG_CONFIG_HOME or ~/.config, /seqscale/pseudonym.key."""
    source = os.environ if environment is None else environment
    base = source.get("XDG_CONFIG_HOME", "")
    if not Path(base).is_absolute():  # the XDG base directory specification ignores such a value
        home = source.get("HOME", "")
        try:
            base = str((Path(home) if home else Path.home()) / ".config")
        except RuntimeError as error:
            raise ConfigError(
                f"No home folder is known to keep a key for pseudonyms in ({error}). Give one with "
                f"{FILE_VARIABLE} or {KEY_VARIABLE}, or keep user ids with --keep-user-ids."
            ) from error
    return Path(base) / "seqscale" / "pseudonym.key"


def _secret_of(raw: bytes, where: str) -> bytes:
    text = raw.rstrip(b"\r\n")
    if not text:
        raise ConfigError(f"{where} is empty, expected a key; {_how_to_make()}")
    if _HEX_KEY.fullmatch(text):
        return bytes.fromhex(text.decode())
    if len(text) < MIN_KEY_BYTES:
        raise ConfigError(
            f"{where} has {len(text)} bytes; a key needs at least {MIN_KEY_BYTES}, random ones. "
            f"{_how_to_make().capitalize()}"
        )
    return text


def _how_to_make() -> str:
    return "make one with 'openssl rand -hex 32'."


def _key_in_home(path: Path) -> PseudonymKey:
    """The key in the configuration folder, which nobody else may be able to exchange."""
    folder = path.parent.stat()
    if folder.st_uid != os.getuid() or folder.st_mode & 0o022:
        raise ConfigError(
            f"{path.parent}: others can exchange the key in it. Make it yours alone: "
            f"chmod 700 {path.parent}"
        )
    link = path.lstat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid != os.getuid():
        raise ConfigError(
            f"{path}: is a link that somebody else has made (user {link.st_uid}). Remove it, and "
            f"put your key there, or name it with {FILE_VARIABLE}."
        )
    return _key_in(path, str(path))


def _key_in(path: Path, where: str) -> PseudonymKey:
    """The key in a file that only its owner can read."""
    try:
        # non-blocking: a named pipe must not hold the command up
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"{where}: the key cannot be read ({error.strerror}). Name a file of yours with "
            f"{FILE_VARIABLE}, or give the key itself with {KEY_VARIABLE}."
        ) from error
    try:
        _check_closed_to_others(os.fstat(handle), path, where)
        raw = os.read(handle, _MAX_FILE_BYTES + 1)
    finally:
        os.close(handle)
    if len(raw) > _MAX_FILE_BYTES:
        raise ConfigError(f"{where}: is longer than {_MAX_FILE_BYTES} bytes, hardly a key.")
    return PseudonymKey(secret=_secret_of(raw, where), where=where)


def _check_closed_to_others(status: os.stat_result, path: Path, where: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{where}: is not a file, expected one that holds a key.")
    if status.st_uid not in (os.getuid(), 0):
        raise ConfigError(
            f"{where}: belongs to somebody else (user {status.st_uid}). Copy the key into a file "
            "of your own, of mode 0600."
        )
    if status.st_mode & 0o077:
        raise ConfigError(
            f"{where}: others can read or change the key (mode {status.st_mode & 0o777:04o}). "
            f"Close it with 'chmod 600 {path}'; if others may have read it, make a new key, see "
            "docs/privacy.md."
        )


def _make(path: Path) -> bool:
    """Make a key file; False when another process was faster, whose key then stands.

    Written whole aside and then linked: the link is made once, and nobody reads half a key.
    """
    for folder in [*reversed(path.parent.parents), path.parent]:
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            os.fchmod(handle, 0o600)  # whatever the umask takes away
            file.write(secrets.token_bytes(_MADE_KEY_BYTES).hex() + "\n")
            file.flush()
            os.fsync(handle)
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
    finally:
        aside.unlink()
    return True
