#!/usr/bin/env python3
"""Runs a TorchScript file that `apr export` wrote, beside the ONNX file of the same model.

    torchscript.py SCRIPT INPUTS.npz OUTPUTS.npz   every output is the expected one, up to 1e-4 of its largest value

Inputs and outputs are arrays by name, in the order of the program's arguments and results. Needs torch, from 1.13 on.
"""
import json
import sys

import numpy as np
import torch


def main():
    script, inputs, outputs = sys.argv[1:]
    module = torch.jit.load(script)
    module.eval()
    with np.load(inputs) as given:
        arguments = [torch.from_numpy(given[name]) for name in given.files]
    with torch.no_grad():
        found = module(*arguments)
    found = [found] if isinstance(found, torch.Tensor) else list(found)
    with np.load(outputs) as wanted:
        expected = [wanted[name] for name in wanted.files]
    worst = 0.0
    for one, other in zip(expected, found):
        other = other.numpy()
        if one.shape != other.shape:
            worst = float("inf")
        elif one.size:
            worst = max(worst, float(np.abs(one - other).max() / max(np.abs(one).max(), 1e-9)))
    good = len(expected) == len(found) and worst <= 1e-4
    print(json.dumps({"script": script, "torch": torch.__version__, "worst": worst, "good": good}))
    sys.exit(0 if good else 1)


main()
