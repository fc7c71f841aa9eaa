"""What is said of a stream and means nothing to its transport: refused, because nobody would notice.

A login may stand in the URL, in the settings or in the environment; which one it was is not known here, and none is
repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    from .address import TransportUrl


def refuse_login(url: TransportUrl) -> None:
    """ConfigurationError for a user or password, where nobody asks for one."""
    given = [name for name, value in (("user", url.user), ("password", url.password)) if value is not None]
    if given:
        raise ConfigurationError(
            f"{url.scheme}:// has no use for a {' and a '.join(given)}: leave that out, where it stands in the URL, in "
            "the settings or in the environment",
            setting=given[0],
        )


def refuse_options(url: TransportUrl) -> None:
    """ConfigurationError for any option, where there are none."""
    for name in url.options:
        raise ConfigurationError(f"there is no option {name} of {url.scheme}:// URLs", setting=name)
