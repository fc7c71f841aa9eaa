"""Every exception that Cardinal raises on purpose: one tree below :class:`CardinalError`.

Rules:

1. A message is one sentence with the fault and, if there is one, the remedy.
2. The offending values are attributes, so that a caller never parses the text.
3. ``retriable`` is true if the same call may succeed later without any change.
4. ``LocalProtocolError``: the caller broke the protocol's rules. ``RemoteProtocolError``: received bytes did. Any other
   exception that leaves a protocol package is a bug.
5. No message contains a credential.
"""

from __future__ import annotations


class CardinalError(Exception):
    """Base of everything that Cardinal raises on purpose."""

    retriable: bool = False
    peer: str = ""
    """Its noun in sentences that say for what a service waits; empty: the stream's own, such as the broker."""


class ConfigurationError(CardinalError):
    """A setting, URL or option that cannot work. ``setting`` names it."""

    def __init__(self, message: str, *, setting: str | None = None, retriable: bool = False) -> None:
        super().__init__(message)
        self.setting = setting
        self.retriable = retriable  # it names what is not published yet


class MissingExtraError(ConfigurationError):
    """An optional dependency is not installed. ``extra`` names its extra."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': pip install 'cardinal-streams[{extra}]'")
        self.extra = extra


class CoverageChangedError(ConfigurationError):
    """A recent block is on the topics with other entries than this producer would publish for it.

    ``number`` and ``hash`` name the block; ``missing`` are entries on the topics that this producer lacks, ``added``
    entries of this producer that the topics lack.
    """

    def __init__(
        self, message: str, *, number: int, block_hash: bytes, missing: tuple[str, ...], added: tuple[str, ...]
    ) -> None:
        super().__init__(message, setting="app")
        self.number = number
        self.hash = block_hash
        self.missing = missing
        self.added = added


# --- protocols ---------------------------------------------------------------------------------------------


class LocalProtocolError(CardinalError):
    """The caller requested something that the protocol forbids; nothing was sent."""


class SplitError(LocalProtocolError):
    """A payload that cannot become messages (``schemas/SPEC.md``, section 3). ``path`` is the offending path or id."""

    def __init__(self, message: str, *, path: str | bytes | None = None) -> None:
        super().__init__(message)
        self.path = path


class EncodeError(LocalProtocolError):
    """A message that cannot be encoded. ``field`` names the offending field, ``value`` its value."""

    def __init__(self, message: str, *, field: str, value: object) -> None:
        super().__init__(message)
        self.field = field
        self.value = value


class RemoteProtocolError(CardinalError):
    """Received bytes break the protocol."""


class DecodeError(RemoteProtocolError):
    """A key or value that is no message. ``key`` is the record's key, ``reason`` the reason of the refusal."""

    def __init__(self, reason: str, *, key: bytes = b"") -> None:
        super().__init__(f"not a Cardinal Streams message: {reason}")
        self.key = key
        self.reason = reason


class CursorError(CardinalError):
    """A cursor that cannot be used with this stream."""


class CursorInvalidError(CursorError):
    """The text is no cursor: truncated, altered, or of a version that this release cannot read."""


class CursorMismatchError(CursorError):
    """A cursor of another lineage: another chain, start or option. ``expected`` and ``found`` are the lineages."""

    def __init__(self, message: str, *, expected: object, found: object) -> None:
        super().__init__(message)
        self.expected = expected
        self.found = found


class CursorExpiredError(CursorError):
    """Retention has removed records that the cursor still needs. ``missing`` maps partitions to the gap."""

    def __init__(self, message: str, *, missing: dict[tuple[str, int], tuple[int, int]]) -> None:
        super().__init__(message)
        self.missing = missing


class MissingPayloadError(CardinalError):
    """An operation needs the content of a block whose messages have expired."""

    def __init__(self, message: str, *, number: int, block_hash: bytes) -> None:
        super().__init__(message)
        self.number = number
        self.hash = block_hash


