"""Decoding of logs and call inputs by contract ABIs.

    abi = Abi.from_signatures(["event Transfer(address indexed from, address indexed to, uint256 value)"])
    for log in decode(payload).logs:
        found = abi.log(log)            # Decoded, or Undecoded with the reason

Rules:

1. Every result includes its input bytes.
2. Signatures that share a selector or topic (overloads, or two standards with one name) are distinguished by the
   number of topics, and by whether the data decodes and encodes to the same bytes. If several still fit, the result is
   :class:`Undecoded`.
3. An indexed value of a dynamic type is in the log only as its hash: :class:`TopicHash`.
4. Data whose parts refer to each other repeatedly is not decoded: a few kilobytes would become gigabytes.
5. Anonymous events are tried only where no named one has the first topic.

Numbers are ``int``, addresses ``0x`` text in lower case, bytes ``bytes``, arrays and structures tuples (eth-abi).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from cardinal.apps.evm.model.block import Log, Transaction
from cardinal.errors import MissingExtraError

from .signatures import Parameter, Signature, from_json, from_text

try:
    from eth_abi.codec import ABICodec
    from eth_abi.decoding import ContextFramesBytesIO
    from eth_abi.exceptions import DecodingError, EncodingError
    from eth_abi.registry import registry
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("Decoding by an ABI", "abi") from absent

__all__ = ["Abi", "Argument", "Decoded", "Signature", "TopicHash", "Undecoded"]

_SELECTOR: Final = 4
_READINGS: Final = 8
_LEAST: Final = 4096


class _Bounded(ContextFramesBytesIO):
    """Reader with a bound on the bytes read.

    Encoders write every part once, and the library reads it up to three times; more reads mean repeated references.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)  # type: ignore[no-untyped-call] # eth-abi leaves it untyped
        self._budget = _READINGS * len(data) + _LEAST

    def read(self, size: int | None = -1, /) -> bytes:
        """Read like any file; DecodingError beyond the bound."""
        data = super().read(size)
        self._budget -= len(data)
        if self._budget < 0:
            raise DecodingError("the data refers to the same parts repeatedly")
        return data


class _Codec(ABICodec):
    stream_class = _Bounded


_CODEC: Final = _Codec(registry)


@dataclass(frozen=True, slots=True)
class TopicHash:
    """Keccak-256 of an indexed value that the log itself does not contain."""

    hash: bytes


@dataclass(frozen=True, slots=True)
class Argument:
    """Decoded value with its parameter's name (which may be empty) and canonical type."""

    name: str
    type: str
    value: Any
    indexed: bool = False


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded log or input.

    Attributes:
        signature: the matching signature.
        arguments: in the signature's order.
        data: decoded bytes: a log's data, or the complete input.
        topics: a log's topics.
        exact: whether encoding the arguments gives the data; inputs may have trailing bytes.

    """

    signature: Signature
    arguments: tuple[Argument, ...]
    data: bytes
    topics: tuple[bytes, ...] = ()
    exact: bool = True

    @property
    def name(self) -> str:
        """Name of the function or event."""
        return self.signature.name

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 -- depends on the type of the parameter
        for argument in self.arguments:
            if argument.name == name:
                return argument.value
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Log or input that no signature fits, or more than one."""

    reason: str
    data: bytes
    topics: tuple[bytes, ...] = ()
    candidates: tuple[Signature, ...] = ()


