"""Laws of the mesh: bytes, links under any pieces and pace, a network under seeded faults, faulty links."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols import cbor
from cardinal_ingest.protocols.mesh import (
    OVERHEAD,
    Acceptor,
    Ack,
    Begin,
    Decoder,
    Effect,
    Frame,
    Heartbeat,
    Hello,
    Identity,
    IncomingLink,
    LinkState,
    Message,
    OutgoingLink,
    Reason,
    Refusal,
    Refused,
    SnapshotWanted,
    Welcome,
    decode,
    encode,
)
from examples import examples
from meshing import SETTINGS, Pair, received, sent
from model.__main__ import main
from model.mesh_schedule import Faults, run_mesh

EDGES = [0, 1, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**64 - 1]
WORDS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from(EDGES))
NUMBERS = WORDS.filter(bool)
NAMES = st.text("abcxyz019-", min_size=1, max_size=32)
NONCES = st.binary(min_size=16, max_size=16)
SIGNATURES = st.binary(min_size=64, max_size=64)
PAYLOADS = st.one_of(st.binary(max_size=40), st.sampled_from([b"x" * size for size in (255, 256, 65_536)]))
HASHES = st.binary(min_size=32, max_size=32)

FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Hello, HASHES, NAMES, NAMES, st.lists(WORDS, max_size=4).map(tuple), NONCES, SIGNATURES),
    st.builds(Welcome, NAMES, NAMES, WORDS, NONCES, SIGNATURES),
    st.builds(Begin, SIGNATURES),
    st.builds(Refused, st.sampled_from(Refusal), st.text(max_size=40).filter(str.isprintable)),
    st.builds(Message, NUMBERS, WORDS, PAYLOADS, SIGNATURES),
    st.builds(Heartbeat, NUMBERS, SIGNATURES),
    st.builds(Ack, NUMBERS, SIGNATURES),
)
DOCUMENTED = ("DecoderFailure", "ExceededSizeLimit", "Incomplete")


def outcome(data: bytes, limit: int = 2**20) -> list[Frame] | str:
    """The frames of closed bytes, or the name of the rule that they break."""
    return in_pieces([data], limit)


def in_pieces(pieces: list[bytes], limit: int = 2**20) -> list[Frame] | str:
    decoder, found = Decoder(limit), list[Frame]()
    try:
        for piece in pieces:
            found += decoder.feed(piece)
    except ViolationError as error:
        assert error.violation in DOCUMENTED  # noqa: PT017 - all that there is
        return error.violation
    return "Incomplete" if decoder.rest else found


@given(FRAMES)
def test_a_frame_survives_the_round_trip(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


SMALL = [
    Hello(b"h" * 32, "a", "node-2", (1, 300), b"n" * 16, b"s" * 64),
    Welcome("node-2", "a", 1, b"n" * 16, b"s" * 64),
    Begin(b"s" * 64),
    Refused(Refusal.CLUSTER, "überall"),
    Message(24, 5, b"payload", b"s" * 64),
    Heartbeat(256, b"s" * 64),
    Ack(65_536, b"s" * 64),
]


@pytest.mark.parametrize("frame", SMALL, ids=lambda frame: type(frame).__name__)
@pytest.mark.parametrize("after", [[], [Heartbeat(1, b"s" * 64)]], ids=["alone", "followed"])
def test_every_split_in_two_and_three_pieces_reads_the_same(frame: Frame, after: list[Frame]) -> None:
    data = b"".join(map(encode, [frame, *after]))
    expected = [frame, *after]
    for first, second in combinations(range(0, len(data) + 1, 2 if after else 1), 2):
        assert in_pieces([data[:first], data[first:second], data[second:]]) == expected
    assert in_pieces([data[at : at + 1] for at in range(len(data))]) == expected


@pytest.mark.parametrize("frame", SMALL, ids=lambda frame: type(frame).__name__)
def test_every_prefix_is_incomplete(frame: Frame) -> None:
    data = encode(frame)
    for end in range(len(data)):
        with pytest.raises(ViolationError, match="Incomplete"):
            decode(data[:end])
    assert {outcome(data[:end]) == "Incomplete" for end in range(1, len(data))} == {True}


@pytest.mark.parametrize("frame", SMALL, ids=lambda frame: type(frame).__name__)
def test_a_shortened_body_with_a_length_that_fits_is_no_frame(frame: Frame) -> None:
    body = encode(frame)[4:]
    for end in range(len(body)):
        assert outcome(end.to_bytes(4, "big") + body[:end]) == "DecoderFailure"


@given(FRAMES, st.data())
@settings(max_examples=examples(400))
def test_mutations_raise_the_documented_errors_alone_whatever_the_pieces(frame: Frame, data: st.DataObject) -> None:
    mutated = bytearray(encode(frame)[:400])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(mutated)))
        end = data.draw(st.integers(at, min(len(mutated), at + 4)))
        mutated[at:end] = data.draw(st.binary(max_size=4))
    cut = data.draw(st.integers(0, len(mutated)))
    closed = bytes(mutated)
    found = outcome(closed)
    assert found == in_pieces([closed[:cut], closed[cut:]])
    if not isinstance(found, str):
        assert b"".join(map(encode, found)) == closed, "a frame has one encoding"


@given(st.binary(max_size=60))
def test_noise_raises_the_documented_errors_alone(noise: bytes) -> None:
    found = outcome(len(noise).to_bytes(4, "big") + noise)
    assert isinstance(found, str) or list(map(decode, map(encode, found))) == found


# --- values, with cbor2 as oracle --------------------------------------------------------------------------

LEAVES = st.one_of(WORDS, st.binary(max_size=30), st.text(st.characters(exclude_categories=["Cs"]), max_size=20))


def arrays(items: st.SearchStrategy[Any], depth: int) -> st.SearchStrategy[Any]:
    inner = items if depth == 1 else st.one_of(items, arrays(items, depth - 1))
    return st.lists(inner, max_size=4)


VALUES = st.one_of(LEAVES, arrays(LEAVES, 4))


@pytest.fixture(scope="module")
def cbor2() -> ModuleType:
    return pytest.importorskip("cbor2", reason="the oracle of these tests is cbor2, of the extra 'dev'")


@given(VALUES)
def test_values_are_written_and_read_as_by_cbor2(cbor2: ModuleType, value: object) -> None:
    data = cbor.dump(value)
    assert data == cbor2.dumps(value)
    assert cbor.load(data) == value == cbor2.loads(data)


@given(VALUES, st.data())
@settings(max_examples=examples(400))
def test_what_is_read_here_is_read_the_same_by_cbor2_and_has_one_encoding(
    cbor2: ModuleType, value: object, data: st.DataObject
) -> None:
    mutated = bytearray(cbor.dump(value))
    for _ in range(data.draw(st.integers(0, 2))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = cbor.load(bytes(mutated))
    except ViolationError as error:
        assert error.violation == "DecoderFailure"  # noqa: PT017 - all that there is
        return
    assert cbor2.loads(bytes(mutated)) == found
    assert cbor.dump(found) == bytes(mutated)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "end inside"),
        ("1801", "not the shortest"),
        ("190018", "not the shortest"),
        ("1a00000100", "not the shortest"),
        ("1b0000000000000100", "not the shortest"),
        ("580100", "not the shortest"),
        ("18", "end inside"),
        ("1c", "additional information 28"),
        ("9f01ff", "additional information 31"),
        ("5f4100ff", "additional information 31"),
        ("20", "major type 1"),
        ("a0", "major type 5"),
        ("c000", "major type 6"),
        ("f4", "major type 7"),
        ("f97e00", "major type 7"),
        ("0000", "1 byte after"),
        ("4200", "end inside"),
        ("8200", "end inside"),
        ("9bffffffffffffffff00", "end inside"),
        ("61ff", "not UTF-8"),
        ("8181818180", "too deep"),
    ],
)
def test_what_the_subset_lacks_is_refused(data: str, reason: str) -> None:
    with pytest.raises(ViolationError, match=reason) as refused:
        cbor.load(bytes.fromhex(data))
    assert refused.value.violation == "DecoderFailure"


# --- links ----------------------------------------------------------------------------------------------------------


MOST = SETTINGS.max_frame - OVERHEAD
SENT = st.one_of(st.binary(max_size=30), st.integers(0, MOST).map(bytes))
MESSAGES = st.lists(st.tuples(st.integers(0, 7), SENT), max_size=12)


def shaken(pair: Pair) -> bytes:
    """Begin of a, which b has not received."""
    hello = pair.hello()
    pair.accept()
    effects = pair.to_a(sent(pair.to_b(hello)))
    assert effects[-1] == SnapshotWanted()
    return sent(effects)


def cut_in_pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(MESSAGES, st.lists(st.integers(0, 300), max_size=20))
def test_any_pieces_deliver_the_same(messages: list[tuple[int, bytes]], sizes: list[int]) -> None:
    pair = Pair()
    data = shaken(pair) + sent(pair.out.snapshot(messages, 0.0))
    effects = [effect for piece in cut_in_pieces(data, sizes) for effect in pair.to_b(piece)]
    delivered = received(effects)
    assert [(kind, payload) for _, kind, payload in delivered] == messages[: len(delivered)]
    assert [seq for seq, _, _ in delivered] == list(range(1, len(delivered) + 1))
    assert pair.out.in_flight == sum(len(payload) + OVERHEAD for _, _, payload in delivered) <= SETTINGS.window


@given(MESSAGES.filter(bool), st.data())
def test_a_changed_byte_ends_the_link_and_changes_nothing(
    messages: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    pair = Pair()
    written = shaken(pair) + sent(pair.out.snapshot(messages, 0.0))
    at = data.draw(st.integers(0, len(written) - 1))
    changed = bytearray(written)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    delivered = [(kind, payload) for _, kind, payload in received(pair.to_b(bytes(changed)))]
    assert delivered == messages[: len(delivered)]
    assert len(delivered) < len(messages)
    before = pair.acceptor.links.get("x")
    if before is not None:  # a length that grew: the frame is never complete
        assert before.held >= len(written) - at - 4
        assert [(kind, payload) for _, kind, payload in received(pair.to_b(bytes(2_000)))] == []
        assert "x" not in pair.acceptor.links


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), SENT),
        st.tuples(st.just("read"), st.integers(1, 2_000)),
        st.tuples(st.just("commit"), st.integers(1, 5)),
        st.tuples(st.just("answer"), st.integers(1, 200)),
        st.tuples(st.just("tick"), st.sampled_from([0.05, 0.2, 0.7])),
    ),
    max_size=60,
)


class Run:
    """A session whose bytes travel when the steps let them."""

    def __init__(self, snapshot: list[tuple[int, bytes]]) -> None:
        self.pair, self.now, self.expected = Pair(), 0.0, list(snapshot)
        begin = shaken(self.pair)
        self.pair.to_b(begin)
        self.up, self.down = b"", b""
        self.delivered: list[tuple[int, int, bytes]] = []
        self.committed = 0
        self.a(self.pair.out.snapshot(snapshot, 0.0))

    def a(self, effects: list[Any]) -> None:
        self.up += sent(effects)
        out = self.pair.out
        assert out.in_flight <= SETTINGS.window + SETTINGS.max_frame
        assert out.queued <= SETTINGS.queue_bytes

    def b(self, effects: list[Any]) -> None:
        self.down += sent(effects)
        self.delivered += received(effects)

    def step(self, kind: str, value: Any) -> None:  # noqa: ANN401 - as drawn
        pair = self.pair
        match kind:
            case "send" if pair.out.queued + len(value) + OVERHEAD <= SETTINGS.queue_bytes:
                self.expected.append((1, value))
                self.a(pair.out.send(1, value, self.now))
            case "read" if not pair.acceptor.links["x"].is_paused:
                data, self.up = self.up[:value], self.up[value:]
                self.b(pair.to_b(data, self.now))
            case "commit":
                done = self.delivered[: self.committed + value]
                if len(done) > self.committed:
                    self.committed = len(done)
                    self.b([each for _, each in pair.acceptor.committed("x", done[-1][0], self.now)])
            case "answer":
                data, self.down = self.down[:value], self.down[value:]
                self.a(pair.to_a(data, self.now))
            case "tick" if pair.out.is_connected:
                self.now += value
                self.a(pair.out.tick(self.now))
                self.b([each for _, each in pair.acceptor.tick(self.now)])


@given(MESSAGES, STEPS)
def test_any_pace_delivers_everything_in_order_once(
    snapshot: list[tuple[int, bytes]], steps: list[tuple[str, Any]]
) -> None:
    run = Run(snapshot)
    waited = 0.0
    for kind, value in steps:
        waited += value if kind == "tick" else 0.0
        if waited >= 2.5:  # nobody is suspected: all of it is read, committed and answered before
            drain(run)
            waited = 0.0
        run.step(kind, value)
    drain(run)
    assert [(kind, payload) for _, kind, payload in run.delivered] == run.expected
    assert run.pair.out.in_flight <= OVERHEAD, "a heartbeat"
    assert (run.pair.out.queued, run.pair.acceptor.links["x"].held) == (0, 0)
    assert run.pair.out.state is LinkState.CONNECTED


def drain(run: Run) -> None:
    for _ in range(12):
        for kind, value in (("read", 10**6), ("commit", 10**6), ("tick", 0.1), ("tick", 0.1), ("answer", 10**6)):
            run.step(kind, value)


@given(st.binary(max_size=400), st.booleans())
def test_noise_never_raises_and_never_connects(noise: bytes, hello_first: bool) -> None:  # noqa: FBT001
    pair = Pair()
    hello = pair.hello()
    pair.accept()
    if hello_first:
        pair.to_b(hello)
    pair.to_b(noise)
    pair.to_a(noise)
    assert pair.acceptor.session("a") is None
    assert pair.out.state in (LinkState.CONNECTING, LinkState.DISCONNECTED)
    assert pair.out.reason in (None, Reason.DECODER_FAILURE, Reason.EXCEEDED_SIZE_LIMIT)


# --- networks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seeds",
    [
        range(examples(80)),
        pytest.param(range(1_025), marks=(pytest.mark.slow, pytest.mark.timeout(900))),
        *(pytest.param(range(at, at + 1_000), marks=pytest.mark.soak) for at in (1_025, 2_025)),
    ],
    ids=str,
)
def test_a_network_keeps_its_promises(seeds: range) -> None:
    assert [broken for seed in seeds if (broken := run_mesh(seed))] == []


def test_equal_seeds_run_equally() -> None:
    def run() -> list[Any]:
        faults = Faults(7)
        for _ in range(30):
            faults.step()
        return [(node.events, node.disk.facts, node.disk.views) for node in faults.world.nodes.values()]

    assert run() == run()


# --- faulty links ------------------------------------------------------------------------------------------

SNAPSHOT, SEND = OutgoingLink.snapshot, OutgoingLink.send


def acknowledges_what_it_received(link: IncomingLink, now: float) -> None:  # noqa: ARG001 - as the method
    if link.is_connected and link._received > link._acked:
        link._send(Ack(link._received), link._session)
        link._acked = link._received


def loses_the_snapshot(link: OutgoingLink, _messages: Iterable[tuple[int, bytes]], now: float) -> list[Effect]:
    return SNAPSHOT(link, [], now)


def sends_twice(link: OutgoingLink, kind: int, payload: bytes, now: float) -> list[Effect]:
    effects = SEND(link, kind, payload, now)
    if link._head is None and link._session:
        link._seq -= 1
    return effects


@pytest.mark.parametrize(
    ("kind", "method", "fault"),
    [
        (IncomingLink, "_acknowledge", acknowledges_what_it_received),
        (IncomingLink, "is_paused", property(lambda _: False)),
        (IncomingLink, "_hello", lambda *_: None),
        (OutgoingLink, "snapshot", loses_the_snapshot),
        (OutgoingLink, "send", sends_twice),
        (OutgoingLink, "_watch", lambda *_: None),
        (Identity, "check", lambda *_: None),
        (Acceptor, "session", lambda *_: None),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)
def test_a_faulty_link_is_found(
    kind: type, method: str, fault: Callable[..., object] | property, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, method, fault)
    assert any(run_mesh(seed) for seed in range(40))


def test_the_command_names_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutgoingLink, "snapshot", loses_the_snapshot)
    result = CliRunner().invoke(main, ["--mesh", "--seeds", "3"])
    assert result.exit_code == 1
    assert "mesh seed " in result.output