# --- transports --------------------------------------------------------------------------------------------


class TransportError(CardinalError):
    """A transport could not fulfil a request."""


class UnreachableError(TransportError):
    """No server answers at ``address``."""

    retriable = True

    def __init__(self, message: str, *, address: str) -> None:
        super().__init__(message)
        self.address = address


class RefusedError(TransportError):
    """The other side answered and refused: credentials, certificates, permissions."""


class TopicError(TransportError):
    """A topic is missing or its settings cannot carry the stream. ``topic`` names it."""

    def __init__(self, message: str, *, topic: str) -> None:
        super().__init__(message)
        self.topic = topic


class DeliveryError(TransportError):
    """Messages of a block were not acknowledged. The block may be resent."""

    retriable = True

    def __init__(self, message: str, *, block_hash: bytes) -> None:
        super().__init__(message)
        self.hash = block_hash


class OversizeError(TransportError):
    """A message is larger than the transport carries; nothing of its block was sent."""

    def __init__(self, message: str, *, path: str | None, size: int, limit: int) -> None:
        super().__init__(message)
        self.path = path
        self.size = size
        self.limit = limit


class FencedError(TransportError):
    """Another producer with the same id took over."""


class ClientStoppedError(TransportError):
    """A client stopped for good; its unacknowledged messages failed. A new producer may resend them."""

    retriable = True


class LogInUseError(TransportError):
    """Another process writes to the folder of a file transport. ``pid`` is that process where it is known."""

    def __init__(self, message: str, *, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class LogDamagedError(TransportError):
    """Bytes of a file transport's segment are not what was written. ``path`` and ``position`` say where."""

    def __init__(self, message: str, *, path: str, position: int) -> None:
        super().__init__(message)
        self.path = path
        self.position = position


# --- applications and feeds --------------------------------------------------------------------------------


class ApplicationError(CardinalError):
    """A payload or a block does not fit its application. ``path`` names the entry where there is one."""

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class FeedError(CardinalError):
    """A node did not deliver the data that the feed needs."""

    peer = "node"


class NodeUnreachableError(FeedError):
    """The node does not answer, or is overloaded. ``address`` is its URL without credentials."""

    retriable = True

    def __init__(self, message: str, *, address: str) -> None:
        super().__init__(message)
        self.address = address


class NodeAnswerError(FeedError):
    """The node answered with an error of its own. ``code`` is the JSON-RPC code."""

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class WrongChainError(FeedError):
    """The node serves another chain than the one that is streamed."""


class ReorgTooDeepError(WrongChainError):
    """The node's chain has none of the published blocks. ``number`` and ``hash``: the oldest of those."""

    def __init__(self, message: str, *, number: int, block_hash: bytes) -> None:
        super().__init__(message)
        self.number = number
        self.hash = block_hash


class IntegrityError(FeedError):
    """A block contradicts itself (hash, root, order); it is not published. ``check`` names the failed check."""

    def __init__(self, message: str, *, number: int, block_hash: bytes, check: str) -> None:
        super().__init__(message)
        self.number = number
        self.hash = block_hash
        self.check = check


class PortInUseError(CardinalError):
    """Another process listens on ``port``."""

    def __init__(self, message: str, *, port: int) -> None:
        super().__init__(message)
        self.port = port


# --- services and destinations ---------------------------------------------------------------------------


class OrphanedError(CardinalError):
    """A block left its producer's chain before the destination acknowledged it: it may be there, or never come."""

    def __init__(self, message: str, *, number: int, block_hash: bytes) -> None:
        super().__init__(message)
        self.number = number
        self.hash = block_hash


class NodeBehindError(CardinalError):
    """A destination needs blocks that its producer no longer holds: publish again from block ``number`` on."""

    def __init__(self, message: str, *, number: int) -> None:
        super().__init__(message)
        self.number = number
