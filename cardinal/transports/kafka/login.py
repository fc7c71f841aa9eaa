"""User and password that a URL names by files, read again when the broker refuses them.

A password is changed in two places, at the broker and in the file, while clients run. The broker asks for it on new
connections only, so that a client notices when one breaks.

Rules:

1. A refusal is looked into: the files are read again, and what they say is tried on a connection of its own. Where the
   broker takes it, all clients of this login show that from their next connection on (librdkafka comes again by
   itself), and nobody is told of a refusal. It may have been one from before the last change: clients tell late.
2. Where the broker refuses that as well, it is one: at once before it has ever taken the login, and after
   :data:`GRACE_SECONDS` otherwise, in which the files are looked into again and again. So the broker may have a new
   password a moment before the file has it. One that was told is withdrawn when a later look finds it mended.
3. Where no broker answers, nothing is known: librdkafka tries and tells again.
4. Clients tell of refusals in callbacks, which must be quick and must not call the client (seen: confluent-kafka aborts
   the process): so all of this happens on a thread of its own, one at a time. A consumer's client is told by the thread
   that polls it: another one waits until nobody polls (seen: for 22 s).
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary

from cardinal.errors import RefusedError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .settings import KafkaSettings

GRACE_SECONDS: Final = 5.0
"""For how long, at most, a file may still hold the password that the broker takes no longer."""

_TRIAL_SECONDS: Final = 3.0
_AGAIN_SECONDS: Final = 1.0


class _Client(Protocol):
    def set_sasl_credentials(self, username: str, password: str) -> None:
        """librdkafka's: what is shown from the next connection on."""
        ...


class Login:
    """See the module.

    Arguments:
        settings: of the clients; their URL names files.
        ask: asks a broker anything by a client with these settings; RefusedError where it refuses the login.

    """

    def __init__(self, settings: KafkaSettings, ask: Callable[[KafkaSettings], object]) -> None:
        self._settings = settings
        self._ask = ask
        self._first = self._now = _pair(settings.properties)
        self._clients: WeakKeyDictionary[Any, Callable[[Any], _Client]] = WeakKeyDictionary()
        self._shown: WeakKeyDictionary[object, tuple[str, str]] = WeakKeyDictionary()
        self._trying = threading.Lock()
        self._taken = False

    def serves(self, owner: object, client: str) -> None:
        """From now on the client that is this attribute of its owner shows what the files say, while there is one."""
        self._clients[owner] = attrgetter(client)

    def begins(self, client: _Client) -> None:
        """A client that was just made, of the properties of once, shows what the files have said since."""
        if self._now is not self._first:
            client.set_sasl_credentials(*self._now)

    def goes_on(self, owner: object, client: _Client) -> None:
        """Between two polls: the client of this owner shows what the files have said since the last time."""
        now = self._now
        if self._shown.get(owner, self._first) is not now:
            self._shown[owner] = now
            client.set_sasl_credentials(*now)

    def taken(self) -> None:
        """A broker has answered, so it has taken the login."""
        self._taken = True

    def refused(self, tell: Callable[[], None], withdraw: Callable[[], None]) -> None:
        """A broker has refused a client: look into it, and ``tell`` where that is how it is; ``withdraw`` otherwise."""
        if self._trying.acquire(blocking=False):
            name = "cardinal-kafka-login"
            threading.Thread(target=self._look_into, args=(tell, withdraw), name=name, daemon=True).start()

    def _look_into(self, tell: Callable[[], None], withdraw: Callable[[], None]) -> None:
        try:
            # Whoever waits for an answer of the broker is told in time that it was a refusal.
            grace = min(GRACE_SECONDS, self._settings.connect_timeout / 2) if self._taken else 0.0
            deadline = time.monotonic() + grace
            while (stands := self._stands()) is False and time.monotonic() < deadline:
                time.sleep(_AGAIN_SECONDS)
            if stands:
                withdraw()
            elif stands is False:
                self._taken = False
                tell()
        finally:
            self._trying.release()

    def _stands(self) -> bool | None:
        """Whether the login is one that the broker takes, perhaps another one by now; None where no broker answers."""
        settings = self._settings.again()
        found = _pair(settings.properties)
        try:
            self._ask(replace(settings, url=None, connect_timeout=min(settings.connect_timeout, _TRIAL_SECONDS)))
        except RefusedError:
            return False
        except TransportError:
            return None
        if found != self._now:
            self._now = found
            for owner, client in list(self._clients.items()):
                client(owner).set_sasl_credentials(*found)
        return True


def _pair(properties: Mapping[str, str]) -> tuple[str, str]:
    return properties.get("sasl.username", ""), properties.get("sasl.password", "")
