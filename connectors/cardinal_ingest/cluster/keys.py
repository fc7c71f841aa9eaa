"""Ed25519 keys of a cluster's members.

Rules:

1. A file holds the 32 bytes of one secret key in hex, and has mode 0600. It is never overwritten, and not read where
   others can read it.
2. The secret key is in no log, error or ``repr``.
3. All members verify with libsodium: libraries differ in the malformed signatures that they accept.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Final, NoReturn

from cardinal.errors import ConfigurationError, MissingExtraError

try:
    from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
    from nacl.exceptions import BadSignatureError
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("A cluster of ingest nodes", "ingest") from absent

if TYPE_CHECKING:
    from pathlib import Path

KEY_SIZE: Final = 32
SIGNATURE_SIZE: Final = 64
_TEXT: Final = re.compile(r"[0-9a-f]{64}\n?")
_TEXT_SIZE_MAX: Final = 1024
_MODE: Final = 0o600
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class SecretKey:
    """Secret key of a member.

    Arguments:
        seed: its 32 bytes.

    Attributes:
        public: the public key, 32 bytes.

    """

    __slots__ = ("_secret", "public")

    def __init__(self, seed: bytes) -> None:
        self.public, self._secret = crypto_sign_seed_keypair(seed)

    def __repr__(self) -> str:
        return f"<secret key of {self.public.hex()}>"

    def __reduce__(self) -> NoReturn:
        """Not pickled, so that it leaves the process in no message."""
        raise TypeError("a secret key is not pickled")

    def sign(self, data: bytes) -> bytes:
        """The signature of these bytes, 64 bytes."""
        return crypto_sign(data, self._secret)[:SIGNATURE_SIZE]

    @staticmethod
    def verify(key: bytes, data: bytes, signature: bytes) -> bool:
        """As :func:`verify`."""
        return verify(key, data, signature)


def verify(key: bytes, data: bytes, signature: bytes) -> bool:
    """True where a signature over these bytes is valid: the one verifier of the cluster.

    Arguments:
        key: the public key, 32 bytes.
        data: what was signed.
        signature: of 64 bytes; any other is not valid.

    """
    if len(key) != KEY_SIZE or len(signature) != SIGNATURE_SIZE:
        return False
    try:
        crypto_sign_open(signature + data, key)
    except BadSignatureError:
        return False
    return True


def generate_key(file: Path) -> SecretKey:
    """Write a new secret key to a file that does not exist.

    Raises:
        ConfigurationError: it exists, or cannot be written.

    """
    seed = os.urandom(KEY_SIZE)
    try:
        descriptor = os.open(file.expanduser(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(f"{seed.hex()}\n")
            stream.flush()
            os.fsync(stream.fileno())
    except FileExistsError:
        raise ConfigurationError(
            f"{file} exists, and no key is overwritten: name another file", setting="key"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"the key {file} cannot be written: {error.strerror}", setting="key") from None
    return SecretKey(seed)


def load_key(file: Path) -> SecretKey:
    """Read the secret key of a file.

    Raises:
        ConfigurationError: it cannot be read, others can read it, or it holds no key.

    """
    try:
        with file.expanduser().open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = stream.read(_TEXT_SIZE_MAX)
    except OSError as error:
        raise ConfigurationError(f"the key {file} cannot be read: {error.strerror}", setting="key") from None
    if mode & _OTHERS:
        raise ConfigurationError(
            f"others can use the key {file}, which has mode {stat.S_IMODE(mode):04o}: chmod 600 {file}", setting="key"
        )
    text = data.decode("ascii", "replace")
    if not _TEXT.fullmatch(text):
        raise ConfigurationError(
            f"{file} holds no key of `cardinal cluster keygen`, 64 hex digits: name another file", setting="key"
        )
    return SecretKey(bytes.fromhex(text.strip()))
