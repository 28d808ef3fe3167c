#!/usr/bin/env python3
"""Runs TorchScript programs that `apr export` wrote of ONNX models, beside onnxruntime and the models.

    torchscript_sweep.py APR FOLDER      every model below a folder of which a program can be written
    torchscript_sweep.py --pairs LIST    programs that were written before: a line of LIST has a model and a program

Every output is within 1e-4 of the largest value. Prints a line for each model that differs or has no program, and counts;
ends with 1 where one differs. Needs torch, onnx and onnxruntime.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import onnx_upgrade
from onnx_upgrade import NotCompared, Tally

TOLERANCE = 1e-4


def results(program, arguments):
    with torch.no_grad():
        found = program(*arguments)
    return [value.numpy() for value in ([found] if isinstance(found, torch.Tensor) else found)]


def compared(model, script):
    """How a program differs from a model; empty where it does not."""
    if onnx_upgrade.is_random(model):
        raise NotCompared("its outputs are random")
    try:
        run = onnx_upgrade.session(model)
    except Exception as error:
        raise NotCompared(str(error).strip().splitlines()[0][:110]) from error
    feeds, wanted = onnx_upgrade.expected(model, run)
    arguments = [torch.from_numpy(np.array(feeds[port.name])) for port in run.get_inputs()]
    found = results(torch.jit.load(script), arguments)
    worst = onnx_upgrade.difference(onnx_upgrade.arrays(wanted), found)
    return f"differs by {worst:.1e}" if worst > TOLERANCE else ""


def pair(tally, label, model, script):
    try:
        why = compared(model, script)
        tally.add(label, "DIFFERENT" if why else "the same", why)
    except NotCompared as error:
        tally.add(label, "not compared", error)
    except Exception as error:
        tally.add(label, "DIFFERENT", f"{type(error).__name__}: {str(error).strip()[-400:]}")


def main():
    tally = Tally()
    if sys.argv[1] == "--pairs":
        for line in Path(sys.argv[2]).read_text().splitlines():
            model, script = line.split("\t")
            pair(tally, model, model, script)
        tally.finish()
    apr, folder = sys.argv[1:]
    with tempfile.TemporaryDirectory() as out:
        script = f"{out}/m.pt"
        for path in sorted(Path(folder).rglob("*.onnx")):
            label = str(path.relative_to(folder))
            command = [apr, "export", str(path), "--format", "torchscript", "-o", script, "-f"]
            done = subprocess.run(command, capture_output=True, text=True)
            said = next((line for line in done.stderr.splitlines() if "no program" in line or "error" in line), "")
            if done.returncode != 0 or said:
                tally.add(label, "no program", said[:200])
            else:
                pair(tally, label, str(path), script)
    tally.finish()


if __name__ == "__main__":
    main()
