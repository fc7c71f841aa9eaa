"""Reasons for which an address cannot be listened on."""

from __future__ import annotations

import errno
import os


def refusal(error: OSError) -> str:
    """The reason in the operating system's words, for an error of :func:`asyncio.start_server` or of what uses it.

    asyncio wraps the system's text in a long one. From Python 3.13 on it skips addresses that are not this machine's,
    and where no other is left its error has no number.
    """
    if error.errno is None and error.strerror is None:
        return os.strerror(errno.EADDRNOTAVAIL)
    if error.errno in errno.errorcode:
        return os.strerror(error.errno or 0)
    return error.strerror or str(error)  # a host name without an address: the resolver's numbers are its own
