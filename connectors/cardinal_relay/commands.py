"""Command of the relay."""

from typing import Final

from cardinal.cli.deferred import Deferred

SERVE: Final = Deferred("Send a stream to many clients over websockets; it is read once.", "cardinal_relay.cli:serve")
