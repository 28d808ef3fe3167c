"""Runs every command over files that ask for more work than their size justifies: all have to end in time or with E008.

    cargo xtask bench excessive
    cargo run -p apr-testkit --example excessive -- FOLDER 1000000
    python3 xtask/bench/excessive.py --apr target/dist/apr FOLDER

FOLDER has a folder for each construct of `apr_testkit::excessive`, with one file of the given size; where that is no model
but belongs to one, a small model is beside it, and the folder is the model. A command passes when it took no more than
--seconds of one processor, was ended by no signal, and held no more than --mib. What does not is printed, and the exit code
is 1. At the end stands a table of commands and formats: the most seconds, and how many runs ended with E008.
"""

import argparse
import collections
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# What each command is asked; {model} is the model, {out} a path that does not exist, {folder} where both are.
COMMANDS = {
    "inspect": "inspect {model} --json",
    "inspect, full": "inspect {model} --full",
    "tensors": "tensors {model} --json",
    "tensors --stats": "tensors {model} --stats --json",
    "validate": "validate {model} --json",
    "scan": "scan {model} --json",
    "diff": "diff {model} {model} --json",
    "debug": "debug {model} --json",
    "lint": "lint {model} --json",
    "explain": "explain {model} --json",
    "graph": "graph {model} --json",
    "graph, unfolded": "graph {model} --unfold",
    "graph, as dot": "graph {model} --format dot",
    "graph, as svg": "graph {model} --format svg",
    "run": "run {model} --json",
    "run, with a small budget": "run {model} --max-work 50000000 --max-memory 256M --json",
    "run, with a prompt": "run {model} --prompt a --max-tokens 4 --json",
    "run, with a chat": "run {model} --chat --prompt a --max-tokens 4 --json",
    "trace": "trace {model} --json",
    "trace, payload": "trace {model} --trace-payload --json",
    "trace, anomalies": "trace {model} --detect-anomalies --json",
    "trace, two": "trace {model} {model} --diff --json",
    "canary create": "canary create {model} -o {out}.json --json",
    "canary check": "canary check {model} --canary {model} --json",
    "validate, quality": "validate {model} --quality --json",
    "validate, two": "validate {model} {model} --quality --json",
    "validate, text": "validate {model} {model} --quality --text {text} --context 8 --json",
    "imatrix": "imatrix {model} --text {text} --context 8 -o {out}.gguf --json",
    "tokenize": "tokenize {model} --prompt abc --json",
    "tokenize, decode": "tokenize {model} --tokens 1,15,7 --json",
    "convert to .apr": "convert {model} -o {out}.apr --json",
    "convert, compressed": "convert {model} -o {out}.apr --compress --json",
    "convert to safetensors": "convert {model} -o {out}.safetensors --json",
    "convert to GGUF": "convert {model} -o {out}.gguf --json",
    "convert to PyTorch": "convert {model} -o {out}.pt --json",
    "merge": "merge {model} {model} -o {out}.apr --json",
    "merge, spherical": "merge {model} {model} --strategy slerp -o {out}.safetensors --json",
    "merge, adapter": "merge {model} --lora {model} -o {out}.safetensors --relaxed --json",
    "prune": "prune {model} --prune 0.5 -o {out}.apr --json",
    "prune, second order": "prune {model} --prune 0.5 --calibration {text} --prune-method sparsegpt -o {out}.apr --json",
    "prune, layers by inputs": "prune {model} --prune-layers 1 --calibration {text} -o {out}.apr --json",
    "factorize": "factorize {model} --rank 2 -o {out}.apr --json",
    "lora extract": "lora extract {model} --base {model} --rank 2 -o {out} --json",
    "import": "import {model} -o {out}.apr --relaxed --json",
    "quantize": "quantize {model} --type q8_0 -o {out}.gguf --json",
    "quantize, calibrated": "quantize {model} --type q4_0 --calibration {text} -o {out}.gguf --json",
    "quantize, searched": "quantize {model} --search --bits-per-weight 5 --calibration {text} -o {out}.gguf --json",
    "export to ONNX": "export {model} --format onnx -o {out}.onnx --json",
    "export to ONNX, written anew": "export {model} --format onnx --opset 21 -o {out}.onnx --json",
    "export to TorchScript": "export {model} --format torchscript -o {out}.pt --json",
    "export to a folder": "export {model} --format safetensors -o {out} --json",
    "encrypt": "encrypt {model} --recipient {key}.pub -o {out}.apr --json",
    "decrypt": "decrypt {model} --key {key} -o {out}.apr --json",
    "sign": "sign {model} --key {signer} --json",
    "verify": "verify {model} --trusted {signer}.pub --json",
    "license show": "license show {model} --json",
    "license issue": "license issue {model} --licensee Ann --key {signer} --json",
    "watermark embed": "watermark embed {model} --id 7 --key {signer} -o {out}.apr --json",
    "watermark detect": "watermark detect {model} --key {signer} --json",
    "shard": "shard {model} --size 100KB -o {out}.apr --json",
    "join": "join {model} -o {out}.apr --json",
    "plan": "plan --parts 2 -o {out}.plan --json -- convert {model} -o {out}.apr",
    "run-part": "run-part {model} 0 --json",
    "finish": "finish {model} --json",
    "edit": "edit {model} --set a=b --json",
    "edit, rename": "edit {model} --rename w0=v --json",
    "upgrade": "upgrade {model} {out}.apr --json",
}


