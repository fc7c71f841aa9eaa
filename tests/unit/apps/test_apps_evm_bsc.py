"""The transactions of a real block of the BSC test network, of which the last is its validator's own (a system one)."""

from __future__ import annotations

from typing import Any

from cardinal_ethereum import verify
from cardinal_ethereum.chains import CHAINS
from cardinal_ethereum.checks.trie import ordered_root
from cardinal_ethereum.from_rpc.transactions import encode_transaction
from cardinal_ethereum.model.transaction_decoder import decode_transaction

# Block 11832497 of chain 97, as its node showed it: nonce, price, gas, to, value, input, v, r, s, sender and hash.
ROOT = "a8c00e63a8cfa9d09e0e426a082c8ac428b5863aa0a7ab655b87ea3e62c6e852"
VALIDATOR = "0x7a1a4ad9cc746a70ee58568466f7996dd0ace4e8"
GWEI_10 = "0x2540be400"
ROUTER = "0x8881c44d790364fe06c92ca3fb9efa69592dccaa"
PLAYER = "0x0b341a3fd55d4cc8adb856859bd426231a21a0d3"


def words(*texts: str) -> str:
    """ABI words from what is not zero in them, each filled up on its left; what ends in ``<`` on its right."""
    return "".join(text[:-1].ljust(64, "0") if text.endswith("<") else text.rjust(64, "0") for text in texts)


URL = (
    "68747470733a2f2f64656d6f2e737061636568756e7465722e696f2f696d6167"
    "65732f776561706f6e73322f426c6164652532302837292e706e67"
)
TRANSACTIONS = (
    (
        *("0xdc", "0x4a817c800", "0x4c4b40", "0x4f2dd240cb0373e65e57b58423f29ae52255ec53", "0x2386f26fc10000"),
        "0xf305d719"
        + words("78867bbeef44f2326bf8ddd1941a4439382ef2a7", "30927f74c9de0000", "30927f74c9de0000", "2386f26fc10000")
        + words("cc1dc9ba47293b285732538c7acc0fcd8db0e69e", "61285a25"),
        "0xe5",
        "0x855f71a1db203e263d78b771aa8e2a5482abef0ebd8e15c156a5143a98f5b21",
        "0x74ae205478ede19fbd6d6433c8a97d385d0a97c9dc437d84f67ad19b4820fe91",
        "0xcc1dc9ba47293b285732538c7acc0fcd8db0e69e",
        "0x0146e77592f451629bcf4bddeeb8a810999006c4ae51a8248935e18918828bb0",
    ),
    (
        *("0x307b", GWEI_10, "0x7a120", ROUTER, "0x0"),
        "0xd9caa3d2eef52a4699c02b6bd03f8f171314cea9b8cd78144fad3e896990907113f590e0",
        "0xe6",
        "0x5eb31ed0b5f83bbf6020a527de6eecc8e4c6c5a2ee81fb4bbb40a331bd119790",
        "0x4c9081726e75de72a397791c97b54b83b90e6ef680f77f1f94ce69eea715e272",
        PLAYER,
        "0xd4d1584fd8088fa66dffacd017c54322b92f98faa761f056f9c4cbe96907945d",
    ),
    (
        *("0x307c", GWEI_10, "0x7a120", ROUTER, "0x0"),
        "0xd9caa3d2c48a8cf7c941936a916a1cd8bccaca494f7f600449097398447cc68f2cde4c8c",
        "0xe6",
        "0xaa24913fa9570f7ade06905b83e574f68aea82c5b5515d9ef408d520d1c1ca32",
        "0x1bad2196ffaaeee2464591b2794de9794c81231142c69e647fc3a02950fce830",
        PLAYER,
        "0xd8e24c8a3a0cb99e7ef1454e8c0de0200d5dae86eafc3699dc79e81936602385",
    ),
    (
        *("0x3ae8", GWEI_10, "0x7a120", "0x170037ef2c730bc829aa791ea91447dc59677b68", "0x0"),
        "0xd748a987" + words("0322") + "69616e15ce128453b82886c5516f34fb44b34a6cdf446e0eec73f7ed424e7e71",
        "0xe5",
        "0xcc161ba30498422128b7c6ff399b890a365539558032c0492c2ba075dc59d0be",
        "0x5bceb08cd745bfb7d917e78bcafdf20043c6aa111155390dcece6d56ed1d075a",
        "0x5de4c680d3e306ebbd94b5795905f8234b22d803",
        "0xb30b94703f3b05cd268a11f143b36db6a1340a8c51770f9ce80d8d3f3c8a04d5",
    ),
    (
        *("0x76c", GWEI_10, "0x94d9b", "0xb22e32985b23833916a4c6d86e56c593fad18cf2", "0x0"),
        "0x77ea5a53" + words("", "01", "64", "", "c0", "0120", "3b", URL[:64], URL[64:] + "<", "05", "5750202331<"),
        "0xe6",
        "0x20f83f1080372d3eb51acc864c9eb319250f99ccb3d95c7b3673d2924eb62d22",
        "0x443b5b11406656bd5bb1d0f813ff7da4b14f3ffb727c594285c354f3cead3efe",
        "0x2b2512b318785ae77e014ab413855fa60f805ffa",
        "0x02c3516844854b4637ff117a59cb67461e57f305448db414045c1aca0dcef4cf",
    ),
    (
        *("0xbe3", GWEI_10, "0x30a71", "0x18cc2d2d0b24ed30a5a661966c013cac2d1d5279", "0x0"),
        "0x0b61c4c0" + words("fd36", "03"),
        "0xe5",
        "0x4a882eec395882e0d4f304a0d4da3632d8d379fad9c000e14c70cf786405d3ef",
        "0x61928e43d4c4f185f34859165dbee3390e7d56cbeb9e1f69f3ce77feda7930c",
        "0x5a7459999a5f6a8e5fa79d326583e0d334c65e1d",
        "0x4c4c66c0ea2f296bc8e578e1d1846799557aea0c60672911f596557374881fb1",
    ),
    (
        *("0xca0", GWEI_10, "0xa73d", "0xb30fe2ca1d149219ed3285623eb7182343730ad7", "0x0"),
        "0x6dfd17fc" + words("d345a986d8c2f0f43eaa150d895e12c00e73ecfd"),
        "0xe5",
        "0xd9268b5f45cae7e03cc4ff409e72f12533fce60581e785260c53e55ba24c743",
        "0x4a818b37eff2100b2b031bd0ef95417bb0562640fd4f7ac93ec7fdb5f1ec6fbf",
        "0x1cf28ceaf7c296e6d11341eb554d612a214d346e",
        "0x8fe933bce22c94bfc1f0c9283337621ef53fb2abdb914dc380fb985639b71a8f",
    ),
    (
        *("0x5075d", "0x0", "0x7fffffffffffffff", "0x0000000000000000000000000000000000001000", "0x20c4634b5e0400"),
        "0xf340fa01" + words(VALIDATOR[2:]),
        "0xe5",
        "0xdfd2f77aa958624d58965aeda5ed3b0c72ec5fb70274699f468e6ea1f11a4b6c",
        "0x55d80c126a34863ac5d93698993aa696bc150a2f6ed598a1820cbe0a0b250c63",
        VALIDATOR,
        "0xac14bda81902634adfcbf8f5a34db10349b1025c9629ad89851ab45a001a2404",
    ),
)
NAMES = ("nonce", "gasPrice", "gas", "to", "value", "input", "v", "r", "s", "from", "hash")


