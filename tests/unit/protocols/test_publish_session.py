"""Arbiter and session of the publish protocol: what no vector and no schedule of the model shows."""

from __future__ import annotations

from typing import Self

import pytest

from cardinal.errors import ConfigurationError, LocalProtocolError
from cardinal_ingest.protocols.publish import (
    NONE,
    Acknowledged,
    Acknowledgement,
    Arbiter,
    ArbiterSettings,
    BehindPublisher,
    BlockEnd,
    BlockId,
    BlockItemSet,
    Close,
    Discard,
    Drained,
    Effect,
    EndCode,
    EndOfStream,
    EndStream,
    Failure,
    Header,
    Open,
    PublisherSession,
    Push,
    Released,
    ResendBlock,
    Response,
    Saturated,
    Send,
    SessionEffect,
    SessionSettings,
    SkipBlock,
    Start,
    Status,
    read_item,
)
from model.publish_scenario import bytes_field, header_item, label, other_item, proof_item

# --- arbiter --------------------------------------------------------------------------------------------------------


LAST = 100


class Node:
    """An arbiter with publishers that are connected by name, and what each was sent."""

    def __init__(self, *names: str, **settings: int) -> None:
        self.arbiter = Arbiter(ArbiterSettings(last_stored=LAST, **settings))
        self.now = 0.0
        self.attempts: dict[int, int] = {}
        self.sent: dict[str, list[Response]] = {}
        self.effects: list[Effect] = []
        for name in names:
            self.connect(name)

    def take(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Start):
                self.attempts[effect.block.number] = effect.attempt
            elif isinstance(effect, Send):
                self.sent.setdefault(str(effect.connection), []).append(effect.response)
        self.effects += effects
        return effects

    def connect(self, name: str) -> None:
        self.take(self.arbiter.connect(name, name.split("#", maxsplit=1)[0], self.now))

    def lose(self, name: str) -> list[Effect]:
        return self.take(self.arbiter.disconnect(name, self.now))

    def offer(self, name: str, *numbers: int) -> None:
        for number in numbers:
            self.items(name, header_item(number), other_item())

    def items(self, name: str, *items: bytes) -> list[Effect]:
        return self.take(self.arbiter.receive(name, BlockItemSet(items), self.now))

    def publish(self, name: str, *numbers: int) -> None:
        for number in numbers:
            self.items(name, header_item(number), other_item(), proof_item(number))
            self.take(self.arbiter.receive(name, BlockEnd(number), self.now))

    def keep(self, number: int) -> None:
        copy = BlockId(number), self.attempts[number]
        self.take(self.arbiter.persisted(*copy, self.now) + self.arbiter.verified(*copy, self.now))

    def acknowledged(self, name: str) -> list[int]:
        return [one.block_number for one in self.sent.get(name, []) if isinstance(one, Acknowledgement)]


# --- forks: what no scenario of the vectors shows ------------------------------------------------------------------


def fork_node(*stored: str) -> Arbiter:
    """A node with forks; its blocks are labels, each a child of the one before."""
    ids = [fork(name) for name in stored]
    parents = [label(f"{ids[0].number - 1}a"), *(block.hash for block in ids)]
    return Arbiter(ArbiterSettings(reorg_threshold=8), dict(zip(ids, parents, strict=False)))


def fork(name: str) -> BlockId:
    return BlockId(int(name.rstrip("abcxyz")), label(name))


def offered(node: Arbiter, connection: str, name: str, parent: str, *items: bytes) -> list[Effect]:
    header = header_item(fork(name).number, label(name), label(parent))
    return node.receive(connection, BlockItemSet((header, *items)), 0.0)


def responses(effects: list[Effect]) -> list[Response]:
    return [effect.response for effect in effects if isinstance(effect, Send)]


def test_no_acknowledgement_passes_a_header_that_was_refused() -> None:
    node = fork_node("99a", "100a")
    for name in ("alice", "bob"):
        node.connect(name, name, 0.0)
    offered(node, "bob", "101x", "100a", proof_item(101))
    offered(node, "bob", "102b", "101x", proof_item(102))
    offered(node, "alice", "101a", "100a", proof_item(101))
    assert responses(offered(node, "alice", "102b", "101a")) == [BehindPublisher(101)]  # bob's is a child of 101x
    offered(node, "alice", "103b", "102b", proof_item(103))
    node.receive("bob", BlockEnd(102), 0.0)
    node.receive("alice", BlockEnd(103), 0.0)
    effects: list[Effect] = []
    for name in ("101x", "102b", "103b"):
        effects += node.verified(fork(name), 1, 0.0) + node.persisted(fork(name), 1, 0.0)
    assert {effect.connection for effect in effects if isinstance(effect, Send)} == {"bob"}
    assert node.last == 103  # alice claims that 102b is a child of 101a: nothing above 100a is acknowledged to her


