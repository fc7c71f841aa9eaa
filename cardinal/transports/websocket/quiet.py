"""What the websocket library may log: no headers, which it prints when it is told to debug, and so no token."""

from __future__ import annotations

import logging
from typing import Any


class QuietLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that has no debugging, whatever levels are set. The library asks it once, and prints no traffic then."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name that the library calls
        """Whether a message of this level is printed."""
        return level > logging.DEBUG and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:  # noqa: ANN401 - as it is inherited
        """The message as it is; what the library gives beside it stays where it is."""
        return msg, kwargs
