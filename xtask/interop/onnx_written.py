#!/usr/bin/env python3
"""Judges the ONNX files that tests wrote: the full check of onnx takes each of them.

    onnx_written.py FOLDER

Files are called like the test that wrote them. A flaw that an original in `fixtures/` has may come back. Needs onnx.
"""

import sys
from pathlib import Path

import onnx

# Fewer would mean that files are not kept any more.
FEWEST = 100
FIXTURES = Path(__file__).parents[2] / "fixtures"


def flaw(path):
    """What is wrong with a file; None where nothing is."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:1500]
    return None


def main():
    of_originals = {flaw(path) for path in FIXTURES.rglob("*.onnx")} - {None}
    paths = sorted(Path(sys.argv[1]).rglob("*.onnx"))
    flaws = {path: flaw(path) for path in paths}
    failed = {path: text for path, text in flaws.items() if text is not None and text not in of_originals}
    for path, text in failed.items():
        print(f"{path}: {text}", flush=True)
    kept = sum(text in of_originals for text in flaws.values())
    print(f"{len(paths)} files, {len(failed)} that onnx does not take; {kept} have a flaw of their original")
    sys.exit(0 if not failed and len(paths) >= FEWEST else 1)


main()
