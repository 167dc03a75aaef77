"""Build sdist and wheel, and use them in a clean virtual environment: complete, small, and nothing else is needed?

    python scripts/check_wheel.py
    python scripts/check_wheel.py --keep dist --sbom      the files of a release, and what they depend on (CycloneDX)

The wheel is built from the sdist, and must hold what is in the package's folders. `--sbom` needs cyclonedx-py, which
`make sbom` installs.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.large_models import sparse_model  # noqa: E402

WHEEL_NBYTES = 1_000_000
SDIST_NBYTES = 2_000_000
FILE_NBYTES = 200_000
"""Of one file of the sdist: fixtures are made by the tests, not shipped."""


def build(folder: Path) -> tuple[Path, Path]:
    """(sdist, wheel built from it)."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, capture_output=True)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as tar:
        members = [m for m in tar.getmembers() if m.isfile()]
    names = {m.name.partition("/")[2] for m in members}
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    wanted = {n for n in tracked.split("\0") if n and not n.startswith(".") and (ROOT / n).exists()}
    if missing := sorted(wanted - names):
        sys.exit(f"{sdist.name} lacks {', '.join(missing[:10])}")
    if large := [f"{m.name} ({m.size:,} bytes)" for m in members if m.size > FILE_NBYTES]:
        sys.exit(f"{sdist.name} holds {', '.join(large)}; the limit is {FILE_NBYTES:,}")
    _require_small(sdist, SDIST_NBYTES)


def check_wheel(wheel: Path) -> int:
    """Compare with the tree, file by file; the number of arch maps."""
    with zipfile.ZipFile(wheel) as archive:
        found = {n: hashlib.sha256(archive.read(n)).digest() for n in archive.namelist() if ".dist-info/" not in n}
    expected = {
        path.relative_to(ROOT).as_posix(): path
        for path in (ROOT / "gguf2st").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    maps = {f"gguf2st/arch_maps/{path.name}": path for path in (ROOT / "arch_maps").iterdir() if path.is_file()}
    differing = {name: hashlib.sha256(path.read_bytes()).digest() for name, path in (expected | maps).items()}
    if wrong := sorted({name for name, _ in differing.items() ^ found.items()}):
        sys.exit(f"{wheel.name} differs from the tree in {', '.join(wrong[:10])}")
    _require_small(wheel, WHEEL_NBYTES)
    return sum(name.endswith(".toml") for name in maps)


def _require_small(file: Path, limit: int) -> None:
    if file.stat().st_size > limit:
        sys.exit(f"{file.name} has {file.stat().st_size:,} bytes; the limit is {limit:,}")


def install(wheel: Path, folder: Path) -> Path:
    """A new virtual environment with the wheel and what it depends on; its Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    subprocess.run([python, "-m", "pip", "check", "--quiet"], check=True)
    return python


def use(python: Path, folder: Path) -> None:
    """Convert a model with the installed command, far from the checkout."""
    sparse_model(folder / "model.gguf", layers=2)
    command = python.with_name("gguf2st")
    where = subprocess.run(
        [python, "-c", "import gguf2st; print(gguf2st.__file__)"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    if not where.startswith(str(python.parent.parent)):
        sys.exit(f"the clean environment imports {where}")
    for words in ("--version", "archs", "convert model.gguf -o out -q", "verify out --against model.gguf"):
        subprocess.run([command, *words.split()], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="put sdist and wheel there")
    parser.add_argument(
        "--sbom", metavar="CYCLONEDX_PY", nargs="?", const="cyclonedx-py", help="write an SBOM beside them"
    )
    given = parser.parse_args()
    if given.sbom and not given.keep:
        parser.error("--sbom goes with --keep")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sdist, wheel = build(folder)
        check_sdist(sdist)
        n_maps = check_wheel(wheel)
        python = install(wheel, folder / "clean")
        use(python, folder)
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, {n_maps} arch maps")
        print(f"{sdist.name}: {sdist.stat().st_size:,} bytes")
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            for file in (sdist, wheel):
                shutil.copy(file, given.keep)
        if given.sbom:
            sbom = given.keep / f"{wheel.name.removesuffix('.whl')}.cdx.json"
            subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools"], check=True)
            options = ["--pyproject", ROOT / "pyproject.toml", "--mc-type", "library", "--output-reproducible"]
            subprocess.run([given.sbom, "environment", *options, "-o", sbom, python], check=True)
            print(f"{sbom.name}: {sbom.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
