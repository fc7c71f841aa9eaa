"""Fetcher of object diffusion: the choice of what to request of which peer, over all links to servers.

Rules (O17):

1. Wanted objects are requested in order of their number: the lowest can be appended first. Of the peers that announce
   one, it is requested of the peer with the fewest bytes in flight; of equal ones the first to join. None with a
   higher number passes one that waits for bytes.
2. An object is requested of one peer. When its lease ends, one more peer is requested; never more than two at once,
   and never the same peer twice per announcement. A copy that is being verified is waited for.
3. Bytes in flight are bounded per peer and in all; they count until the verdict on the object. An object above the
   bound of a peer is requested of a peer with nothing in flight. One such object is in flight at a time, apart from the
   bound of all: a peer that announces one and never sends it delays no other object.
4. An id is acknowledged when its object is in the pool, not needed, or too large, and all ids before it are. One that
   is in flight from another peer is not: this peer is the fallback.
5. A peer that leaves, or breaks a rule, returns its objects at once. Another peer's link is never touched.
6. A pure choice after every input. Actions are carried out in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from cardinal_ingest.errors import ViolationError

from .client import Client, Identify, TooLarge, Verify
from .codec import encode, objects_size
from .pool import PoolWriter, Status
from .settings import DiffusionSettings
from .types import MsgDone, ObjectId, Violation

LEASE_SECONDS: Final = 2.0
LEASE_BYTES_PER_SECOND: Final = 1_000_000
COPIES: Final = 2
"""Peers at once of which an object may be requested."""

BAR_SECONDS: Final = 30.0
"""Time for which a peer is barred after a violation; doubled with each further one, until an hour passed without."""
BAR_SECONDS_MAX: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes to the peer."""

    peer: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Close the link to the peer.

    ``violation`` is the rule that it broke; ``barred_until`` is the time before which it should not be dialed again.
    Both are None where the link ends in order.
    """

    peer: str
    violation: ViolationError | None = None
    barred_until: float | None = None


Action: TypeAlias = Send | Verify | TooLarge | Close


@dataclass(slots=True)
class _Copy:
    """An object that was requested of a peer and has no verdict yet."""

    size: int
    lease: float
    received: bool = False


class Fetcher:
    """State of all links to servers.

    Args:
        pool: the objects that are there and wanted.
        identify: the id of an object by its bytes.
        settings: windows and limits.

    """

    def __init__(self, pool: PoolWriter, identify: Identify, settings: DiffusionSettings | None = None) -> None:
        self._pool = pool
        self._identify = identify
        self._settings = settings or DiffusionSettings()
        self._clients: dict[str, Client] = {}
        self._copies: dict[ObjectId, dict[str, _Copy]] = {}
        self._bars: dict[str, tuple[float, float]] = {}
        """Length and end of the last bar of a peer."""

    def loads(self) -> Counter[str]:
        """Bytes in flight by peer."""
        loads: Counter[str] = Counter()
        for copies in self._copies.values():
            for peer, copy in copies.items():
                loads[peer] += copy.size
        return loads

    def outstanding(self, peer: str) -> list[ObjectId]:
        """Ids that the peer announced and that are not acknowledged."""
        return list(self._clients[peer].offers)

    # --- inputs ------------------------------------------------------------------------------------------

    def join(self, peer: str, lowest: int, now: float) -> list[Action]:
        """A link to a peer is open; objects below the block number ``lowest`` are not needed."""
        self._forget(peer)
        client = self._clients[peer] = Client(peer, self._identify, self._settings)
        return [Send(peer, client.open(lowest)), *self._choose(now)]

    def receive(self, peer: str, data: bytes, now: float) -> list[Action]:
        """Bytes of a peer arrived. Those of a peer whose link is over are ignored."""
        client = self._clients.get(peer)
        if client is None:
            return []
        actions: list[Action] = []
        before = client.in_flight
        try:
            for action in client.feed(data, now):
                actions.append(action)
                if isinstance(action, Verify):
                    self._copies[action.id][peer].received = True
        except ViolationError as error:
            actions.append(self._drop(peer, error, now))
        else:
            if client.in_flight == before:  # a piece of a reply
                return actions
        return actions + self._choose(now)

    def verified(self, copy: Verify, now: float, *, valid: bool) -> list[Action]:
        """The verdict on an object. A valid one goes into the pool, unless another copy was first."""
        return self.verdicts(((copy, valid),), now)

    def verdicts(self, verdicts: Iterable[tuple[Verify, bool]], now: float) -> list[Action]:
        """Several verdicts at once, as :meth:`verified`: one acknowledgement serves all of them."""
        actions = [action for copy, valid in verdicts for action in self._verdict(copy, now, valid=valid)]
        return actions + self._choose(now)

    def _verdict(self, copy: Verify, now: float, *, valid: bool) -> list[Action]:
        copies = self._copies.get(copy.id, {})
        copies.pop(copy.peer, None)
        if not copies:
            self._copies.pop(copy.id, None)
        actions: list[Action] = []
        if not valid:
            error = ViolationError(Violation.OBJECT_INVALID, f"object {copy.id.number} does not verify")
            actions.append(self._drop(copy.peer, error, now))
        elif self._pool.status(copy.id) is Status.WANT:
            self._pool.add(copy.id, copy.body)
        return actions

    def leave(self, peer: str, now: float) -> list[Action]:
        """The link to a peer is over."""
        self._forget(peer)
        return self._choose(now)

    def finish(self, peer: str, now: float) -> list[Action]:
        """End the link to a peer: collect what is in flight, then close it (O18)."""
        if peer in self._clients:
            self._clients[peer].ending = True
        return self._choose(now)

    def tick(self, now: float) -> list[Action]:
        """Time passed, or the pool changed."""
        actions: list[Action] = []
        for peer, client in list(self._clients.items()):
            try:
                client.tick(now)
            except ViolationError as error:
                actions.append(self._drop(peer, error, now))
        return actions + self._choose(now)

    # --- the choice --------------------------------------------------------------------------------------

    def _choose(self, now: float) -> list[Action]:
        actions: list[Action] = []
        batches = self._batches(now)
        for peer, client in list(self._clients.items()):
            if client.ending:
                actions += self._end(client)
                continue
            for ids in batches.get(peer, ()):
                if client.full:
                    break
                actions.append(Send(peer, client.request_objects(tuple(ids), now)))
                for one in ids:
                    size = client.offers[one].size
                    lease = now + LEASE_SECONDS + size / LEASE_BYTES_PER_SECOND
                    self._copies.setdefault(one, {})[peer] = _Copy(size, lease)
            request = client.next_ids(partial(self._settled, client), now, follows_objects=peer in batches)
            if request is not None:
                actions.append(Send(peer, request))
        return actions

    def _settled(self, client: Client, one: ObjectId) -> bool:
        too_large = client.offers[one].size > self._settings.max_object_bytes
        return too_large or self._pool.status(one) is not Status.WANT

    def _batches(self, now: float) -> dict[str, list[list[ObjectId]]]:
        """The requests for objects to send now, by peer."""
        announced = self._announced()
        batches: dict[str, list[list[ObjectId]]] = {}
        loads, bound = self.loads(), self._settings.peer_bytes
        sizes = [(copy.size, one) for one, copies in self._copies.items() for copy in copies.values()]
        total = sum(size for size, _ in sizes if size <= bound)
        large = {one for size, one in sizes if size > bound}
        closed: set[str] = set()
        for one in sorted(announced):
            copies = self._copies.get(one, {}).values()
            peers = [peer for peer in announced[one] if peer not in closed]
            if not peers or len(copies) == COPIES or any(copy.received or now < copy.lease for copy in copies):
                continue
            peer = min(peers, key=loads.__getitem__)
            size = self._clients[peer].offers[one].size
            if size > bound and large - {one}:
                continue
            if loads[peer] and loads[peer] + size > bound:
                closed.add(peer)  # nothing with a higher number passes
                continue
            if size > bound:
                large.add(one)
            elif total + size > self._settings.total_bytes:
                break
            else:
                total += size
            loads[peer] += size
            self._append(one, batches.setdefault(peer, []), self._clients[peer])
        return batches

    def _announced(self) -> dict[ObjectId, list[str]]:
        """Wanted objects, and the peers that can be requested to send them."""
        announced: dict[ObjectId, list[str]] = {}
        for peer, client in self._clients.items():
            if not client.ending and not client.full:
                for one, offer in client.offers.items():
                    if not offer.requested and not self._settled(client, one):
                        announced.setdefault(one, []).append(peer)
        return announced

    def _append(self, one: ObjectId, batches: list[list[ObjectId]], client: Client) -> None:
        """Append an object to the last request, or to a new one: several objects stay within the reply's limit (O8)."""
        last = batches[-1] if batches else []
        size = objects_size(client.offers[each].size for each in (*last, one))
        if last and len(last) < self._settings.objects_per_request and size <= self._settings.reply_limit:
            last.append(one)
        else:
            batches.append([one])

    # --- ends --------------------------------------------------------------------------------------------

    def _end(self, client: Client) -> list[Action]:
        """The end of a link whose replies have arrived; nothing before."""
        if client.in_flight and not client.blocked:
            return []
        self._forget(client.peer)
        done = [] if client.blocked else [Send(client.peer, encode(MsgDone()))]
        return [*done, Close(client.peer)]

    def _drop(self, peer: str, error: ViolationError, now: float) -> Close:
        """The end of the link of a peer that broke a rule."""
        self._forget(peer)
        length, end = self._bars.get(peer, (0.0, 0.0))
        again = length and now < end + BAR_SECONDS_MAX
        length = min(2 * length, BAR_SECONDS_MAX) if again else BAR_SECONDS
        self._bars[peer] = length, now + length
        return Close(peer, error, now + length)

    def _forget(self, peer: str) -> None:
        """Remove a peer; what it was requested to send, and has not sent, is free at once."""
        self._clients.pop(peer, None)
        for one, copies in list(self._copies.items()):
            if peer in copies and not copies[peer].received:
                del copies[peer]
                if not copies:
                    del self._copies[one]
