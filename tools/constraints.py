"""Write constraints.txt from the current environment: `make constraints`."""

import subprocess
import sys
from pathlib import Path

HEADER = """\
# Every version that the lab was tested with, on Python 3.11. Written by `make constraints`;
# torch and triton are the pair that PyTorch releases together.
"""

frozen = subprocess.run(
    [sys.executable, "-m", "pip", "freeze", "--exclude-editable"], check=True, capture_output=True, text=True
).stdout
# a local build tag such as +cpu names one machine's wheel; the version is what we pin
lines = [line.split("+")[0] for line in frozen.splitlines() if "==" in line]
target = Path(__file__).parent.parent / "constraints.txt"
scratch = target.with_suffix(".tmp")
scratch.write_text(HEADER + "\n".join(lines) + "\n")
scratch.replace(target)
print(f"{target.name}: {len(lines)} pins")
