"""What apr, picklescan and modelaudit say about the same files, and how long they take: a table for docs/benchmarks.md.

    python3 xtask/bench/scanners.py --apr target/dist/apr --bin VENV/bin [--shared FOLDER]

VENV is a Python environment with picklescan and modelaudit. FOLDER is one with the folders `malicious`, `pytorch` and
`whisper` of test files. Nothing here loads a file: each scanner runs as a program of its own.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/scan"
# Among the scanners' own test files, those without a payload; some are no pickle, one is an empty encrypted archive.
HARMLESS = ("benign0", "bad_pytorch", "not_a_pickle", "password_protected")
# How a scanner ends: nothing found, something found, or an error.
PASSED, FOUND, ERROR = "passed", "found", "error"


def payload_files(shared):
    """Each file, and whether loading it runs a payload."""
    expected = json.loads((FIXTURES / "expected.json").read_text())
    files = {FIXTURES / name: bool(entry["names"]) or entry["verdict"] == "unreadable" and name.startswith("evil")
             for name, entry in expected.items()}
    if shared:
        for path in sorted((shared / "malicious").iterdir()):
            files[path] = not any(part in path.name for part in HARMLESS)
        for path in [*sorted((shared / "pytorch").iterdir()), *sorted((shared / "whisper").glob("*.npz"))]:
            files[path] = False
    return files


def ended(command, codes):
    result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return codes.get(result.returncode, ERROR)


def apr_says(apr, path):
    result = subprocess.run([apr, "scan", "--json", path], capture_output=True, check=False)
    verdict = json.loads(result.stdout)["verdict"]
    return {"clean": PASSED, "unreadable": ERROR}.get(verdict, FOUND)


def seconds(command):
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apr", type=Path, required=True)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--verbose", action="store_true", help="name each file that a scanner judges otherwise")
    arguments = parser.parse_args()
    picklescan, modelaudit = arguments.bin / "picklescan", arguments.bin / "modelaudit"
    audit = [modelaudit, "scan", "--quiet", "--no-cache"]
    scanners = {
        "apr scan": (lambda path: apr_says(arguments.apr, path), [arguments.apr, "scan"]),
        "picklescan": (lambda path: ended([picklescan, "-p", path], {0: PASSED, 1: FOUND}), [picklescan, "-p"]),
        "modelaudit": (lambda path: ended([*audit, path], {0: PASSED, 1: FOUND}), audit),
    }
    files = payload_files(arguments.shared)
    payloads = sum(files.values())
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(files):
            shutil.copy(path, Path(folder) / f"{number}-{path.name}")
        print(f"| scanner | {payloads} files with a payload: found, not read, passed as clean "
              f"| {len(files) - payloads} without: passed, not read, false alarms | all in one run |")
        print("|---|---|---|---|")
        for name, (says, command) in scanners.items():
            said = {path: says(path) for path in files}
            counts = {hostile: [sum(said[path] == how for path in files if files[path] == hostile)
                                for how in ((FOUND, ERROR, PASSED) if hostile else (PASSED, ERROR, FOUND))]
                      for hostile in (True, False)}
            took = min(seconds([*command, folder]) for _ in range(3))
            print(f"| {name} | {', '.join(map(str, counts[True]))} | {', '.join(map(str, counts[False]))} "
                  f"| {took:.2f} s |", flush=True)
            if arguments.verbose:
                for path, how in said.items():
                    if how != (FOUND if files[path] else PASSED):
                        print(f"    {path.name}: {how}, {'with' if files[path] else 'without'} a payload")


main()
