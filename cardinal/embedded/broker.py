"""One real Kafka broker (KRaft, broker and controller in one process) on a data folder.

Rules:

1. A data folder has at most one broker. The broker process itself holds the lock ``broker.lock`` by a descriptor that
   it inherits, so the lock is held exactly as long as it lives; ``broker.pid`` is believed only while the lock is held.
   Nothing stale can mislead: not a pid file that a crash left, not a process id that was given out again.
2. A broker ends with the process that started it, also when that is killed, until :meth:`EmbeddedKafka.detach`.
3. Data, cluster id and port outlive the broker. Nothing here deletes data.
4. The clock is used for deadlines only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from cardinal.errors import DataInUseError, EmbeddedBrokerError, PortInUseError

from . import settings as remembered
from .folders import try_lock, writable, write_atomically
from .formatting import format_logs
from .launch import HEAP_MB, Launch, prepare
from .leash import Leash
from .properties import Place, properties
from .ready import wait_until_ready
from .running import LOCK_FILE, PID_FILE, Running, find_running, remove_pid_file, save_pid_file
from .security import PLAIN_TEXT, Security
from .users import introduce_users

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from .jars import Jar, Progress
    from .java import Java

_CONFIGURATION = "server.properties"
_LOG_LIMIT = 16 << 20
_LOCK_SECONDS = 1.0
_KILL_SECONDS = 20
_PORT_ATTEMPTS = 3


class EmbeddedKafka:
    """A broker of our own: start, stop, kill, pause, restart on the same data and the same port.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`. Not for use by several threads at once.
    """

    def __init__(
        self,
        data: Path,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        java: Java | None = None,
        progress: Progress | None = None,
        train: bool = False,
        security: Security = PLAIN_TEXT,
        advertised: str | None = None,
        heap_mb: int = HEAP_MB,
        place: Place | None = None,
        jars: Sequence[Jar] | None = None,
    ) -> None:
        """Describe a broker; nothing is started or written yet.

        Arguments:
            data: its data folder, created by :meth:`start` where it is missing.
            port: the port on 127.0.0.1; where None, the one that the data folder remembers, else a free one.
            properties: Kafka properties that replace or join ours.
            java: the Java that runs it; found where None.
            progress: told how many bytes of which jar have arrived, where jars must be fetched.
            train: make an archive for faster starts when this broker is stopped, where there is none yet (see
                :mod:`.cds`; 5 s once, 0.6 s saved at each later start).
            security: what clients have to show.
            advertised: the ``host:port`` that clients are sent to, such as a proxy's in front of this broker.
            heap_mb: the most that the JVM's heap takes, in MB.
            place: the broker's place in a cluster; see :class:`.cluster.EmbeddedCluster`.
            jars: the jars of another Kafka than the one that this release runs; see :func:`.jars.parse_lock`.

        """
        self.data = Path(data).absolute()
        self._port = port
        self._properties = dict(properties or {})
        self._java = java
        self._progress = progress
        self._train = train
        self.security = security
        self._advertised = advertised
        self._heap_mb = heap_mb
        self._place = place or Place()
        self._jars = jars
        self._launch: Launch | None = None
        self._settings = remembered.load(self.data)
        self._leash: Leash | None = None

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients.

        Raises:
            EmbeddedBrokerError: the data folder never held a broker, and this one was not started yet.

        """
        if self._settings is None:
            raise EmbeddedBrokerError("the broker has no address before its first start: call start()")
        return self._advertised or self._settings.bootstrap

    @property
    def pid(self) -> int | None:
        """The process id while the broker runs; None otherwise."""
        return self._leash.process.pid if self._leash is not None and self.running else None

    @property
    def running(self) -> bool:
        """Whether the process that this object started lives."""
        return self._leash is not None and self._leash.process.poll() is None

    @property
    def log(self) -> Path:
        """The server's log, kept over restarts; the one before it has the suffix ``.1``."""
        return self.data / "server.log"

    def client_config(self, user: str | None = None) -> dict[str, str]:
        """What a confluent-kafka client needs to connect; as ``user`` where users log in, the first one where None."""
        return {"bootstrap.servers": self.bootstrap, **self.security.client_config(user)}

    def admin_config(self) -> dict[str, str]:
        """What a confluent-kafka client needs to come in by the administrators' door, which asks for nothing."""
        if self._settings is None:
            raise EmbeddedBrokerError("the broker has no address before its first start: call start()")
        return {"bootstrap.servers": self._settings.internal}

    def start(self, timeout: float = 60.0) -> Self:
        """Start the broker, formatting the data folder the first time; returns when a client gets metadata.

        Arguments:
            timeout: seconds that it may take, without the fetching of jars.

        Raises:
            PortInUseError: another process listens on the port.
            DataInUseError: a broker runs on this data folder already.
            EmbeddedBrokerError: the folder cannot be written, or the server stopped or was not ready in time.
                Nothing is left running.
            JarError, JavaNotFoundError, MissingExtraError: something to run it with is missing.

        """
        if self.running:
            return self
        self._end_leash()
        writable(self.data, hint="take another data folder")
        self._launch = prepare(
            self.data,
            java=self._java,
            progress=self._progress,
            train=self._train,
            heap_mb=self._heap_mb,
            jars=self._jars,
        )
        self._java = self._launch.java
        deadline = time.monotonic() + timeout
        chosen_here = self._port is None and self._settings is None
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._start_once(self._launch.command, deadline)
                break
            except PortInUseError:
                # A port of our own choice may be taken between the choice and Kafka's bind; nobody knows it yet.
                if not chosen_here or attempt == _PORT_ATTEMPTS:
                    raise
                self._settings = replace(self._settings, port=0) if self._settings else None
        return self

    def stop(self, timeout: float = 20.0) -> None:
        """SIGTERM, and SIGKILL where the broker has not ended ``timeout`` seconds later. May be called twice."""
        if not self.running:
            self._end_leash()
            return
        self._signal(signal.SIGCONT)  # a paused process would not see the next one
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return
        self._end_leash()
        if self._launch is not None:
            self._launch.train()

    def kill(self) -> None:
        """SIGKILL: what a crash or a power cut looks like to the clients. May be called twice."""
        self._signal(signal.SIGKILL)
        self._end_leash()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nobody answers, from the moment in which this returns."""
        self._signal(signal.SIGSTOP)
        if self._leash is not None and hasattr(os, "waitid"):  # Python below 3.13 lacks it on macOS
            # A process has many threads, and stands still when the last of them has been told: on a busy machine that
            # took long enough for dozens of blocks.
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT: goes on after :meth:`pause`."""
        self._signal(signal.SIGCONT)

    def detach(self) -> Running:
        """Let the broker outlive this process; from here on it is found by its data folder.

        Raises:
            EmbeddedBrokerError: it does not run.

        """
        if self._leash is None or not self.running:
            raise EmbeddedBrokerError("only a broker that runs can be detached: call start() first")
        self._leash.release()
        return Running(self._process.pid, self.bootstrap, ready=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self.stop()

    # --- one start ------------------------------------------------------------------------------------------

    def _start_once(self, command: Sequence[str], deadline: float) -> None:
        lock = self._lock()
        try:
            settings = self._settle()
            write_atomically(self.data / _CONFIGURATION, self._configuration(settings), mode=0o600)
            format_logs(command, self.data, settings.cluster_id, _CONFIGURATION)
            self._rotate_log()
            self._leash = Leash([*command, "kafka.Kafka", _CONFIGURATION], log=self.log, folder=self.data, keep=lock)
        finally:
            os.close(lock)  # from here on the broker alone holds it
        try:
            running = Running(self._process.pid, settings.bootstrap)
            save_pid_file(self.data, running)
            wait_until_ready(settings, self._place, self._process, self.log, deadline)
            introduce_users(settings.internal, settings.bootstrap, self.security, deadline)
            save_pid_file(self.data, replace(running, ready=True))
        except BaseException:
            self.kill()
            raise

    def _lock(self) -> int:
        """Take the data folder, waiting a moment: another process may just be looking whether it is taken."""
        deadline = time.monotonic() + _LOCK_SECONDS
        while (lock := try_lock(self.data / LOCK_FILE)) is None:
            if time.monotonic() > deadline:
                other = find_running(self.data)
                by = f" (process {other.pid})" if other and other.pid else ""
                raise DataInUseError(
                    f"a broker already runs on {self.data}{by}: "
                    f"use it, or stop it with `cardinal broker down --data {self.data}`",
                    pid=other.pid if other else None,
                )
            time.sleep(0.01)
        (self.data / PID_FILE).unlink(missing_ok=True)  # whoever wrote it is gone: the lock is ours
        return lock

    def _settle(self) -> remembered.Settings:
        """The settings of this start, remembered for the next."""
        settings = remembered.settle(self._settings, self._port, member=self._place.brokers > 1)
        if settings != self._settings:
            remembered.save(self.data, settings)
        self._settings = settings
        return settings

    def _configuration(self, settings: remembered.Settings) -> str:
        return properties(
            settings,
            self._properties,
            place=self._place,
            security=self.security,
            advertised=self._advertised,
        )

    def _rotate_log(self) -> None:
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT:
            self.log.replace(self.log.with_suffix(".log.1"))

    # --- the process ----------------------------------------------------------------------------------------

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        if self._leash is None:
            raise EmbeddedBrokerError("the broker does not run: call start()")
        return self._leash.process

    def _signal(self, number: signal.Signals) -> None:
        if self._leash is not None:
            self._leash.process.send_signal(number)  # which sends nothing to a process that was already reaped

    def _end_leash(self) -> None:
        """Reap the process and let the guard go; the pid file goes with them."""
        if self._leash is None:
            return
        process = self._leash.process
        process.wait(_KILL_SECONDS)
        self._leash.release()
        self._leash = None
        remove_pid_file(self.data, process.pid)
