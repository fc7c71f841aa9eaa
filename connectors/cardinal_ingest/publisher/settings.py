"""The options of ``ingest://`` URLs, and what they make: the context of TLS."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from pydantic import Field

from cardinal.errors import ConfigurationError
from cardinal.transports.options import TransportOptions

_CA: Final = "ssl.ca.location"
_CERTIFICATE: Final = "ssl.certificate.location"
_KEY: Final = "ssl.key.location"


class IngestOptions(TransportOptions):
    """Options of a URL, by the names that ``kafka://`` URLs have for them."""

    tls: bool = False
    """Encrypt the connections"""
    ca: str | None = Field(default=None, alias=_CA)
    """A PEM file with the authority that signed the nodes' certificates. Default: the system's"""
    certificate: str | None = Field(default=None, alias=_CERTIFICATE)
    """A PEM file with the publisher's certificate, for nodes that require one; its name is the publisher's for them"""
    key: str | None = Field(default=None, alias=_KEY)
    """A PEM file with the certificate's key, without a password, where the certificate's file does not hold it"""

    def context(self) -> ssl.SSLContext | None:
        """The context of connections; None: not encrypted. The files are read now.

        Raises:
            ConfigurationError: an option would be ignored, or a file cannot be used.

        """
        files = {_CA: self.ca, _CERTIFICATE: self.certificate, _KEY: self.key}
        if not self.tls:
            if (given := next((name for name, file in files.items() if file), None)) is not None:
                raise ConfigurationError(f"{given} is for TLS, and this is not encrypted: add tls=1", setting=given)
            return None
        if self.key and not self.certificate:
            raise ConfigurationError(f"{_KEY} is of no use without {_CERTIFICATE}: give both", setting=_KEY)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        ca, certificate, key = (Path(file).expanduser() if file else None for file in files.values())
        option = _CA
        try:
            if ca is not None:
                context.load_verify_locations(ca)
            option = _CERTIFICATE
            if certificate is not None:
                context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise ConfigurationError(f"the file of {option} cannot be used: {_reason(error)}", setting=option) from None
        if ca is None:
            context.load_default_certs()
        return context


def _reason(error: OSError | ValueError) -> str:
    """The reason; OpenSSL's own words name places in its code."""
    if isinstance(error, ssl.SSLError | ValueError):
        return "it holds no PEM of that kind, does not belong to its key, or has a password"
    return error.strerror or type(error).__name__
