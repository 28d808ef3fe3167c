"""``safetensors.tensorflow``: files as tensors of TensorFlow by name."""

from __future__ import annotations

from typing import Any, Dict, Optional

import numpy as np
import tensorflow

from .._tensors import PathLike
from . import numpy as _numpy
from ._open import safe_open

__all__ = ["load", "load_file", "save", "save_file"]


def load_file(filename: PathLike, *, backend: str = "mmap") -> "Dict[str, tensorflow.Tensor]":
    """Returns all tensors of a file."""
    with safe_open(filename, framework="tf", backend=backend) as file:
        return file.get_tensors()


def load(data: bytes) -> "Dict[str, tensorflow.Tensor]":
    """Returns all tensors of a file in memory."""
    return {name: tensorflow.convert_to_tensor(array) for name, array in _numpy.load(data).items()}


def save_file(
    tensors: "Dict[str, tensorflow.Tensor]",
    filename: PathLike,
    metadata: Optional[Dict[str, str]] = None,
) -> None:
    """Writes tensors to a safetensors file; an existing file is overwritten."""
    _numpy.save_file(_arrays(tensors), filename, metadata)


def save(
    tensors: "Dict[str, tensorflow.Tensor]", metadata: Optional[Dict[str, str]] = None
) -> bytes:
    """Returns the bytes of a safetensors file."""
    return _numpy.save(_arrays(tensors), metadata)


def _arrays(tensors: "Dict[str, tensorflow.Tensor]") -> "Dict[str, np.ndarray[Any, Any]]":
    return {name: tensor.numpy() for name, tensor in tensors.items()}
