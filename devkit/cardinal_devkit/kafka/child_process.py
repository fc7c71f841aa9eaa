"""Child process that ends with its owner, also when the owner is killed.

Rules:

1. A guard, a small shell in a session of its own, waits on a pipe that only the owner holds open. The kernel closes it
   when the owner ends, also by SIGKILL; then the guard kills the child. (Linux's ``PR_SET_PDEATHSIG`` fires when the
   *thread* that started the child ends, and macOS lacks it. An owner that forks without exec shares the pipe with its
   forks: then the last of them counts.)
2. An owner that releases the child notifies the guard first, which then kills nothing: a reused process id may belong
   to another process.
3. An owner that is killed in the few milliseconds between the starts of child and guard leaves the child behind, until
   somebody ends it by its process id.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_GUARD = 'trap "" HUP INT TERM; read -r released || kill -9 "$0"'


class ChildProcess:
    """Child process bound to this one until :meth:`release`."""

    def __init__(self, command: Sequence[str | Path], *, log: Path, folder: Path, keep: int) -> None:
        """Start ``command``.

        Arguments:
            command: the program and its arguments.
            log: the file that its output is appended to.
            folder: its working folder.
            keep: a descriptor that stays open in the child (and there only, once the caller has closed it).

        """
        reading, self._lifeline = os.pipe()
        try:
            # Sessions of their own: Ctrl-C in the owner's terminal is the owner's to handle.
            with log.open("ab") as output:
                self.process = subprocess.Popen(  # noqa: S603 - the caller's program
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=folder,
                    pass_fds=(keep,),
                    start_new_session=True,
                )
            try:
                self._guard = subprocess.Popen(  # noqa: S603 - a fixed shell script
                    ["/bin/sh", "-c", _GUARD, str(self.process.pid)], stdin=reading, start_new_session=True
                )
            except BaseException:
                self.process.kill()
                self.process.wait()
                raise
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(reading)

    def release(self) -> None:
        """Unbind the child, which then outlives this process. May be called twice."""
        if self._lifeline < 0:
            return
        with suppress(BrokenPipeError):  # the guard was killed
            os.write(self._lifeline, b"released\n")
        os.close(self._lifeline)
        self._lifeline = -1
        self._guard.wait()