def test_the_block_in_progress_is_left_when_its_branch_was_cut_off() -> None:
    node = fork_node("99a", "100a")
    node.connect("alice", "alice", 0.0)
    offered(node, "alice", "101a", "100a", proof_item(101))
    node.receive("alice", BlockEnd(101), 0.0)
    offered(node, "alice", "102a", "101a")
    node.stored(fork("101a"), label("100x"), 0.0)
    effects = offered(node, "alice", "102a", "101a")
    assert Discard(fork("102a"), 1) in effects
    assert responses(effects) == [Acknowledgement(NONE), BehindPublisher(100)]
    assert node.receive("alice", BlockItemSet((other_item(),)), 0.0) == []
    assert node.ignored == 1


# --- the service's side -------------------------------------------------------------------------------------------


def test_a_service_ends_a_stream_and_its_block_in_progress() -> None:
    node = Node("alice", "bob")
    node.offer("alice", 101)
    node.take(node.arbiter.end("alice", Status.ERROR, node.now))
    node.take(node.arbiter.end("bob", Status.ERROR, node.now))
    assert node.sent["alice"] == [EndOfStream(Status.ERROR, LAST, 101)]
    assert node.sent["bob"] == [EndOfStream(Status.ERROR, LAST)]
    assert node.take(node.arbiter.end("alice", Status.ERROR, node.now)) == node.lose("alice") == []


def test_a_connection_of_the_same_name_ends_the_former() -> None:
    node = Node("alice")
    node.offer("alice", 101)
    node.connect("alice")
    assert node.effects[-1] == Discard(BlockId(101), 1)
    node.publish("alice", 101)
    node.keep(101)
    assert node.acknowledged("alice") == [101]


def test_a_verdict_on_a_sender_that_left_harms_no_other_connection_of_its_name() -> None:
    node = Node("alice")
    node.publish("alice", 101)
    node.lose("alice")
    node.connect("alice")
    assert node.take(node.arbiter.failed(BlockId(101), 1, Failure.BAD, node.now)) == [Discard(BlockId(101), 1)]
    node.publish("alice", 101)
    node.keep(101)
    assert node.acknowledged("alice") == [101]


