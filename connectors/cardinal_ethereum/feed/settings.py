"""Settings of a node feed. The defaults suit a node in the same network as well as a public one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from cardinal.config.url import Endpoint
from cardinal_ethereum.chains import Chain

_SHOWN: Final = 400


@dataclass(frozen=True, slots=True)
class RpcSettings:
    """Bounds and retries of requests to a node.

    Attributes:
        timeout: seconds that one request may take. A full batch of a busy mainnet node was seen to take seconds.
        attempts: attempts of a request that fails with a transient error.
        backoff: seconds before the second attempt; doubled for each further one, up to 20 times as many.
        batch: calls in a batch. geth refuses more than 1,000; half of them need half the memory at once.
        body: bytes of a request. anvil breaks the connection above 2 MB.
        answer: bytes of the largest response.
        connections: requests in flight at once.
        rate: calls a second, for nodes that count them (each call of a batch is one); None: as fast as it answers.

    """

    timeout: float = 30.0
    attempts: int = 5
    backoff: float = 0.1
    batch: int = 500
    body: int = 2_000_000
    answer: int = 512 << 20
    connections: int = 4
    rate: float | None = None

    def pause(self, attempt: int) -> float:
        """Seconds to wait after this attempt (1 for the first) failed."""
        return min(self.backoff * 2.0 ** (attempt - 1), self.backoff * 20)


@dataclass(frozen=True, slots=True)
class StartTotal:
    """Total difficulty that the user names: that of the block with this hash (32 bytes), its own included."""

    total: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """Intervals and bounds of a feed.

    Attributes:
        rpc: requests to its nodes.
        poll: seconds between two requests of the head. Made on WebSocket too: no event reports a silent rewind.
        patience: seconds that a node which answered once may be unreachable before the feed fails; None: no limit.
        verifications: fetches of a block that fails its checks before it is reported.
        walk: blocks that are fetched by parent hash, with their content in memory; a longer gap is fetched by number.
        window: blocks below the highest yielded one that are stored: the deepest reorg that is followed.
        fetch_bytes: target size of one batch of a backfill, in bytes of responses.
        fetch_blocks: most blocks in one batch of a backfill.
        sum_blocks: most headers that are read to add up a difficulty that the node does not serve.
        start_total: a block's total difficulty, for a new stream that begins near it where nothing else supplies one.
        lag: blocks to stay below the node's head: fewer reorgs, later.
        finality: yield only blocks that the node calls ``safe`` or ``finalized``.
        chain: the chain's description; None: the preset of its id, where there is one.
        unchecked: checks of :data:`cardinal_ethereum.checks.integrity.CHECKS` that the chain does not satisfy. The
            hash, the parent link and the chain id are always checked.
        state: publish the state changes of each block; the node has to trace blocks and to prove (:mod:`.state.delta`).
        genesis: the file that the chain's nodes are started with, where the first block's state is to be published and
            the node does not list it (:mod:`.state.genesis`).
        workers: processes that check long ranges alongside this one; None: one for each processor, where there are
            several.
        worker_blocks: blocks from which on a range is long.
        worker_bytes: remaining bytes of responses from which on processes are started. Starting one takes as long as
            checking 30 MB.
        behind: blocks that the active node may be behind another one before the feed switches.
        watch: seconds between two requests of the other nodes' heads.
        rest: seconds that a failed node is not selected while another one is healthy.

    """

    rpc: RpcSettings = field(default_factory=RpcSettings)
    poll: float = 0.5
    patience: float | None = None
    verifications: int = 3
    walk: int = 64
    window: int = 4096
    fetch_bytes: int = 4 << 20
    fetch_blocks: int = 50
    sum_blocks: int = 100_000
    start_total: StartTotal | None = None
    lag: int = 0
    finality: Literal["safe", "finalized"] | None = None
    chain: Chain | None = None
    unchecked: frozenset[str] = frozenset()
    state: bool = False
    genesis: Path | None = None
    workers: int | None = None
    worker_blocks: int = 1_000
    worker_bytes: int = 128 << 20
    behind: int = 3
    watch: float = 2.0
    rest: float = 30.0


def quoted(endpoint: Endpoint, text: str, secrets: Iterable[str] = ()) -> str:
    """A node's message for an error: one line, bounded, without these secrets and those of its URL.

    Gateways repeat the URL of the request, with the key in its path; a revert reason may hold anything, also bytes that
    move a terminal's cursor.
    """
    hidden = {*endpoint.secrets(), *(secret for secret in secrets if secret)}
    for secret in sorted(hidden, key=len, reverse=True):
        text = text.replace(secret, "…")
    line = " ".join("".join(secret if secret.isprintable() else " " for secret in text).split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
