"""Strategies of the transactions that only some families of chains have, as their nodes show them."""

from __future__ import annotations

from coincurve import PrivateKey
from eth_abi.abi import encode
from hypothesis import strategies as st

from cardinal_ethereum.keccak import keccak
from evm_blocks import OTHER_TYPES, ZERO_ADDRESS, Json, canonical, data, signed, text

KEY = PrivateKey(b"\x49" * 32)
ARBOS = "0x00000000000000000000000000000000000a4b05"
TICKETS = "0x" + "00" * 19 + "6e"
KINDS = {
    "arbitrum": (0x64, 0x65, 0x66, 0x68, 0x69, 0x6A),
    "celo": (0x7B, 0x7C),
    "scroll": (0x7E,),
}
amounts = st.one_of(st.integers(0, 300), st.integers(0, 2**256 - 1)).map(hex)
longs = st.integers(0, 2**40).map(hex)
addresses = st.binary(min_size=20, max_size=20).map(text)
hashes = st.binary(min_size=32, max_size=32).map(text)
datas = st.binary(max_size=70).map(text)
accesses = st.lists(
    st.fixed_dictionaries({"address": addresses, "storageKeys": st.lists(hashes, max_size=2)}), max_size=2
)
FIELDS = {
    **dict.fromkeys(("nonce", "gas", "queueIndex"), longs),
    **dict.fromkeys(("from", "refundTo", "beneficiary"), addresses),
    **dict.fromkeys(("to", "retryTo", "feeCurrency", "gatewayFeeRecipient"), st.none() | addresses),
    **dict.fromkeys(("requestId", "ticketId"), hashes),
    **dict.fromkeys(("input", "retryData"), datas),
    "accessList": accesses,
}


def submission(shown: Json) -> str:
    """The input that nodes show for the submission of a retryable ticket: a call with its fields."""
    numbers = ("l1BaseFee", "depositValue", "retryValue", "maxFeePerGas", "gas", "maxSubmissionFee")
    who = [shown["refundTo"], shown["beneficiary"], shown["retryTo"] or ZERO_ADDRESS]
    values = [data(shown["requestId"]), *[int(shown[name], 16) for name in numbers], *who, data(shown["retryData"])]
    types = ["bytes32", *["uint256"] * len(numbers), *["address"] * len(who), "bytes"]
    return text(bytes.fromhex("c9f95d32") + encode(types, values))


@st.composite
def family_transactions(draw: st.DrawFn, family: str, chain_id: int) -> Json:
    """A transaction of a type of the family, with what its nodes add to the fields in its bytes."""
    kind = draw(st.sampled_from(KINDS[family]))
    shown: Json = dict.fromkeys(("nonce", "gas", "value", "v", "r", "s"), "0x0") | {"input": "0x", "type": hex(kind)}
    shown |= {name: draw(FIELDS.get(name, amounts)) for name in OTHER_TYPES[kind]}
    if "chainId" in shown:
        shown["chainId"] = hex(chain_id)
    if kind in (0x64, 0x7E) and shown["to"] is None:  # these create nothing
        shown["to"] = draw(addresses)
    if kind == 0x6A:
        shown |= {"from": ARBOS, "to": ARBOS}
    if kind == 0x69:
        shown |= {"to": TICKETS, "input": submission(shown)}
    if "maxFeePerGas" not in shown:
        shown["gasPrice"] = "0x0"
    if kind in KINDS["celo"]:
        return signed(shown, KEY, chain_id)
    return shown | {"hash": text(keccak(canonical(shown)))}
