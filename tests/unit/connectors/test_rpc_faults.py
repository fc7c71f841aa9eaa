"""Subjects of node errors, in the words of clients and gateways, and the rate that follows from them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal_ethereum.feed.rpc.faults import Fault, Refusal, fault_of, pause_in
from cardinal_ethereum.feed.rpc.rate import SAMPLE, RateLimit
from cardinal_ethereum.feed.rpc.transport import read_replies, retry_after

SAID: dict[Fault, list[tuple[int, str]]] = {
    Fault.REQUEST: [
        (-32000, "header not found"),
        (-32001, "resource not found"),
        (-32002, "resource unavailable"),
        (-32000, "request timed out"),
        (-32000, "execution aborted (timeout = 5s)"),
        (-32603, "Internal error"),
        (-32000, "method handler crashed"),
        (-32603, "eth_getBlockReceipts: block not found"),
        (-32011, "no backends available for method"),
        (-32018, "backend is currently not healthy to serve traffic"),
        (-32009, "Server is busy, try again later"),
        (-39001, "Unknown block"),
        (-32000, "transaction indexing is in progress"),
        (0, ""),
        (19, "Temporary internal error. Please retry"),
    ],
    Fault.RATE: [
        (-32005, "limit exceeded"),
        (-32005, "daily request count exceeded, request rate limited"),
        (-32005, "exceeded project rate limit"),
        (-32007, "50/second request limit reached - reduce calls per second or upgrade your account"),
        (-32012, "credits limited to 6000/sec"),
        (-32000, "Your app has exceeded its compute units per second capacity."),
        (-32016, "over rate limit"),
        (-32012, "backend is over capacity"),
        (-32005, "ran out of cu"),
        (-32605, "Too many requests were made, these requests are be limited."),
        (-32029, "Too Many Requests"),
        (429, "slow down"),
        (-32601, "monthly quota of this method is used up"),
        (15, "Too many requests, reason: call rate limit exhausted, retry in 10s"),
    ],
    Fault.METHOD: [
        (-32601, "the method eth_getBlockReceipts does not exist/is not available"),
        (-32601, "Method not found"),
        (-32000, "the method eth_getBlockReceipts does not exist/is not available"),
        (-32001, "rpc method is not whitelisted"),
        (-32600, "Unsupported method: eth_getBlockReceipts"),
        (-32004, "method eth_getBlockReceipts does not support"),
        (-32000, "eth_getBlockReceipts is not supported"),
        (-32600, "eth_getBlockReceipts is not available on the Free tier"),
        (-32000, "This method is disabled"),
        (-32002, "Method forbidden"),
        (-32603, "unknown RPC method"),
        (35, "method is not available on freetier, please upgrade"),
    ],
    Fault.HISTORY: [
        (4444, "pruned history unavailable"),
        (4444, "Pruned history unavailable"),
        (-32000, "missing trie node 1f5a (path ) state 0x1f5a is not available"),
        (-32000, "old data not available due to pruning"),
        (-32002, "No state available for block 0x12"),
        (-32000, "historical state 0x12 is not available"),
        (-32000, "required historical state unavailable (reexec=128)"),
    ],
    Fault.PARAMETERS: [
        (-32602, "Invalid params"),
        (-32600, "Invalid Request"),
        (-32602, "invalid argument 0: hex string"),
    ],
    Fault.SIZE: [
        (-32600, "batch too large"),
        (-32003, "response too large"),
        (-32008, "Response is too big"),
        (-32010, "The batch request was too large"),
        (-32005, "batch size exceed limit 500"),
        (-32014, "too many RPC calls in batch request"),
        (-32005, "Batched requests are not supported by this server"),
    ],
    Fault.ADDRESS: [
        (-32000, "Unauthorized"),
        (-32002, "IP address 1.2.3.4 is not on whitelist"),
        (-32002, "rejected due to project ID settings"),
        (-32016, "Invalid or missing authentication"),
        (-32600, "Must be authenticated!"),
    ],
}


@pytest.mark.parametrize(("fault", "code", "said"), [(fault, *one) for fault, many in SAID.items() for one in many])
def test_an_error_is_about_what_its_words_say(fault: Fault, code: int, said: str) -> None:
    assert fault_of(Refusal(code, said)) is fault
    assert fault_of(Refusal(code, said.upper())) is fault
    if fault in {Fault.RATE, Fault.SIZE} and said != "slow down":  # words decide, whatever the code
        assert fault_of(Refusal(-32000, said)) is fault_of(Refusal(-32001, said))


@pytest.mark.parametrize("tag", ["safe", "finalized"])
def test_a_tag_that_the_node_lacks_is_no_failure(tag: str) -> None:
    for code, said in [(-39001, "Unknown block"), (-32000, f"{tag} block not found"), (-32602, f"unknown block {tag}")]:
        assert fault_of(Refusal(code, said), (tag, False)) is Fault.TAG
    assert fault_of(Refusal(-32000, "header not found"), ("0x5", False)) is Fault.REQUEST


def test_words_in_the_data_count_where_the_message_has_none() -> None:
    assert fault_of(Refusal(-32000, "Server error", msgspec.Raw(b'{"reason":"rate limit"}'))) is Fault.RATE
    assert fault_of(Refusal(-32000, "header not found", msgspec.Raw(b'"' + b"limit " * 1000 + b'"'))) is Fault.REQUEST


@given(st.integers(-40_000, 40_000), st.text(max_size=80), st.binary(max_size=20))
def test_any_error_has_a_subject_and_a_bounded_pause(code: int, said: str, data: bytes) -> None:
    refusal = Refusal(code, said, msgspec.Raw(data))
    assert isinstance(fault_of(refusal), Fault)
    pause = pause_in(refusal)
    assert pause is None or pause >= 0


@pytest.mark.parametrize(
    ("said", "data", "seconds"),
    [
        ("limit", {"rate": {"allowed_rps": 5, "backoff_seconds": 30, "current_rps": 5.2}}, 30),
        ("limit", {"try_again_in": "742.5ms"}, 0.7425),
        ("limit", {"retry_after": "2"}, 2),
        ("call rate limit exhausted, retry in 10s", None, 10),
        ("Too many requests. Try again in 2 minutes", None, 120),
        ("rate limited, please wait 500 ms", None, 0.5),
        ("50/second request limit reached", None, None),
        ("retry later", None, None),
    ],
)
def test_the_pause_of_an_error_is_read(said: str, data: object, seconds: float | None) -> None:
    raw = msgspec.Raw(b"" if data is None else msgspec.json.encode(data))
    assert pause_in(Refusal(-32005, said, raw)) == (None if seconds is None else pytest.approx(seconds))


def test_retry_after_is_seconds_or_a_date_of_the_servers_clock() -> None:
    date = {"Date": "Fri, 27 Nov 2026 10:00:00 GMT"}
    assert retry_after({"Retry-After": "7"}) == 7
    assert retry_after({**date, "Retry-After": "Fri, 27 Nov 2026 10:00:09 GMT"}) == 9
    assert retry_after({**date, "Retry-After": "Fri, 27 Nov 2026 09:00:00 GMT"}) == 0
    for later in ("soon", "", "-1", "nan", "1e9"):
        assert retry_after({**date, "Retry-After": later}) is None


@pytest.mark.parametrize(
    ("written", "code", "said"),
    [
        (b'{"error":"text"}', 0, "text"),
        (b'{"id":1,"error":{"code":-32000}}', -32000, '{"code":-32000}'),
        (b'{"id":1,"error":{"code":"-32005","message":"limit"}}', -32005, "limit"),
        (b'{"id":1,"error":{"code":1.5,"message":["a"]}}', 0, '["a"]'),
        (b'{"error":true,"message":"Too many requests"}', 0, "Too many requests"),
        (b'{"message":"no Route matched"}', 0, "no Route matched"),
        (b'{"id":null,"error":{"reason":"no"}}', 0, "no"),
    ],
)
def test_errors_are_read_in_every_form_in_which_they_are_written(written: bytes, code: int, said: str) -> None:
    (reply,) = read_replies(written)
    assert reply.error is not None
    assert (reply.error.code, reply.error.message) == (code, said)


def test_an_error_of_null_beside_a_result_is_none_and_a_number_in_a_text_is_an_id() -> None:
    (reply,) = read_replies(b'[{"id":"7","error":null,"result":5}]')
    assert (reply.id, bytes(reply.result), reply.error) == (7, b"5", None)


# --- the rate -------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(limit=st.integers(5, 200), wanted=st.integers(2, 10))
def test_the_rate_settles_near_what_the_node_accepts(limit: int, wanted: int) -> None:
    """A node that counts calls per second; the caller would send so many times as many."""
    clock = Clock()
    rate = RateLimit(None, clock)
    accepted = refused = 0
    for second in range(120):
        left, sent = limit, 0
        end = clock.now + 1.0
        while clock.now < end and sent < limit * wanted:
            clock.now += rate.wait(1)
            if clock.now >= end:
                break
            sent += 1
            taken = left > 0
            left -= taken
            rate.record(int(taken), int(not taken))
            if second >= 60:
                accepted, refused = accepted + taken, refused + (not taken)
        clock.now = max(clock.now, end)
    assert accepted >= 60 * limit * 0.4
    assert refused <= accepted


@given(st.lists(st.booleans(), min_size=SAMPLE, max_size=400))
def test_refusals_now_and_then_change_no_rate(refused: list[bool]) -> None:
    rate = RateLimit(None, Clock())
    seen = 0
    for count, one in enumerate(refused, 1):
        is_rare = one and (seen + 1) * 5 <= count
        seen += is_rare
        rate.record(int(not is_rare), int(is_rare))
    assert rate.wait(1_000) == 0.0


def test_a_requested_pause_holds_all_calls_and_is_bounded() -> None:
    clock = Clock()
    rate = RateLimit(None, clock)
    rate.hold(3.0)
    rate.hold(1.0)
    assert rate.wait(1) == rate.held == 3.0
    clock.now += 3.0
    assert rate.wait(1) == 0.0
    rate.hold(1e12)
    assert rate.held == 3600.0