class Abi:
    """Signatures by selector and by topic.

    Arguments:
        signatures: functions and events; duplicates count once.

    """

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self.signatures = tuple(dict.fromkeys(signatures))
        functions = [signature for signature in self.signatures if signature.kind == "function"]
        events = [signature for signature in self.signatures if signature.kind == "event"]
        self._functions = _by(lambda signature: signature.selector, functions)
        self._events = _by(
            lambda signature: signature.topic, [signature for signature in events if not signature.anonymous]
        )
        self._anonymous = [signature for signature in events if signature.anonymous]

    @classmethod
    def from_json(cls, *abis: str | Iterable[Mapping[str, Any]]) -> Self:
        """Build from JSON ABIs, as text or parsed; ConfigurationError for an invalid one."""
        return cls(signature for abi in abis for signature in from_json(abi))

    @classmethod
    def from_signatures(cls, texts: Iterable[str]) -> Self:
        """Build from textual signatures (:mod:`.signatures`); ConfigurationError for an invalid one."""
        return cls(from_text(text) for text in texts)

    def log(self, log: Log) -> Decoded | Undecoded:
        """Decode a log."""
        matching = self._events.get(log.topics[0], ()) if log.topics else ()
        result = _best([_event(signature, log.topics[1:], log) for signature in matching], matching)
        if isinstance(result, Decoded) or result:
            return result if isinstance(result, Decoded) else _ambiguous(result, log.data, log.topics)
        result = _best([_event(signature, log.topics, log) for signature in self._anonymous], self._anonymous)
        if isinstance(result, Decoded):
            return result
        if result:
            return _ambiguous(result, log.data, log.topics)
        why = "no event of the ABI has this topic" if not matching else "the log does not fit its event"
        return Undecoded(why, log.data, log.topics, tuple(matching))

    def input(self, data: bytes | Transaction) -> Decoded | Undecoded:
        """Decode a call: its input, or the transaction that makes it."""
        if isinstance(data, Transaction):
            if data.input is None:
                return Undecoded("the transaction is of an unknown type: its input is not known", b"")
            if data.to is None:
                return Undecoded("the transaction creates a contract: its input is code", data.input)
            data = data.input
        if len(data) < _SELECTOR:
            return Undecoded("the input names no function", data)
        matching = self._functions.get(data[:_SELECTOR], ())
        result = _best([_call(signature, data) for signature in matching], matching)
        if isinstance(result, Decoded):
            return result
        if result:
            return _ambiguous(result, data)
        why = "no function of the ABI has this selector" if not matching else "the input does not fit its function"
        return Undecoded(why, data, candidates=tuple(matching))


def _by(key: Callable[[Signature], bytes], signatures: Iterable[Signature]) -> dict[bytes, list[Signature]]:
    result: dict[bytes, list[Signature]] = {}
    for signature in signatures:
        result.setdefault(key(signature), []).append(signature)
    return result


def _best(tried: Sequence[Decoded | None], signatures: Sequence[Signature]) -> Decoded | list[Signature]:
    """The only match, or the signatures of all matches; exact matches win over others."""
    fitting = [result for result in tried if result is not None]
    exact = [result for result in fitting if result.exact]
    best = exact or fitting
    if len(best) == 1:
        return best[0]
    fit = {result.signature for result in best}
    return [signature for signature in signatures if signature in fit]


def _ambiguous(signatures: Sequence[Signature], data: bytes, topics: tuple[bytes, ...] = ()) -> Undecoded:
    return Undecoded("several signatures fit it", data, topics, tuple(signatures))


def _event(signature: Signature, topics: tuple[bytes, ...], log: Log) -> Decoded | None:
    """Decode a log by one event; ``topics`` are those of the indexed parameters."""
    indexed = [parameter for parameter in signature.parameters if parameter.indexed]
    if len(indexed) != len(topics):
        return None
    plain = _values([parameter for parameter in signature.parameters if not parameter.indexed], log.data)
    indexed_values = [_topic(parameter, topic) for parameter, topic in zip(indexed, topics, strict=True)]
    if plain is None or None in indexed_values:
        return None
    values, exact = plain
    rest, hashed = iter(values), iter(indexed_values)
    arguments = tuple(
        Argument(each.name, each.type, next(hashed) if each.indexed else next(rest), each.indexed)
        for each in signature.parameters
    )
    return Decoded(signature, arguments, log.data, log.topics, exact)


def _topic(parameter: Parameter, topic: bytes) -> Any:  # noqa: ANN401 -- depends on the type of the parameter
    """Value of an indexed parameter; None where the topic does not fit its type."""
    if parameter.dynamic:
        return TopicHash(topic)
    result = _values([parameter], topic)
    return None if result is None or not result[1] else result[0][0]


def _call(signature: Signature, data: bytes) -> Decoded | None:
    result = _values(signature.parameters, data[_SELECTOR:])
    if result is None:
        return None
    values, exact = result
    matching = zip(signature.parameters, values, strict=True)
    return Decoded(signature, tuple(Argument(each.name, each.type, value) for each, value in matching), data, (), exact)


def _values(parameters: Sequence[Parameter], data: bytes) -> tuple[Sequence[Any], bool] | None:
    """The values, and whether they encode to the same bytes; None where the data does not fit the types."""
    types = [parameter.type for parameter in parameters]
    try:
        values = _CODEC.decode(types, data)
        return values, _CODEC.encode(types, values) == data
    except (DecodingError, EncodingError, UnicodeDecodeError, OverflowError):
        return None
