"""A library before libc that counts the calls that change files below a folder, and makes one of them fail (shim.c)."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path


MODES = {"kill": 1, "error": 2, "full": 3}
KINDS = {"o": "open", "w": "write", "f": "fsync", "r": "rename", "u": "unlink", "m": "mkdir"}


def build_shim(folder: Path) -> dict[str, str]:
    """Compile the library; returns the environment of programs that run behind it."""
    library = folder / "fault_shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "FAULT_STATE": str(folder / "fault_state")}


def is_loaded() -> bool:
    return "fault_shim" in os.environ.get("LD_PRELOAD", "")


class Shim:
    """The library that was loaded before libc. What one process sets holds for all that it forks or starts, and is seen by it."""

    def __init__(self):
        self.library = ctypes.CDLL(None)
        self.library.fault_calls.restype = ctypes.c_char_p

    def arm(self, folder: Path, number: int = 0, mode: str | None = None) -> None:
        """Count the calls below `folder` from now on, and

        kill   kill the process that makes call `number`; a write is made by half
        error  fail call `number` with EIO
        full   fail it and all later ones with ENOSPC if they write or make a folder
        """
        self.library.fault_arm(os.fsencode(folder), ctypes.c_long(number), MODES.get(mode, 0))

    def disarm(self) -> str:
        """The calls since `arm`, a letter for each."""
        self.library.fault_disarm()
        return self.library.fault_calls().decode()
