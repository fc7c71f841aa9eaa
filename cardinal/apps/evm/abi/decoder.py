"""Logs and inputs by name: decoded where a signature fits, kept as they are where none does.

    abi = Abi.from_signatures(["event Transfer(address indexed from, address indexed to, uint256 value)"])
    for log in decode(payload).logs:
        found = abi.log(log)            # Decoded, or Undecoded with the reason

Rules:

1. Nothing is lost: every answer has the bytes that it was made of.
2. Signatures that share a selector or topic (overloads, or two standards with one name) are told apart by what fits:
   the number of topics, and whether the data decodes, and then encodes to the same bytes again. Where several still
   fit, nothing is guessed.
3. An indexed value of a dynamic type is in the log only as its hash: :class:`TopicHash`.
4. Data whose parts point at each other again and again is not decoded: a few kilobytes of it would become gigabytes.
5. An anonymous event is looked for only where no named one has the first topic.

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
    """Data that is read a few times over and no more.

    Encoders write every part once, and the library looks at it up to three times; who reads more follows references to
    the same part.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)  # type: ignore[no-untyped-call] # eth-abi leaves it untyped
        self._left = _READINGS * len(data) + _LEAST

    def read(self, size: int | None = -1, /) -> bytes:
        """As of any file; DecodingError where too much was read."""
        data = super().read(size)
        self._left -= len(data)
        if self._left < 0:
            raise DecodingError("the data refers to the same parts again and again")
        return data


class _Codec(ABICodec):
    stream_class = _Bounded


_CODEC: Final = _Codec(registry)


@dataclass(frozen=True, slots=True)
class TopicHash:
    """The Keccak-256 of a value that the log itself does not have."""

    hash: bytes


