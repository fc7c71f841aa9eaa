"""Embedded Kafka broker (KRaft, broker and controller in one process) on a data folder.

Rules:

1. A data folder has at most one broker. The broker process itself holds the lock ``broker.lock`` through an inherited
   descriptor, so the lock lasts exactly as long as the process; ``broker.pid`` is valid only while the lock is held. A
   pid file left by a crash, or a reused process id, cannot mislead.
2. A broker ends with the process that started it, even when that is killed, until :meth:`EmbeddedKafka.detach`.
3. Data, cluster id and port outlive the broker. Data is never deleted.
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

from cardinal._directories import try_lock, writable, write_atomically
from cardinal.errors import PortInUseError
from cardinal_devkit.errors import DataInUseError, EmbeddedBrokerError
from cardinal_spark.java import find_java

from .child_process import ChildProcess
from .launch import HEAP_MB, format_logs, kafka_command
from .pidfile import LOCK_FILE, PID_FILE, RunningBroker, find_broker, remove_pid_file, write_pid_file
from .properties import Membership, properties
from .readiness import wait_until_ready
from .scram_users import create_scram_users
from .security import PLAIN_TEXT, Security
from .state import load_state, next_state, save_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from cardinal_spark.java import Java

    from .jars import Jar, Progress

_CONFIGURATION = "server.properties"
_LOG_LIMIT = 16 << 20
_LOCK_SECONDS = 1.0
_KILL_SECONDS = 20
_PORT_ATTEMPTS = 3


class EmbeddedKafka:
    """Broker to start, stop, kill, pause and restart on the same data and the same port.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`. Not thread-safe.
    """

    def __init__(
        self,
        data: Path,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        java: Java | None = None,
        progress: Progress | None = None,
        security: Security = PLAIN_TEXT,
        advertised: str | None = None,
        heap_mb: int = HEAP_MB,
        membership: Membership | None = None,
        jars: Sequence[Jar] | None = None,
    ) -> None:
        """Describe a broker; nothing is started or written yet.

        Arguments:
            data: its data folder, created by :meth:`start` where it is missing.
            port: the port on 127.0.0.1; None takes the data folder's previous one, else a free one.
            properties: Kafka properties that override or extend the default ones.
            java: the Java that runs it; None finds one.
            progress: receives the number of fetched bytes of each jar, where jars must be fetched.
            security: encryption, authentication and permissions of clients.
            advertised: the ``host:port`` advertised to clients, such as a proxy's in front of this broker.
            heap_mb: maximum heap of the JVM in MB.
            membership: the broker's node in a cluster; see :class:`.cluster.EmbeddedCluster`.
            jars: the jars of another Kafka than this release's; see :func:`.jars.parse_lock`.

        """
        self.data = Path(data).absolute()
        self._port = port
        self._properties = dict(properties or {})
        self._java = java
        self._progress = progress
        self.security = security
        self._advertised = advertised
        self._heap_mb = heap_mb
        self._membership = membership or Membership()
        self._jars = jars
        self._state = load_state(self.data)
        self._child: ChildProcess | None = None

    def __repr__(self) -> str:
        address = "not started yet" if self._state is None else self.bootstrap
        return f"<EmbeddedKafka {address}, {'running' if self.running else 'stopped'}, data in {self.data}>"

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients.

        Raises:
            EmbeddedBrokerError: the data folder never held a broker, and this one was not started yet.

        """
        if self._state is None:
            raise EmbeddedBrokerError("the broker has no address before its first start: call start()")
        return self._advertised or self._state.bootstrap

    @property
    def pid(self) -> int | None:
        """The process id while the broker runs; None otherwise."""
        return self._child.process.pid if self._child is not None and self.running else None

    @property
    def running(self) -> bool:
        """True while the process that this object started lives."""
        return self._child is not None and self._child.process.poll() is None

    @property
    def log(self) -> Path:
        """The server's log, continued over restarts; the previous one has the suffix ``.1``."""
        return self.data / "server.log"

    def client_config(self, user: str | None = None) -> dict[str, str]:
        """Settings of a confluent-kafka client; with SASL for ``user``, the first one if None."""
        return {"bootstrap.servers": self.bootstrap, **self.security.client_config(user)}

    def admin_config(self) -> dict[str, str]:
        """Settings of a confluent-kafka client for the internal listener, which requires no credentials."""
        if self._state is None:
            raise EmbeddedBrokerError("the broker has no address before its first start: call start()")
        return {"bootstrap.servers": self._state.internal}

    def start(self, timeout: float = 180.0) -> Self:
        """Start the broker, formatting the data folder the first time; returns when a client gets metadata.

        Arguments:
            timeout: seconds, excluding the fetching of jars.

        Raises:
            PortInUseError: another process listens on the port.
            DataInUseError: a broker runs on this data folder already.
            EmbeddedBrokerError: the folder cannot be written, or the server stopped or was not ready in time.
                Nothing is left running.
            JarError, JavaNotFoundError, MissingExtraError: something to run it with is missing.

        """
        if self.running:
            return self
        self._end_child()
        writable(self.data, hint="take another data folder")
        self._java = self._java or find_java()
        command = kafka_command(java=self._java, progress=self._progress, heap_mb=self._heap_mb, jars=self._jars)
        deadline = time.monotonic() + timeout
        chosen_here = self._port is None and self._state is None
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._start_once(command, deadline)
                break
            except PortInUseError:
                # Another process may take a port between our choice and Kafka's bind; no client knows it yet.
                if not chosen_here or attempt == _PORT_ATTEMPTS:
                    raise
                self._state = replace(self._state, port=0) if self._state else None
        return self

    def stop(self, timeout: float = 20.0) -> None:
        """Stop by SIGTERM, and by SIGKILL after ``timeout`` seconds. May be called twice."""
        if not self.running:
            self._end_child()
            return
        self._signal(signal.SIGCONT)  # a paused process would not see the next one
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return
        self._end_child()

    def kill(self) -> None:
        """Kill by SIGKILL, like a crash. May be called twice."""
        self._signal(signal.SIGKILL)
        self._end_child()

    def pause(self) -> None:
        """Pause by SIGSTOP: connections stay open without responses; returns when the process is stopped."""
        self._signal(signal.SIGSTOP)
        if self._child is not None and hasattr(os, "waitid"):  # Python below 3.13 lacks it on macOS
            # The process stops when the last of its threads has received the signal: on a busy machine that took long
            # enough for dozens of blocks.
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Resume by SIGCONT after :meth:`pause`."""
        self._signal(signal.SIGCONT)

    def detach(self) -> RunningBroker:
        """Let the broker outlive this process; :func:`.pidfile.find_broker` finds it by its data folder.

        Raises:
            EmbeddedBrokerError: it is not running.

        """
        if self._child is None or not self.running:
            raise EmbeddedBrokerError("only a running broker can be detached: call start() first")
        self._child.release()
        return RunningBroker(self._process.pid, self.bootstrap, ready=True)

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
            state = next_state(self._state, self._port, member=self._membership.brokers > 1)
            if state != self._state:
                save_state(self.data, state)
            self._state = state
            configuration = properties(
                state,
                self._properties,
                membership=self._membership,
                security=self.security,
                advertised=self._advertised,
            )
            write_atomically(self.data / _CONFIGURATION, configuration, mode=0o600)
            format_logs(command, self.data, state.cluster_id, _CONFIGURATION)
            if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT:
                self.log.replace(self.log.with_suffix(".log.1"))
            # Kafka unpacks a library of 280 kB at every start, and one that is killed leaves it behind.
            args = [f"-Djava.io.tmpdir={self.data}", "kafka.Kafka", _CONFIGURATION]
            self._child = ChildProcess([*command, *args], log=self.log, folder=self.data, keep=lock)
        finally:
            os.close(lock)  # from here on only the broker holds it
        try:
            running = RunningBroker(self._process.pid, state.bootstrap)
            write_pid_file(self.data, running)
            wait_until_ready(state, self._membership, self._process, self.log, deadline)
            create_scram_users(state.internal, state.bootstrap, self.security, deadline)
            write_pid_file(self.data, replace(running, ready=True))
        except BaseException:
            self.kill()
            raise

    def _lock(self) -> int:
        """Lock the data folder, with a short wait: another process may be testing the lock."""
        deadline = time.monotonic() + _LOCK_SECONDS
        while (lock := try_lock(self.data / LOCK_FILE)) is None:
            if time.monotonic() > deadline:
                other = find_broker(self.data)
                by = f" (process {other.pid})" if other and other.pid else ""
                raise DataInUseError(
                    f"a broker already runs on {self.data}{by}: "
                    f"use it, or stop it with `cardinal broker down --data {self.data}`",
                    pid=other.pid if other else None,
                )
            time.sleep(0.01)
        (self.data / PID_FILE).unlink(missing_ok=True)  # its writer has ended: the lock is ours
        return lock

    # --- the process ----------------------------------------------------------------------------------------

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise EmbeddedBrokerError("the broker is not running: call start()")
        return self._child.process

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.process.send_signal(number)  # a no-op for a reaped process

    def _end_child(self) -> None:
        """Reap the process, release the guard, and remove the pid file."""
        if self._child is None:
            return
        process = self._child.process
        process.wait(_KILL_SECONDS)
        self._child.release()
        self._child = None
        remove_pid_file(self.data, process.pid)
