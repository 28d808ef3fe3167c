#!/usr/bin/env python3
"""Judges ONNX models that were written anew: `onnx.checker` takes them, and they have the tensors of the original.

    onnx_rewritten.py tensors ORIGINAL MODEL ...    every tensor of the original is in each model, byte for byte
    onnx_rewritten.py outputs ORIGINAL MODEL [TOLERANCE]   onnxruntime computes the same with both, in parts of the largest value
    onnx_rewritten.py constants EXPECTED KIND MODEL   constants have the values of those of the same name in fixtures/products/products.json

Ends with 1 where one differs. Needs onnx, and onnxruntime for outputs.
"""

import json
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper


def dense(tensor, folder):
    given, indices = (numpy_helper.to_array(part, folder) for part in (tensor.values, tensor.indices))
    values = np.zeros(tensor.dims, given.dtype)
    if indices.ndim == 1:
        values.reshape(-1)[indices] = given
    else:
        values[tuple(indices.T)] = given
    return values


def tensors(path):
    """Initializers by their names, and constants by the names of their values: type, shape and bytes."""
    graph, found = onnx.load(path).graph, {}

    def take(name, tensor):
        is_text = tensor.data_type == TensorProto.STRING
        data = list(tensor.string_data) if is_text else numpy_helper.to_array(tensor).tobytes()
        found[name] = (tensor.data_type, list(tensor.dims), data)

    def take_sparse(name, tensor):
        found[name] = (tensor.values.data_type, list(tensor.dims), dense(tensor, os.path.dirname(path)).tobytes())

    for tensor in graph.initializer:
        take(tensor.name, tensor)
    for tensor in graph.sparse_initializer:
        take_sparse(tensor.values.name, tensor)
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else []:
            if attribute.name == "value":
                take(node.output[0], attribute.t)
            if attribute.name == "sparse_value":
                take_sparse(node.output[0], attribute.sparse_tensor)
    return found


def same_tensors(original, *models):
    expected, good = tensors(original), True
    for path in models:
        onnx.checker.check_model(path, full_check=True)
        found = tensors(path)
        wrong = [name for name in expected if found.get(name) != expected[name]]
        print(f"{path}: {len(expected)} tensors, {len(wrong)} differ {wrong[:5]}")
        good &= not wrong
    return good


def same_outputs(original, path, tolerance=0.0):
    import onnxruntime

    onnx.checker.check_model(path, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    before, after = (onnxruntime.InferenceSession(one, options) for one in (original, path))
    generator = np.random.default_rng(5)
    sizes = {port.name: [size if isinstance(size, int) else 4 for size in port.shape] for port in after.get_inputs()}
    feeds = {name: generator.normal(size=shape).astype(np.float32) for name, shape in sizes.items()}
    good = True
    for expected, found in zip(before.run(None, feeds), after.run(None, feeds)):
        distance = np.abs(expected - found).max() / np.abs(expected).max()
        print(f"{path}: {distance:.2e}")
        good &= expected.shape == found.shape and distance <= float(tolerance)
    return good


def same_constants(expected, kind, path):
    with open(expected, encoding="utf-8") as file:
        known = json.load(file)[kind]["constants"]
    shared, good = 0, True
    for tensor in onnx.load(path).graph.initializer:
        if tensor.name not in known:
            continue
        values = numpy_helper.to_array(tensor).ravel()
        # Ranges differ by the last bits of what two engines compute; integers do not.
        tolerance = 1e-6 if values.dtype == np.float32 else 0
        is_same = values.size == len(known[tensor.name]["values"]) and np.allclose(values, known[tensor.name]["values"], tolerance, 0)
        print(f"{path}: {tensor.name}: {'equal' if is_same else 'differs'}")
        shared, good = shared + 1, good and is_same
    return good and shared >= (2 if kind == "dynamic" else 20)


def main():
    what, *rest = sys.argv[1:]
    ways = {"tensors": same_tensors, "outputs": same_outputs, "constants": same_constants}
    sys.exit(0 if ways[what](*rest) else 1)


main()
