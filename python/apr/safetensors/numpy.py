"""``safetensors.numpy``: files as NumPy arrays by name."""

from __future__ import annotations

import io
import os
import tempfile
from typing import Any, Dict, Optional

import numpy as np

from .. import _jobs
from .._arrays import stored
from .._model import open
from .._tensors import PathLike

__all__ = ["load", "load_file", "save", "save_file"]


#: Dtypes in the order in which the package writes them.
_ORDER = "u64 i64 f64 c64 f32 u32 i32 bf16 f16 u16 i16 f8_e8m0 f8_e4m3 f8_e5m2 i8 u8 bool".split()


def write(filename: PathLike, tensors: Dict[str, Any], metadata: Optional[Dict[str, str]]) -> None:
    """Writes a file as the package ``safetensors`` does, to the byte."""
    ranks = {name: _ORDER.index(stored(tensor)[0]) for name, tensor in tensors.items()}
    ordered = sorted(tensors.items(), key=lambda item: (ranks[item[0]], item[0]))
    _jobs.write(
        filename,
        dict(ordered),
        metadata or {},
        format="safetensors",
        replace=True,
        adds_metadata=False,
    )


def load_file(filename: PathLike) -> "Dict[str, np.ndarray[Any, Any]]":
    """All tensors of a file, in memory of their own."""
    return {name: tensor.copy() for name, tensor in open(filename).items()}


def load(data: bytes) -> "Dict[str, np.ndarray[Any, Any]]":
    """All tensors of a file in memory."""
    return {name: tensor.copy() for name, tensor in open(io.BytesIO(data)).items()}


def save_file(
    tensor_dict: "Dict[str, np.ndarray[Any, Any]]",
    filename: PathLike,
    metadata: Optional[Dict[str, str]] = None,
) -> None:
    """Writes arrays to a file of safetensors; what is there is replaced."""
    write(filename, tensor_dict, metadata)


def save(
    tensor_dict: "Dict[str, np.ndarray[Any, Any]]", metadata: Optional[Dict[str, str]] = None
) -> bytes:
    """The bytes of such a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        save_file(tensor_dict, path, metadata)
        with io.open(path, "rb") as file:
            return file.read()
