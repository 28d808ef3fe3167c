"""Compares two safetensors files as their own library reads them: names, dtypes, shapes, bytes, metadata."""

import sys

from safetensors import safe_open
from safetensors.numpy import load_file

first, second = sys.argv[1:]
one, two = load_file(first), load_file(second)
assert one.keys() == two.keys(), one.keys() ^ two.keys()
for name, values in one.items():
    other = two[name]
    assert (values.dtype, values.shape) == (other.dtype, other.shape), name
    assert values.tobytes() == other.tobytes(), name
with safe_open(first, "np") as a, safe_open(second, "np") as b:
    assert a.metadata() == b.metadata(), (a.metadata(), b.metadata())
print(len(one), "tensors")