def shown() -> list[dict[str, Any]]:
    return [dict(zip(NAMES, each, strict=True)) | {"type": "0x0"} for each in TRANSACTIONS]


def block() -> dict[str, Any]:
    """With the fields that these two checks need; the others are not known."""
    header = dict.fromkeys(("stateRoot", "receiptsRoot", "sha3Uncles", "parentHash", "mixHash"), "0x" + "00" * 32)
    header |= dict.fromkeys(("difficulty", "gasLimit", "gasUsed", "timestamp", "number"), "0x2")
    header |= {"miner": VALIDATOR, "logsBloom": "0x", "extraData": "0x", "nonce": "0x", "hash": "0x"}
    return header | {"transactionsRoot": "0x" + ROOT, "transactions": shown(), "uncles": []}


CHECKS = ("transaction hashes", "transactions root")


def test_the_root_covers_the_validators_own_transaction() -> None:
    assert set(CHECKS) <= set(CHAINS[56].checks)
    verify(block(), [], checks=CHECKS)
    assert ordered_root([encode_transaction(each) for each in shown()]).hex() == ROOT


def test_every_sender_is_recovered_the_validator_as_any_other() -> None:
    for index, each in enumerate(shown()):
        transaction = decode_transaction(encode_transaction(each), index)
        assert transaction.sender is not None
        assert ("0x" + transaction.sender.hex(), "0x" + transaction.hash.hex()) == (each["from"], each["hash"])
        assert transaction.chain_id == 97
