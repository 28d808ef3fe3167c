"""Makes the fixtures of this folder, and expected.json: what torch reads from them and from the shared files.

Run with a Python that has torch 1.13: python3 make.py SHARED_PYTORCH_FOLDER
"""

import argparse
import collections
import datetime
import glob
import json
import os
import pathlib
import sys
import zipfile
import zlib

import numpy
import torch
import torch.serialization

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.uint8: "u8",
    torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.bool: "bool",
    torch.complex64: "c64",
}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)
        self.register_buffer("steps", torch.tensor([7, 8]))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x):
        return self.fc(x) + self.steps.sum()


def no_source(*_):
    raise OSError("PyTorch's own source text stays out of the fixtures")


def without_debug_information(path):
    """Takes out what tells where on this machine the source text lies."""
    with zipfile.ZipFile(path) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist() if not name.endswith(".debug_pkl")]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries:
            archive.writestr(zipfile.ZipInfo(name), data)


def fixtures():
    torch.serialization.get_source_lines_and_file = no_source
    torch.manual_seed(1)
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    strided = {
        "transposed": base.t(), "sliced": base[1:, 2:5], "stepped": base[::2, ::3], "expanded": base[:, :1].expand(4, 5),
        "permuted": torch.arange(60, dtype=torch.int16).reshape(3, 4, 5).permute(2, 0, 1),
        "column": base[:, 2], "outer": torch.arange(3.0).expand(2, 3), "flat": base,
    }
    wide = {"wide": torch.randn(300, 20).t(), "rows": torch.randn(40, 64)[:, 3:50]}
    weight = torch.randn(2, 3)
    tied = collections.OrderedDict([("embed.weight", weight), ("head.weight", weight), ("view", weight.view(3, 2))])
    nested = {
        "epoch": 3, "lr": 0.5, "note": "résumé", "best": float("inf"), "done": True, "nothing": None,
        "model": {"module.a": torch.ones(2), "layers": [torch.zeros(1), {"b": torch.tensor(2.5)}]},
        "optimizer": {"state": {0: {"exp_avg": torch.full((2,), 0.25)}}, "param_groups": [{"betas": (0.9, 0.999)}]},
    }
    kinds = {
        "bf16": torch.randn(3).bfloat16(), "f16": torch.randn(3).half(), "scalar": torch.tensor(4.0), "empty": torch.zeros(0, 3),
        "bool": torch.tensor([True, False]), "c64": torch.tensor([1 + 2j]), "u8": torch.tensor([1, 255], dtype=torch.uint8),
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
    }
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.ReLU())
    for name, value in [("strided", strided), ("wide", wide), ("tied", tied), ("nested", nested), ("kinds", kinds)]:
        torch.save(value, f"{HERE}/{name}.pt")
    torch.save(strided, f"{HERE}/strided_legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(tied, f"{HERE}/tied_legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(kinds, f"{HERE}/kinds_protocol4.pt", pickle_protocol=4)
    torch.save(kinds, f"{HERE}/kinds_protocol5.pt", pickle_protocol=5)
    torch.save(module, f"{HERE}/module.pt")
    torch.save(module, f"{HERE}/module_legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({"net": Block()}, f"{HERE}/user_module.pt")
    script = f"{HERE}/script.pt"
    torch.jit.script(Block()).save(script)
    without_debug_information(script)
    torch.save({"dense": torch.ones(1), "some.sparse": torch.eye(3).to_sparse()}, f"{HERE}/sparse.pt")
    torch.save({"q": torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)}, f"{HERE}/quantized.pt")
    torch.save({"z": torch.zeros(2, dtype=torch.complex128)}, f"{HERE}/complex128.pt")
    training, tensors = with_numpy()
    torch.save(training, f"{HERE}/numpy.pt")
    torch.save(training, f"{HERE}/numpy_protocol4.pt", pickle_protocol=4)
    torch.save({"w": tensors, "objects": numpy.array([None, 1], dtype=object)}, f"{HERE}/numpy_objects.pt")
    torch.save(sparse(), f"{HERE}/sparse_kinds.pt")
    torch.save(sparse(), f"{HERE}/sparse_kinds_legacy.pt", _use_new_zipfile_serialization=False)
    twice = torch.sparse_coo_tensor([[1, 1]], [1.0, 2.0], (3,))
    torch.save({"some.sparse": twice}, f"{HERE}/sparse_twice.pt")
    torch.save(quantized(), f"{HERE}/quantized_kinds.pt")
    torch.save(channels(), f"{HERE}/quantized_channels.pt")
    scales, zeros = torch.tensor([0.1, 0.2]), torch.tensor([0.5, 1])
    floats = torch.quantize_per_channel(torch.ones(2, 2), scales, zeros, 0, torch.quint8)
    torch.save({"q": floats}, f"{HERE}/quantized_floats.pt")


def with_numpy():
    weight = torch.arange(3.0)
    training = {
        "state_dict": {"w": weight}, "lr": numpy.float64(0.25), "loss": numpy.float32(1.5), "step": numpy.int64(-7),
        "seen": numpy.uint8(200), "done": numpy.bool_(True), "half": numpy.float16(2.0), "big": numpy.array(3, ">i4")[()],
        "rng": numpy.random.RandomState(1).get_state(), "table": numpy.zeros((2, 3)),
        "records": numpy.zeros(2, dtype=[("a", "i4"), ("b", "f8")]), "blob": b"\x00\xff", "none": b"",
        "args": argparse.Namespace(out=pathlib.PurePosixPath("a/b"), dtype=torch.float32, device=torch.device("cpu"), lr=0.5),
        "when": datetime.datetime(2020, 1, 2), "took": datetime.timedelta(3), "counts": collections.Counter("aab"),
        "default": collections.defaultdict(list, {"x": [1]}), "size": torch.Size([2, 3]), "tags": {"t"}, "steps": range(3),
    }
    return training, weight


def sparse():
    matrix = torch.tensor([[0, 1.5, 0, 0], [0, 0, 0, 0], [-2, 0, float("inf"), 3]])
    cube = torch.zeros(3, 2, 4, dtype=torch.float64)
    cube[0, 1], cube[2, 0] = torch.arange(4) + 1, torch.arange(4) - 7
    shuffled = torch.sparse_coo_tensor([[2, 0, 1], [0, 3, 1]], torch.tensor([1, 2, 3]), (3, 4))
    large = torch.zeros(400, 500)
    large[::7, ::11] = torch.randn(58, 46)
    return {
        "dense": torch.ones(2), "matrix": matrix.to_sparse(), "half": matrix.half().to_sparse(), "rows": matrix.to_sparse(1),
        "cube": cube.to_sparse(1), "cube2": cube.to_sparse(2), "shuffled": shuffled, "bool": (matrix > 0).to_sparse(),
        "nothing": torch.zeros(3, 2).to_sparse(), "empty": torch.zeros(0, 2).to_sparse(), "vector": torch.eye(5)[3].to_sparse(),
        "csr": matrix.to_sparse_csr(), "csr32": csr32(matrix), "large": large.to_sparse(), "large_csr": large.to_sparse_csr(),
    }


def csr32(matrix):
    csr = matrix.to_sparse_csr()
    return torch.sparse_csr_tensor(csr.crow_indices().int(), csr.col_indices().int(), csr.values(), csr.shape)


def channels():
    values, scales, zeros = torch.randn(4, 3, 5) * 9, torch.rand(5) + 0.01, torch.arange(5) - 2
    first = torch.quantize_per_channel(values, scales[:4], zeros[:4], 0, torch.qint8)
    last = torch.quantize_per_channel(values, scales.double(), zeros + 100, 2, torch.quint8)
    middle = torch.quantize_per_channel(values, scales[:3], zeros[:3], 1, torch.qint8)
    return {"first": first, "middle": middle, "last": last, "again": first}


def quantized():
    values = torch.randn(6, 5) * 20
    signed = torch.quantize_per_tensor(values, 0.137, 3, torch.qint8)
    many = torch.quantize_per_tensor(torch.randn(20_000) * 100, 1.7, 128, torch.quint8)
    return {
        "signed": signed, "unsigned": torch.quantize_per_tensor(values, 0.21, 117, torch.quint8), "again": signed,
        "wide": torch.quantize_per_tensor(values * 1e6, 1e-3, 0, torch.qint32), "turned": signed.t(), "part": signed[1:, 2:],
        "scalar": torch.quantize_per_tensor(torch.tensor(1.0), 0.3, -5, torch.qint8), "many": many,
        "none": torch.quantize_per_tensor(torch.zeros(0, 2), 0.3, 1, torch.qint8),
    }


def flatten(value, path=""):
    if isinstance(value, torch.Tensor):
        yield path or "tensor", value
    elif isinstance(value, torch.nn.Module):
        for name, tensor in value.state_dict(keep_vars=True).items():
            yield f"{path}.{name}" if path else name, tensor
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from flatten(item, f"{path}.{position}" if path else str(position))


def describe(tensor):
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.dtype == torch.bfloat16:
        data = flat.view(torch.int16).numpy().tobytes()
    else:
        data = flat.numpy().tobytes()
    described = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "len": len(data), "crc32": zlib.crc32(data)}
    described["first"] = data[:64].hex()
    return described


def expectations(shared):
    expected = {}
    files = [(f"golden/{os.path.basename(p)}", p) for p in sorted(glob.glob(f"{HERE}/*.pt"))]
    files += [(f"shared/{os.path.basename(p)}", p) for p in sorted(glob.glob(f"{shared}/*")) if not p.endswith(".tar")]
    for name, path in files:
        if os.path.basename(path) in ("script.pt", "sparse_twice.pt", "quantized_floats.pt", "complex128.pt", "numpy_objects.pt"):
            continue
        try:
            value = torch.load(path, map_location="cpu")
        except Exception:
            continue
        expected[name] = [[key, describe(tensor)] for key, tensor in flatten(value)]
    script = torch.jit.load(f"{HERE}/script.pt")
    expected["golden/script.pt"] = [[key, describe(tensor)] for key, tensor in script.state_dict().items()]
    return expected


if __name__ == "__main__":
    sys.modules["__main__"].Block = Block
    fixtures()
    with open(f"{HERE}/expected.json", "w") as out:
        json.dump(expectations(sys.argv[1]), out, indent=0)
