"""Helpers of the tests of object diffusion: objects, a pool, a simulation with servers of which some are impaired."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random

from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols.diffusion import (
    Action,
    Announcement,
    Close,
    Decoder,
    DiffusionSettings,
    Fetcher,
    Message,
    MsgDone,
    MsgReplyObjectIds,
    MsgReplyObjects,
    MsgRequestObjectIds,
    MsgRequestObjects,
    ObjectId,
    Send,
    Server,
    State,
    Status,
    TooLarge,
    Verify,
    decode,
    encode,
)

INVALID = b"BAD"
"""An object that ends so does not verify."""


def make(number: int, content: bytes = b"", size: int | None = None) -> bytes:
    """An object: its number, and some bytes."""
    return (number.to_bytes(8, "big") + content).ljust(size or 0, b".")


def identify(body: bytes) -> ObjectId | None:
    return ObjectId(int.from_bytes(body[:8], "big"), sha256(body).digest()) if len(body) >= 8 else None


def id_of(body: bytes) -> ObjectId:
    found = identify(body)
    assert found is not None
    return found


def verify(body: bytes) -> bool:
    return not body.endswith(INVALID)


class Pool:
    """Objects in order of arrival. An object is added once; a pinned one cannot be collected."""

    def __init__(self, *bodies: bytes) -> None:
        self.bodies: dict[ObjectId, bytes] = {}
        self.arrivals: list[ObjectId | None] = []
        self.pins: Counter[ObjectId] = Counter()
        self.never: set[ObjectId] = set()
        for body in bodies:
            self.add(id_of(body), body)

    def after(self, ticket: int, limit: int) -> Iterator[tuple[int, ObjectId, int]]:
        found = [(at, one) for at, one in enumerate(self.arrivals, 1) if at > ticket and one is not None]
        return ((at, one, len(self.bodies[one])) for at, one in found[:limit])

    def pin(self, one: ObjectId) -> None:
        assert one in self.bodies
        self.pins[one] += 1

    def release(self, one: ObjectId) -> None:
        assert self.pins[one] > 0
        self.pins[one] -= 1

    def body(self, one: ObjectId) -> bytes:
        assert self.pins[one] > 0
        return self.bodies[one]

    def status(self, one: ObjectId) -> Status:
        if one in self.never:
            return Status.NEVER
        return Status.HAVE if one in self.bodies else Status.WANT

    def add(self, one: ObjectId, body: bytes) -> None:
        assert one not in self.bodies
        self.bodies[one] = body
        self.arrivals.append(one)

    def collect(self, one: ObjectId) -> bool:
        """Remove an object, unless it is pinned."""
        if self.pins[one]:
            return False
        del self.bodies[one]
        self.arrivals[self.arrivals.index(one)] = None
        return True

    @property
    def pinned(self) -> int:
        return self.pins.total()


def written(server: Server) -> bytes:
    """Everything that the server has to write now."""
    return b"".join(iter(server.send, None))


# --- simulation: time is a number, the order of events comes from a seed --------------------------------------------


SETTINGS = DiffusionSettings(
    max_unacked=6,
    ids_per_request=4,
    objects_per_request=3,
    reply_limit=2_000,
    max_object_bytes=20_000,
    peer_bytes=4_000,
    total_bytes=9_000,
)

Impairment = Callable[[Message], "Message | bytes | None"]
"""Changes a reply; None withholds it, and everything after it."""


# --- impairments -------------------------------------------------------------------------------------------


def silent(_reply: Message) -> None:
    """Never answers."""


def silent_on_objects(reply: Message) -> Message | None:
    return None if isinstance(reply, MsgReplyObjects) else reply


def extra_ids(reply: Message) -> Message:
    if not isinstance(reply, MsgReplyObjectIds):
        return reply
    return MsgReplyObjectIds(reply.announcements + tuple(Announcement(id_of(make(n)), 8) for n in range(7)))


def repeated_ids(reply: Message) -> Message:
    return MsgReplyObjectIds(reply.announcements[:1] * 2) if isinstance(reply, MsgReplyObjectIds) else reply


def invented_ids(reply: Message) -> Message:
    """Announces what it does not have, and answers requests with what it has."""
    if not isinstance(reply, MsgReplyObjectIds):
        return MsgReplyObjects((make(1, b"something else"),))
    return MsgReplyObjectIds(
        tuple(Announcement(ObjectId(one.number, bytes(32)), size) for one, size in reply.announcements)
    )


def wrong_size(by: int) -> Impairment:
    def impair(reply: Message) -> Message:
        if not isinstance(reply, MsgReplyObjectIds):
            return reply
        return MsgReplyObjectIds(tuple(Announcement(one, size + by) for one, size in reply.announcements))

    return impair


def of_objects(change: Callable[[tuple[bytes, ...]], Iterable[bytes]]) -> Impairment:
    return lambda reply: MsgReplyObjects(tuple(change(reply.objects))) if isinstance(reply, MsgReplyObjects) else reply


def endless_ids(reply: Message) -> Message | bytes:
    if not isinstance(reply, MsgReplyObjectIds):
        return reply
    return encode(reply)[:-1] + encode(MsgReplyObjectIds((Announcement(id_of(make(1)), 8),)))[3:-1] * 70_000


def endless_objects(reply: Message) -> Message | bytes:
    return encode(reply)[:-1] + b"\x40" * 5_000 if isinstance(reply, MsgReplyObjects) else reply


IMPAIRMENTS: dict[str, Impairment] = {
    "silent": silent,
    "silent on objects": silent_on_objects,
    "extra ids": extra_ids,
    "repeated ids": repeated_ids,
    "invented ids": invented_ids,
    "smaller size": wrong_size(-1),
    "larger size": wrong_size(1),
    "fetched by nobody": wrong_size(1_000_000),
    "missing object": of_objects(lambda objects: objects[1:]),
    "unrequested object": of_objects(lambda objects: (*objects[1:], make(1, b"another"))),
    "additional object": of_objects(lambda objects: (*objects, b"")),
    "doubled object": of_objects(lambda objects: (*objects[1:], objects[-1])),
    "unreadable object": of_objects(lambda objects: (*objects[1:], b"short")),
    "endless ids": endless_ids,
    "endless objects": endless_objects,
    "other message": lambda reply: MsgReplyObjects(()) if isinstance(reply, MsgReplyObjectIds) else reply,
    "noise": lambda _reply: bytes.fromhex("3bbf15cc87947cb26524"),
    "unasked reply": lambda reply: encode(reply) * 2,
    "invalid objects": lambda reply: reply,  # its pool has them
}


class VerifiedPool(Pool):
    """Pool of the fetcher."""

    def add(self, one: ObjectId, body: bytes) -> None:
        assert identify(body) == one
        assert verify(body)
        super().add(one, body)


# --- the world ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Link:
    """A server and its link, as the network sees it."""

    server: Server
    impairment: Impairment | None
    delay: float = 0.0
    inbox: deque[Message] = field(default_factory=deque)
    outbox: deque[tuple[float, bytes]] = field(default_factory=deque)
    announced: list[Announcement] = field(default_factory=list)
    """What the server's replies announced and no request acknowledged."""
    requested: set[ObjectId] = field(default_factory=set)
    """Objects that were requested since they were announced."""
    replies: int = 0
    """Requests without a reply on the wire."""
    mute: bool = False
    decoder: Decoder = field(default_factory=lambda: Decoder(State.INIT))


