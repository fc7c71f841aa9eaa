"""Faults of requests to a node: their classification by subject, and their errors.

An error is classified by what it is about. Codes alone do not tell: gateways reuse them (-32001 is "resource not found"
and "not whitelisted", -32007 a rate limit and "request is too big"), and texts say it. So a text decides before a code,
and what neither names is about this one request: retrying it is never wrong.

Texts and codes are those of geth, erigon, nethermind, besu, reth (jsonrpsee) and anvil, and of the gateways proxyd,
Infura, Alchemy, QuickNode, Ankr, dRPC, NodeReal, Chainstack, Cloudflare and nginx.

Pure: no clock, no connection.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

import msgspec

from cardinal.errors import NodeAnswerError, NodeUnreachableError


class Fault(StrEnum):
    """Subject of an error; the values are the kinds that metrics name."""

    REQUEST = "request"
    """This request or block, now: retried, then unreachable."""

    RATE = "rate"
    """Calls per time: retried after the pause that the node requests, and more slowly."""

    SIZE = "size"
    """The size of a request or response: smaller batches."""

    METHOD = "method"
    """The method is refused: another way of fetching."""

    HISTORY = "history"
    """Data that the node pruned: another node."""

    PARAMETERS = "parameters"
    """The request itself is malformed, for this node."""

    CREDENTIALS = "credentials"
    """The node refuses the caller."""

    ADDRESS = "address"
    """No JSON-RPC node answers at this address, or a gateway in front of it."""

    TAG = "tag"
    """The node has no block under ``safe`` or ``finalized``."""

    TIMEOUT = "timeout"
    """No response in time, perhaps because the request was too large."""

    CONNECTION = "connection"
    """No response: the connection failed or ended."""

    WRONG = "wrong"
    """A well-formed response that is not the requested block, or contradicts it."""


PASSING: Final = frozenset({Fault.REQUEST, Fault.RATE})
"""Subjects of errors that a later attempt may not meet: after the attempts the node counts as unreachable."""


class Refusal(msgspec.Struct):
    """The error of a response.

    Attributes:
        code: the code of JSON-RPC; 0 where there is none.
        message: its text.
        data: its further members, unparsed.
        status: HTTP status of the response.
        seconds: pause that the response requests; None for none.

    """

    code: int = 0
    message: str = ""
    data: msgspec.Raw = msgspec.Raw()
    status: int = 200
    seconds: float | None = None


class CallRefusedError(NodeAnswerError):
    """A node's error for a call. ``fault`` is its subject; ``seconds`` a pause that it requests, or None."""

    def __init__(
        self, message: str, *, code: int | None, fault: Fault, address: str = "", seconds: float | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.fault = fault
        self.address = address
        self.seconds = seconds


class NoNodeError(CallRefusedError):
    """A server at the address that is no node, or does not let the caller through."""

    def __init__(self, message: str, *, code: int | None = None, seconds: float | None = None) -> None:
        super().__init__(message, code=code, fault=Fault.ADDRESS, seconds=seconds)


class CredentialsError(CallRefusedError):
    """The node refuses the credentials (HTTP 401)."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message, code=code, fault=Fault.CREDENTIALS)


class TooLargeError(CallRefusedError):
    """The node refuses a batch or a body of this size."""

    retriable = True

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message, code=code, fault=Fault.SIZE)


class MalformedResultError(NodeAnswerError):
    """A result has another type than the method's."""


class FailedError(NodeUnreachableError):
    """An attempt failed, and a later one may succeed.

    ``fault`` is the subject of its error; ``seconds`` a pause that the node requests, or None; ``code`` is None.
    """

    code: int | None = None

    def __init__(
        self, message: str, *, address: str, fault: Fault = Fault.CONNECTION, seconds: float | None = None
    ) -> None:
        super().__init__(message, address=address)
        self.fault = fault
        self.seconds = seconds


class SlowError(FailedError):
    """Timeout: the node is unreachable, or the request was too large."""

    def __init__(self, message: str, *, address: str) -> None:
        super().__init__(message, address=address, fault=Fault.TIMEOUT)


_SIZE: Final = re.compile(r"batch|too (?:large|big)\b|payload|(?:response|body|request) size", re.IGNORECASE)

_NOT: Final = (
    r"(?:not|n't|never|no longer|un)[ -]?(?:been |be |yet |currently )?"
    r"(?:supported?|found|available|allowed|enabled|whitelisted|permitted|implemented|exists?|recogni[sz]ed|known|"
    r"included|active|exposed|authori[sz]ed)"
)
_METHOD: Final = re.compile(
    r"\b(?:methods?|module|namespace|api|endpoint|eth_\w+|debug_\w+)\b"
    r"(?:(?!\bblocks?\b|\bheaders?\b|\breceipts?\b|\btransactions?\b|\bresource|\bstate\b|\bfail|\berror)[^.;:]){0,60}?"
    rf"\b(?:{_NOT}|disabled|blocked|forbidden|restricted|deprecated|premium|paid)"
    r"|\b(?:unsupported|unknown|unrecogni[sz]ed|no such|disallowed|blocked|forbidden|restricted|unauthori[sz]ed)\s+"
    r"(?:(?:json-?)?rpc\s+|eth\s+)?(?:method|api call)"
    r"|does not exist/is not available"
    r"|(?:calls?|rpc|request)\b[^.;]{0,40}not (?:in )?(?:the )?whitelist"
    r"|not included in your|upgrade your plan to use|not available (?:on|in|with|for) \w+\b[^.;]{0,30}\bplan",
    re.IGNORECASE,
)
_NO_BACKEND: Final = re.compile(r"\b(?:no|all)\b[^.;]{0,30}\b(?:backends?|upstreams?|nodes?|servers?)\b", re.IGNORECASE)
"""A gateway that has no node for a method now: not about the method."""

_RATE: Final = re.compile(
    r"\brates?\b|rate[-_]?limit|\blimit(?:s|ed|er|ing)?\b|\bquotas?\b|\bcapacity\b|too many|throttl|\bcredits?\b"
    r"|compute[- ]?units?\b|\bcus?\b|ran out of|slow(?:ing)? down|\brps\b|\bcups\b|requests? per\b|per second\b"
    r"|request count|overload|over load|too much load|usage|allowance|too frequent",
    re.IGNORECASE,
)
_HISTORY: Final = re.compile(
    r"prun(?:ed|ing)|missing trie node|history\b[^.;]{0,40}(?:unavailable|not available|expired)"
    r"|\bstate\b[^.;]{0,80}(?:unavailable|not available|discarded|not found)|no state available"
    r"|old data not available|\barchiv(?:e|al)\b|block (?:has )?expired|before the earliest available",
    re.IGNORECASE,
)
_ENTRY: Final = re.compile(
    r"unauthori[sz]ed|authenticat|forbidden|access denied|\bjwt\b|\bapi[ -]?key|project id|invalid (?:token|key)"
    r"|not (?:in|on) (?:the )?(?:ip )?(?:white|allow)list",
    re.IGNORECASE,
)
_NO_TAG: Final = re.compile(
    r"not found|unknown|not available|unavailable|unsupported|not supported|not set", re.IGNORECASE
)
_HICCUP: Final = re.compile(
    r"backend|upstream|timed? ?out|timeout|unavailable|internal|temporar|try again|busy|crash|connection|not found"
    r"|deadline|cancell?ed|reset|unexpected|unhealthy|shutting down|syncing",
    re.IGNORECASE,
)

_CODES: Final = {
    -32601: Fault.METHOD,  # JSON-RPC 2.0
    -32004: Fault.METHOD,  # EIP-1474
    4200: Fault.METHOD,  # EIP-1193
    4444: Fault.HISTORY,  # EIP-4444
    -32602: Fault.PARAMETERS,
    -32600: Fault.PARAMETERS,
    -32700: Fault.PARAMETERS,
    -32005: Fault.RATE,  # EIP-1474: limit exceeded
    -32016: Fault.RATE,  # proxyd
    -32017: Fault.RATE,
    429: Fault.RATE,
    401: Fault.CREDENTIALS,
    403: Fault.ADDRESS,
}
_STATUSES: Final = {429: Fault.RATE, 403: Fault.ADDRESS}
_NO_MARK: Final = -39001
"""geth's code where no consensus client has set a tag."""

_TAGS: Final = frozenset({"safe", "finalized"})
_DATA_MOST: Final = 2_000


def fault_of(refusal: Refusal, params: tuple[object, ...] = ()) -> Fault:
    """Subject of an error.

    Arguments:
        refusal: the error.
        params: parameters of the refused call.

    """
    text, code = refusal.message, refusal.code
    if params and params[0] in _TAGS and (code == _NO_MARK or _NO_TAG.search(text)):
        return Fault.TAG
    if (named := _named(text)) is not None:
        return named
    by_code = _CODES.get(code) or _STATUSES.get(refusal.status)
    if (by_code is None or by_code is Fault.PARAMETERS) and 0 < len(refusal.data) <= _DATA_MOST:
        return _named(bytes(refusal.data).decode(errors="replace")) or by_code or Fault.REQUEST
    return by_code or Fault.REQUEST


def is_hiccup(refusal: Refusal) -> bool:
    """True if an error for a whole batch is about this moment, and not perhaps about the batch's size."""
    return refusal.status >= 500 or refusal.code == -32603 or _HICCUP.search(refusal.message) is not None  # noqa: PLR2004


def says_rate(text: str) -> bool:
    """True for a text about rates, limits or quotas."""
    return _named(text) is Fault.RATE


def _named(text: str) -> Fault | None:
    """Subject that a text names; None if it names none."""
    if _SIZE.search(text):
        return Fault.SIZE
    if _METHOD.search(text) and not _NO_BACKEND.search(text):
        return Fault.METHOD
    if _RATE.search(text):
        return Fault.RATE
    if _HISTORY.search(text):
        return Fault.HISTORY
    return Fault.ADDRESS if _ENTRY.search(text) else None


# --- pauses -----------------------------------------------------------------------------------------------------

_AFTER: Final = re.compile(
    r"(?:retry|try again|wait|back ?off|resets?)\D{0,25}?(\d+(?:\.\d+)?)"
    r"\s*(ms|millis\w*|s|sec\w*|m|min\w*|h|hours?)?(?![\w.])",
    re.IGNORECASE,
)
_MEMBER: Final = re.compile(
    r'"(?:retry[-_]?after|try[-_]?again[-_]?in|back[-_]?off|wait)[-_]?(?:seconds?|s)?"\s*:\s*"?(\d+(?:\.\d+)?)\s*([a-z]*)',
    re.IGNORECASE,
)
_UNITS: Final = {"ms": 0.001, "mi": 0.001, "m": 60.0, "h": 3600.0}


def pause_in(refusal: Refusal) -> float | None:
    """Pause in seconds that an error requests in its data (as Infura's ``backoff_seconds``) or text; None for none."""
    data = bytes(refusal.data)[:_DATA_MOST].decode(errors="replace") if len(refusal.data) else ""
    found = _MEMBER.search(data) or _AFTER.search(refusal.message)
    if found is None:
        return None
    unit = (found[2] or "s").lower()
    scale = 60.0 if unit.startswith("min") else _UNITS.get(unit[:2], _UNITS.get(unit[:1], 1.0))
    return float(found[1]) * scale
