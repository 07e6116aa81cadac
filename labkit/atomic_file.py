"""Files that appear whole or not at all: written under a temporary name beside the target, then renamed.

A reader, and a run that is stopped half-way, never meets half a file; what was there before stays until the new file is
complete. `os.replace` is one step within a folder (POSIX rename), which is why the temporary lies beside its target.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomic(path: str | os.PathLike[str], content: str | bytes, *, parents: bool = False) -> Path:
    """Write `content` (text as UTF-8, line ends as they are) to `path`, and return the path. Raises `OSError`.

    `parents=True` makes the folders above that are not there yet.
    """
    with atomic_path(path, parents=parents) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, parents: bool = False) -> Iterator[Path]:
    """The temporary path to write to: renamed to `path` at the end of the block, removed when the block raises.

        with atomic_path("trace.csv") as temporary, temporary.open("w") as file:
            writer(file)

    The file is there, empty, when the block starts. Its name is drawn at random, so two processes may write one target: the
    last to finish stands. A target that exists keeps its permissions; a new one gets what the umask allows. Raises
    `OSError` where the folder is missing or cannot be written.
    """
    target = Path(path)
    if parents:
        target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name[:40]}.{secrets.token_hex(6)}.part"
    mode = _mode(target)
    os.close(
        os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if mode is None else mode | 0o200)
    )
    try:
        yield temporary
        if mode is not None:
            temporary.chmod(mode)  # also the bits that the umask took off, or that writing needed
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _mode(target: Path) -> int | None:
    """Permission bits of a file that is there."""
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except FileNotFoundError:
        return None
