"""Laws of mesh links: any pieces, any pace of commits and ticks, any changed byte."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cardinal.protocols.mesh import OVERHEAD, LinkState, Reason, SnapshotWanted
from meshing import SETTINGS, Pair, received, sent

MOST = SETTINGS.max_frame - OVERHEAD
PAYLOADS = st.one_of(st.binary(max_size=30), st.integers(0, MOST).map(bytes))
MESSAGES = st.lists(st.tuples(st.integers(0, 7), PAYLOADS), max_size=12)


def shaken(pair: Pair) -> bytes:
    """Begin of a, which b has not received."""
    hello = pair.hello()
    pair.accept()
    effects = pair.to_a(sent(pair.to_b(hello)))
    assert effects[-1] == SnapshotWanted()
    return sent(effects)


def in_pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(MESSAGES, st.lists(st.integers(0, 300), max_size=20))
def test_any_pieces_deliver_the_same(messages: list[tuple[int, bytes]], sizes: list[int]) -> None:
    pair = Pair()
    data = shaken(pair) + sent(pair.out.snapshot(messages, 0.0))
    effects = [effect for piece in in_pieces(data, sizes) for effect in pair.to_b(piece)]
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
        st.tuples(st.just("send"), PAYLOADS),
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
