"""The tests of the package safetensors, run on `apr.safetensors`:

    python xtask/interop/safetensors_suite.py FOLDER

with a Python that has apr, torch and what xtask/requirements-python.txt names. The tests come with the source of the
package, which pip fetches; their imports are rewritten, and nothing else is. Tests of frameworks that are not installed are
skipped. Ends with 1 if a test fails that is not listed below.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

SOURCE = "safetensors==0.8.0"

#: What can't pass everywhere, and why.
FAILS = {
    "test_paddle_comparison.WithOpenCase.test_paddle_tensor_gpu": "asks for a GPU without looking for one",
    "test_paddle_comparison.WithOpenCase.test_paddle_slice_gpu": "asks for a GPU without looking for one",
}

#: Files of tests by the modules that they import.
FRAMEWORKS = {
    "test_flax_comparison.py": ("jax", "flax"),
    "test_paddle_comparison.py": ("paddle",),
    "test_tf_comparison.py": ("tensorflow", "h5py"),
}

IMPORT = re.compile(r"^(\s*(?:from|import) )safetensors\b", re.MULTILINE)


def fetch(folder):
    """The tests of the package, which import from apr."""
    tests = folder / "tests"
    shutil.rmtree(tests, ignore_errors=True)
    found = list(folder.glob("safetensors-*.tar.gz"))
    if not found:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "download"]
        subprocess.run([*pip, "--no-deps", "--no-binary", "safetensors", "--dest", str(folder), SOURCE], check=True)
        found = list(folder.glob("safetensors-*.tar.gz"))
    with tarfile.open(found[0]) as archive:
        for member in archive:
            within = re.fullmatch(r"[^/]+/bindings/python/tests/(.+\.py)", member.name)
            if member.isfile() and within:
                path = tests / within[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                text = archive.extractfile(member).read().decode()
                path.write_text(IMPORT.sub(r"\1apr.safetensors", text))
    return tests


def run(tests):
    """Runs the tests; returns the outcome of each and why it is so."""
    left_out = []
    for name, modules in FRAMEWORKS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        if missing:
            print(f"skipped: {name}: {', '.join(missing)} is not installed")
            left_out += ["--ignore", str(tests / name)]
    report = tests.parent / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "--junitxml", str(report)]
    # Tests write below ./tests and beside it.
    subprocess.run([*command, "--tb", "short", *left_out, "tests"], cwd=tests.parent, check=False)
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        # Without the folder; a file that can't be imported has no name of a test.
        name = f"{case.get('classname')}.{case.get('name')}".replace("tests.", "", 1)
        kinds = {child.tag: child.get("message") or "the package expects it to fail" for child in case}
        kind = next((kind for kind in ("error", "failure", "skipped") if kind in kinds), "passed")
        outcomes[name] = (kind, kinds.get(kind, ""))
    return outcomes


def main():
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = run(fetch(folder))
    wrong = []
    reasons = {}
    for name, (kind, why) in outcomes.items():
        if kind in ("failure", "error"):
            if name not in FAILS:
                wrong.append(f"{name} fails: {why}")
            else:
                print(f"fails as listed: {name}: {FAILS[name]}")
        elif kind == "passed" and name in FAILS:
            print(f"passes here, though listed: {name}")
        elif kind == "skipped":
            reasons.setdefault(why, []).append(name)
    for why, names in sorted(reasons.items()):
        print(f"skipped: {len(names)}: {why}")
    passed = sum(kind == "passed" for kind, _ in outcomes.values())
    print(f"{passed} of {len(outcomes)} tests of {SOURCE} pass with apr.safetensors")
    if wrong or not passed:
        sys.exit("\n".join(wrong) or "no tests were found")


if __name__ == "__main__":
    main()
