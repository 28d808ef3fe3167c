#!/usr/bin/env python3
"""onnxruntime runs what apr translates of Keras, TensorFlow, Core ML, OpenVINO and TensorFlow Lite: `translated.py APR [SHARED]`.

The models and their values are those of `fixtures/`, which Keras, TensorFlow, Google's interpreter, PyTorch and NumPy
computed; with the folder of files that other people wrote, theirs too. Needs numpy and onnxruntime.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

FIXTURES = Path(__file__).parents[2] / "fixtures"

#: Lists of values; the folder of their models, in the fixtures or among the files of other people.
LISTS = [
    ("keras/lowered.json", "keras"),
    ("keras/masked.json", "keras"),
    ("tensorflow/lowered.json", "tensorflow/lowered"),
    ("tensorflow/loops.json", "tensorflow/lowered"),
    ("coreml/lowered.json", "coreml/lowered"),
    ("coreml/recurrent.json", "coreml/recurrent"),
    ("tflite/lowered.json", "tflite"),
    ("openvino/lowered.json", "openvino/lowered"),
]
SHARED = [("keras/outputs.json", "keras"), ("tensorflow/outputs.json", "tensorflow"), ("tflite/outputs.json", "tflite")]

#: Why a model has no ONNX file, which must be what apr says.
REFUSED = ["does not state the number of dimensions of its input"]

TYPES = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64,
    "tensor(int32)": np.int32, "tensor(int64)": np.int64, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8,
}


def given(expected, input):
    """sin(0.7 i) rounded, or i modulo 7 for integers, as the scripts of the fixtures have it."""
    count = int(np.prod(expected["shape"]))
    dtype = str(expected.get("dtype", "float32"))
    at = np.arange(count, dtype=np.float64)
    if dtype == "int8":
        values = np.round(np.sin(0.7 * at) * 90)
    elif dtype.startswith("int"):
        values = at % 7
    else:
        values = np.round(np.sin(0.7 * at) * 64) / 64
    return values.reshape(expected["shape"]).astype(TYPES[input.type])


def flat(value):
    if isinstance(value, list):
        return np.hstack([flat(item) for item in value])
    return np.asarray(value, dtype=np.float64).ravel()


def compared(apr, model, expected, folder):
    """How far the outputs are from what is expected, relative to them; `None` for a model that has no ONNX file."""
    out = folder / "model.onnx"
    done = subprocess.run([apr, "convert", str(model), "-o", str(out), "-f"], capture_output=True, text=True)
    if done.returncode:
        if any(reason in done.stderr for reason in REFUSED):
            return None
        sys.exit(f"{model}: {done.stderr}")
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    (input,) = session.get_inputs()
    outputs = session.run(None, {input.name: given(expected, input)})
    found = dict(zip([output.name for output in session.get_outputs()], outputs))
    wanted = expected.get("outputs")
    if not isinstance(wanted, dict):
        wanted = dict(zip(found, [expected["output"]]))
    if len(wanted) == 1:
        found = dict(zip(wanted, found.values()))
    worst = 0.0
    # Halves, which the programs round after each layer, or integers, one step of which is a rounding.
    tolerance = expected.get("tolerance") or (1e-2 if model.suffix == ".tflite" else 2e-4)
    for name, values in wanted.items():
        own, theirs = flat(found[name].tolist()), flat(values)
        if own.shape != theirs.shape:
            sys.exit(f"{model}: {name} has {own.size} numbers, and {theirs.size} are expected")
        scale = max(1.0, float(np.abs(theirs).max(initial=0.0)))
        step = 1.0 if found[name].dtype == np.int8 else tolerance * scale
        far = float(np.abs(own - theirs).max(initial=0.0))
        if far > step:
            sys.exit(f"{model}: {name} is {far} from what is expected")
        worst = max(worst, far / scale)
    return worst


def main():
    apr, *shared = sys.argv[1:]
    lists = [(FIXTURES / values, FIXTURES / folder) for values, folder in LISTS]
    if shared:
        lists += [(FIXTURES / values, Path(shared[0]) / folder) for values, folder in SHARED]
    with tempfile.TemporaryDirectory() as name:
        for values, folder in lists:
            found = {}
            for model, expected in json.loads(values.read_text()).items():
                found[model] = compared(apr, folder / model, expected, Path(name))
            ran = [far for far in found.values() if far is not None]
            refused = len(found) - len(ran)
            print(f"{values.relative_to(FIXTURES)}: {len(ran)} models run, {refused} have no ONNX file; worst {max(ran):.1e}")


if __name__ == "__main__":
    main()
