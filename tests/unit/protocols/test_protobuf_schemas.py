"""Generated protobuf modules, and what happens without the runtime."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2

from cardinal_ingest.body import body_pb2
from cardinal_ingest.protocols.publish import node_status_pb2, publish_pb2

ROOT = Path(__file__).parents[3]
MODULES = [publish_pb2, body_pb2, node_status_pb2]


def source(module: ModuleType) -> str:
    name: str = module.DESCRIPTOR.name
    return name


@pytest.mark.process
@pytest.mark.skipif(
    importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed: it brings the compiler"
)
@pytest.mark.parametrize("module", MODULES, ids=source)
def test_the_module_is_what_the_schema_compiles_to(module: ModuleType, tmp_path: Path) -> None:
    out, name = tmp_path / "descriptors", source(module)
    command = ["-m", "grpc_tools.protoc", f"-I{Path(name).parent}={ROOT / 'schemas'}", f"--descriptor_set_out={out}"]
    subprocess.run([sys.executable, *command, name], check=True, timeout=60, cwd=tmp_path)
    compiled = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    ours = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(ours)
    for message in compiled.message_type:
        for field in message.field:
            field.ClearField("json_name")
    assert ours == compiled


@pytest.mark.parametrize("module", MODULES, ids=source)
def test_the_schema_names_every_message_of_the_module(module: ModuleType) -> None:
    text = (ROOT / "schemas" / Path(source(module)).name).read_text()
    for name, message in module.DESCRIPTOR.message_types_by_name.items():
        assert f"message {name} {{" in text
        for field in message.fields:
            assert f" {field.name} = {field.number};" in text


@pytest.mark.process
def test_without_the_runtime_the_error_names_what_to_install() -> None:
    probe = (
        "import sys; sys.modules['google.protobuf'] = None\n"
        "import cardinal\n"
        "from cardinal.errors import MissingExtraError\n"
        "try: import cardinal_ingest.protocols.publish\n"
        "except MissingExtraError as missing: print(missing)"
    )
    done = subprocess.run([sys.executable, "-c", probe], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "publishing to ingest nodes needs the extra 'ingest': pip install 'cardinal-streams[ingest]'"
    ]
