"""A child process that ends when its owner does, however the owner ends.

Rules:

1. The child is tied before it runs its program: there is no moment in which the owner can die and leave it behind.
2. A guard, a small shell of its own session, waits on a pipe that only the owner holds open. The kernel closes it when
   the owner ends, by SIGKILL too; then the guard kills the child. (Linux's ``PR_SET_PDEATHSIG`` would not do: it fires
   when the *thread* that started the child ends, and macOS has nothing like it.)
3. An owner that lets go first tells the guard, which then touches nothing: a process id that was given back may belong
   to somebody else.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# The last line read wins: the child's id, or nothing once the owner has let go. The pipe's end ends the loop.
_GUARD = 'trap "" HUP INT TERM; child=; while read -r line; do child=$line; done; [ -z "$child" ] || kill -9 "$child"'

# The child's first act: its id goes into the pipe, which is its standard input for that long and no longer. `exec`
# keeps the id, so the program that follows is the process that the guard knows.
_TIED = 'echo $$ >&0; exec "$@" </dev/null'


class Leash:
    """Starts one child process and holds it. Letting go (:meth:`release`) leaves it running on its own."""

    def __init__(self, command: Sequence[str | Path], *, log: Path, folder: Path, keep: int) -> None:
        """Start ``command``.

        Arguments:
            command: the program and its arguments.
            log: the file that its output is appended to.
            folder: its working folder.
            keep: a descriptor that stays open in the child (and there only, once the caller has closed it).

        """
        reading, self._writing = os.pipe()
        try:
            self._guard = _start([_GUARD], stdin=reading)
            with log.open("ab") as output:
                self.process = _start(
                    [_TIED, "sh", *map(str, command)],
                    stdin=self._writing,
                    output=output.fileno(),
                    folder=folder,
                    keep=keep,
                )
        except BaseException:
            os.close(self._writing)  # which ends the guard, and by it a child that was already started
            raise
        finally:
            os.close(reading)

    def release(self) -> None:
        """Let go: from now on the child's life is its own. May be called twice."""
        if self._writing < 0:
            return
        with suppress(BrokenPipeError):  # somebody ended the guard
            os.write(self._writing, b"\n")
        os.close(self._writing)
        self._writing = -1
        self._guard.wait()


def _start(
    script: list[str],
    *,
    stdin: int,
    output: int = subprocess.DEVNULL,
    folder: Path | None = None,
    keep: int | None = None,
) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C in the owner's terminal is the owner's to handle.
    return subprocess.Popen(  # noqa: S603 - a fixed shell line; what varies are its arguments
        ["/bin/sh", "-c", *script],
        stdin=stdin,
        stdout=output,
        stderr=subprocess.DEVNULL if output == subprocess.DEVNULL else subprocess.STDOUT,
        cwd=folder,
        pass_fds=() if keep is None else (keep,),
        start_new_session=True,
    )
