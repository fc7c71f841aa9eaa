"""What the websocket library may log.

No headers, which it prints when it is told to debug, and so no token; and no traceback of a connection that broke or
was none, which is an error of ours for who has to know it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

_LIBRARY: Final = "websockets"


class QuietLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that has no debugging, whatever levels are set. The library asks it once, and prints no traffic then."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name that the library calls
        """Whether a message of this level is printed."""
        return level > logging.DEBUG and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:  # noqa: ANN401 - as it is inherited
        """The message, and an error of a connection by its name alone; only what is a bug keeps its traceback."""
        error = sys.exc_info()[1] if kwargs.get("exc_info") else None
        if isinstance(error, OSError | EOFError) or type(error).__module__.partition(".")[0] == _LIBRARY:
            return f"{msg}: {type(error).__name__}", {**kwargs, "exc_info": None}
        return msg, kwargs
