"""The users that log in by SCRAM: Kafka stores them itself, so they are told to a broker that runs."""

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


def introduce_users(address: str, security: Security, deadline: float) -> None:
    """Make the users that ``security`` names, or give them their new password.

    Arguments:
        address: the administrators' listener.
        security: names users and mechanisms; nothing is done for others than SCRAM's.
        deadline: the monotonic time in seconds at which it is given up.

    Raises:
        EmbeddedBrokerError: the broker did not take them.

    """
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for name in security.mechanisms:
        if mechanism := _MECHANISMS.get(name):  # a request changes a user once
            _introduce(admin, security.users, ScramCredentialInfo(mechanism, _ITERATIONS), deadline)


def _introduce(admin: AdminClient, users: Mapping[str, str], info: ScramCredentialInfo, deadline: float) -> None:
    wanted: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, info, password.encode()) for user, password in users.items()
    ]
    for user, future in admin.alter_user_scram_credentials(wanted).items():
        try:
            future.result(max(1.0, deadline - time.monotonic()))
        except (KafkaException, TimeoutError) as error:
            raise EmbeddedBrokerError(f"the broker does not take the user {user}: see its log") from error
