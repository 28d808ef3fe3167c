"""``safetensors.mlx``: files as arrays of MLX by name."""

from __future__ import annotations

from typing import Any, Dict, Optional

import mlx.core
import numpy as np

from .._tensors import PathLike
from . import numpy as _numpy
from ._open import safe_open

__all__ = ["load", "load_file", "save", "save_file"]


def load_file(filename: PathLike, *, backend: str = "mmap") -> "Dict[str, mlx.core.array]":
    """Returns all tensors of a file."""
    with safe_open(filename, framework="mlx", backend=backend) as file:
        return file.get_tensors()


def load(data: bytes) -> "Dict[str, mlx.core.array]":
    """Returns all tensors of a file in memory."""
    return {name: mlx.core.array(array) for name, array in _numpy.load(data).items()}


def save_file(
    tensors: "Dict[str, mlx.core.array]",
    filename: PathLike,
    metadata: Optional[Dict[str, str]] = None,
) -> None:
    """Writes arrays to a safetensors file; an existing file is overwritten."""
    _numpy.save_file(_arrays(tensors), filename, metadata)


def save(tensors: "Dict[str, mlx.core.array]", metadata: Optional[Dict[str, str]] = None) -> bytes:
    """Returns the bytes of a safetensors file."""
    return _numpy.save(_arrays(tensors), metadata)


def _arrays(tensors: "Dict[str, mlx.core.array]") -> "Dict[str, np.ndarray[Any, Any]]":
    return {name: np.asarray(array) for name, array in tensors.items()}
