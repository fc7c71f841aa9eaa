"""Chain parameters that blocks do not contain: genesis, final difficulty, applicable checks.

Every preset names its sources. A chain without a preset works too, with every check; if it merged later than at its
first block, set ``final_total_difficulty``. A user's own chain is a TOML file (:meth:`Chain.load`).
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator

from cardinal.apps.base import read_toml, refusal
from cardinal.errors import ConfigurationError

from .model.transaction_types import Family

CHECK_NAMES: Final = (
    *("hash", "transaction hashes", "transactions root", "receipts", "receipts root", "bloom", "log indexes", "gas"),
    *("contracts", "withdrawals root", "uncles hash"),
)
"""The checks of :mod:`.checks.integrity`, in the order in which they run."""


class Checkpoint(BaseModel):
    """Block of a chain's canonical branch whose total difficulty is known.

    Attributes:
        number: its number.
        hash: its hash as ``0x`` text.
        total: its total difficulty, its own included.

    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: Annotated[int, Field(ge=0)]
    hash: Annotated[str, Field(pattern="^0x[0-9a-f]{64}$")]
    total: Annotated[int, Field(ge=0)]


class Chain(BaseModel):
    """Parameters of a chain.

    Attributes:
        chain_id: as in EIP-155.
        name: for messages and for ``application(chain=...)``.
        genesis: hash of block 0 as ``0x`` text; None where it varies (development chains).
        final_total_difficulty: total difficulty at which proof of work ended; None where unknown, or where it has not
            ended.
        checkpoints: blocks with known total difficulties, from which those of others are summed up where a node serves
            none.
        step_difficulty: difficulties are 2**128 - 1 less the steps since the parent (AuRa), so a total follows from
            number and step.
        unchecked: names of checks that this chain's honest blocks do not pass.
        status_from: first block whose receipts have a status (Byzantium).
        state_sync: its nodes add a transaction, with receipt and logs, that no root of the header covers.
        state_sync_in_body: first block whose body includes that transaction, as type 127 and under the roots; None
            without such a block.
        withdrawals: whether blocks can have any; where not, the header's root of them may cover something else.
        foreign_hashes: how the chain makes its block hashes, if not from Ethereum's header: it cannot be verified then.
        family: chains that share its transaction types; None where unknown: the bytes decide then.
        notes: limits of the checks on this chain.
        sources: origin of each value.

    Raises:
        ConfigurationError: a value cannot work; ``setting`` names the attribute.

    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    chain_id: Annotated[int, Field(ge=1)]
    name: Annotated[str, Field(min_length=1)]
    genesis: Annotated[str, Field(pattern="^0x[0-9a-f]{64}$")] | None = None
    final_total_difficulty: Annotated[int, Field(ge=0)] | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    step_difficulty: bool = False
    unchecked: frozenset[str] = frozenset()
    status_from: Annotated[int, Field(ge=0)] = 0
    state_sync: bool = False
    state_sync_in_body: Annotated[int, Field(ge=0)] | None = None
    withdrawals: bool = True
    foreign_hashes: str = ""
    family: Family | None = None
    notes: str = ""
    sources: tuple[str, ...] = ()

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:  # noqa: ANN401 -- pydantic's signature
        """Map validation errors to ConfigurationError."""
        try:
            made = handler(data)
        except ValidationError as error:
            raise refusal(error, "chain") from None
        # The hash identifies the block, so its check is mandatory.
        switchable = [name for name in CHECK_NAMES if name != "hash"]
        if unknown := made.unchecked.difference(switchable):
            raise ConfigurationError(
                f"there is no check {min(unknown)!r} that can be skipped; choose from: {', '.join(switchable)}",
                setting="unchecked",
            )
        return made

    @property
    def checks(self) -> tuple[str, ...]:
        """Names of the applicable checks, in execution order."""
        return tuple(name for name in CHECK_NAMES if name not in self.unchecked)

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read a chain from a TOML file whose keys are the attributes.

        A number of more than 63 bits is written as text.

        Raises:
            ConfigurationError: the file cannot be read, is not TOML, or has an invalid value.

        """
        return cls.model_validate(read_toml(file, "chain"))