@dataclass(frozen=True, slots=True)
class Argument:
    """A decoded value under its parameter's name (which may be empty) and canonical type."""

    name: str
    type: str
    value: Any
    indexed: bool = False


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a log or an input says.

    Attributes:
        signature: the one that fits.
        arguments: in the signature's order.
        data: the bytes that were decoded: a log's data, or the whole input.
        topics: a log's topics.
        exact: whether the data is what encoding the arguments gives; inputs may have more behind.

    """

    signature: Signature
    arguments: tuple[Argument, ...]
    data: bytes
    topics: tuple[bytes, ...] = ()
    exact: bool = True

    @property
    def name(self) -> str:
        """The function's or event's name."""
        return self.signature.name

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the type of the parameter
        for argument in self.arguments:
            if argument.name == name:
                return argument.value
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Undecoded:
    """A log or an input that no signature fits, or more than one."""

    reason: str
    data: bytes
    topics: tuple[bytes, ...] = ()
    candidates: tuple[Signature, ...] = ()


class Abi:
    """The signatures that are known, by selector and by topic.

    Arguments:
        signatures: functions and events; the same one twice counts once.

    """

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self.signatures = tuple(dict.fromkeys(signatures))
        functions = [known for known in self.signatures if known.kind == "function"]
        events = [known for known in self.signatures if known.kind == "event"]
        self._functions = _by(lambda known: known.selector, functions)
        self._events = _by(lambda known: known.topic, [known for known in events if not known.anonymous])
        self._anonymous = [known for known in events if known.anonymous]

    @classmethod
    def from_json(cls, *abis: str | Iterable[Mapping[str, Any]]) -> Self:
        """From JSON ABIs, as text or parsed. ConfigurationError where one is none."""
        return cls(known for abi in abis for known in from_json(abi))

    @classmethod
    def from_signatures(cls, texts: Iterable[str]) -> Self:
        """From signatures as people write them (:mod:`.signatures`). ConfigurationError where one is none."""
        return cls(from_text(text) for text in texts)

    def log(self, log: Log) -> Decoded | Undecoded:
        """What a log says."""
        named = self._events.get(log.topics[0], ()) if log.topics else ()
        found = _only([_event(known, log.topics[1:], log) for known in named], named)
        if isinstance(found, Decoded) or found:
            return found if isinstance(found, Decoded) else _several(found, log.data, log.topics)
        found = _only([_event(known, log.topics, log) for known in self._anonymous], self._anonymous)
        if isinstance(found, Decoded):
            return found
        if found:
            return _several(found, log.data, log.topics)
        why = "no event that is known has this topic" if not named else "the log does not fit its event"
        return Undecoded(why, log.data, log.topics, tuple(named))

    def input(self, data: bytes | Transaction) -> Decoded | Undecoded:
        """What a call says: its input, or the transaction that makes it."""
        if isinstance(data, Transaction):
            if data.to is None:
                return Undecoded("the transaction creates a contract: its input is code", data.input)
            data = data.input
        if len(data) < _SELECTOR:
            return Undecoded("the input names no function", data)
        named = self._functions.get(data[:_SELECTOR], ())
        found = _only([_call(known, data) for known in named], named)
        if isinstance(found, Decoded):
            return found
        if found:
            return _several(found, data)
        why = "no function that is known has this selector" if not named else "the input does not fit its function"
        return Undecoded(why, data, candidates=tuple(named))


def _by(key: Callable[[Signature], bytes], signatures: Iterable[Signature]) -> dict[bytes, list[Signature]]:
    found: dict[bytes, list[Signature]] = {}
    for known in signatures:
        found.setdefault(key(known), []).append(known)
    return found


def _only(tried: Sequence[Decoded | None], signatures: Sequence[Signature]) -> Decoded | list[Signature]:
    """The only one that fits, or the signatures of all that do: the exact ones come before the others."""
    fitting = [found for found in tried if found is not None]
    exact = [found for found in fitting if found.exact]
    best = exact or fitting
    if len(best) == 1:
        return best[0]
    fit = {found.signature for found in best}
    return [known for known in signatures if known in fit]


def _several(signatures: Sequence[Signature], data: bytes, topics: tuple[bytes, ...] = ()) -> Undecoded:
    return Undecoded("several signatures fit it", data, topics, tuple(signatures))


def _event(known: Signature, topics: tuple[bytes, ...], log: Log) -> Decoded | None:
    """A log by one event; ``topics`` are those of the indexed parameters."""
    indexed = [parameter for parameter in known.parameters if parameter.indexed]
    if len(indexed) != len(topics):
        return None
    plain = _values([parameter for parameter in known.parameters if not parameter.indexed], log.data)
    said = [_topic(parameter, topic) for parameter, topic in zip(indexed, topics, strict=True)]
    if plain is None or None in said:
        return None
    values, exact = plain
    rest, hashed = iter(values), iter(said)
    arguments = tuple(
        Argument(each.name, each.type, next(hashed) if each.indexed else next(rest), each.indexed)
        for each in known.parameters
    )
    return Decoded(known, arguments, log.data, log.topics, exact)


def _topic(parameter: Parameter, topic: bytes) -> Any:  # noqa: ANN401 -- whatever the type of the parameter
    """The value of an indexed parameter; None where the topic is none of its type."""
    if parameter.dynamic:
        return TopicHash(topic)
    found = _values([parameter], topic)
    return None if found is None or not found[1] else found[0][0]


def _call(known: Signature, data: bytes) -> Decoded | None:
    found = _values(known.parameters, data[_SELECTOR:])
    if found is None:
        return None
    values, exact = found
    named = zip(known.parameters, values, strict=True)
    return Decoded(known, tuple(Argument(each.name, each.type, value) for each, value in named), data, (), exact)


def _values(parameters: Sequence[Parameter], data: bytes) -> tuple[Sequence[Any], bool] | None:
    """The values, and whether they encode to the same bytes; None where the data is none of these types."""
    types = [parameter.type for parameter in parameters]
    try:
        values = _CODEC.decode(types, data)
        return values, _CODEC.encode(types, values) == data
    except (DecodingError, EncodingError, UnicodeDecodeError, OverflowError):
        return None
