"""Runs the rows of parity.tsv and writes docs/parity.md: what other tools do, and what apr does.

    python parity.py APR            runs every row that can run, and writes the page
    python parity.py APR --check    runs them, and fails if the page is not what they give

APR is the command. A row of parity.tsv has a tool, what the tool does, the command of apr, what the
command has to give, the result and the evidence, in columns between tabs:

- the command runs in a shell, in a folder of its own with `fixtures` and the files of SETUP;
- what it has to give is its exit code and, behind a space, a text that it prints; `-` if the row
  can't run here, because it needs a network or a build;
- the result is `equal`, `runs`, `differs: HOW` or `not here`;
- the evidence of an `equal` is the file of a test or of an interop step that compares apr with the
  tool, with the name of a test or another word of the file behind `#`; `-` for other results.

Ends with 1 if a row gives something else, if evidence is missing, or if the page differs. Needs a
shell, and nothing but Python's own library.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = Path(__file__).with_suffix(".tsv")
PAGE = ROOT / "docs/parity.md"
COLUMNS = ["tool", "capability", "command", "expected", "result", "evidence"]
# The longest that a row may take, in seconds; a build without optimizations is slow.
LONGEST = 300

# Headings of the tools, in the order of the page, with the page about each.
TOOLS = {
    "llama.cpp": ("llama.cpp's tools and gguf-py", "llama-cpp"),
    "safetensors": ("safetensors", "safetensors"),
    "transformers": ("transformers", None),
    "Optimum": ("Optimum", "optimum"),
    "onnx": ("onnx, ONNX Runtime, onnxsim, onnxslim, Polygraphy", "onnx-tools"),
    "Netron": ("Netron", "netron"),
    "mergekit": ("mergekit", "mergekit"),
    "PEFT": ("PEFT", None),
    "llm-compressor": ("llm-compressor, GPTQModel, AutoAWQ, mlx-lm", "llm-compressor"),
    "scanners": ("picklescan, modelscan, modelaudit, fickling", "scanners"),
    "huggingface_hub": ("huggingface_hub", "huggingface-hub"),
    "hf-mem": ("hf-mem", "hf-mem"),
    "ollama": ("ollama", "ollama"),
    "diffusers": ("diffusers and kohya", "diffusers"),
    "coremltools": ("coremltools, TensorFlow Lite, TensorFlow, Keras", "coreml-tflite"),
}

# The models that rows read, made once by the command itself.
SETUP = """
apr convert fixtures/tiny-llama -o model.gguf
apr quantize model.gguf --type q4_0 -o q4.gguf
apr shard model.gguf --size 200KB -o split.gguf
apr imatrix model.gguf --text text.txt --part 1/2 -o imatrix.gguf
apr export fixtures/tiny-llama --format onnx -o onnx
cp onnx/model.onnx model.onnx
cp fixtures/tiny-llama/model.safetensors model.safetensors
apr convert fixtures/lora/llama -o base.gguf
apr lora convert fixtures/lora/lora --base fixtures/lora/llama -o adapter.gguf
"""

INTRODUCTION = """\
# Parity with other tools

What other tools do, and what `apr` does for it. `xtask/interop/parity.py` runs the commands in a
folder with the repository's fixtures, compares exit codes and printed words, and writes this page
from `xtask/interop/parity.tsv`. `cargo xtask interop parity` checks it.

| result | meaning |
|---|---|
| equal | a test or an interop step compares `apr` with the tool; the link leads to it |
| runs | the command does it; its results are not compared with the tool |
| differs | the command does it in another way |
| not here | `apr` does not do it |

