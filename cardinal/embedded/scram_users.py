"""The users that log in by SCRAM: Kafka stores them itself, so they are told to a broker that runs.

A user who was taken is known to the broker's own login a moment later, and refused until then (seen on a busy machine):
so each login is tried.
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

from cardinal.errors import EmbeddedBrokerError

from .security import SCRAM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .security import Security

_ITERATIONS = 4096
_MECHANISMS = dict(zip(SCRAM, (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512), strict=True))


def introduce_users(address: str, clients: str, security: Security, deadline: float) -> None:
    """Make the users that ``security`` names, or give them their new password, and wait until they can log in.

    Arguments:
        address: the administrators' listener.
        clients: the clients' listener.
        security: names users and mechanisms; nothing is done for others than SCRAM's.
        deadline: the monotonic time in seconds at which it is given up.

    Raises:
        EmbeddedBrokerError: the broker did not take them, or does not let them in.

    """
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for name in security.mechanisms:
        if mechanism := _MECHANISMS.get(name):  # a request changes a user once
            _introduce(admin, security.users, ScramCredentialInfo(mechanism, _ITERATIONS), deadline)
            if not security.client_certificates:  # nobody can log in without one, and we have none
                _wait_until_in(clients, {**security.client_config(), "sasl.mechanism": name}, deadline)


def _introduce(admin: AdminClient, users: Mapping[str, str], info: ScramCredentialInfo, deadline: float) -> None:
    wanted: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, info, password.encode()) for user, password in users.items()
    ]
    for user, future in admin.alter_user_scram_credentials(wanted).items():
        try:
            future.result(max(1.0, deadline - time.monotonic()))
        except (KafkaException, TimeoutError) as error:
            raise EmbeddedBrokerError(f"the broker does not take the user {user}: see its log") from error


def _wait_until_in(clients: str, login: Mapping[str, str], deadline: float) -> None:
    """All users of a mechanism come to be known at once: the first one's login is tried."""
    # Whatever name the certificate has, it is our broker.
    ours = {"bootstrap.servers": clients, "ssl.endpoint.identification.algorithm": "none"}
    user = AdminClient({**login, **ours, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0})
    while True:
        try:
            user.list_topics(timeout=1)
        except KafkaException as error:
            if time.monotonic() > deadline:
                raise EmbeddedBrokerError(
                    f"the broker does not let {login['sasl.username']} in: see its log"
                ) from error
        else:
            return
