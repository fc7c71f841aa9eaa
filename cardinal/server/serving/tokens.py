"""The tokens of which every client shows one, and their file, which may change while clients are connected.

Rules:

1. Who is connected stays. Who comes needs a token that the file holds now, give or take :data:`LOOK_SECONDS`.
2. The file is looked at when somebody comes, and not more often than once in so many seconds. A token that is not known
   waits for a look that is younger than whoever shows it: who has a new one is not sent away, and who guesses waits.
3. A file that cannot be used just now (away, empty, half written) leaves the tokens from before; that is told once.
4. Tokens are compared in a time that says nothing about them, and are in no error and no log.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from typing import TYPE_CHECKING, Final

from cardinal.config.secrets import read_secret
from cardinal.errors import ConfigurationError

from .threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

LOOK_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


def read_tokens(file: Path) -> tuple[str, ...]:
    """The tokens of a file, one a line. ConfigurationError: it cannot be read, or holds none."""
    tokens = tuple(line.strip() for line in read_secret(file, "token-file").splitlines() if line.strip())
    if not tokens:
        raise ConfigurationError(f"the file {file} of token-file holds no token", setting="token-file")
    return tokens


class Tokens:
    """See the module.

    Arguments:
        tokens: what counts where there is no file; none: everybody may come.
        file: the file whose tokens count.
        seconds: between two looks at it.
        read: how it is read.

    """

    def __init__(
        self,
        tokens: Sequence[str] = (),
        file: Path | None = None,
        *,
        seconds: float = LOOK_SECONDS,
        read: Callable[[Path], Sequence[str]] = read_tokens,
    ) -> None:
        self._tokens = tuple(token.encode() for token in tokens) if file is None else ()
        self._file = file
        self._seconds = seconds
        self._read = read
        self._looked = float("-inf")
        self._looking = asyncio.Lock()
        self._told = False
        self._reading = Threads(1, "cardinal-serve-tokens")

    @property
    def wanted(self) -> bool:
        """Whether anything has to be shown."""
        return self._file is not None or bool(self._tokens)

    async def open(self) -> None:
        """Read the file, before anybody comes. ConfigurationError: it cannot be used."""
        if self._file is not None:
            self._looked = time.monotonic()
            self._tokens = await self._read_now(self._file)

    async def know(self, shown: bytes) -> bool:
        """Whether this is one of them; the empty token is none."""
        came = time.monotonic()
        if not shown:
            return False
        if came - self._looked >= self._seconds:
            await self._look(came)
        if self._has(shown):
            return True
        await self._look(came)
        return self._has(shown)

    async def stop(self) -> None:
        """Nobody comes any more."""
        await self._reading.stop()

    def _has(self, shown: bytes) -> bool:
        # Every token is compared, and each in a time that says nothing about it.
        return any([hmac.compare_digest(shown, token) for token in self._tokens])  # noqa: C419 - no early end

    async def _look(self, since: float) -> None:
        """Read the file as it is at this moment or later, when its time has come."""
        if self._file is None:
            return
        async with self._looking:
            if self._looked >= since:
                return
            await asyncio.sleep(max(0.0, self._looked + self._seconds - time.monotonic()))
            looked = time.monotonic()
            try:
                tokens = await self._read_now(self._file)
            except ConfigurationError as unusable:
                if not self._told:
                    _log.warning("%s: the tokens from before count", unusable)
                self._told = True
            else:
                if tokens != self._tokens:
                    _log.info("the tokens in %s have changed: there are %d", self._file, len(tokens))
                self._tokens, self._told = tokens, False
            self._looked = looked

    async def _read_now(self, file: Path) -> tuple[bytes, ...]:
        return tuple(token.encode() for token in await self._reading.run(lambda: self._read(file)))
