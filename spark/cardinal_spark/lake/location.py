"""Location of a lake: one folder or object-store prefix with a Delta table in each sub folder.

Rules:

1. Every file is reached through one file-system abstraction: the local one for folders, delta-rs' own object store
   for everything else, so that data files and Delta log use the same credentials and settings.
2. Settings of the store are options that begin with ``storage.``; they never appear in an error or a ``repr``.
3. Exceptions of delta-rs and Arrow leave this package as :class:`~cardinal.errors.LakeError`.

It never writes by itself; it opens, and creates empty tables.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from cardinal.errors import ConfigurationError
from cardinal_spark.errors import LakeError
from cardinal_spark.options import STORAGE

from .tables import BOUND_COLUMNS, CANONICAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_COMMIT: Final = re.compile(r"\d{20}\.json")
_HARMLESS: Final = frozenset({"timestampNtz"})
_FEATURES_VERSION: Final = 3


@contextlib.contextmanager
def mapped(what: str, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Map errors of delta-rs, Arrow and the file system to a LakeError that names the operation, ``what``.

    ``but``: exceptions that the caller handles itself.
    """
    try:
        yield
    except but:
        raise
    except (DeltaError, pa.ArrowException, OSError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise LakeError(f"could not {what}: {lines[0]}") from error


@dataclass(frozen=True, slots=True)
class LakeLocation:
    """A lake's root. ``root`` is an absolute path or a URL without a slash at its end."""

    root: str
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, path: str, options: Mapping[str, str] | None = None) -> LakeLocation:
        """The location of a path or URL; of ``options`` those that begin with ``storage.`` count.

        Raises ConfigurationError for an empty path.
        """
        if not path:
            raise ConfigurationError("a lake needs a path: set the option path", setting="path")
        storage = {
            name.removeprefix(STORAGE): value for name, value in (options or {}).items() if name.startswith(STORAGE)
        }
        if "://" in path and not path.startswith("file://"):
            return cls(path.rstrip("/"), storage)
        if path.startswith("file:"):
            path = unquote(urlsplit(path).path)
        return cls(str(Path(path).expanduser().absolute()), storage)

    @classmethod
    def at(cls, path: str, storage: Mapping[str, str] | None = None) -> LakeLocation:
        """As :meth:`of`, with the settings of the object store under their own names."""
        return cls.of(path, {f"{STORAGE}{name}": value for name, value in (storage or {}).items()})

    @property
    def options(self) -> dict[str, str]:
        """The settings of the store as options."""
        return {f"{STORAGE}{name}": value for name, value in self.storage.items()}

    @property
    def is_local(self) -> bool:
        """True when the lake is a folder of this machine."""
        return "://" not in self.root

    def need_writable(self) -> None:
        """LakeError where the lake cannot be written or reached; ConfigurationError where it is a file."""
        if not self.is_local:
            self.find(CANONICAL)
            return
        if Path(self.root).is_file():
            raise ConfigurationError(
                f"{self.root} is a file, and a lake is a folder: name another path", setting="path"
            )
        with mapped(f"write to the lake {self.root}"):
            Path(self.root).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root):
                pass

    def uri(self, table: str) -> str:
        """The path or URL of a table."""
        return f"{self.root}/{table}"

    def files(self, table: str) -> pafs.FileSystem:
        """The file system whose root is the table's folder. A local folder is created."""
        if self.is_local:
            folder = Path(self.uri(table))
            with mapped(f"create {folder}"):
                folder.mkdir(parents=True, exist_ok=True)
            return pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())
        return pafs.PyFileSystem(DeltaStorageHandler(self.uri(table), dict(self.storage)))

    def newest(self, table: str) -> int | None:
        """A table's newest version, None where there is no such table: one listing of its log, without opening it."""
        with mapped(f"open the table {table} of the lake {self.root}"):
            versions = (int(name[:20]) for name in self._log(table) if _COMMIT.fullmatch(name))
            return max(versions, default=None)

    def _log(self, table: str) -> list[str]:
        if not self.is_local:
            entries = self.files(table).get_file_info(pafs.FileSelector("_delta_log", allow_not_found=True))
            return [info.base_name for info in entries]
        try:
            # Arrow would request the size of each file.
            return [path.name for path in Path(self.uri(table), "_delta_log").iterdir()]
        except FileNotFoundError:
            return []

    def find(self, table: str, version: int | None = None) -> DeltaTable | None:
        """The table at a version (newest where None), or None where there is no such table."""
        with mapped(f"open the table {table} of the lake {self.root}"):
            try:
                return DeltaTable(self.uri(table), version=version, storage_options=dict(self.storage))
            except TableNotFoundError:
                return None

    def open(self, table: str, version: int | None = None) -> DeltaTable:
        """As :meth:`find`; LakeError where there is no such table."""
        found = self.find(table, version)
        if found is None:
            raise LakeError(
                f"there is no table {table} in {self.root}: check that this is a lake's folder and was written"
            )
        return found

    def create(self, table: str, schema: pa.Schema, partition_by: list[str], settings: Mapping[str, str]) -> DeltaTable:
        """The table, created empty where it is missing. Safe to repeat."""
        with mapped(f"create the table {table} of the lake {self.root}"):
            DeltaTable.create(
                self.uri(table),
                schema=schema,
                mode="ignore",
                partition_by=partition_by,
                configuration=dict(settings),
                storage_options=dict(self.storage),
            )
        return self.open(table)

    def dataset(self, table: str, opened: DeltaTable) -> pads.FileSystemDataset:
        """The files of a table as a dataset, each with the bounds of its seqs and heights.

        deltalake's own dataset bounds every column, and a filter on a column without bounds in a file drops the file.

        Raises LakeError where another engine has enabled a feature that prevents reading these files.
        """
        _need_plain_files(table, opened)
        files, form = self.files(table), pads.ParquetFileFormat()
        schema = pa.schema([pa.field(column.name, _plain(column.type)) for column in pa.schema(opened.schema())])
        fragments = [
            form.make_fragment(action["path"], files, _bounded(action))
            for action in pa.table(opened.get_add_actions(flatten=True)).to_pylist()
        ]
        return pads.FileSystemDataset(fragments, schema, form, files)


def _need_plain_files(table: str, opened: DeltaTable) -> None:
    """Raise LakeError for deletion vectors and renamed columns: a reader that ignores them returns wrong rows."""
    protocol = opened.protocol()
    features = set(protocol.reader_features or ()) - _HARMLESS
    if features or protocol.min_reader_version not in (1, _FEATURES_VERSION):
        named = ", ".join(sorted(features)) or f"reader version {protocol.min_reader_version}"
        raise LakeError(f"another engine has enabled {named} for {table}, which a lake cannot have: disable it")


def _plain(kind: pa.DataType) -> pa.DataType:
    """Arrow's plain types in place of the views that delta-rs names."""
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind


def _bounded(action: Mapping[str, Any]) -> pads.Expression:
    """The guarantee for a file's rows: its partition, and the bounds of seqs and heights."""
    guarantee = pads.scalar(True)  # noqa: FBT003 - pyarrow's guarantee for any row
    for name, value in action.items():
        kind, _, column = name.partition(".")
        if value is None or not (kind == "partition" or column in BOUND_COLUMNS):
            continue
        held = pads.field(column)
        if kind == "partition":
            guarantee = guarantee & (held == value)
        elif kind == "min":
            guarantee = guarantee & (held >= value)
        elif kind == "max":
            guarantee = guarantee & (held <= value)
    return guarantee