class World:
    """One fetcher with its pool, and links to servers by name."""

    def __init__(self, seed: int, settings: DiffusionSettings = SETTINGS) -> None:
        self.random = Random(seed)
        self.settings = settings
        self.now = 0.0
        self.pool = VerifiedPool()
        self.fetcher = Fetcher(self.pool, identify, settings)
        self.links: dict[str, Link] = {}
        self.pools: dict[str, Pool] = {}
        self.verifying: list[Verify] = []
        self.closed: list[Close] = []
        self.in_flight: dict[ObjectId, set[str]] = {}
        """Objects on the wire, and the peers that were requested to send them."""

    def join(self, name: str, pool: Pool, impairment: Impairment | None = None, delay: float = 0.0) -> None:
        self.pools[name] = pool
        self.links[name] = Link(Server(pool, self.settings), impairment, delay)
        self.act(self.fetcher.join(name, 0, self.now))

    def leave(self, name: str) -> None:
        self._cut(name)
        self.act(self.fetcher.leave(name, self.now))

    def _cut(self, name: str) -> None:
        self.links.pop(name).server.close()
        for peers in self.in_flight.values():
            peers.discard(name)

    # --- what the fetcher does -----------------------------------------------------------------------------

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(peer, data):
                    self._sent(peer, data)
                case Verify():
                    self.verifying.append(action)
                case Close(peer):
                    self.closed.append(action)
                    if peer in self.links:
                        self._cut(peer)
                case TooLarge(_, _, size):
                    assert size > self.settings.max_object_bytes
        self.check()

    def _sent(self, peer: str, data: bytes) -> None:
        link = self.links[peer]
        message = link.decoder.feed(data)
        assert message is not None
        assert link.decoder.rest == 0
        link.decoder.expect(State.IDLE)
        link.inbox.append(message)
        match message:
            case MsgRequestObjectIds(_, ack, _):
                link.replies += 1
                for one, size in link.announced[:ack]:
                    too_large = size > self.settings.max_object_bytes
                    assert too_large or self.pool.status(one) is not Status.WANT, "acknowledged past an unsettled id"
                    link.requested.discard(one)
                assert ack <= len(link.announced)
                del link.announced[:ack]
            case MsgRequestObjects(ids):
                link.replies += 1
                for one in ids:
                    assert one not in link.requested, "requested twice since it was announced"
                    link.requested.add(one)
                    self.in_flight.setdefault(one, set()).add(peer)
                    assert len(self.in_flight[one]) <= 2
        assert link.replies <= 2 * self.settings.max_unacked

    # --- what the network does -----------------------------------------------------------------------------

    def serve(self, name: str) -> bool:
        """Let a server take its next message, or answer what it waited with."""
        link = self.links[name]
        if link.mute or (link.server.state is State.BLOCKING and not self._answer(link)):
            return False
        if not link.inbox or link.mute:
            return False
        try:
            link.server.receive(encode(link.inbox.popleft()))
        except ViolationError:  # a request that is wrong only because this server lied
            assert link.impairment is not None
            self._reply(link, MsgReplyObjects(()))
        else:
            self._answer(link)
        return True

    def _answer(self, link: Link) -> bool:
        """Put the reply that is due on the wire."""
        state = link.server.state
        data = written(link.server)
        if not data:
            return False
        return self._reply(link, decode(state, data, limit=len(data)))

    def _reply(self, link: Link, reply: Message) -> bool:
        changed = link.impairment(reply) if link.impairment else reply
        if changed is None:
            link.mute = True
            return False
        if isinstance(changed, MsgReplyObjectIds):
            link.announced += changed.announcements
        link.replies -= 1
        link.outbox.append((self.now + link.delay, changed if isinstance(changed, bytes) else encode(changed)))
        return True

    def deliver(self, name: str) -> bool:
        """Bring some bytes of a server to the fetcher."""
        link = self.links[name]
        if not link.outbox or link.outbox[0][0] > self.now:
            return False
        due, data = link.outbox.popleft()
        cut = self.random.choice((1, 10, 100, len(data)))
        if data[cut:]:
            link.outbox.appendleft((due, data[cut:]))
        self.act(self.fetcher.receive(name, data[:cut], self.now))
        return True

    def judge(self) -> bool:
        """Verify one object."""
        if not self.verifying:
            return False
        copy = self.verifying.pop(self.random.randrange(len(self.verifying)))
        self.in_flight.get(copy.id, set()).discard(copy.peer)
        self.act(self.fetcher.verified(copy, self.now, valid=verify(copy.body)))
        return True

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.fetcher.tick(self.now))

    def step(self) -> None:
        """One event at random."""
        names = list(self.links)
        choice = self.random.random()
        if choice < 0.4 and names:
            self.serve(self.random.choice(names))
        elif choice < 0.8 and names:
            self.deliver(self.random.choice(names))
        elif choice < 0.95:
            self.judge()
        else:
            self.pass_time(self.random.choice((0.05, 0.5)))  # in 300 steps less than the 10 s of a reply

    def settle(self) -> None:
        """All events that need no time, except for those of links that another link's bytes end."""
        busy = True
        while busy:
            busy = self.judge()
            for name in list(self.links):
                busy |= name in self.links and self.serve(name)
                busy |= name in self.links and self.deliver(name)

    # --- what must always hold -----------------------------------------------------------------------------

    def check(self) -> None:
        loads = self.fetcher.loads()
        bound = self.settings.peer_bytes
        large = {peer: load for peer, load in loads.items() if load > bound}
        assert all(load <= self.settings.max_object_bytes for load in large.values())
        assert len(large) <= 2, "one object above the bound, of two peers at most"
        assert sum(loads.values()) - sum(large.values()) <= self.settings.total_bytes
        for name, link in self.links.items():
            assert len(link.server.outstanding) <= self.settings.max_unacked
            if link.impairment is None and not (link.inbox or link.outbox or link.replies):
                assert self.fetcher.outstanding(name) == link.server.outstanding

    def clean(self) -> bool:
        """No pins, no leases, no bytes in flight, no body that waits for a verdict."""
        pinned = sum(pool.pinned for pool in self.pools.values())
        return pinned == 0 and not self.fetcher.loads() and not self.fetcher._copies and not self.verifying


def finish(world: World) -> None:
    """End all links in order."""
    for name in list(world.links):
        world.act(world.fetcher.finish(name, world.now))
        done = [message for message in world.links[name].inbox if message == MsgDone()] if name in world.links else []
        assert not done, "a link with MsgDone is closed"
    for _ in range(1_000):
        world.settle()
        if not world.links and not world.verifying:
            return
        world.pass_time(1.0)
    raise AssertionError(f"links do not end: {list(world.links)}")


def invalid(number: int) -> bytes:
    """An object that does not verify."""
    return make(number, INVALID)
