"""datatrove in an environment of its own, installed by the benchmark."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson

from tests.benchmarks.corpus import WORK

PACKAGES = ["datatrove[io]==0.10.1", "tokenizers==0.23.3", "spacy==3.8.18", "nltk==3.10.4", "tldextract==5.4.0"]
PACKAGES += ["xxhash==3.6.0"]  # datatrove hashes strings, which xxhash 4 refuses
SIDE = Path(__file__).with_name("datatrove_side.py")
VENV = Path(os.environ.get("BENCH_VENV") or WORK.parent / "bench-venv")


def install() -> Path:
    """The environment's Python. Raises CalledProcessError when pip cannot install."""
    python = VENV / "bin" / "python"
    if not (VENV / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (VENV / ".ready").write_text("\n".join(PACKAGES))
    return python


def run(part: str, corpus: Path, scratch: Path) -> dict[str, Any]:
    """One part of datatrove's half."""
    command = [str(install()), str(SIDE), part, str(corpus), str(scratch)]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"datatrove's {part} failed:\n{done.stderr.decode()[-3000:]}")
    return orjson.loads(done.stdout.splitlines()[-1])
