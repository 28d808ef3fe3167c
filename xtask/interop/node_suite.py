"""Runs the official tests of ONNX, those of operators and the small models beside them, by `apr run`.

Inputs go in as ONNX's own messages (.pb): tensors, sequences, optional values, maps. What comes out is read from --json and
compared by the tolerances that each test states. Counts are asserted: how many pass, and the names of those that do not.

    python node_suite.py APR [NAME ...]

Needs onnx 1.23 and ml_dtypes.
"""

import json
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

PASSED = 1862
# What is asked for is the picture that some library decodes: no tensor operator.
ABSENT = "test_image_decoder"
# Numbers drawn at random: types and shapes are compared.
RANDOM = ("test_bernoulli", "test_training_dropout")
# The expected numbers were rounded to 16 bits after each multiplication, and are that far off themselves.
ROUNDED = {
    "test_attention_3d_causal_bf16", "test_attention_3d_causal_bf16_expanded", "test_attention_4d_attn_mask_causal_bf16",
    "test_attention_4d_attn_mask_causal_bf16_expanded", "test_attention_4d_causal_bf16", "test_attention_4d_causal_bf16_expanded",
    "test_attention_4d_causal_fp16_expanded", "test_attention_4d_causal_padded_kv_bf16",
    "test_attention_4d_causal_padded_kv_bf16_expanded", "test_attention_4d_padded_kv_bf16",
    "test_attention_4d_padded_kv_bf16_expanded",
}
# What should be 0 is expected to be the noise of a transform in single precision.
NOISE = {"test_dft_inverse", "test_dft_inverse_opset19"}


def message(value, kind, name):
    """A value as the message that its type says."""
    which = kind.WhichOneof("value")
    if isinstance(value, TensorProto):
        return value
    if which == "optional_type":
        inner = kind.optional_type.elem_type.WhichOneof("value")
        if value is None:
            return numpy_helper.from_optional(None, name)
        return numpy_helper.from_optional(list(value) if inner == "sequence_type" else value, name)
    if which == "sequence_type":
        return numpy_helper.from_list(value, name)
    if which == "map_type":
        return numpy_helper.from_dict(value, name)
    return numpy_helper.from_array(np.asarray(value), name)


def ask(apr, folder, case, inputs):
    """What apr run answers, output by output."""
    (folder / "model.onnx").write_bytes(case.model.SerializeToString())
    command = [apr, "run", folder / "model.onnx", "--json", "-q"]
    for at, (info, value) in enumerate(zip(case.model.graph.input, inputs)):
        path = folder / f"{at}.pb"
        path.write_bytes(message(value, info.type, info.name).SerializeToString())
        command += ["--input", f"{info.name}={path}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip() or done.stdout.strip())[:300])
    return json.loads(done.stdout)["outputs"]


def array(report):
    """The elements of an array as doubles, integers or texts."""
    values = report["values"]
    if report["type"] == "text":
        return np.array(values, dtype=object).reshape(report["shape"])
    if report["type"].startswith(("f", "bf")):
        return np.array([float(value) for value in values], dtype=np.float64).reshape(report["shape"])
    return np.array([int(value) for value in values], dtype=object).reshape(report["shape"])


def differs(report, expected, case, only_shapes):
    """What is wrong with an output; None where nothing is. Bits of a unit in the last place are told apart."""
    if isinstance(expected, TensorProto):
        expected = numpy_helper.to_array(expected)
    if expected is None:
        return None if report["type"] == "nothing" else f"{report['type']}, not nothing"
    if isinstance(expected, (list, tuple)):
        if report["type"] != "sequence" or len(report.get("items", [])) != len(expected):
            return f"{report['type']} of {len(report.get('items', []))}, not a sequence of {len(expected)}"
        wrong = (differs(item, value, case, only_shapes) for item, value in zip(report.get("items", []), expected))
        return next((why for why in wrong if why), None)
    expected = np.asarray(expected)
    if list(expected.shape) != report["shape"]:
        return f"shape {report['shape']}, not {list(expected.shape)}"
    if only_shapes:
        return None
    if expected.dtype.kind in "OUS":
        texts = [text.decode() if isinstance(text, bytes) else str(text) for text in expected.flatten().tolist()]
        return None if texts == report["values"] else f"{report['values'][:5]}, not {texts[:5]}"
    ours = array(report)
    if not report["type"].startswith(("f", "bf")):
        same = (ours == expected.astype(object)).all()
        return None if same else f"{ours.flatten()[:5]}, not {expected.flatten()[:5]}"
    theirs = expected.astype(np.float64)
    if np.isclose(ours, theirs, rtol=case.rtol, atol=case.atol, equal_nan=True).all():
        return None
    worst = float(np.nanmax(np.abs(ours - theirs)))
    return f"off by {worst:.3g} of {float(np.nanmax(np.abs(theirs))):.3g}"


def run(apr, case):
    """Why a test is not passed; None where it is."""
    only_shapes = case.name.startswith(RANDOM) and "zero_ratio" not in case.name
    for inputs, outputs in case.data_sets:
        if isinstance(inputs, dict):
            inputs = [inputs[info.name] for info in case.model.graph.input if info.name in inputs]
        if isinstance(outputs, dict):
            outputs = [outputs[info.name] for info in case.model.graph.output if info.name in outputs]
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = ask(apr, Path(folder), case, inputs)
            except RuntimeError as error:
                return str(error)
        for report, expected in zip(found, outputs):
            why = differs(report, expected, case, only_shapes)
            if why:
                return why
    return None


def main():
    warnings.filterwarnings("ignore")
    apr, *names = sys.argv[1:]
    cases = [case for case in collect_testcases(None) if not names or case.name in names]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda case: (case.name, run(Path(apr).resolve(), case)), cases))
    failed = {name: why for name, why in results if why}
    absent = {name for name in failed if name.startswith(ABSENT)}
    known = {name for name in failed if name in ROUNDED | NOISE}
    wrong = {name: why for name, why in failed.items() if name not in absent | known}
    passed = len(results) - len(failed)
    print(f"{passed} passed, {len(known)} closer to the exact numbers than what is expected, {len(absent)} absent, {len(wrong)} wrong")
    for name, why in wrong.items():
        print(f"  {name}: {why}")
    if wrong or not names and passed < PASSED:
        sys.exit(1)


main()
