"""What apr and four other scanners say about the same files, and how long they take: a table for docs/benchmarks.md.

    cargo xtask bench scanners
    python3 xtask/bench/scanners.py --apr target/dist/apr --python VENV/bin/python --modelscan VENV2/bin/python [--shared FOLDER]
        [--benign NAME=FOLDER[,FOLDER]...] [--most 3000]

VENV has picklescan, modelaudit and fickling; VENV2 has modelscan, h5py and numpy below 2.3, which modelscan needs and
modelaudit refuses. FOLDER of --shared has test files of many formats, those with a payload in `malicious`. Folders of --benign have
files without a payload, such as those of a Linux system, of repositories, or of packages with models: each NAME is a row of
its own, for as many files as --most says, by the digests of their paths. Nothing here loads a file, and no scanner has a
network. Each scanner judges all files in one process.
"""

import argparse
import collections
import hashlib
import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/scan"
# Among the scanners' own test files, those without a payload; some are no pickle, one is an empty encrypted archive.
HARMLESS = ("benign0", "bad_pytorch", "not_a_pickle", "password_protected")
# What is in `content` without a payload.
PLAIN = ("plain", "with_debug.pt", "README.md", "chat_template.jinja", "unknown.bin", "user_block.h5", "notebook.ipynb", "train.py")
# What a scanner says: dangerous, to be looked at, not examined (also errors and files that it skips), nothing found.
FOUND, WARNED, UNEXAMINED, PASSED = "found", "warned of", "not examined", "passed"

# Programs that print what a scanner says about each path on standard input: a line of JSON each.
LOOP = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
def judged(files):
    order = ["passed", "not examined", "warned of", "found"]
    verdicts = []
    for file in files:
        try:
            verdicts.append(says(file))
        except BaseException:
            verdicts.append("not examined")
    return max(verdicts, key=order.index)
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    path = line.rstrip("\\n")
    files = [os.path.join(at, name) for at, _, names in os.walk(path) for name in names] if os.path.isdir(path) else [path]
    out.write(json.dumps([path, judged(files)]) + "\\n")
    out.flush()
"""
PICKLESCAN = """
from picklescan.scanner import scan_file_path
from picklescan.scanner import SafetyLevel
def says(path):
    result = scan_file_path(path)
    if result.issues_count:
        return "found"
    if result.scan_err or not result.scanned_files:
        return "not examined"
    return "warned of" if any(one.safety == SafetyLevel.Suspicious for one in result.globals) else "passed"
"""
MODELAUDIT = """
import logging
logging.disable(logging.CRITICAL)
from modelaudit.core import scan_model_directory_or_file
def says(path):
    result = scan_model_directory_or_file(path, cache_enabled=False)
    levels = {getattr(issue.severity, "value", issue.severity) for issue in result.issues}
    if "critical" in levels:
        return "found"
    if "warning" in levels:
        return "warned of"
    return "passed" if result.success and result.files_scanned and not result.has_errors else "not examined"
"""
FICKLING = """
import zipfile
from fickling.analysis import Severity
from fickling.loader import scan_file, scan_zip_archive
def says(path):
    is_archive = zipfile.is_zipfile(path)
    result = (scan_zip_archive if is_archive else scan_file)(path, graceful=True)
    if result.severity >= Severity.LIKELY_OVERTLY_MALICIOUS:
        return "found"
    if result.errors or not result.results:
        return "not examined"
    return "passed" if result.severity == Severity.LIKELY_SAFE else "warned of"
"""
MODELSCAN = """
import logging
logging.disable(logging.CRITICAL)
from modelscan.modelscan import ModelScan
scanner = ModelScan()
def says(path):
    result = scanner.scan(path)
    levels = {issue["severity"] for issue in result["issues"]}
    if levels & {"CRITICAL", "HIGH"}:
        return "found"
    if levels:
        return "warned of"
    return "passed" if result["summary"]["scanned"]["total_scanned"] and not result["errors"] else "not examined"
"""


def payload_files(shared):
    """Each file or folder, and whether loading it runs or reaches something that it should not."""
    read = lambda name: json.loads((FIXTURES / name / "expected.json").read_text())
    files = {FIXTURES / name: bool(entry["names"]) or entry["verdict"] == "unreadable" and name.startswith("evil")
             for name, entry in read("").items()}
    files |= {FIXTURES / "content" / name: not name.startswith(PLAIN) for name in read("content")}
    files |= {FIXTURES / "evasions" / name: True for name in read("evasions")}
    rules = {name: entry["verdict"] for name, entry in read("rules").items()}
    files |= {FIXTURES / "rules" / name: verdict != "clean" for name, verdict in rules.items()
              if verdict in ("clean", "dangerous", "suspicious")}
    if shared:
        for path in sorted((shared / "malicious").iterdir()):
            files[path] = not any(part in path.name for part in HARMLESS)
        rest = sorted(path for path in shared.rglob("*") if path.is_file())
        files |= {path: False for path in rest if path not in files}
    return files


def benign_files(folders, most):
    """Files of folders, chosen by the digests of their paths. Links and other scanners' test files are left out."""
    files = []
    for folder in folders:
        for at, _, names in os.walk(folder):
            files += [path for name in names if (path := Path(at, name)).is_file() and not path.is_symlink()]
    return sorted(files, key=lambda path: hashlib.sha256(os.fsencode(path)).digest())[:most]


