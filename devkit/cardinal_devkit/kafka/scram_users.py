"""SCRAM users of a running broker, which stores them itself.

A new user's login may be accepted later (seen on a busy machine), so each mechanism's login is tested.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined] # their stub re-exports without __all__
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from cardinal_devkit.errors import EmbeddedBrokerError

from .security import SCRAM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .security import Security

_ITERATIONS = 4096
_MECHANISMS = dict(zip(SCRAM, (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512), strict=True))


def create_scram_users(address: str, clients: str, security: Security, deadline: float) -> None:
    """Create the users of ``security``, or update their passwords, and wait until they can log in.

    Arguments:
        address: the internal listener.
        clients: the client listener.
        security: users and mechanisms; only SCRAM mechanisms are handled.
        deadline: monotonic time in seconds.

    Raises:
        EmbeddedBrokerError: the broker refused a user or a login.

    """
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for name in security.mechanisms:
        if mechanism := _MECHANISMS.get(name):  # one request per mechanism: a request may change a user only once
            _create_users(admin, security.users, ScramCredentialInfo(mechanism, _ITERATIONS), deadline)
            if not security.client_certificates:  # a login needs a certificate, which is not available here
                _wait_until_accepted(clients, {**security.client_config(), "sasl.mechanism": name}, deadline)


def _create_users(admin: AdminClient, users: Mapping[str, str], info: ScramCredentialInfo, deadline: float) -> None:
    wanted: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, info, password.encode()) for user, password in users.items()
    ]
    for user, future in admin.alter_user_scram_credentials(wanted).items():
        try:
            future.result(max(1.0, deadline - time.monotonic()))
        except (KafkaException, TimeoutError) as error:
            raise EmbeddedBrokerError(f"the broker refused to create the user {user}: see its log") from error


def _wait_until_accepted(clients: str, login: Mapping[str, str], deadline: float) -> None:
    """Wait for the first user's login: all users of a mechanism are accepted at once."""
    # The certificate's name does not matter: it is our broker.
    ours = {"bootstrap.servers": clients, "ssl.endpoint.identification.algorithm": "none"}
    user = AdminClient({**login, **ours, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0})
    while True:
        try:
            user.list_topics(timeout=1)
        except KafkaException as error:
            if time.monotonic() > deadline:
                raise EmbeddedBrokerError(
                    f"the broker refuses the login of {login['sasl.username']}: see its log"
                ) from error
        else:
            return