*Run* is *yes* if the script ran the command, and *no* if the row requires a network, a build or
another program, or has no command. A row that was run and ends with an error shows the rejection.
"""


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--check"]):
        sys.exit(__doc__)
    program = Path(sys.argv[1]).resolve()
    rows = read_rows()
    failures = [why for row in rows if (why := missing_evidence(row))]
    with tempfile.TemporaryDirectory() as folder:
        failures += run_rows(program, Path(folder), rows)
    page = page_of(rows)
    if sys.argv[2:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
            failures.append("docs/parity.md is not what parity.tsv gives: run parity.py APR")
    elif not failures:
        PAGE.write_text(page, encoding="utf-8")
    for failure in failures:
        print(failure)
    ran = sum(row["expected"] != "-" for row in rows)
    print(f"{len(rows)} rows, {ran} run, {len(failures)} failures")
    sys.exit(1 if failures else 0)


def read_rows():
    lines = ROWS.read_text(encoding="utf-8").splitlines()
    assert lines[0].split("\t") == COLUMNS, f"{ROWS.name} does not begin with its heading"
    rows = []
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        assert len(cells) == len(COLUMNS), f"{ROWS.name}, line {number}: {len(cells)} columns"
        row = dict(zip(COLUMNS, cells))
        kind = row["result"].split(":")[0]
        assert row["tool"] in TOOLS, f"{ROWS.name}, line {number}: {row['tool']}"
        assert kind in ("equal", "runs", "differs", "not here"), f"line {number}: {kind}"
        assert row["command"] != "-" or kind == "not here", f"line {number} has no command"
        rows.append(row)
    return rows


def missing_evidence(row):
    """Why the evidence of a row is none; nothing if it is there, or not needed."""
    if row["result"] != "equal":
        has_none = row["evidence"] == "-"
        return None if has_none else f"{row['capability']}: evidence without `equal`"
    file, _, word = row["evidence"].partition("#")
    path = ROOT / file
    if not path.is_file():
        return f"{row['capability']}: no evidence at '{file}'"
    if word and word not in path.read_text(encoding="utf-8"):
        return f"{row['capability']}: {file} does not have '{word}'"
    return None


def run_rows(program, folder, rows):
    """Runs the rows that can run; returns what is wrong."""
    made = folder / "made"
    (folder / "bin").mkdir()
    (folder / "home").mkdir()
    made.mkdir()
    (folder / "bin/apr").symlink_to(program)
    (made / "fixtures").symlink_to(ROOT / "fixtures")
    write_inputs(made)
    environment = os.environ | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder / "home"),
    }
    for line in SETUP.strip().splitlines():
        code, said = shell(line, made, environment)
        if code != 0:
            return [f"{line}: exit code {code}\n{said}"]

    failures = []
    for number, row in enumerate(rows):
        if row["expected"] == "-":
            continue
        place = folder / f"row-{number}"
        shutil.copytree(made, place, symlinks=True)
        code, said = shell(row["command"], place, environment)
        wanted, _, words = row["expected"].partition(" ")
        if str(code) != wanted:
            failures.append(f"{row['command']}: exit code {code}, not {wanted}\n{said[-600:]}")
        elif words not in said:
            failures.append(f"{row['command']}: does not print '{words}'\n{said[-600:]}")
        shutil.rmtree(place)
    return failures


def shell(line, folder, environment):
    """The exit code of a line and what it prints, both streams after each other."""
    done = subprocess.run(
        ["sh", "-c", line], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, errors="replace", timeout=LONGEST,
    )
    return done.returncode, done.stdout + done.stderr


def write_inputs(folder):
    """Texts, arrays and settings that are too small to be fixtures."""
    sums = "".join(f"{a}+{b}={a + b}\n" for a in range(10, 30) for b in range(20, 26))
    ids = list(b"12+34=")
    files = {
        "text.txt": sums,
        "template.jinja": "{{ bos_token }}{{ messages[0].content }}",
        "digits.gbnf": "root ::= [0-9]+\n",
        "integer.json": json.dumps({"type": "integer"}),
        "ids.json": json.dumps([ids]),
        "mask.json": json.dumps([[1] * len(ids)]),
        "positions.json": json.dumps([list(range(len(ids)))]),
        "x.json": json.dumps([[[[0.5] * 3] * 6] * 7]),
        "absolute.yml": absolute_configuration(folder / "fixtures/merge"),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def absolute_configuration(models):
    """A configuration of mergekit that names its models by absolute paths."""
    return (
        "merge_method: slerp\n"
        f"base_model: {models / 'a-f32'}\n"
        f"models:\n- model: {models / 'a-f32'}\n- model: {models / 'b-f32'}\n"
        "parameters:\n  t: 0.5\n"
    )


def page_of(rows):
    parts = [INTRODUCTION]
    kinds = [row["result"].split(":")[0] for row in rows]
    counts = [f"{kinds.count(kind)} {kind}" for kind in ("equal", "runs", "differs", "not here")]
    ran = sum(row["expected"] != "-" for row in rows)
    parts.append(f"{len(rows)} rows: {', '.join(counts)}. {ran} of them were run.\n")
    for tool, (heading, page) in TOOLS.items():
        parts.append(f"## {heading}\n")
        if page:
            parts.append(f"All commands: [coming from {tool}](coming-from/{page}.md).\n")
        lines = ["| capability | `apr` | result | run |", "|---|---|---|---|"]
        lines += [line_of(row) for row in rows if row["tool"] == tool]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def line_of(row):
    command = "none" if row["command"] == "-" else f"`{row['command']}`"
    result = row["result"]
    if result == "equal":
        file = row["evidence"].partition("#")[0]
        result = f"equal: [{Path(file).name}](../{file})"
    run = "no" if row["expected"] == "-" else "yes"
    return f"| {row['capability']} | {command} | {result} | {run} |"


main()