def chain_of(chain_id: int) -> Chain:
    """The preset of a chain, or a nameless chain with defaults."""
    return CHAINS.get(chain_id) or _FOREIGN.get(chain_id) or Chain(chain_id=chain_id, name=f"chain {chain_id}")


def family_of(chain_id: int) -> Family | None:
    """Family of a chain with a preset; None for another chain."""
    return CHAINS[chain_id].family if chain_id in CHAINS else None


_GETH = "go-ethereum, params/config.go: genesis hash"
_ERIGON = "erigon, params/config.go: genesis hash"
_OP = "reth, op-chainspec: genesis hash; Paris at block 0 with total difficulty 0"
_OP_SPECIFICATION = "OP Stack specification, deposits; Isthmus, execution engine"
_OP_NOTES = (
    "Deposits (type 126) and, from Canyon on, their receipts' nonce and version are under the roots; before Canyon the "
    "nonce of a deposit that creates a contract is the node's claim. What a transaction paid to the chain below is not "
    "published: no root covers it. No block has withdrawals; from Isthmus on the header's root of them is that of a "
    "contract's storage."
)

_NITRO = "nitro's go-ethereum, core/types/arb_types.go: transaction types"
_ARBITRUM_NOTES = (
    "Types 100 to 106 are under the roots. A contract that one of them creates is published for type 101 alone: the "
    "others' bytes lack the nonce. Every block has a difficulty of 1. The first block is not compared."
)

