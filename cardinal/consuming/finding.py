"""Which application's stream a consumer reads: named outright, by a chain id, or the only one that is there."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from cardinal import apps
from cardinal.errors import ConfigurationError, TopicError
from cardinal.transports import list_topics, parse_url

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal.transports import TransportUrl

_FIND_SECONDS: Final = 0.25
_CHAIN_ID: Final = re.compile(r"\d+$")


def find_application(url: str | TransportUrl, name: str, *, wait: float = 0.0) -> Application:
    """The one stream of this application that is on the server.

    Arguments:
        url: the transport.
        name: the application's name, ``evm``.
        wait: seconds to wait for a stream to appear.

    Raises:
        TopicError: there is none.
        ConfigurationError: there are several; the sentence names their chain ids.

    """
    deadline = time.monotonic() + wait
    while True:
        names = list_topics(url)
        found: list[Application] = []
        ids: list[str] = []
        for topic in sorted(names):
            if match := _CHAIN_ID.search(topic):
                app = apps.get(name, chain_id=int(match.group()))
                if app.default_topic == topic and names.issuperset(app.all_topics):
                    found.append(app)
                    ids.append(match.group())
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigurationError(
                f"there are several {name} streams (chain ids {', '.join(ids)}): name one by its chain id",
                setting="chain_id",
            )
        if time.monotonic() >= deadline:
            raise TopicError(
                f"there is no {name} stream on {parse_url(url)} yet: start `cardinal produce` first",
                topic=apps.get(name, chain_id=1).default_topic,
            )
        time.sleep(_FIND_SECONDS)


def application_of(url: str | TransportUrl, app: str | Application, chain_id: int | None, wait: float) -> Application:
    """The application that was given, or the one of this name and chain id; raises as :func:`find_application`."""
    if not isinstance(app, str):
        return app
    return find_application(url, app, wait=wait) if chain_id is None else apps.get(app, chain_id=chain_id)
