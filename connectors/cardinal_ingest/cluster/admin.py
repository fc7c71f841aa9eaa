"""Administration of a cluster: the first epoch begins, an epoch ends and the next one begins.

Rules (``connectors/cardinal_ingest/docs/replication.md``, section 10):

1. An epoch has a claim log of its own. Its first record is the Epoch record: the members, the rules, and the state.
2. The first epoch's state is that of the topics: the newest complete chain, as deep as the reorg threshold. Batches are
   numbered above those that an earlier cluster promoted to the same topics.
3. An epoch ends when everything that was agreed is promoted. Its last record is the Close, with the state that the next
   epoch begins with. What is interrupted between the two is continued by the same command.
4. Every record that was written is read again: what the log says counts.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError
from cardinal.transports import list_topics
from cardinal_ingest.cluster.claims import ClaimWriter
from cardinal_ingest.cluster.first_state import carried_state, state_of_topics
from cardinal_ingest.cluster.log_state import difference, newest_marker, read_first, read_log
from cardinal_ingest.cluster.node_reports import node_reports
from cardinal_ingest.cluster.topics import ClusterTopics, claims_topic
from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols.replication import (
    NO_HASH,
    Close,
    Epoch,
    Head,
    Rules,
    State,
    decode_record,
    encode,
    record_bytes,
)

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal.config.url import TransportUrl
    from cardinal_ingest.cluster.config import ClusterFile
    from cardinal_ingest.cluster.keys import SecretKey
    from cardinal_ingest.cluster.log_state import LogState

_NO_SIGNATURE: Final = b""
_WAIT: Final = (
    "stop the publishers, leave the nodes running, and wait until all blocks are agreed and on the topics "
    "(`cardinal cluster status`)"
)


@dataclass(frozen=True, slots=True)
class Signer:
    """A member as the author of records.

    Attributes:
        id: the member's.
        key: its key.

    """

    id: str
    key: SecretKey

    def check(self, file: ClusterFile) -> None:
        """Refuse a signer that is no member of a file, with this key.

        Raises:
            ConfigurationError: it is none.

        """
        member = file.members.get(self.id)
        if member is None:
            raise ConfigurationError(
                f"{self.id} is no member of epoch {file.epoch}: sign as one of {', '.join(sorted(file.members))}",
                setting="node-id",
            )
        if member.key != self.key.public:
            raise ConfigurationError(
                f"the key is not that of {self.id} in epoch {file.epoch}: name the file of its secret key",
                setting="key",
            )


@dataclass(frozen=True, slots=True)
class Begun:
    """An epoch that has begun.

    Attributes:
        claim_log: its topic.
        head: the block after which it continues; None on empty topics.
        start: number of the first block on empty topics, and of the next one on others.
        already: it had begun before, with the same members.
        warnings: sentences.

    """

    claim_log: str
    head: Head | None
    start: int
    already: bool = False
    warnings: tuple[str, ...] = ()


def begin_cluster(
    url: TransportUrl, app: Application, file: ClusterFile, signer: Signer, start: int | None = None
) -> Begun:
    """Create the topics of a cluster and begin its first epoch.

    Arguments:
        url: the stream's.
        app: the stream's application.
        file: the members.
        signer: one of them.
        start: number of the first block, on empty topics.

    Raises:
        ConfigurationError: it has begun, or the topics and ``start`` do not fit.
        TopicError, UnreachableError, RefusedError: the broker is unreachable, says no, or has unsuitable topics.

    """
    signer.check(file)
    if file.epoch:
        raise ConfigurationError(
            f"the cluster's file has epoch {file.epoch}: set epoch = 0, or run `cardinal cluster reconfigure`",
            setting="epoch",
        )
    topics = ClusterTopics(url, app.default_topic)
    log, markers = topics.create_claims(0), topics.ensure_promoted().name
    if read_first(url, log) is not None:
        raise ConfigurationError(
            f"the claim log {log} has records, so a cluster has begun: see `cardinal cluster status`, or begin another "
            "after `cardinal topics --delete`, with empty data folders",
            setting="cluster",
        )
    if newest_marker(url, app) is not None:
        raise ConfigurationError(
            f"a cluster has promoted blocks to these topics, and its markers are in {markers}: restore its claim log; "
            "to begin another cluster after its blocks, delete both topics",
            setting="cluster",
        )
    state = state_of_topics(url, app, file.membership(app), start)
    _append_epoch(url, app, file, signer, state, NO_HASH)
    return replace(_read_begun(url, app, file, NO_HASH), warnings=file.warnings)


def reconfigure_cluster(
    url: TransportUrl, app: Application, old: ClusterFile, new: ClusterFile, signer: Signer
) -> Begun:
    """End an epoch and begin the next one, with other members or keys. It may be repeated after an interruption.

    Arguments:
        url: the stream's.
        app: the stream's application.
        old: the members before.
        new: the members from now on.
        signer: a member of both.

    Raises:
        ConfigurationError: the two files do not follow each other, or there is something to wait for.
        TopicError, UnreachableError, RefusedError: the broker is unreachable, says no, or has unsuitable topics.

    """
    if old.name != new.name or new.epoch != old.epoch + 1:
        raise ConfigurationError(
            f'epoch {old.epoch} of {old.name} is followed by epoch {old.epoch + 1}: set name = "{old.name}" and '
            f"epoch = {old.epoch + 1} in the new file, with the new members",
            setting="epoch",
        )
    signer.check(old)
    signer.check(new)
    previous, log = old.membership(app).cluster, claims_topic(app.default_topic, new.epoch)
    if log in list_topics(url) and read_first(url, log) is not None:
        return replace(_read_begun(url, app, new, previous), already=True, warnings=new.warnings)
    before = read_log(url, app, old)
    _check_promoted(before)
    if not before.closed:
        _check_agreed(old)
        before = _close(url, app, old, signer, before)
    warnings = (*new.warnings, *_unchecked(old), *(f"{one}: keep its data folder" for one in _unagreed(old)))
    ClusterTopics(url, app.default_topic).create_claims(new.epoch)
    _append_epoch(url, app, new, signer, carried_state(before.state, app, new.membership(app)), previous)
    return replace(_read_begun(url, app, new, previous), warnings=warnings)


# --- the end of an epoch ----------------------------------------------------------------------------------------------


def _check_promoted(log: LogState) -> None:
    """Refuse while agreed batches are not on the topics."""
    if log.unpromoted is None:
        raise ConfigurationError(
            "no marker says which batches are on the topics: wait until the cluster has promoted a block",
            setting="cluster",
        )
    if log.unpromoted:
        raise ConfigurationError(
            f"{log.unpromoted} agreed batches, up to {log.state.num}, are not on the topics: {_WAIT}", setting="cluster"
        )


def _check_agreed(file: ClusterFile) -> None:
    """Refuse while a member that answers has acknowledged blocks that no batch has."""
    if found := _unagreed(file):
        raise ConfigurationError(f"{'; '.join(found)}: {_WAIT}", setting="cluster")


def _unagreed(file: ClusterFile) -> tuple[str, ...]:
    """Sentences about members with acknowledged blocks that no batch has."""
    return tuple(
        f"{node.member} has {node.unagreed_blocks} acknowledged blocks that are not agreed"
        for node in node_reports(file)
        if node.unagreed_blocks
    )


def _unchecked(file: ClusterFile) -> tuple[str, ...]:
    """A sentence about the members that did not say whether they have such blocks."""
    checked = {node.member for node in node_reports(file) if node.unagreed_blocks is not None}
    silent = sorted(file.members.keys() - checked)
    return (f"not checked for acknowledged blocks that are not agreed: {', '.join(silent)}",) if silent else ()


def _close(url: TransportUrl, app: Application, file: ClusterFile, signer: Signer, log: LogState) -> LogState:
    """Append the Close, and read the log that it ends."""
    unsigned = Close(log.state.raw, signer.id, _NO_SIGNATURE)
    signature = signer.key.sign(record_bytes(file.membership(app).cluster, unsigned))
    _append(url, app, log.topic, encode(replace(unsigned, signature=signature)))
    closed = read_log(url, app, file)
    if not closed.closed:
        raise ConfigurationError(
            "a batch was agreed meanwhile: stop the publishers, and repeat the command when it is on the topics",
            setting="cluster",
        )
    return closed


# --- the begin of an epoch --------------------------------------------------------------------------------------------


def _append_epoch(  # noqa: PLR0917 - the record's origin, and where it goes
    url: TransportUrl, app: Application, file: ClusterFile, signer: Signer, state: State, previous: bytes
) -> None:
    cluster, rules = file.cluster(app), state.rules
    unsigned = Epoch(
        file.name, file.epoch, previous, cluster.app, tuple(cluster.keys.items()), app.default_topic,
        rules.start, rules.window, rules.max_blocks, state.raw, signer.id, _NO_SIGNATURE,
    )  # fmt: skip
    signature = signer.key.sign(record_bytes(cluster.digest, unsigned))
    _append(url, app, claims_topic(app.default_topic, file.epoch), encode(replace(unsigned, signature=signature)))


def _read_begun(url: TransportUrl, app: Application, file: ClusterFile, previous: bytes) -> Begun:
    """The epoch by its claim log, which has records: whoever wrote first has begun it.

    Raises:
        ConfigurationError: it is another cluster's.

    """
    log = claims_topic(app.default_topic, file.epoch)
    try:
        record = decode_record(read_first(url, log) or b"")
        if not isinstance(record, Epoch):
            raise ConfigurationError(
                f"the claim log {log} begins with another record than an epoch: it was trimmed, so the epoch has begun",
                setting="cluster",
            )
        found = difference(record, file.cluster(app))
        if found or record.previous != previous:
            raise ConfigurationError(
                f"epoch {file.epoch} has begun with another cluster: {found or 'it follows other members'}; correct "
                "the files, or add one more epoch",
                setting="cluster",
            )
        _, _, state = State.read(record.state, Rules(record.start, record.window, record.max_blocks))
    except ViolationError:
        raise ConfigurationError(
            f"the claim log {log} does not begin with an epoch: delete the topic, and repeat the command",
            setting="cluster",
        ) from None
    return Begun(log, state.head if state.ring else None, record.start)


def _append(url: TransportUrl, app: Application, log: str, record: bytes) -> None:
    with closing(ClaimWriter(url, log)) as writer:
        writer.append(app.default_topic.encode(), record).result()
