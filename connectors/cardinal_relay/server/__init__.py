"""``cardinal serve``: a stream sent to many clients over websockets, read once."""

from __future__ import annotations

from .service import ServeService
from .settings import DEFAULT_PORT, ServeSettings
from .status import ServeStatus

__all__ = ["DEFAULT_PORT", "ServeService", "ServeSettings", "ServeStatus"]
