"""Build the wheel and use it from a folder of its own: are the arch maps inside, is it small, does it start?"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_NBYTES = 1_000_000


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pip = [sys.executable, "-m", "pip", "--quiet"]
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
        (wheel,) = folder.glob("*.whl")
        if wheel.stat().st_size > LIMIT_NBYTES:
            sys.exit(f"{wheel.name} has {wheel.stat().st_size:,} bytes; the limit is {LIMIT_NBYTES:,}")
        target = folder / "installed"
        subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], check=True)
        # -S -E would also hide the dependencies; run elsewhere so that the checkout is not found first.
        code = "import gguf2st, gguf2st.mapfile as a; print(gguf2st.__file__); print(*[m.name for m in a.all_maps()])"
        environment = os.environ | {"PYTHONPATH": str(target)}
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env=environment, check=True, capture_output=True, text=True
        )
        where, maps = run.stdout.splitlines()
        shipped = sorted(p.stem for p in (ROOT / "arch_maps").glob("*.toml"))
        if not where.startswith(str(target)) or maps.split() != shipped:
            sys.exit(f"the wheel imported {where} with maps {maps!r}; expected {shipped} from {target}")
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, {len(shipped)} arch maps")


if __name__ == "__main__":
    main()
