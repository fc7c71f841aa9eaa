"""Child process that ends with its owner, also when the owner is killed.

Rules:

1. The child is bound before it runs its program: the owner cannot die and leave it behind.
2. A guard, a small shell in a session of its own, waits on a pipe that only the owner holds open. The kernel closes it
   when the owner ends, also by SIGKILL; then the guard kills the child. (Linux's ``PR_SET_PDEATHSIG`` fires when the
   *thread* that started the child ends, and macOS lacks it. An owner that forks without exec shares the pipe with its
   forks: then the last of them counts.)
3. An owner that releases the child notifies the guard first, which then kills nothing: a reused process id may belong
   to another process.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Two pipes lead to the guard. The owner writes to the lifeline (the guard's standard input): first the child's id, last
# `released`; an end without `released` is the owner's death. The child writes its id to the birth pipe (the guard's
# standard error, since a plain shell can only name single digits) before it becomes the program: the guard uses it if
# the owner died between the fork and the first line. The cases:
#
#   owner dies before the child's id arrives  the lifeline ends empty; the guard waits for the id, and kills
#   owner dies later                          the guard has the id from either pipe and kills, also a stopped child
#   owner releases before the id arrives      the guard reads the id first, since a closed pipe would end the child
#   the child could not be started            both pipes end empty; there is nothing to kill
_GUARD = """
trap "" HUP INT TERM
child=
while read -r line; do child=$line; done
case $child in
  released) read -r child <&2; exit ;;
  "") read -r child <&2 ;;
esac
[ -z "$child" ] || kill -9 "$child"
"""

# `exec` keeps the id: the program is the process that the guard kills. Its standard input is the birth pipe until then.
_BORN = 'echo $$ >&0; exec "$@" </dev/null'


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
        birth, born = os.pipe()
        try:
            self._guard, self._lifeline = _start_guard(birth)
            try:
                with log.open("ab") as output:
                    self.process = _start(
                        [_BORN, "sh", *map(str, command)],
                        stdin=born,
                        stdout=output.fileno(),
                        stderr=output.fileno(),
                        folder=folder,
                        keep=(keep,),
                    )
                os.write(self._lifeline, f"{self.process.pid}\n".encode())
            except BaseException:
                os.close(self._lifeline)
                os.close(born)
                born = -1
                self._guard.wait()
                raise
        finally:
            os.close(birth)
            if born >= 0:
                os.close(born)

    def release(self) -> None:
        """Unbind the child, which then outlives this process. May be called twice."""
        if self._lifeline < 0:
            return
        with suppress(BrokenPipeError):  # the guard was killed
            os.write(self._lifeline, b"released\n")
        os.close(self._lifeline)
        self._lifeline = -1
        self._guard.wait()


def _start_guard(birth: int) -> tuple[subprocess.Popen[bytes], int]:
    """The guard, and the only writing end of its lifeline."""
    reading, writing = os.pipe()
    try:
        return _start([_GUARD], stdin=reading, stdout=subprocess.DEVNULL, stderr=birth), writing
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)


def _start(
    script: list[str], *, stdin: int, stdout: int, stderr: int, folder: Path | None = None, keep: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C in the owner's terminal is the owner's to handle.
    return subprocess.Popen(  # noqa: S603 - a fixed shell script; what varies are its arguments
        ["/bin/sh", "-c", *script],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=folder,
        pass_fds=keep,
        start_new_session=True,
    )
