"""A node that never answers delays a healer no longer than its timeout."""

from __future__ import annotations

import socket
import time

import pytest

from cardinal import apps
from cardinal.errors import NodeUnreachableError
from cardinal.protocols.streams.events import Explanation
from cardinal.server.healing import FeedHealer

DEADLINE = 60.0


def test_a_node_that_never_answers_is_left_after_the_seconds_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with (
            FeedHealer(url, apps.get("evm", chain_id=1337), seconds=0.3) as healer,
            pytest.raises(NodeUnreachableError, match=r"no block within 0\.3 seconds"),
        ):
            healer(Explanation(bytes(32), 7, "open"))
        assert time.monotonic() - began < DEADLINE, "it waits for the node"
