"""``safetensors.numpy``: files as NumPy arrays by name."""

from __future__ import annotations

import io
from typing import Any, Dict, Optional

import numpy as np

from .._arrays import stored
from .._model import open
from .._tensors import PathLike
from . import _specs
from ._open import safe_open

__all__ = ["load", "load_file", "save", "save_file"]


def load_file(filename: PathLike, *, backend: str = "mmap") -> "Dict[str, np.ndarray[Any, Any]]":
    """Returns copies of all tensors of a file."""
    with safe_open(filename, framework="np", backend=backend) as file:
        return file.get_tensors()


def load(data: bytes) -> "Dict[str, np.ndarray[Any, Any]]":
    """Returns all tensors of a file in memory."""
    return {name: tensor.copy() for name, tensor in open(io.BytesIO(data)).items()}


def save_file(
    tensor_dict: "Dict[str, np.ndarray[Any, Any]]",
    filename: PathLike,
    metadata: Optional[Dict[str, str]] = None,
) -> None:
    """Writes arrays to a safetensors file; an existing file is overwritten."""
    tensors = {name: stored(array) for name, array in tensor_dict.items()}
    _specs.save(tensors, filename, metadata)


def save(
    tensor_dict: "Dict[str, np.ndarray[Any, Any]]", metadata: Optional[Dict[str, str]] = None
) -> bytes:
    """Returns the bytes of a safetensors file."""
    return _specs.pack({name: stored(array) for name, array in tensor_dict.items()}, metadata)
