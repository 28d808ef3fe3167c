"""The command ``apr``."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from . import _apr


def main() -> NoReturn:
    """Runs the command with the arguments of the process, and ends the process."""
    code = _apr.main(["apr", *sys.argv[1:]])
    sys.stdout.flush()
    # The command has flushed what it wrote, and nothing of Python's is left to do.
    os._exit(code)
