"""Makes ONNX models of the graphs that the example `graph_json` of apr-blocks prints, and runs them.

This is a reading of the graph by other code than ours: `onnx.helper` builds the model, numpy applies the views to the
weights, onnxruntime computes.
"""

import json
import subprocess

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from safetensors.numpy import load_file


def graphs(program, folder, past=True, opset=17, task=None):
    """What `graph_json` prints for a folder."""
    arguments = [program, str(folder), "past" if past else "plain", str(opset)] + ([task] if task is not None else [])
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout)


def constant(entry):
    dtype = helper.tensor_dtype_to_np_dtype(entry["type"])
    return np.frombuffer(bytes(entry["bytes"]), dtype=dtype).reshape(entry["shape"])


def viewed(tensors, name_of, tensor, views):
    value = tensors[name_of[tensor]]
    for view in views:
        match view:
            case ["transposed", order]:
                value = value.transpose(order)
            case ["slice", axis, start, length]:
                value = value.take(range(start, start + length), axis)
            case ["reshaped", shape]:
                value = value.reshape(shape)
            case ["joined", axis, others]:
                value = np.concatenate([value] + [tensors[name_of[other]] for other in others], axis)
            case ["stacked", others]:
                value = np.stack([value] + [tensors[name_of[other]] for other in others])
            case ["plus", number]:
                value = value + np.float32(number)
            case _:
                raise ValueError(view)
    return np.array(value, order="C")


def node(entry):
    made = helper.make_node(entry["op"], entry["inputs"], entry["outputs"], entry["name"], domain=entry["domain"])
    for name, value in entry["attributes"]:
        match value:
            case {"int": number} | {"float": number} | {"text": number} | {"ints": number} | {"floats": number}:
                kind = {"int": onnx.AttributeProto.INT, "float": onnx.AttributeProto.FLOAT}.get(next(iter(value)))
                made.attribute.append(helper.make_attribute(name, float(number) if "float" in value else number, attr_type=kind))
            case {"tensor": tensor}:
                made.attribute.append(helper.make_attribute(name, numpy_helper.from_array(constant(tensor))))
            case _:
                raise ValueError(value)
    return made


def nodes_of(body):
    """Nodes, with the constants of a function as nodes."""
    constants = [entry for entry in body["values"] if "constant" in entry]
    made = [
        helper.make_node("Constant", [], [entry["name"]], value=numpy_helper.from_array(constant(entry["constant"])))
        for entry in constants
    ]
    return made + [node(entry) for entry in body["nodes"]]


def model(part, names, tensors):
    """The ONNX model of a part."""
    opsets = [helper.make_opsetid(domain, version) for domain, version in part["opsets"]]
    functions = []
    for function in part["functions"]:
        body = function["body"]
        inputs, outputs = ([port["name"] for port in body[side]] for side in ("inputs", "outputs"))
        functions.append(
            helper.make_function(function["domain"], function["name"], inputs, outputs, nodes_of(body), opsets)
        )
    body = part["body"]
    initializers = []
    for entry in body["values"]:
        if "tensor" in entry:
            value = viewed(tensors, names, entry["tensor"], entry["views"])
            assert list(value.shape) == entry["shape"], (entry, value.shape)
            initializers.append(numpy_helper.from_array(value.astype(np.float32), entry["name"]))
        else:
            initializers.append(numpy_helper.from_array(constant(entry["constant"]), entry["name"]))

    def port(entry):
        kind = entry["type"] or onnx.TensorProto.FLOAT
        return helper.make_tensor_value_info(entry["name"], kind, entry["shape"])

    graph = helper.make_graph(
        [node(entry) for entry in body["nodes"]], part["name"], [port(entry) for entry in body["inputs"]],
        [port(entry) for entry in body["outputs"]], initializers,
    )
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)


class Session:
    """A part of a model in onnxruntime."""

    def __init__(self, made):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        # As written: no node is fused into another one.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = onnxruntime.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"])
        self.inputs = [port.name for port in self.session.get_inputs()]
        self.outputs = [port.name for port in self.session.get_outputs()]

    def __call__(self, feeds):
        results = self.session.run(None, {name: np.asarray(feeds[name]) for name in self.inputs})
        return dict(zip(self.outputs, results))


def sessions(program, folder, **options):
    """All parts of a folder's model, by name, and what no graph uses."""
    made = graphs(program, folder, **options)
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
    parts = {part["name"]: Session(model(part, made["names"], tensors)) for part in made["parts"]}
    return parts, made["unused"]
