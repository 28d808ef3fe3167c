"""``python -m apr``: the command."""

from ._command import main

main()