def apr_says(apr, paths):
    """All in one run: a folder is as bad as its worst file."""
    order = [PASSED, UNEXAMINED, WARNED, FOUND]
    names = {"clean": PASSED, "not-run": UNEXAMINED, "suspicious": WARNED, "unreadable": UNEXAMINED,
             "not-examined": UNEXAMINED, "dangerous": FOUND}
    folder = paths[0].parents[1]
    report = json.loads(subprocess.run([apr, "scan", "--json", folder], capture_output=True, check=False).stdout)
    said = {}
    for file in report["files"]:
        top = folder / Path(*Path(file["path"]).relative_to(folder).parts[:2])
        verdict = names[file["verdict"]]
        said[top] = max(said.get(top, PASSED), verdict, key=order.index)
    return said


def peer_says(python, program, paths):
    """A scanner's library, in a process without a network and without telemetry."""
    environment = {**os.environ, "PROMPTFOO_DISABLE_TELEMETRY": "1", "NO_ANALYTICS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = ["unshare", "-rn", python, "-c", program + LOOP]
        result = subprocess.run(command, input="".join(f"{path}\n" for path in paths), cwd=folder, env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    said = {Path(path): verdict for path, verdict in map(json.loads, result.stdout.splitlines())}
    return {path: said.get(path, UNEXAMINED) for path in paths}


def version(python, package):
    program = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apr", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--modelscan", type=Path, required=True)
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--benign", action="append", default=[], metavar="NAME=FOLDER[,FOLDER]")
    parser.add_argument("--most", type=int, default=3000, help="files of each NAME of --benign")
    parser.add_argument("--verbose", action="store_true", help="name each file that a scanner judges otherwise")
    arguments = parser.parse_args()
    python, scan = arguments.python.absolute(), arguments.modelscan.absolute()
    scanners = {"`apr scan`": lambda paths: apr_says(arguments.apr.absolute(), paths)}
    for name, program, of in [("picklescan", PICKLESCAN, python), ("modelaudit", MODELAUDIT, python),
                              ("modelscan", MODELSCAN, scan), ("fickling", FICKLING, python)]:
        scanners[f"{name} {version(of, name)}"] = lambda paths, program=program, of=of: peer_says(of, program, paths)

    corpora = {"payloads": payload_files(arguments.shared)}
    for benign in arguments.benign:
        name, folders = benign.split("=", 1)
        corpora[name] = dict.fromkeys(benign_files(folders.split(","), arguments.most), False)
    for name, files in corpora.items():
        measure(name, files, scanners, arguments.verbose)


def measure(corpus, files, scanners, verbose):
    """Prints a table: each scanner, and what it says about the files."""
    payloads = sum(files.values())
    with tempfile.TemporaryDirectory() as folder:
        # Each in a folder of its own, since a name is a hint for some scanners.
        copies = {}
        for number, path in enumerate(files):
            copy = Path(folder) / str(number) / path.name
            copy.parent.mkdir()
            try:
                (shutil.copytree if path.is_dir() else shutil.copyfile)(path, copy)
            except PermissionError:
                continue
            copies[copy] = path
        benign = len(copies) - payloads
        print(f"\n| {corpus} | {payloads} with a payload: found | warned of | not examined | missed | {benign} "
              "without: passed | not examined | warned of | found | seconds | of a processor |")
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        for name, says in scanners.items():
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            said = says(list(copies))
            took, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            hostile = collections.Counter(said[copy] for copy, path in copies.items() if files[path])
            harmless = collections.Counter(said[copy] for copy, path in copies.items() if not files[path])
            print(f"| {name} | {hostile[FOUND]} | {hostile[WARNED]} | {hostile[UNEXAMINED]} | {hostile[PASSED]} "
                  f"| {harmless[PASSED]} | {harmless[UNEXAMINED]} | {harmless[WARNED]} | {harmless[FOUND]} "
                  f"| {took:.2f} | {spent:.2f} |", flush=True)
            if verbose:
                for copy, path in copies.items():
                    if said[copy] != (FOUND if files[path] else PASSED):
                        print(f"    {path}: {said[copy]}, {'with' if files[path] else 'without'} a payload")


main()
