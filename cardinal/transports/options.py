"""Options of transport URLs, with the secrets that files hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from cardinal.config.options import Options
from cardinal.config.secrets import with_secrets
from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    from cardinal.config.url import TransportUrl


class TransportOptions(Options):
    """Options of one transport. This class alone is for transports without any."""

    @classmethod
    def of(cls, url: TransportUrl) -> Self:
        """The options of a URL; files of secrets are read now.

        Raises:
            ConfigurationError: an option or a login that the transport does not have, or a file that cannot be read.

        """
        url = with_secrets(url)
        return cls.read(cls.given(url), f"{url.scheme}:// URLs")

    @classmethod
    def given(cls, url: TransportUrl) -> dict[str, str]:
        """The options of a URL. ConfigurationError for a login, from any source."""
        login = [name for name, value in (("user", url.user), ("password", url.password)) if value is not None]
        if login:
            raise ConfigurationError(
                f"{url.scheme}:// has no use for a {' and a '.join(login)}: leave that out of the URL, the settings "
                "and the environment",
                setting=login[0],
            )
        return dict(url.options)
