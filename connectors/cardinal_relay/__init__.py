"""``ws://``, ``wss://`` and ``cardinal://``: a stream that ``cardinal serve`` sends.

:mod:`.transport` opens it, :mod:`.settings` describes a URL's options, :mod:`.protocol` the messages.
"""

from typing import Final

from cardinal.config.schemes import Scheme

_MODULE: Final = f"{__name__}.transport"
_PRODUCE: Final = "produce to what `cardinal serve` reads from (kafka://…)"

WS: Final = Scheme("ws://host:port", _MODULE, 80, _PRODUCE)
WSS: Final = Scheme("wss://host:port", _MODULE, 443, _PRODUCE)
CARDINAL: Final = Scheme("cardinal://host:port", _MODULE, 8765, _PRODUCE)
