"""Production bugs of the reference (facts section 7), each as a case that the arbiter gets right.

The numbers are those of the reference's issues: BN is the block node, CN the consensus node.
"""

from __future__ import annotations

import pytest

from cardinal.errors import ConfigurationError
from cardinal.protocols.publish import (
    NONE,
    Acknowledgement,
    Arbiter,
    ArbiterSettings,
    BehindPublisher,
    BlockEnd,
    BlockId,
    BlockItemSet,
    CatchUp,
    Complete,
    Discard,
    Effect,
    EndCode,
    EndOfStream,
    EndStream,
    Failure,
    ResendBlock,
    Response,
    Send,
    SkipBlock,
    SourceError,
    Start,
    Status,
)
from model.publish_scenario import header_item, label, other_item, proof_item

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

    def keep(self, *numbers: int, attempt: int | None = None) -> None:
        for number in numbers:
            copy = BlockId(number), attempt or self.attempts[number]
            self.take(self.arbiter.persisted(*copy, self.now))
            self.take(self.arbiter.verified(*copy, self.now))

    def fail(self, number: int, why: Failure = Failure.BAD, attempt: int | None = None) -> list[Effect]:
        copy = BlockId(number), attempt or self.attempts[number]
        return self.take(self.arbiter.failed(*copy, why, self.now))

    def tick(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.take(self.arbiter.tick(self.now))

    def acknowledged(self, name: str) -> list[int]:
        return [one.block_number for one in self.sent.get(name, []) if isinstance(one, Acknowledgement)]


def test_bn_2748_no_acknowledgement_passes_a_block_that_is_resent() -> None:
    node = Node("alice", "bob", "carol")
    node.offer("alice", 101)
    node.offer("bob", 101)
    node.publish("bob", 102, 103)
    node.keep(102, 103)
    node.lose("alice")
    assert node.acknowledged("bob") == []
    node.publish("bob", 101)
    node.keep(101)
    assert node.acknowledged("bob") == [103] == node.acknowledged("carol")


def test_bn_2714_a_resend_is_forgotten_when_the_block_is_there() -> None:
    node = Node("alice", "bob")
    node.offer("alice", 101)
    node.offer("bob", 101)
    node.lose("alice")
    node.take(node.arbiter.stored(BlockId(101), b"", node.now))
    node.publish("bob", 102)
    node.tick(9)
    assert node.sent["bob"].count(ResendBlock(101)) == 1


def test_bn_2934_a_resender_that_is_silent_is_left_behind_as_the_tip_moves() -> None:
    node = Node("alice", "bob", "carol")
    node.offer("alice", 101)
    node.offer("bob", 101)
    node.offer("carol", 101)
    node.lose("alice")
    node.offer("carol", 101)
    node.publish("bob", 102, 103, 104)
    assert EndOfStream(Status.TIMEOUT, LAST, 101) not in node.sent["carol"]
    node.publish("bob", 105)
    assert node.sent["carol"][-1] == EndOfStream(Status.TIMEOUT, LAST, 101)
    assert node.sent["bob"][-1] == ResendBlock(101)


@pytest.mark.parametrize("verdict", ["bad", "verified"])
def test_bn_3391_a_resender_is_not_blamed_for_the_earlier_copy(verdict: str) -> None:
    node = Node("alice", "bob")
    node.publish("alice", 101)
    node.offer("bob", 101)
    node.fail(101)
    assert node.sent["alice"][-1] == EndOfStream(Status.BAD_BLOCK_PROOF, LAST, 101)
    node.publish("bob", 101)
    effects = node.fail(101, attempt=1) if verdict == "bad" else node.take(node.arbiter.verified(BlockId(101), 1, 0.0))
    assert effects == []
    node.keep(101)
    assert node.acknowledged("bob") == [101]


def test_bn_2443_a_reset_in_mid_block_then_backfill() -> None:
    node = Node("alice")
    node.offer("alice", 101)
    effects = node.take(node.arbiter.receive("alice", EndStream(EndCode.RESET), node.now))
    assert effects == [Discard(BlockId(101), 1)]
    node.take(node.arbiter.stored(BlockId(101), b"", node.now))
    assert node.arbiter.last == 101
    node.connect("alice#2")
    node.publish("alice#2", 102)
    node.keep(102)
    assert node.acknowledged("alice#2") == [102]


def test_bn_2055_a_publisher_that_is_killed_in_mid_block_may_send_it_again() -> None:
    node = Node("alice")
    node.offer("alice", 101)
    assert node.lose("alice") == [Discard(BlockId(101), 1), SourceError()]
    node.connect("alice#2")
    node.publish("alice#2", 101)
    node.keep(101)
    assert node.acknowledged("alice#2") == [101]


def test_bn_1516_a_publisher_five_blocks_behind_is_skipped_and_one_six_behind_ends() -> None:
    node = Node("alice", "bob")
    node.offer("alice", LAST - 5)
    node.offer("bob", LAST - 6)
    assert node.sent["alice"] == [SkipBlock(LAST - 5), Acknowledgement(LAST)]
    assert node.sent["bob"] == [EndOfStream(Status.DUPLICATE_BLOCK, LAST, LAST - 6)]


def test_cn_23928_two_behinds_in_flight_fetch_once_each() -> None:
    node = Node("alice")
    node.offer("alice", 105, 106)
    assert node.sent["alice"] == [BehindPublisher(LAST)] * 2
    assert [effect for effect in node.effects if isinstance(effect, CatchUp)] == [CatchUp(101, 104), CatchUp(101, 105)]


def test_bn_1563_a_burst_of_200_blocks_is_taken_in_bounded_parts() -> None:
    node = Node("alice")
    node.publish("alice", *range(101, 301))
    assert node.arbiter.open_blocks == 64
    assert node.arbiter.ignored == 136  # ends of blocks that were refused
    for number in range(101, 165):
        node.keep(number)
    assert node.acknowledged("alice") == list(range(101, 165))
    node.publish("alice", *range(165, 229))
    assert node.arbiter.open_blocks == 64


def test_bn_2470_backfill_and_live_blocks_interleave() -> None:
    node = Node("alice")
    for number in (103, 102):
        node.take(node.arbiter.stored(BlockId(number), b"", node.now))
    node.publish("alice", 101, 102, 104)
    assert node.sent["alice"] == [SkipBlock(102)]
    node.keep(104)
    assert node.acknowledged("alice") == []
    node.keep(101)
    assert node.acknowledged("alice") == [104]


def test_bn_1290_a_block_that_is_begun_again_is_another_attempt() -> None:
    node = Node("alice")
    node.offer("alice", 101, 101)
    assert [effect for effect in node.effects if isinstance(effect, Start | Discard)] == [
        Start(BlockId(101), 1, "alice", BlockId(100)),
        Discard(BlockId(101), 1),
        Start(BlockId(101), 2, "alice", BlockId(100)),
    ]


def test_bn_638_verdicts_out_of_order_are_acknowledged_in_order() -> None:
    node = Node("alice")
    node.publish("alice", 101, 102, 103)
    node.keep(103, 101, 102)
    assert node.acknowledged("alice") == [101, 103]


def test_bn_1718_a_block_that_failed_verification_is_never_acknowledged() -> None:
    node = Node("alice", "bob")
    node.publish("alice", 101)
    node.take(node.arbiter.persisted(BlockId(101), 1, node.now))
    node.fail(101)
    node.publish("bob", 102)
    node.keep(102)
    node.keep(101, attempt=1)
    assert node.acknowledged("bob") == []
    assert node.arbiter.last == LAST


def test_bn_1631_after_a_bad_proof_the_others_are_requested_at_once() -> None:
    node = Node("alice", "bob", "carol")
    node.publish("alice", 101)
    node.offer("bob", 101)
    node.fail(101)
    assert node.sent["bob"] == [SkipBlock(101), ResendBlock(101)]
    assert "carol" not in node.sent  # it has not come to the block yet


def test_bn_2931_many_small_sets_are_one_block() -> None:
    node = Node("alice")
    node.offer("alice", 101)
    for _ in range(2_000):
        node.items("alice", other_item(size=1))
    node.items("alice", proof_item(101))
    node.items("alice", proof_item(101))
    effects = node.take(node.arbiter.receive("alice", BlockEnd(101), node.now))
    assert effects == [Complete(BlockId(101), 1, "alice")]


@pytest.mark.parametrize("broken", [(), (b"\x0a\x05",), (header_item(NONE),), (other_item(), header_item(101))])
def test_a_broken_header_ends_its_stream_alone(broken: tuple[bytes, ...]) -> None:
    node = Node("alice", "bob")
    node.items("alice", *broken)
    assert node.sent["alice"] == [EndOfStream(Status.INVALID_REQUEST, LAST)]
    node.publish("bob", 101)
    node.keep(101)
    assert node.acknowledged("bob") == [101]


def test_a_node_that_fails_ends_all_streams_and_takes_the_blocks_again() -> None:
    node = Node("alice", "bob")
    node.publish("alice", 101)
    node.fail(101, Failure.PERSISTENCE)
    assert node.sent["alice"][-1] == node.sent["bob"][-1] == EndOfStream(Status.PERSISTENCE_FAILED, LAST, 101)
    node.connect("alice#2")
    node.publish("alice#2", 101)
    node.keep(101)
    assert node.acknowledged("alice#2") == [101]


def test_fifty_rapid_reconnects_leave_one_connection_and_no_copy_behind() -> None:
    node = Node()
    for i in range(50):
        node.connect(f"alice#{i}")
        node.offer(f"alice#{i}", 101)
        if i < 49:
            node.lose(f"alice#{i}")
    node.items("alice#49", proof_item(101))
    node.take(node.arbiter.receive("alice#49", BlockEnd(101), node.now))
    assert node.attempts == {101: 50}
    node.keep(101)
    assert node.acknowledged("alice#49") == [101]
    assert node.arbiter.open_blocks == 0


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


def test_a_full_node_lets_publishers_wait() -> None:
    node = Node("alice")
    node.arbiter.full = True
    node.offer("alice", 101)
    assert node.sent["alice"] == [BehindPublisher(LAST)]
    node.arbiter.full = False
    node.publish("alice", 101)
    node.keep(101)
    assert node.acknowledged("alice") == [101]


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
    assert node.fail(101) == [Discard(BlockId(101), 1)]
    node.publish("alice", 101)
    node.keep(101)
    assert node.acknowledged("alice") == [101]


def test_nothing_happens_after_a_shutdown() -> None:
    node = Node("alice")
    node.offer("alice", 101)
    node.take(node.arbiter.shutdown(node.now))
    assert node.sent["alice"] == [EndOfStream(Status.SUCCESS, LAST, 101)]
    assert node.tick(100) == []
    assert node.arbiter.open_blocks == 0


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
