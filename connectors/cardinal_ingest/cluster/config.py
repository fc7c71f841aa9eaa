"""Members of an ingest cluster: the file ``cluster.toml``, the same on all nodes.

::

    name = "main"
    epoch = 0                      # `cardinal cluster reconfigure` increments it

    [members.a]
    key = "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"   # of `cardinal cluster keygen`
    address = "10.0.0.1:40841"     # of the links between members
    bodies = "10.0.0.1:40842"      # of block bodies; default: the port after that of the links
    metrics = "10.0.0.1:9464"      # for `cardinal cluster status`; default: not queried

Name, epoch, ids and keys are the cluster's identity, with the application and its topics: members that differ in one of
them refuse each other. Addresses may differ from node to node.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from cardinal.config.options import nearest, sentence
from cardinal.errors import ConfigurationError
from cardinal.producing.survey.batch_index import is_repairing
from cardinal_ingest.protocols import cbor
from cardinal_ingest.protocols.mesh import Cluster, Member
from cardinal_ingest.protocols.mesh.codec import is_node_id
from cardinal_ingest.protocols.replication import Membership

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cardinal.apps import Application

_KEY: Final = re.compile(r"[0-9a-fA-F]{64}")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHOWN: Final = re.compile(r"[A-Za-z0-9._-]{1,32}")
_PORT_MAX: Final = 65_535


def _key(value: object) -> bytes:
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise ValueError("write a public key, 64 hex digits as `cardinal cluster keygen` prints them")
    return bytes.fromhex(value)


def _address(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
        raise ValueError("write HOST:PORT, as in 10.0.0.1:40841")
    return value


def _id(value: str) -> str:
    if not is_node_id(value):
        raise ValueError("name a member with 1 to 32 of a-z, 0-9 and -")
    return value


def _name(value: str) -> str:
    if not _NAME.fullmatch(value) or is_repairing(value):
        raise ValueError("name a cluster with 1 to 64 letters, digits, dots, underscores and hyphens, not …-repair")
    return value


_Address = Annotated[str, AfterValidator(_address)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ClusterMember(_Table):
    """One member of the file.

    Attributes:
        key: its Ed25519 public key, 32 bytes.
        address: of its links, ``HOST:PORT``.
        bodies: of block bodies, ``HOST:PORT``.
        metrics: of its metrics, ``HOST:PORT``; None: not queried.

    """

    key: Annotated[bytes, BeforeValidator(_key)]
    address: _Address
    bodies: _Address = ""
    metrics: _Address | None = None

    @model_validator(mode="after")
    def _bodies_are_beside_the_links(self) -> ClusterMember:
        if not self.bodies:
            host, _, port = self.address.rpartition(":")
            if int(port) == _PORT_MAX:
                raise ValueError("there is no port after that of address: set bodies")
            object.__setattr__(self, "bodies", f"{host}:{int(port) + 1}")  # frozen, but not yet shared
        return self

    @property
    def link_address(self) -> tuple[str, int]:
        """Host and port of its links."""
        return _host_port(self.address)

    @property
    def bodies_address(self) -> tuple[str, int]:
        """Host and port of block bodies."""
        return _host_port(self.bodies)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of its metrics; None: not queried."""
        return None if self.metrics is None else _host_port(self.metrics)


class ClusterFile(_Table):
    """The file.

    Attributes:
        name: of the cluster.
        epoch: number of the membership.
        members: by id.

    """

    name: Annotated[str, AfterValidator(_name)]
    epoch: Annotated[int, Field(ge=0, le=cbor.WORD_32, strict=True)] = 0
    members: Annotated[dict[Annotated[str, AfterValidator(_id)], ClusterMember], Field(min_length=1)]

    @model_validator(mode="after")
    def _members_differ(self) -> ClusterFile:
        seen: dict[object, str] = {}
        for name, one in self.members.items():
            listens = {
                "address": one.address,
                "bodies": one.bodies,
                **({"metrics": one.metrics} if one.metrics else {}),
            }
            for value in ("key", one.key), *((None, address) for address in listens.values()):
                if value in seen:
                    what = "one key" if value[0] else f"the address {value[1]!s} twice"
                    raise ValueError(f"{seen[value]} and {name} have {what}: give each its own")
                seen[value] = name
        return self

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about what works, and is not what it seems to be."""
        count = len(self.members)
        if count % 2:
            return ()
        return (f"{count} members tolerate no more failures than {count - 1}: use an odd number",)

    def cluster(self, app: Application) -> Cluster:
        """The cluster's identity on the links, for an application."""
        members = tuple(Member(name, one.key, one.address) for name, one in self.members.items())
        return Cluster(self.name, self.epoch, app_digest(app), members)

    def membership(self, app: Application) -> Membership:
        """The cluster as the agreement on the application's stream sees it; the stream's name is the default topic."""
        cluster = self.cluster(app)
        return Membership(cluster.digest, app.default_topic, dict(cluster.keys))


def app_digest(app: Application) -> bytes:
    """SHA-256 over everything of an application on which members must agree: its name, chain, and topics."""
    schema: list[cbor.Value] = [[expression, topic] for expression, topic in sorted(app.topics.items())]
    return hashlib.sha256(cbor.dump(["cardinal/app/1", app.name, app.chain, app.default_topic, schema])).digest()


def load_cluster(file: Path) -> ClusterFile:
    """Read ``cluster.toml``.

    Raises:
        ConfigurationError: it cannot be read, is not TOML, or has a setting that cannot work; ``setting`` names it.

    """
    try:
        data = tomllib.loads(file.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the cluster's {file} cannot be read: {error.strerror}", setting="cluster") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the cluster's {file} is not UTF-8", setting="cluster") from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at (.*)\)$", str(error))  # the rest may repeat a value
        at = found[1] if found else "end of document"
        raise ConfigurationError(f"the cluster's {file} is not TOML: correct it at {at}", setting="cluster") from None
    try:
        return ClusterFile.model_validate(data)
    except ValidationError as error:
        raise _refusal(file, dict(error.errors(include_input=False)[0])) from None


def _refusal(file: Path, error: Mapping[str, Any]) -> ConfigurationError:
    """The sentence for what pydantic refuses."""
    loc = tuple(str(part) for part in error["loc"] if part != "[key]")
    shown = ".".join(part if _SHOWN.fullmatch(part) else "…" for part in loc)
    if error["type"] == "extra_forbidden":
        table: type[_Table] = ClusterFile if len(loc) == 1 else ClusterMember
        said = f"there is no setting {shown} in {file}: {nearest(loc[-1], table.model_fields)}"
    elif error["type"] == "missing":
        said = f"set {shown} in {file}"
    else:
        said = f"{f'{shown} in ' if shown else ''}{file}: {sentence(error['msg'])}"
    return ConfigurationError(said, setting=shown or "cluster")


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
