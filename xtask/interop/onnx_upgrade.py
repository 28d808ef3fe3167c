#!/usr/bin/env python3
"""Compares ONNX models with what `apr export --opset N` made of them: onnxruntime computes both, for the same inputs.

    onnx_upgrade.py APR FOLDER [N ...]      every model below a folder, with operators of versions N
    onnx_upgrade.py --pairs LIST            models that were rewritten before: a line of LIST has two paths

Prints a line for each model that differs, is refused or can't be compared, and counts; ends with 1 where one differs.
Needs onnx and onnxruntime.
"""

import collections
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

TOLERANCE = 1e-5
TYPES = {
    "float": np.float32, "float16": np.float16, "double": np.float64, "int64": np.int64, "int32": np.int32,
    "int16": np.int16, "int8": np.int8, "uint64": np.uint64, "uint32": np.uint32, "uint16": np.uint16,
    "uint8": np.uint8, "bool": np.bool_,
}


class NotCompared(Exception):
    """The reference itself does not run."""


def session(path):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def given(path, kind):
    """Inputs or outputs that the collection has for a model."""
    files = sorted((Path(path).parent / "test_data_set_0").glob(f"{kind}_*.pb"))
    return [onnx.numpy_helper.to_array(onnx.load_tensor(str(file))) for file in files]


def inputs_of(run, path):
    """What the collection has for the model, or else random values; names of sizes count 3."""
    values, ports = given(path, "input"), run.get_inputs()
    if values and len(values) == len(ports):
        return dict(zip((port.name for port in ports), values))
    generator = np.random.default_rng(7)
    feeds = {}
    for port in ports:
        kind = port.type.removeprefix("tensor(").removesuffix(")")
        if kind not in TYPES:
            raise NotCompared(f"inputs of {port.type}")
        shape = [size if isinstance(size, int) and size >= 0 else 3 for size in port.shape]
        whole = np.issubdtype(TYPES[kind], np.integer) or kind == "bool"
        values = generator.integers(0, 2, shape) if whole else generator.standard_normal(shape)
        feeds[port.name] = np.asarray(values).astype(TYPES[kind])
    return feeds


def is_random(path):
    model = onnx.load(path, load_external_data=False)
    random = ("Random", "Bernoulli", "Multinomial")
    drops = any(node.op_type == "Dropout" and len(node.input) > 2 for node in model.graph.node)
    return drops or any(node.op_type.startswith(random) for node in model.graph.node)


def expected(path, run):
    """Inputs for a model, and what it makes of them; `run` is a session of a model with the same inputs."""
    outputs = given(path, "output")
    if outputs:
        return inputs_of(run, path), outputs
    try:
        run = session(path)
        feeds = inputs_of(run, path)
        return feeds, run.run(None, feeds)
    except NotCompared:
        raise
    except Exception as error:
        raise NotCompared(str(error).strip().splitlines()[0][:110]) from error


def arrays(value):
    """The arrays in a value that may be a sequence or a map."""
    if isinstance(value, (list, tuple)):
        return [array for each in value for array in arrays(each)]
    if isinstance(value, dict):
        return arrays(list(value.items()))
    return [np.asarray(value)]


def difference(expected, found):
    """The largest distance in parts of the largest value; infinite where types or shapes differ."""
    worst = 0.0
    if len(expected) != len(found):
        return float("inf")
    for one, other in zip(expected, found):
        if one.dtype != other.dtype or one.shape != other.shape:
            return float("inf")
        if np.array_equal(one, other):
            continue
        if one.dtype.kind not in "fiub":
            return float("inf")
        one, other = np.float64(one), np.float64(other)
        if (np.isfinite(one) != np.isfinite(other)).any():
            return float("inf")
        one, other = np.nan_to_num(one), np.nan_to_num(other)
        worst = max(worst, np.abs(one - other).max() / max(np.abs(one).max(), 1e-9))
    return float(worst)


def runs(path):
    """Fails where onnx or onnxruntime refuse a model as it came."""
    try:
        onnx.checker.check_model(path, full_check=True)
        session(path)
    except Exception as error:
        raise NotCompared(str(error).strip().splitlines()[0][:110]) from error


def compared(before, after):
    """How a model differs from what was made of it; empty where it does not."""
    if is_random(before):
        raise NotCompared("its outputs are random")
    try:
        onnx.checker.check_model(after, full_check=True)
        run = session(after)
    except Exception:
        runs(before)
        raise
    feeds, wanted = expected(before, run)
    worst = difference(arrays(wanted), arrays(run.run(None, feeds)))
    return f"differs by {worst:.1e}" if worst > TOLERANCE else ""


class Tally:
    def __init__(self):
        self.counts = collections.Counter()

    def add(self, label, kind, why=""):
        self.counts[kind] += 1
        if kind != "the same":
            print(f"{kind:14} {label}: {why}", flush=True)

    def pair(self, label, before, after):
        try:
            why = compared(before, after)
            self.add(label, "DIFFERENT" if why else "the same", why)
        except NotCompared as error:
            self.add(label, "not compared", error)
        except Exception as error:
            self.add(label, "DIFFERENT", f"{type(error).__name__}: {error}"[:400])

    def failed(self, label, before, why):
        """A model that could not be rewritten: none that runs may fail."""
        try:
            runs(before)
            self.add(label, "FAILED", why)
        except NotCompared as error:
            self.add(label, "not compared", error)

    def finish(self):
        print(", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items())))
        sys.exit(1 if self.counts["DIFFERENT"] or self.counts["FAILED"] else 0)


def version(path):
    model = onnx.load(path, load_external_data=False)
    return next((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), None)


def main():
    tally = Tally()
    if sys.argv[1] == "--pairs":
        for line in Path(sys.argv[2]).read_text().splitlines():
            before, after = line.split("\t")
            tally.pair(before, before, after)
        tally.finish()
    apr, folder, *wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as out:
        after = f"{out}/after.onnx"
        for path in sorted(Path(folder).rglob("*.onnx")):
            own = version(str(path))
            for to in [int(number) for number in wanted or ["13", "18", "21", "23"]]:
                label = f"{path.relative_to(folder)} {own} -> {to}"
                if own is None or own >= to:
                    continue
                done = subprocess.run([apr, "export", str(path), "-o", after, "--opset", str(to), "-f", "-q"],
                                      capture_output=True, text=True)
                if done.returncode != 0:
                    first = (done.stderr.strip().splitlines() or ["nothing is said"])[0][:200]
                    if "can't be converted to version" in first:
                        tally.add(label, "refused", first)
                    else:
                        tally.failed(label, str(path), first)
                else:
                    tally.pair(label, str(path), after)
    tally.finish()


if __name__ == "__main__":
    main()
