"""Decoding of logs and call inputs by contract ABIs.

    abi = Abi.from_signatures(["event Transfer(address indexed from, address indexed to, uint256 value)"])
    for log in decode(payload).logs:
        found = abi.log(log)            # Decoded, or Undecoded with the reason

Rules:

1. Every result includes its input bytes.
2. Signatures that share a selector or topic (overloads, or two standards with one name) are distinguished by the
   number of topics, and by whether the data decodes and encodes to the same bytes. If several still fit, the result is
   :class:`Undecoded`. Encodings that are not canonical (:mod:`.values`) are tried where no canonical one fits.
3. An indexed value of a dynamic type is in the log only as its hash: :class:`TopicHash`.
4. Anonymous events are tried only where no named one has the first topic.

Numbers are ``int``, addresses ``0x`` text in lower case, bytes ``bytes``, arrays and structures tuples (eth-abi). A
string that is not UTF-8 is ``bytes``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from cardinal.texts import Readable
from cardinal_ethereum.model.block import Log, Transaction

from .signatures import Parameter, Signature, from_json, from_text
from .values import Form, MisfitError, values_of

__all__ = ["Abi", "Argument", "Decoded", "Signature", "TopicHash", "Undecoded"]

_SELECTOR: Final = 4
_NAMED: Final = (Form.PADDED, Form.ANY)
_ANONYMOUS: Final = (Form.PADDED, Form.UNPADDED)
"""Forms that are tried, one after the other. An anonymous event is not guessed: any word would fit an ``address``."""


@dataclass(frozen=True, slots=True, repr=False)
class TopicHash(Readable):
    """Keccak-256 of an indexed value that the log itself does not contain."""

    hash: bytes


@dataclass(frozen=True, slots=True, repr=False)
class Argument(Readable):
    """Decoded value with its parameter's name (which may be empty) and canonical type."""

    name: str
    type: str
    value: Any
    indexed: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Decoded(Readable):
    """Decoded log or input.

    Attributes:
        signature: the matching signature.
        arguments: in the signature's order.
        data: decoded bytes: a log's data, or the complete input.
        topics: a log's topics.
        exact: whether encoding the arguments gives the data and the topics, as ``strict`` in the tables.

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


@dataclass(frozen=True, slots=True, repr=False)
class Undecoded(Readable):
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
        named = self._events.get(log.topics[0], []) if log.topics else []
        signatures, topics, forms = (
            (named, log.topics[1:], _NAMED) if named else (self._anonymous, log.topics, _ANONYMOUS)
        )
        result, misfits = _best(lambda one, form: _event(one, topics, log, form), signatures, forms)
        if isinstance(result, Decoded):
            return result
        if result:
            return _ambiguous(result, log.data, log.topics)
        if named:
            reason = "the log does not fit its event"
        else:
            reason = "no event of the ABI has this topic" if log.topics else "the log has no topic, and names no event"
            reason += ", and no anonymous one fits" if misfits else ""
        return Undecoded(_because(reason, misfits), log.data, log.topics, tuple(signatures))

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
        result, misfits = _best(lambda one, form: _call(one, data, form), matching, _NAMED)
        if isinstance(result, Decoded):
            return result
        if result:
            return _ambiguous(result, data)
        reason = "the input does not fit its function" if matching else "no function of the ABI has this selector"
        return Undecoded(_because(reason, misfits), data, candidates=tuple(matching))


def _by(key: Callable[[Signature], bytes], signatures: Iterable[Signature]) -> dict[bytes, list[Signature]]:
    result: dict[bytes, list[Signature]] = {}
    for signature in signatures:
        result.setdefault(key(signature), []).append(signature)
    return result


def _best(
    attempt: Callable[[Signature, Form], Decoded], signatures: Sequence[Signature], forms: Iterable[Form]
) -> tuple[Decoded | list[Signature], list[str]]:
    """The only match, or the signatures of all matches; exact ones win over others. And the reasons of all misfits."""
    why: dict[str, None] = {}
    for form in forms if signatures else ():
        fitting: list[Decoded] = []
        why.clear()
        for signature in signatures:
            try:
                fitting.append(attempt(signature, form))
            except MisfitError as error:
                why[str(error)] = None
        best = [result for result in fitting if result.exact] or fitting
        if len(best) == 1:
            return best[0], []
        if best:
            return [result.signature for result in best], []
    return [], list(why)


def _because(reason: str, misfits: Iterable[str]) -> str:
    return ": ".join(filter(None, (reason, "; ".join(misfits))))


def _ambiguous(signatures: Sequence[Signature], data: bytes, topics: tuple[bytes, ...] = ()) -> Undecoded:
    return Undecoded("several signatures fit it", data, topics, tuple(signatures))


def _event(signature: Signature, topics: tuple[bytes, ...], log: Log, form: Form) -> Decoded:
    """Decode a log by one event; ``topics`` are those of the indexed parameters. Raises MisfitError."""
    indexed = [parameter for parameter in signature.parameters if parameter.indexed]
    if len(indexed) != len(topics):
        raise MisfitError(f"it has {len(topics)} indexed values, and {signature.name} has {len(indexed)}")
    plain = [parameter.type for parameter in signature.parameters if not parameter.indexed]
    values, exact = values_of(plain, log.data, form)
    matched = [_topic(parameter, topic, form) for parameter, topic in zip(indexed, topics, strict=True)]
    rest, hashed = iter(values), iter([value for value, _ in matched])
    arguments = tuple(
        Argument(each.name, each.type, next(hashed) if each.indexed else next(rest), each.indexed)
        for each in signature.parameters
    )
    return Decoded(signature, arguments, log.data, log.topics, exact and all(each for _, each in matched))


def _topic(parameter: Parameter, topic: bytes, form: Form) -> tuple[Any, bool]:
    """Value of an indexed parameter, and whether it encodes to the topic. Raises MisfitError."""
    if parameter.dynamic:
        return TopicHash(topic), True
    values, exact = values_of([parameter.type], topic, form)
    return values[0], exact


def _call(signature: Signature, data: bytes, form: Form) -> Decoded:
    values, exact = values_of([parameter.type for parameter in signature.parameters], data[_SELECTOR:], form)
    matching = zip(signature.parameters, values, strict=True)
    return Decoded(signature, tuple(Argument(each.name, each.type, value) for each, value in matching), data, (), exact)