class Measured:
    """A command's end: exit code, what it wrote, seconds of a processor, MiB at most."""

    def __init__(self, command, environment, seconds):
        limit = int(seconds * 3) + 1
        with tempfile.TemporaryFile() as log:
            limited = lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment,
                                     preexec_fn=limited)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - 100_000))
            self.text = log.read().decode(errors="replace")
        self.code = child.returncode
        self.seconds = usage.ru_utime + usage.ru_stime
        self.mib = usage.ru_maxrss / 1024


def formats(construct):
    """A construct's format stands before two hyphens."""
    return construct.name.split("--")[0]


def table(measured):
    """Commands by formats: the most seconds of a processor, and how often E008."""
    cells = collections.defaultdict(list)
    for one in measured:
        cells[one.command, one.format].append(one)
    columns = list(dict.fromkeys(one.format for one in measured))
    print("| command | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for command in dict.fromkeys(one.command for one in measured):
        row = []
        for column in columns:
            runs = cells[command, column]
            budget = sum("E008" in one.text for one in runs)
            row.append(f"{max((one.seconds for one in runs), default=0):.2f}" + (f", {budget} E008" if budget else ""))
        print(f"| {command} | " + " | ".join(row) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--apr", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--mib", type=float, default=2048)
    parser.add_argument("--command", action="append", help="only these commands, by the names of this script")
    parser.add_argument("--construct", action="append", help="only constructs with this in their names")
    parser.add_argument("--slowest", type=int, default=10, help="how many of the slowest are listed")
    arguments = parser.parse_args()

    passed, over, budget = [], [], 0
    with tempfile.TemporaryDirectory() as home:
        environment = {"HOME": home, "PATH": os.environ["PATH"]}
        keys = {"key": f"{home}/key", "signer": f"{home}/signer"}
        Path(home, "text.txt").write_text("Once upon a time, there was a model. " * 20)
        for name, use in zip(keys, ["encryption", "signing"]):
            subprocess.run([arguments.apr, "keygen", "--for", use, "-o", keys[name]], env=environment, check=True,
                           stdout=subprocess.DEVNULL)
        for construct in sorted(arguments.folder.iterdir()):
            if arguments.construct and not any(part in construct.name for part in arguments.construct):
                continue
            files = list(construct.iterdir())
            source = f"in/{files[0].name}" if len(files) == 1 else "in"
            for name, line in COMMANDS.items():
                if arguments.command and name not in arguments.command:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    shutil.copytree(construct, f"{folder}/in")
                    words = {"model": f"{folder}/{source}", "out": f"{folder}/out", "text": f"{home}/text.txt", **keys}
                    command = [arguments.apr, *(word.format(**words) for word in line.split())]
                    measured = Measured(command, environment, arguments.seconds)
                    measured.command, measured.construct, measured.format = name, construct.name, formats(construct)
                    budget += "E008" in measured.text
                    is_over = measured.code < 0 or measured.code == 101 or measured.mib > arguments.mib
                    is_over |= measured.seconds > arguments.seconds
                    (over if is_over else passed).append(measured)
                    if is_over:
                        print(f"over: {construct.name}: {name}: code {measured.code}, {measured.seconds:.1f} s, "
                              f"{measured.mib:.0f} MiB", flush=True)

    table(sorted(passed + over, key=lambda one: list(COMMANDS).index(one.command)))
    print(f"\n{len(passed)} passed, {len(over)} over, {budget} ended with E008 or reported it")
    for measured in sorted(passed, key=lambda one: -one.seconds)[: arguments.slowest]:
        print(f"  {measured.seconds:.2f} s, {measured.mib:.0f} MiB, code {measured.code}: {measured.construct}: "
              f"{measured.command}")
    sys.exit(bool(over))


main()