# The totals that were reached, not the thresholds of the fork rule: nodes answered with these as long as they served
# the field, and the reference's producer falls back to the same two numbers.
_PRESETS: Final = (
    Chain(
        chain_id=1,
        name="mainnet",
        family="ethereum",
        genesis="0xd4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3",
        final_total_difficulty=58_750_003_716_598_352_816_469,
        checkpoints=(
            Checkpoint(
                number=14_000_000,
                hash="0x9bff49171de27924fa958faf7b7ce605c1ff0fdee86f4c0c74239e6ae20d9446",
                total=38_896_129_597_749_836_221_010,
            ),
            Checkpoint(
                number=14_847_000,
                hash="0x2298de96c5444f33ddc84f2525a71a3a6f6f1c1fd1b14ab03514e7867544d160",
                total=50_003_781_121_673_754_119_685,
            ),
            Checkpoint(
                number=15_011_000,
                hash="0x46c838d02d5fa5bc070080ed7965da1d888f6eb1797045365407c7011280af56",
                total=52_367_203_434_576_253_689_712,
            ),
            Checkpoint(
                number=15_216_000,
                hash="0xfd5898c8d2a5d782a80ba7cf6ab598d17b9e9df26cd82a728e4b5f848c824e9e",
                total=54_869_472_268_454_264_278_077,
            ),
            Checkpoint(
                number=15_537_393,
                hash="0x55b11b918355b1ef9c5db810302ebad0bf2544255b530cdce90674d5887bb286",
                total=58_750_003_716_598_352_816_469,
            ),
        ),
        status_from=4_370_000,
        notes="Before Byzantium (block 4,370,000) nodes that leave a receipt's root out need `unchecked = "
        "['receipts root']`; receipts are then held to the bloom and the gas alone.",
        sources=(
            _GETH + ", Byzantium",
            "total difficulty: nodes' answers for block 15,537,394; reth, chainspec mainnet",
            "checkpoints: nodes' answers for block 14,000,000; pivots of Nethermind's configs/mainnet.cfg of 2022",
            "go-ethereum, core/history: the last block before the merge",
        ),
    ),
    Chain(
        chain_id=11_155_111,
        name="sepolia",
        family="ethereum",
        genesis="0x25a5cc106eea7138acab33231d7160d69cb777ee0c2c553fcddf5138993e6dd9",
        final_total_difficulty=17_000_018_015_853_232,
        checkpoints=(
            Checkpoint(
                number=1_450_409,
                hash="0x229f6b18ca1552f1d5146deceb5387333f40dc6275aebee3f2c5c4ece07d02db",
                total=17_000_018_015_853_232,
            ),
        ),
        sources=(
            _GETH,
            "total difficulty: nodes' answers after the merge; the reference's producer",
            "go-ethereum, core/history: the last block before the merge",
        ),
    ),
    Chain(
        chain_id=17_000,
        name="holesky",
        family="ethereum",
        genesis="0xb5f7f912443c940f21fd611f12828d75b534364ed9e95ca4e307729a4661bde4",
        final_total_difficulty=1,
        sources=(_GETH, "merged at genesis, whose difficulty is 1: reth, chainspec holesky"),
    ),
    Chain(
        chain_id=560_048,
        name="hoodi",
        family="ethereum",
        genesis="0xbbe312868b376a3001692a646dd2d7d1e4406380dfd86b98aa8a34d1557c971b",
        final_total_difficulty=1,
        sources=(_GETH, "merged at genesis, whose difficulty is 1"),
    ),
    Chain(
        chain_id=137,
        name="polygon",
        family="polygon",
        genesis="0xa9c28ce2141b56c474f1dc504bee9b01eb1bd7d1a507580d5519d4437a97de1b",
        state_sync=True,
        state_sync_in_body=80_084_800,
        notes="Until Madhugiri (block 80,084,800) the state-sync transaction, its receipt and its logs are under no "
        "root: they are published apart (br/, bl/) and held only to their hash and log indexes. From it on it is one "
        "of the block's transactions (type 127), under every root: nodes do not show what its bytes are made of, so "
        "its bytes are requested (eth_getRawTransactionByHash). "
        "Every block has a difficulty, and no node serves totalDifficulty any more: weights count from the stream's "
        "origin, unless --start-total names a total.",
        sources=(
            _ERIGON,
            "maticjs, getStateSyncTxHash: which transaction it is, and that no root covers it",
            "0xPolygon/erigon v3.3.0: PIP-74 and Madhugiri's block",
        ),
    ),
    Chain(
        chain_id=80_002,
        name="amoy",
        family="polygon",
        genesis="0x7202b2b53c5a0836e773e319d18922cc756dd67432f9a1f65352b61f4406c697",
        state_sync=True,
        state_sync_in_body=28_899_616,
        notes="Polygon's test network: as there, with Madhugiri at block 28,899,616.",
        sources=(_ERIGON, "bor, params/config.go, as other implementations of it have it: Madhugiri's block"),
    ),
    Chain(
        chain_id=100,
        name="gnosis",
        family="ethereum",
        genesis="0x4f1dd23188aab3a76b463e4af801b52b1248ef073c648cbdc4c9333d3da79756",
        # 25,349,536 blocks of 2**128 - 1 each, less the step of the last of them, on top of the genesis block's.
        final_total_difficulty=0x182CD9_FFFFFFFF_FFFFFFFF_FFFFFFFF_FEA9528A2,
        step_difficulty=True,
        notes="Up to block 25,349,536 headers are sealed by authorities: nodes must show `step` and `signature`, as "
        "Nethermind does.",
        sources=(
            _ERIGON,
            "total difficulty: nodes' answers for block 25,349,537 and later ones; it follows from the steps too",
            "nethermind, HeaderDecoder",
        ),
    ),
    Chain(
        chain_id=10,
        name="optimism",
        family="optimism",
        genesis="0x7ca38a1916c42007829c55e69d3e9a73265554b586a499015373241b8a3fa48b",
        final_total_difficulty=0,
        withdrawals=False,
        notes=_OP_NOTES + " Blocks before Bedrock (105,235,063) have a total of their own: start at it.",
        sources=(_OP, _OP_SPECIFICATION),
    ),
    Chain(
        chain_id=8453,
        name="base",
        family="optimism",
        genesis="0xf712aa9241cc24369b143cf6dce85f0902a9731e70d66818a3a5845b296c73dd",
        final_total_difficulty=0,
        withdrawals=False,
        notes=_OP_NOTES,
        sources=(_OP, _OP_SPECIFICATION),
    ),
    Chain(
        chain_id=11_155_420,
        name="optimism-sepolia",
        family="optimism",
        genesis="0x102de6ffb001480cc9b8b548fd05c34cd4f46ae4aa91759393db90ea0409887d",
        final_total_difficulty=0,
        withdrawals=False,
        notes=_OP_NOTES,
        sources=(_OP, _OP_SPECIFICATION),
    ),
    Chain(
        chain_id=84_532,
        name="base-sepolia",
        family="optimism",
        genesis="0x0dcc9e089e30b90ddfc55be9a37dd15bc551aeee999d2e2b51414c54eaf934e4",
        final_total_difficulty=0,
        withdrawals=False,
        notes=_OP_NOTES,
        sources=(_OP, _OP_SPECIFICATION),
    ),
    Chain(
        chain_id=42_161,
        name="arbitrum",
        family="arbitrum",
        notes=_ARBITRUM_NOTES + " Blocks before Nitro (22,207,817) have transactions of type 120, whose hashes do not "
        "follow from their bytes: start at Nitro.",
        sources=(_NITRO, "a recorded block recomputes"),
    ),
    Chain(
        chain_id=421_614,
        name="arbitrum-sepolia",
        family="arbitrum",
        notes=_ARBITRUM_NOTES,
        sources=(_NITRO,),
    ),
    Chain(
        chain_id=42_220,
        name="celo",
        family="celo",
        final_total_difficulty=0,
        withdrawals=False,
        notes=_OP_NOTES + " A fee in another currency has a base fee in its receipt (type 123), under the root and not "
        "published. Blocks before the move to the OP Stack (31,056,500) have other headers and transactions: start at "
        "it. The first block is not compared.",
        sources=("celo-org/op-geth, core/types",),
    ),
    Chain(
        chain_id=534_352,
        name="scroll",
        family="scroll",
        notes="Messages from the chain below (type 126) are under the roots. Proof of authority until Euclid: every "
        "block has a difficulty. The first block is not compared.",
        sources=("scroll-tech/go-ethereum, core/types",),
    ),
    Chain(
        chain_id=56,
        name="bsc",
        family="ethereum",
        genesis="0x0d21840abff46b96c84b2ac9e10e4f5cdaeb5693cb665db62a2f3b02d2d57b5b",
        notes="System transactions are signed legacy transactions at a price of zero: every root covers them (their "
        "logs name no block, which nothing here reads). Every block has a difficulty: where the node serves no "
        "totalDifficulty, weights count from the stream's origin, unless --start-total names a total.",
        sources=("bsc, params/config.go: genesis hash", "a block of its test network recomputes"),
    ),
    Chain(
        chain_id=31_337,
        name="anvil",
        notes="A development chain: the genesis changes with each start. anvil 1.7.1 hashes the blobs themselves into "
        "the transactions root: blocks with transactions of type 3 need `unchecked = ['transactions root']`; their "
        "transactions are then held to their hashes, which nothing ties to the header. Its first header says that the "
        "state is empty, which it is not: state deltas begin with block 2.",
        sources=("anvil 1.7.1, observed",),
    ),
    Chain(
        chain_id=1337,
        name="geth-dev",
        notes="A development chain: the genesis changes with its settings.",
        sources=("geth 1.16.9, observed",),
    ),
)

_COMETBFT = "CometBFT hashes a header of its own, and the roots are not of Ethereum's tries"
_TEMPO = "over fields of its own around Ethereum's header"
_FOREIGN: Final = MappingProxyType(
    {
        chain_id: Chain(chain_id=chain_id, name=name, foreign_hashes=how)
        for chain_id, name, how in (
            (25, "cronos", _COMETBFT),
            (338, "cronos-testnet", _COMETBFT),
            (988, "stable", _COMETBFT),
            (2201, "stable-testnet", _COMETBFT),
            (4217, "tempo", _TEMPO),
            (42_431, "tempo-moderato", _TEMPO),
        )
    }
)
"""Chains that cannot be verified, refused by name. Source: recorded blocks, none of which hashes to its name."""

CHAINS: Final = MappingProxyType({chain.chain_id: chain for chain in _PRESETS})
"""Chain presets by id."""
