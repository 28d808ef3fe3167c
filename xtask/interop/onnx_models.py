#!/usr/bin/env python3
"""Judges ONNX files that `apr export` wrote: onnx's checker, and onnxruntime's outputs beside transformers'.

    onnx_models.py check FILE...             the full check of onnx
    onnx_models.py outputs SOURCE FOLDER     outputs of the model in SOURCE (a Hugging Face folder) and in FOLDER
    onnx_models.py generate SOURCE FOLDER N  N tokens, one by one with keys and values of earlier ones
    onnx_models.py same FILE FILE            whether two files compute the same, to the last bit
    onnx_models.py record FILE INPUTS OUTPUTS  inputs made up for a file, and its outputs, as .npz files
    onnx_models.py near FILE FILE [PARTS]    the same up to so many parts of the largest value, 1e-4 where none are named

Prints one JSON line for each, and ends with 1 where something differs.
"""
import inspect
import json
import os
import sys

import numpy as np
import onnx
import onnxruntime as ort

TOLERANCE = 1e-4


def session(path, optimized=True):
    options = ort.SessionOptions()
    if not optimized:
        # What is fused rounds differently.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check(paths):
    for path in paths:
        onnx.checker.check_model(path, full_check=True)
        model = onnx.load(path, load_external_data=False)
        with open(path, "rb") as file:
            same = file.read() == model.SerializeToString()
        report({"file": path, "checked": True, "canonical": same})
    return True


def report(line):
    print(json.dumps(line), flush=True)


def difference(expected, found):
    """The largest distance, in parts of the largest expected value."""
    expected, found = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    if expected.shape != found.shape:
        return float("inf")
    scale = np.abs(expected).max() if expected.size else 1.0
    return float(np.abs(expected - found).max() / max(scale, 1e-9)) if expected.size else 0.0


TYPES = {"tensor(int64)": np.int64, "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int32)": np.int32,
         "tensor(bool)": np.bool_, "tensor(double)": np.float64}


def transformers_model(source):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(source)
    name = (config.architectures or ["AutoModel"])[0]
    kind = getattr(transformers, name)
    model = kind.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
    return model.eval(), config


def ids(config, batch, length):
    generator = np.random.default_rng(7)
    return generator.integers(3, config.vocab_size, (batch, length)).astype(np.int64)


def feeds(run, config, batch, length):
    """What the file asks for: tokens with padding at the end of the second row."""
    tokens = ids(config, batch, length)
    mask = np.ones((batch, length), np.int64)
    if batch > 1:
        mask[1, length - 2:] = 0
    all_feeds = {
        "input_ids": tokens,
        "attention_mask": mask,
        "token_type_ids": np.zeros((batch, length), np.int64),
        "position_ids": np.broadcast_to(np.arange(length), (batch, length)).astype(np.int64),
    }
    return {each.name: all_feeds[each.name] for each in run.get_inputs() if each.name in all_feeds}


def empty_past(run, batch):
    past = {}
    for each in run.get_inputs():
        if each.name.startswith("past_key_values"):
            shape = [batch if i == 0 else (size if isinstance(size, int) else 0) for i, size in enumerate(each.shape)]
            past[each.name] = np.zeros(shape, TYPES[each.type])
    return past


def outputs(source, folder, file="model.onnx"):
    import torch

    model, config = transformers_model(source)
    run = session(os.path.join(folder, file))
    worst, compared = 0.0, []
    for batch, length in [(1, 1), (2, 7)]:
        fed = feeds(run, config, batch, length)
        with torch.no_grad():
            names = set(inspect.signature(model.forward).parameters)
            expected = model(**{name: torch.from_numpy(np.array(value)) for name, value in fed.items() if name in names})
        found = run.run(None, {**fed, **empty_past(run, batch)})
        counts = fed["attention_mask"].astype(bool)
        for each, value in zip(run.get_outputs(), found):
            reference = getattr(expected, each.name, None)
            if reference is None:
                continue
            reference = reference.numpy()
            if reference.ndim == 3:
                reference, value = reference[counts], value[counts]
            worst = max(worst, difference(reference, value))
            compared.append(each.name)
    good = bool(compared) and worst <= TOLERANCE
    report({"outputs": folder, "compared": sorted(set(compared)), "worst": worst, "good": good})
    return good


def generate(source, folder, count, file="model.onnx"):
    import torch

    model, config = transformers_model(source)
    run = session(os.path.join(folder, file))
    tokens = [1]
    expected = list(tokens)
    with torch.no_grad():
        for _ in range(count):
            expected.append(int(model(input_ids=torch.tensor([expected])).logits[0, -1].argmax()))
    past = empty_past(run, 1)
    step = list(tokens)
    while len(tokens) < len(expected):
        fed = {
            "input_ids": np.array([step], np.int64),
            "attention_mask": np.ones((1, len(tokens)), np.int64),
            "position_ids": np.array([list(range(len(tokens) - len(step), len(tokens)))], np.int64),
        }
        wanted = {each.name for each in run.get_inputs()}
        found = run.run(None, {**{name: value for name, value in fed.items() if name in wanted}, **past})
        results = dict(zip((each.name for each in run.get_outputs()), found))
        past = {name: results[name.replace("past_key_values", "present")] for name in past}
        step = [int(results["logits"][0, -1].argmax())]
        tokens += step
    good = tokens == expected
    report({"generated": folder, "tokens": len(tokens), "good": good})
    return good


def size_of(size):
    """A size, where it is known; names count 3, and sums of names that much each."""
    return size if isinstance(size, int) and size > 0 else 3 * (1 + str(size).count("+"))


def made_up(run):
    generator = np.random.default_rng(7)
    fed = {}
    for each in run.get_inputs():
        shape = [size_of(size) for size in each.shape]
        kind = TYPES[each.type]
        values = generator.integers(0, 2, shape) if np.issubdtype(kind, np.integer) else generator.standard_normal(shape)
        fed[each.name] = np.asarray(values).astype(kind)
        if each.name == "attention_mask":
            fed[each.name] = np.ones(fed[each.name].shape, kind)
    return fed


def record(path, inputs, outputs):
    run = session(path)
    fed = made_up(run)
    np.savez(inputs, **fed)
    np.savez(outputs, **dict(zip((each.name for each in run.get_outputs()), run.run(None, fed))))
    return True


def same(one, other, tolerance=0.0):
    runs = [session(path, optimized=False) for path in (one, other)]
    fed = made_up(runs[0])
    results = [run.run(None, fed) for run in runs]
    worst = max(0.0 if a.tobytes() == b.tobytes() else difference(a, b) for a, b in zip(*results))
    exact = all(a.tobytes() == b.tobytes() for a, b in zip(*results))
    good = len(results[0]) == len(results[1]) and (exact or worst <= tolerance and tolerance > 0)
    report({"compared": [one, other], "worst": worst, "good": good})
    return good


def main():
    what, *rest = sys.argv[1:]
    if what == "check":
        good = check(rest)
    elif what == "outputs":
        good = outputs(*rest)
    elif what == "generate":
        good = generate(rest[0], rest[1], int(rest[2]))
    elif what == "record":
        good = record(*rest)
    elif what == "near":
        good = same(rest[0], rest[1], float(rest[2]) if len(rest) > 2 else TOLERANCE)
    else:
        good = same(*rest)
    sys.exit(0 if good else 1)


main()
