"""A gateway in front of a chain whose answers are faulty now and then, in every form that was seen of real ones.

Of each request a part is drawn: the whole HTTP answer is replaced, or single calls of a batch are. What is drawn is
counted by kind, and the pauses that it requests are added up.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from aiohttp import WSMsgType, web
from rpc_script import answering

from cardinal_devkit.testing._jsonrpc import Request, respond
from cardinal_devkit.testing.node import JsonRpcNode

if TYPE_CHECKING:
    from cardinal_devkit.testing.node import NodeChain

Json: TypeAlias = Any

ONE_REQUEST = [
    *(
        (-32000, said)
        for said in ("header not found", "request timed out", "method handler crashed", "block not found")
    ),
    *((-32000, said) for said in ("execution aborted (timeout = 5s)", "context deadline exceeded", "unknown block")),
    (-32001, "resource not found"),
    (-32002, "resource unavailable"),
    (-32009, "Server is busy, try again later"),
    (-32011, "no backends available for method"),
    (-32603, "Internal error"),
    (-32602, "Invalid params"),
    (-32600, "Invalid Request"),
    (4444, "pruned history unavailable"),
    (-32000, "missing trie node 1f5a (path ) state 0x1f5a is not available"),
]
RATES = [
    (-32005, "limit exceeded"),
    (-32007, "50/second request limit reached - reduce calls per second or upgrade your account"),
    (-32012, "credits limited to 6000/sec"),
    (-32016, "over rate limit"),
    (-32029, "Too Many Requests, please try again later"),
    (-32000, "Your app has exceeded its compute units per second capacity"),
    (-32005, "daily request count exceeded, request rate limited"),
    (-32090, "Too many requests, reason: call rate limit exhausted, retry in 0.3s"),
    (429, "exceeded its compute units per second capacity"),
]
METHODS = [
    (-32601, "the method eth_getBlockReceipts does not exist/is not available"),
    (-32001, "rpc method is not whitelisted"),
    (-32600, "Unsupported method: eth_getBlockReceipts"),
    (-32004, "method not supported"),
]
PAGES = [
    (200, "<html><body>Attention required</body></html>"),
    (200, ""),
    (200, '{"error":"upstream closed"}'),
    (200, '{"jsonrpc":"2.0","id":1,"resul'),
    *((status, "<html>no</html>") for status in (403, 500, 501, 502, 503, 505, 520, 521, 522, 523, 525, 530)),
    (403, '{"error":"your IP was blocked for a moment"}'),
    (500, '{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"Internal error"}}'),
    (429, '{"message":"API rate limit exceeded"}'),
]
PAUSE = 0.3
"""Seconds that a refusal requests which names a pause."""


class FaultyGateway:
    """A gateway over one chain.

    Arguments:
        chain: the chain.
        share: part of the requests, and of the calls in a batch, that get a faulty answer.
        seed: of the draws.

    Attributes:
        drawn: faulty answers by kind.
        paused: seconds of the requested pauses.
        requests: number of HTTP requests, or texts over WebSockets.

    """

    def __init__(self, chain: NodeChain, share: float, seed: int = 1) -> None:
        self.drawn: Counter[str] = Counter()
        self.paused = 0.0
        self.requests = 0
        self._node = JsonRpcNode(chain)
        self._share = share
        self._dice = random.Random(seed)
        self._seen = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request over HTTP, or follow a WebSocket."""
        if request.headers.get("Upgrade", "").lower() == "websocket":
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await socket.send_str(await self._answered(message.data))
            return socket
        text = await request.text()
        self.requests += 1
        if self._seen and self._dice.random() < self._share:
            status, page = self._dice.choice(PAGES)
            if status == 429:
                self.paused += PAUSE
            self.drawn["pages"] += 1
            headers = {"Retry-After": str(PAUSE)} if status == 429 else {}
            return web.Response(status=status, text=page, headers=headers, content_type="text/html")
        self._seen = True
        return web.Response(text=await self._answered(text), content_type="application/json")

    async def _answered(self, text: str) -> str:
        requested = json.loads(text)
        if isinstance(requested, dict):
            return json.dumps(await self._call(requested))
        if self._dice.random() < self._share / 4:
            self.drawn["whole batches"] += 1
            code, said = self._dice.choice(RATES)
            return json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": said}})
        answers = [await self._call(one) for one in requested]
        if self._dice.random() < self._share / 4:
            self.drawn["omitted"] += 1
            answers.pop(self._dice.randrange(len(answers)))
        self._dice.shuffle(answers)
        return json.dumps(answers)

    async def _call(self, requested: Json) -> Json:
        method, params = requested["method"], requested.get("params", [])
        call = Request(method, params, requested["id"])
        answer = json.loads(await respond(call, self._node._call))
        if method in {"eth_chainId", "eth_subscribe"} or self._dice.random() >= self._share:
            return answer
        kind, faulty = self._dice.choice([self._refused, self._limited, self._unsupported, self._wrong])(method, answer)
        self.drawn[kind] += 1
        return faulty

    def _refused(self, _: str, answer: Json) -> tuple[str, Json]:
        code, said = self._dice.choice(ONE_REQUEST)
        return "one request", _error(answer, code, said)

    def _limited(self, _: str, answer: Json) -> tuple[str, Json]:
        code, said = self._dice.choice(RATES)
        self.paused += PAUSE if "retry in" in said else 0.0
        return "rates", _error(answer, code, said)

    def _unsupported(self, method: str, answer: Json) -> tuple[str, Json]:
        if method != "eth_getBlockReceipts":
            return self._refused(method, answer)
        code, said = self._dice.choice(METHODS)
        return "methods", _error(answer, code, said)

    def _wrong(self, method: str, answer: Json) -> tuple[str, Json]:
        """A well-formed answer that is wrong: null, of another block, or with a log less."""
        result = copy.deepcopy(answer["result"])
        if method == "eth_getBlockReceipts" and result:
            lie = self._dice.randrange(3)
            if lie == 0:
                result[0]["logs"] = []
            elif lie == 1:
                result = [{**one, "blockHash": "0x" + "ab" * 32} for one in result]
            else:
                result = None
        elif method == "eth_getBlockByNumber" and result and self._dice.random() < 0.5:
            result["number"] = hex(int(result["number"], 16) + 1)
        else:
            result = None
        return "wrong", {**answer, "result": result}


def _error(answer: Json, code: int, said: str) -> Json:
    return {"jsonrpc": "2.0", "id": answer["id"], "error": {"code": code, "message": said}}


@asynccontextmanager
async def faulty_gateway(chain: NodeChain, share: float, seed: int = 1) -> AsyncIterator[tuple[str, FaultyGateway]]:
    """A gateway, by its address over HTTP."""
    gateway = FaultyGateway(chain, share, seed)
    async with answering(gateway.answer) as url:
        yield url, gateway
