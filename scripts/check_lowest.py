"""Run the core tests with the lowest versions of everything that pyproject.toml allows.

    python scripts/check_lowest.py                5.5 GB in a temporary folder, most of it torch
    python scripts/check_lowest.py --this-torch   the version of torch that runs this instead of the lowest one

A bound is exact: the version it names is installed, or nothing is.
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib.metadata import version
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


def lowest(requirements: Sequence[Requirement]) -> dict[str, str]:
    """The version that each lower bound names."""
    out = {}
    for requirement in requirements:
        (bound,) = (s.version for s in requirement.specifier if s.operator in (">=", "=="))
        out[requirement.name] = bound.removesuffix(".*")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--this-torch", action="store_true", help="this environment's version of torch, not the lowest")
    given = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tools = [Requirement(text) for text in extras["dev"] if Requirement(text).name in TOOLS]
    direct = [Requirement(text) for text in (*project["dependencies"], *extras["verify"], *extras["proxy"])]
    versions = lowest([*direct, *tools])
    if given.this_torch:
        versions["torch"] = version("torch").partition("+")[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        constraints = folder / "constraints.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
        print(" ".join(f"{name} {version}" for name, version in versions.items()))
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", constraints]
        subprocess.run([*command, f"{ROOT}[verify,proxy]", *(tool.name for tool in tools)], check=True)
        use(python, folder)
        tests = [python, "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", *TESTS]
        sys.exit(subprocess.run(tests, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