def test_an_empty_node_knows_no_block_to_fetch_before_its_first_header() -> None:
    arbiter = Arbiter(ArbiterSettings())
    arbiter.connect("alice", "alice", 0.0)
    assert arbiter.receive("alice", EndStream(EndCode.TOO_FAR_BEHIND, 1, 9), 0.0) == []
    assert arbiter.last is None
    assert arbiter.receive("alice", None, 0.0) == []


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"idle_timeout": 3.9}, "idle_timeout"),
        ({"block_time": 17.0, "idle_timeout": 34.0}, "block_timeout"),
        ({"stall_distance": 0}, "stall_distance"),
    ],
)
def test_settings_that_end_streams_too_early_are_refused(settings: dict[str, float], setting: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ArbiterSettings(**settings)  # type: ignore[arg-type] # each of its own type
    assert refused.value.setting == setting


def test_blocks_by_number() -> None:
    arbiter = Arbiter(ArbiterSettings(first=5))
    assert arbiter.floor == 4
    assert [number for number in range(10) if arbiter.lacks(BlockId(number))] == [5, 6, 7, 8, 9]
    assert [number for number in range(10) if arbiter.joins(BlockId(number), BlockId(number - 1))] == [0, 1, 2, 3, 4, 5]
    assert arbiter.stored(BlockId(6), b"", 0.0) == []
    assert arbiter.unlinked(BlockId(6))
    assert not arbiter.lacks(BlockId(6))
    assert not arbiter.unlinked(BlockId(7))
    effects = arbiter.stored(BlockId(5), b"", 0.0)
    assert effects == [Acknowledged(BlockId(5), BlockId(4)), Acknowledged(BlockId(6), BlockId(5))]
    assert arbiter.floor == 6
    assert not arbiter.unlinked(BlockId(6))
    assert not arbiter.lacks(BlockId(6))


def test_branches() -> None:
    def block(number: int, fork: str = "a") -> BlockId:
        return BlockId(number, fork.encode() * 32)

    arbiter = Arbiter(ArbiterSettings(first=5, reorg_threshold=2))
    assert arbiter.joins(block(5), block(4))
    assert not arbiter.joins(block(6), block(5))
    for number in range(5, 9):
        arbiter.stored(block(number), block(number - 1).hash, 0.0)
    assert arbiter.floor == 6
    assert not arbiter.lacks(block(8))
    assert not arbiter.lacks(block(6, "b")), "it is too deep"
    assert arbiter.lacks(block(7, "b"))
    assert arbiter.joins(block(9, "b"), block(8))
    assert not arbiter.joins(block(9, "b"), block(8, "b"))
    arbiter.stored(block(9, "b"), block(8, "b").hash, 0.0)
    assert arbiter.unlinked(block(9, "b"))
    arbiter.stored(block(8, "b"), block(7).hash, 0.0)
    assert not arbiter.unlinked(block(9, "b"))


# --- session --------------------------------------------------------------------------------------------------------


MEBIBYTE = 1024 * 1024


def block(number: int, name: str = "", parent: str = "") -> tuple[bytes, ...]:
    """The items of a block; ``name`` and ``parent`` are labels of its hash and its parent's."""
    header = header_item(number, label(name), label(parent)) if name else header_item(number)
    return header, other_item(size=3), proof_item(number)


class Host:
    """A session, its time, and what it sent."""

    def __init__(self, nodes: tuple[str, ...] = ("a",), draw: float = 0.5, **settings: float) -> None:
        given = SessionSettings(**settings)  # type: ignore[arg-type] # numbers and one truth
        self.session = PublisherSession(given, [(name, i) for i, name in enumerate(nodes)], lambda: draw)
        self.now = 0.0
        self.stream = 0
        self.log: list[SessionEffect] = []
        self.tick(0)

    def take(self, effects: list[SessionEffect]) -> list[SessionEffect]:
        self.log += effects
        for effect in effects:
            if isinstance(effect, Open):
                self.stream = effect.stream
                self.take(self.session.opened(effect.stream, self.now))
        return effects

    def tick(self, seconds: float) -> list[SessionEffect]:
        self.now += seconds
        return self.take(self.session.tick(self.now))

    def add(self, *numbers: int) -> Self:
        for number in numbers:
            self.take(self.session.append(block(number), self.now, sealed=True))
        return self

    def add_fork(self, *names: str) -> Self:
        """Blocks by label: "12a" is a child of the one before, "12b<11a" names its parent."""
        for text in names:
            name, _, parent = text.partition("<")
            number = int(name.rstrip("abcdefgh"))
            self.parent = parent or self.parent
            self.take(self.session.append(block(number, name, self.parent), self.now, sealed=True))
            self.parent = name
        return self

    parent = "9a"

    def receive(self, *responses: Response | None) -> list[SessionEffect]:
        return [
            effect
            for response in responses
            for effect in self.take(self.session.receive(self.stream, response, self.now))
        ]

    def send(self, most: int = 100) -> list[str]:
        """Everything that the session has to send now: names of headers, "end 12", "items"."""
        found = []
        for _ in range(most):
            effects = self.take(self.session.ready(self.stream, self.now))
            if not effects or not isinstance(effects[0], Push):
                break
            found.append(self.named(effects[0]))
        return found

    @staticmethod
    def named(push: Push) -> str:
        match push.request:
            case BlockItemSet(items):
                first = read_item(items[0])
                return (
                    (first.hash.rstrip(b"\0").decode() or str(first.number)) if isinstance(first, Header) else "items"
                )
            case BlockEnd(number):
                return f"end {number}"
            case EndStream(code, earliest, latest):
                return f"{EndCode(code).name} {earliest}-{latest}"

    def opened(self) -> list[str]:
        return [effect.node for effect in self.log if isinstance(effect, Open)]

    def ended(self) -> list[str]:
        return [
            self.named(effect)
            for effect in self.log
            if isinstance(effect, Push) and isinstance(effect.request, EndStream)
        ]


# --- sending (P34) ------------------------------------------------------------------------------------------------


def test_blocks_are_sent_in_order_and_end_with_a_block_end() -> None:
    host = Host()
    assert host.send() == []
    host.add(10, 11)
    assert host.send() == ["10", "end 10", "11", "end 11"]
    assert host.receive(Acknowledgement(10)) == [Released(10)]
    assert (host.session.held, host.session.acknowledged, host.session.node) == (1, 10, "a")


def test_many_small_items_travel_in_sets_of_two_mebibytes_and_a_larger_one_alone() -> None:
    host = Host()
    sizes = [MEBIBYTE, MEBIBYTE // 2, MEBIBYTE, 5 * MEBIBYTE, 10]
    items = (header_item(10), *(other_item(size=size) for size in sizes), proof_item(10), proof_item(10))
    host.take(host.session.append(items, 0.0, sealed=True))
    host.send()
    sets = [effect.request.block_items for effect in host.log if isinstance(effect, Push)
            and isinstance(effect.request, BlockItemSet)]  # fmt: skip
    assert [len(one) for one in sets] == [3, 1, 1, 3]
    assert tuple(item for one in sets for item in one) == items
    assert host.session.held_bytes == sum(map(len, items))


def test_all_proofs_are_in_one_set_after_content_that_fills_the_last() -> None:
    host = Host()
    items = (header_item(10), other_item(size=2 * MEBIBYTE - 20), *[proof_item(10)] * 9)
    host.take(host.session.append(items, 0.0, sealed=True))
    assert host.send() == ["10", "items", "end 10"]


def test_proofs_that_are_larger_than_a_set_travel_in_one() -> None:
    host = Host()
    proofs = (bytes_field(9, bytes(MEBIBYTE)),) * 3
    host.take(host.session.append((header_item(10), *proofs), 0.0, sealed=True))
    assert host.send() == ["10", "items", "end 10"]


@pytest.mark.parametrize(
    ("items", "sealed"),
    [
        ((other_item(),), False),
        ((*block(10), header_item(11)), False),
        ((header_item(10), b"\x0a\x05"), False),
        ((header_item(10), proof_item(10), other_item()), False),
        ((header_item(10), other_item(size=125 * MEBIBYTE)), False),
        ((header_item(10),), True),
        ((), True),
        ((header_item(NONE),), False),
    ],
)
def test_items_that_are_no_block_are_refused(items: tuple[bytes, ...], *, sealed: bool) -> None:
    with pytest.raises(LocalProtocolError):
        Host().session.append(items, 0.0, sealed=sealed)


def test_a_gap_and_a_block_of_another_branch_are_refused() -> None:
    host, forks = Host(), Host(forks=True)
    host.add(10)
    with pytest.raises(LocalProtocolError, match="block 12 does not follow block 10"):
        host.add(12)
    with pytest.raises(LocalProtocolError, match="must carry its hash"):
        forks.add(10)
    forks.add_fork("10a")
    with pytest.raises(LocalProtocolError, match="report the reorg"):
        forks.add_fork("11a<10b")


# --- the cursor (P35, P36) ----------------------------------------------------------------------------------------


def test_a_skipped_block_is_stopped_and_kept() -> None:
    host = Host()
    host.take(host.session.append((header_item(10),), 0.0, sealed=False))
    assert host.send() == ["10"]
    host.receive(SkipBlock(9), SkipBlock(10))
    host.take(host.session.append((other_item(), proof_item(10)), 0.0, sealed=True))
    host.add(11)
    assert host.send() == ["11", "end 11"]
    assert host.session.held == 2


def test_a_block_that_is_acknowledged_while_it_grows_is_let_go() -> None:
    host = Host()
    host.take(host.session.append((header_item(10),), 0.0, sealed=False))
    host.send()
    host.receive(Acknowledgement(12))
    host.take(host.session.append((other_item(), proof_item(10)), 0.0, sealed=True))
    host.add(11, 12, 13)
    assert host.send() == ["13", "end 13"]
    assert host.session.held == 1


def test_a_block_is_resent_after_the_one_in_hand() -> None:
    host = Host().add(10, 11, 12)
    assert host.send(5) == ["10", "end 10", "11", "end 11", "12"]
    host.receive(ResendBlock(13), ResendBlock(11), ResendBlock(10))
    assert host.send() == ["end 12", "10", "end 10", "11", "end 11", "12", "end 12"]


def test_a_block_that_was_resent_by_another_in_between_is_not_sent_again() -> None:
    host = Host().add(10, 11)
    host.send(3)
    host.receive(ResendBlock(10), Acknowledgement(10))
    assert host.send() == ["end 11"]


def test_a_skip_in_hand_makes_place_for_the_block_to_resend() -> None:
    host = Host().add(10, 11)
    host.send(3)
    host.receive(ResendBlock(10), SkipBlock(11))
    assert host.send() == ["10", "end 10", "11", "end 11"]


def test_a_resend_of_what_is_not_held_ends_the_stream() -> None:
    host = Host().add(10, 11)
    host.send()
    host.receive(Acknowledgement(10), ResendBlock(10))
    assert host.ended() == ["TOO_FAR_BEHIND 10-10"]


def test_two_behinds_in_flight_are_one() -> None:
    """Consensus node 23928 and 23250."""
    host = Host().add(10, 11, 12)
    host.send()
    host.receive(BehindPublisher(9), BehindPublisher(9))
    assert host.send(1) == ["10"]
    host.receive(BehindPublisher(9))
    assert host.send() == ["end 10", "11", "end 11", "12", "end 12"]


def test_the_same_behind_without_progress_waits_longer_each_time() -> None:
    host = Host().add(10, 11)
    waits = []
    for _ in range(6):
        host.send()
        host.receive(BehindPublisher(9))
        waited = 0.0
        while not host.send(1):
            host.tick(0.25)
            waited += 0.25
        waits.append(waited)
    assert waits == [0, 0.25, 0.5, 1, 2, 2]


def test_a_node_far_behind_cools_longer_each_time() -> None:
    host = Host(behind_cooling_most=4).add(10)
    host.send()
    host.receive(Acknowledgement(10))
    host.add(11)
    pauses = []
    for _ in range(4):
        host.send()
        host.receive(BehindPublisher(5))
        pauses.append(0)
        count = len(host.opened())
        while len(host.opened()) == count:
            host.tick(1)
            pauses[-1] += 1
    assert pauses == [1, 2, 4, 4]
    assert host.ended()[0] == "TOO_FAR_BEHIND 10-10"


def test_an_empty_node_begins_with_block_zero() -> None:
    host = Host().add(0, 1)
    host.send()
    host.receive(BehindPublisher(NONE))
    assert host.send(1) == ["0"]


def test_nothing_is_made_of_answers_before_the_first_block() -> None:
    host = Host()
    host.receive(None, SkipBlock(3), ResendBlock(3), BehindPublisher(2), Acknowledgement(NONE))
    host.add(10)
    assert host.send() == ["10", "end 10"]


# --- ends and nodes (P37, P38, P40) -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.SUCCESS, Status.ERROR, Status.UNKNOWN, Status.PERSISTENCE_FAILED, 8, -1])
def test_another_node_is_taken_at_once_and_the_first_again_when_it_cooled(status: int) -> None:
    host = Host(("a", "b")).add(10)
    host.send()
    assert host.receive(EndOfStream(status, NONE)) == [Close(1), Open("b", 2)]
    assert host.send() == ["10", "end 10"]
    host.receive(EndOfStream(Status.ERROR, NONE))
    host.tick(29)
    assert host.opened() == ["a", "b"]
    host.tick(1)
    assert host.opened() == ["a", "b", "a"]


@pytest.mark.parametrize(
    "status", [Status.INVALID_REQUEST, Status.TIMEOUT, Status.DUPLICATE_BLOCK, Status.BAD_BLOCK_PROOF]
)
def test_the_same_node_is_taken_after_a_back_off_from_the_block_after_the_nodes_last(status: Status) -> None:
    host = Host(("a", "b")).add(10, 11)
    host.send()
    assert host.receive(EndOfStream(status, 10)) == [Close(1), Released(10)]
    host.tick(0.7)
    assert host.opened() == ["a"]
    host.tick(0.1)
    assert host.opened() == ["a", "a"]
    assert host.send() == ["11", "end 11"]


def test_the_back_off_grows_and_an_acknowledgement_ends_it() -> None:
    host = Host(draw=0, storm_ends=99).add(10)
    waits = []
    for i in range(6):
        host.send()
        if i == 5:
            host.receive(Acknowledgement(9))
        host.receive(EndOfStream(Status.TIMEOUT, NONE))
        waits.append(0.0)
        count = len(host.opened())
        while len(host.opened()) == count:
            host.tick(0.5)
            waits[-1] += 0.5
    assert waits == [0.5, 1, 2, 4, 5, 0.5]


def test_six_ends_in_half_a_minute_are_followed_by_a_pause() -> None:
    host = Host(draw=0, backoff_most=1).add(10)
    for _ in range(6):
        host.receive(EndOfStream(Status.INVALID_REQUEST, NONE))
        host.tick(0.5)
    assert len(host.opened()) == 6
    host.tick(29)
    assert len(host.opened()) == 6
    host.tick(1)
    assert len(host.opened()) == 7
    host.tick(40)
    host.receive(EndOfStream(Status.INVALID_REQUEST, NONE))
    host.tick(40)
    host.receive(EndOfStream(Status.INVALID_REQUEST, NONE))
    assert host.tick(0.5)


def test_a_lost_stream_continues_on_another_node_with_what_is_unacknowledged() -> None:
    """Consensus node 25389: nothing that was not acknowledged is forgotten."""
    host = Host(("a", "b")).add(10, 11)
    host.send()
    host.receive(Acknowledgement(10))
    host.take(host.session.closed(1, 0.0))
    assert host.opened() == ["a", "b"]
    assert host.send() == ["11", "end 11"]
    assert host.session.receive(1, Acknowledgement(11), 0.0) == []
    assert host.session.ready(1, 0.0) == host.session.closed(1, 0.0) == host.session.opened(1, 0.0) == []


def test_late_acknowledgements_make_the_session_leave() -> None:
    host = Host(("a", "b")).add(*range(10, 16))
    host.send()
    host.tick(31)
    assert host.ended() == ["TIMEOUT 10-15"]
    assert host.opened() == ["a", "b"]


def test_five_acknowledgements_that_came_late_make_the_session_leave() -> None:
    host = Host(("a", "b"), late_after=2)
    for number in range(10, 15):
        host.add(number)
        host.send()
        host.tick(3)
        host.receive(Acknowledgement(number))
    assert host.ended() == ["TIMEOUT 13-13"]


def test_acknowledgements_in_time_forgive_late_ones() -> None:
    host = Host(("a", "b"), late_after=2)
    for number in range(10, 20):
        host.add(number)
        host.send()
        host.tick(3 if number % 3 else 1)
        host.receive(Acknowledgement(number))
    assert host.ended() == []


def test_a_stream_is_reset_between_blocks_once_a_day() -> None:
    host = Host(("a", "b"), draw=0.9)
    host.take(host.session.append((header_item(10),), 0.0, sealed=False))
    host.send()
    host.tick(86_400)
    assert host.ended() == []
    host.take(host.session.append((proof_item(10),), host.now, sealed=True))
    assert host.send(3) == ["items", "end 10", "RESET 10-10"]
    assert host.opened() == ["a", "b"]
    host.receive(Acknowledgement(10))
    host.tick(86_400)
    assert host.ended() == ["RESET 10-10", "RESET 10-10"]


def test_a_session_that_stops_ends_its_stream_and_opens_no_other() -> None:
    host = Host().add(10)
    host.send(1)
    host.take(host.session.stop(0.0))
    assert host.ended() == ["ERROR 10-10"]
    assert host.tick(100) == [] == host.session.stop(100.0)
    idle = Host()
    idle.take(idle.session.stop(0.0))
    assert idle.ended() == ["RESET 0-0"]
    assert idle.session.node is None


# --- the buffer (P33, P39) ----------------------------------------------------------------------------------------


def test_a_half_full_buffer_makes_the_session_try_another_node_and_a_full_one_stops_the_host() -> None:
    host = Host(("a", "b"), buffer_blocks=10).add(*range(10, 15))
    host.tick(19)
    assert host.opened() == ["a"]
    host.tick(1)
    assert host.opened() == ["a", "b"]
    assert host.ended() == ["TIMEOUT 10-14"]
    host.add(*range(15, 20))
    assert host.log[-1] == Saturated()
    host.send()
    assert host.receive(Acknowledgement(10)) == [Released(10)]
    assert host.receive(Acknowledgement(11)) == [Released(11), Drained()]


def test_growing_blocks_saturate() -> None:
    """Consensus node 26949."""
    host = Host(buffer_bytes=100)
    host.take(host.session.append((header_item(10), other_item(size=200)), 0.0, sealed=False))
    assert host.log[-1] == Saturated()
    host.take(host.session.append((proof_item(10),), 0.0, sealed=True))
    assert host.send() == ["10", "end 10"]
    assert host.receive(Acknowledgement(10)) == [Released(10), Drained()]


# --- forks (P49) --------------------------------------------------------------------------------------------------


def test_until_the_restart_answers_mean_what_was_sent_before_the_turn() -> None:
    host = Host(forks=True).add_fork("10a", "11a", "12a")
    host.send()
    host.take(host.session.reorg(10, 0.0))
    host.add_fork("11b<10a", "12b")
    assert host.send(1) == ["11b"]
    assert host.receive(SkipBlock(11), BehindPublisher(9), ResendBlock(11)) == []
    assert host.send(1) == ["end 11"]
    assert host.receive(Acknowledgement(11)) == [Released(10)]
    assert host.receive(Acknowledgement(NONE), Acknowledgement(11)) == [Released(11)]
    assert host.send() == ["12b", "end 12"]


def test_a_resend_of_a_common_ancestor_is_obeyed_before_the_restart() -> None:
    host = Host(forks=True).add_fork("10a", "11a")
    host.send()
    host.take(host.session.reorg(10, 0.0))
    host.add_fork("11b<10a")
    host.send()
    host.receive(ResendBlock(10))
    assert host.send() == ["10a", "end 10", "11b", "end 11"]


def test_an_acknowledgement_of_an_abandoned_branch_releases_its_ancestors_alone() -> None:
    host = Host(forks=True).add_fork("10a", "11a", "12a")
    host.send()
    host.take(host.session.reorg(10, 0.0))
    host.add_fork("11b<10a")
    assert host.receive(Acknowledgement(12)) == [Released(10)]
    assert host.receive(Acknowledgement(30)) == []
    assert host.send() == ["11b", "end 11"]


def test_the_parent_of_the_first_header_is_released_too() -> None:
    host = Host(("a", "b"), forks=True).add_fork("10a", "11a", "12a")
    host.send()
    host.receive(ResendBlock(11))
    assert host.send(1) == ["11a"]
    assert host.receive(Acknowledgement(NONE), Acknowledgement(10)) == [Released(10)]


def test_a_reorg_moves_a_resend_that_is_pending() -> None:
    host = Host(forks=True).add_fork("10a", "11a", "12a")
    host.send(5)
    host.receive(ResendBlock(10))
    host.take(host.session.reorg(11, 0.0))
    host.take(host.session.reorg(30, 0.0))
    assert host.send() == ["10a", "end 10", "11a", "end 11"]


def test_behind_below_the_lowest_block_offers_that_one_first() -> None:
    host = Host(forks=True).add_fork("10a", "11a", "12a", "13a")
    host.send()
    host.receive(Acknowledgement(10), Acknowledgement(11))
    host.receive(BehindPublisher(9))
    assert host.send(1) == ["12a"]
    host.receive(Acknowledgement(NONE), BehindPublisher(9))
    assert host.ended() == ["TOO_FAR_BEHIND 11-11"]


def test_behind_only_lowers_a_cursor_that_was_moved() -> None:
    host = Host(forks=True).add_fork("10a", "11a", "12a", "13a")
    host.send()
    host.receive(BehindPublisher(11), BehindPublisher(10), BehindPublisher(12), SkipBlock(13))
    assert host.send(1) == ["11a"]


def test_the_acknowledgement_that_follows_a_turn_does_not_end_the_waiting() -> None:
    host = Host(forks=True).add_fork("10a", "11a")
    host.send()
    host.receive(Acknowledgement(10), Acknowledgement(11))
    host.take(host.session.reorg(10, 0.0))
    host.add_fork("11b<10a")
    host.send()
    waits = []
    for _ in range(5):
        host.receive(Acknowledgement(NONE), Acknowledgement(10), BehindPublisher(10))
        waits.append(0.0)
        while host.send() != ["11b", "end 11"]:
            host.tick(0.25)
            waits[-1] += 0.25
    assert waits == [0.25, 0.5, 1, 2, 2]


def test_a_duplicate_ends_the_stream_and_the_next_begins_above_the_floor() -> None:
    host = Host(forks=True).add_fork("10a", "11a", "12a")
    host.send()
    host.receive(EndOfStream(Status.DUPLICATE_BLOCK, 11))
    assert host.session.held == 3
    host.tick(1)
    assert host.send() == ["12a", "end 12"]
    host.receive(EndOfStream(Status.TIMEOUT, 11))
    host.tick(2)
    assert host.send(1) == ["10a"]
