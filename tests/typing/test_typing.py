"""Type checkers on the public surface: what users write is understood, and a mistake is an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SURFACE = HERE / "surface.py"
ROOT = HERE.parents[1]


def _check(*command: str) -> None:
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("", "spark", "connectors"))
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": paths},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_understands_it(tmp_path: Path) -> None:
    # Unused ignores are errors: each wrong line stays wrong.
    _check(
        *(sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "--follow-imports=silent"),
        *("--cache-dir", str(tmp_path), str(SURFACE)),
    )


@pytest.mark.slow
def test_pyright_understands_it(tmp_path: Path) -> None:
    pyright = shutil.which("pyright", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if pyright is None:
        pytest.skip("pyright is not installed: pip install 'pyright[nodejs]'")
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text(
        f'{{"include": ["{SURFACE}"], "extraPaths": ["{ROOT}", "{ROOT}/spark", "{ROOT}/connectors"], '
        '"typeCheckingMode": "standard", "enableTypeIgnoreComments": false, '
        '"reportUnnecessaryTypeIgnoreComment": "error"}'
    )
    _check(pyright, "--project", str(settings), "--pythonpath", sys.executable)
