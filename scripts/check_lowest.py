"""Run the core tests with the lowest versions of everything that pyproject.toml allows.

    python scripts/check_lowest.py --uv .venv-release/bin/uv      5.5 GB in a temporary folder, most of it torch

Two environments: with nothing but the package, in which a model is converted and verified, and with its extras and what
the tests need. Versions above a lower bound are named: another package demands them, so that the bound is not shown.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "scripts"))

from check_wheel import use  # noqa: E402

TOOLS = ("pytest", "pytest-xdist", "hypothesis", "libgguf", "libggml-python")
TESTS = (
    "tests/test_header.py",
    "tests/test_plan.py",
    "tests/test_ops.py",
    "tests/test_quants.py",
    "tests/test_kernels_cpu.py",
    "tests/test_execute.py",
    "tests/test_output.py",
    "tests/test_card.py",
    "tests/test_api.py",
)


def install(uv: Path, folder: Path, wanted: Sequence[str]) -> Path:
    """A new environment with the lowest versions; its Python."""
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    python = folder / "bin" / "python"
    command = [uv, "pip", "install", "--quiet", "--python", python, "--resolution", "lowest-direct"]
    subprocess.run([*command, *wanted], check=True)
    return python


def show(uv: Path, python: Path, requirements: Sequence[Requirement]) -> None:
    """Print what was installed of the direct dependencies."""
    listed = subprocess.run(
        [uv, "pip", "list", "--python", python, "--format", "json"], check=True, capture_output=True, text=True
    ).stdout
    versions = {row["name"].replace("-", "_").lower(): row["version"] for row in json.loads(listed)}
    for requirement in requirements:
        version = versions.get(requirement.name.replace("-", "_").lower())
        bounds = [s.version for s in requirement.specifier if s.operator in (">=", "==")]
        if version and bounds:
            note = "" if version.startswith(bounds[0]) else f"  (allowed from {bounds[0]}; something demands more)"
            print(f"  {requirement.name} {version}{note}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uv", type=Path, default=Path("uv"), help="the uv to install with")
    given = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    direct = [Requirement(text) for text in (*project["dependencies"], *extras["verify"], *extras["proxy"])]
    tools = [text for text in extras["dev"] if Requirement(text).name in TOOLS]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        print("the package alone")
        python = install(given.uv, folder / "alone", [str(ROOT)])
        show(given.uv, python, direct)
        use(python, folder)
        print("with extras and tests")
        python = install(given.uv, folder / "tests", [f"{ROOT}[verify,proxy]", *tools])
        show(given.uv, python, direct)
        sys.exit(subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS], cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
