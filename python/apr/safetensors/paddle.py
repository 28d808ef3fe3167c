"""``safetensors.paddle``: files as tensors of Paddle by name."""

from __future__ import annotations

import io
from typing import Any, Dict, Optional

import numpy as np
import paddle

from .. import _errors
from .._arrays import OF_TORCH, Stored
from .._model import open
from .._tensors import PathLike
from . import _specs
from ._frameworks import Device, device_named, whole
from ._open import safe_open

__all__ = ["load", "load_file", "save", "save_file"]


def load_file(
    filename: PathLike, device: Device = "cpu", *, backend: str = "mmap"
) -> "Dict[str, paddle.Tensor]":
    """Returns all tensors of a file."""
    with safe_open(filename, framework="paddle", device=device, backend=backend) as file:
        return file.get_tensors()


def load(data: bytes, device: Device = "cpu") -> "Dict[str, paddle.Tensor]":
    """Returns all tensors of a file in memory."""
    place = device_named(device, "paddle")
    tensors = open(io.BytesIO(data)).items()
    return {name: whole(tensor, "paddle", place, copy=True) for name, tensor in tensors}


def save_file(
    tensors: "Dict[str, paddle.Tensor]",
    filename: PathLike,
    metadata: Optional[Dict[str, str]] = None,
) -> None:
    """Writes tensors to a safetensors file; an existing file is overwritten."""
    _specs.save(_checked(tensors), filename, metadata)


def save(tensors: "Dict[str, paddle.Tensor]", metadata: Optional[Dict[str, str]] = None) -> bytes:
    """Returns the bytes of a safetensors file."""
    return _specs.pack(_checked(tensors), metadata)


def _checked(tensors: "Dict[str, paddle.Tensor]") -> Dict[str, Stored]:
    """The tensors in the form of a file, if they can be written."""
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, paddle.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, paddle.Tensor):
            raise ValueError(
                f"Key `{name}` is invalid, expected paddle.Tensor but received {type(tensor)}"
            )
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. "
                "Call `.contiguous()` on it, or save the tensor that it is a part of."
            )
    return {name: _stored(tensor) for name, tensor in tensors.items()}


def _stored(tensor: Any) -> Stored:
    name = OF_TORCH.get(str(tensor.dtype).split(".")[-1])
    if name is None:
        raise _errors.VersionError(f"no file has {tensor.dtype}")
    shape = tuple(tensor.shape)
    if 0 in shape:
        return Stored(name, shape, np.empty(0, np.uint8))
    # NumPy has not all dtypes, but it has their bytes.
    return Stored(name, shape, tensor.detach().cpu().reshape([-1]).view(paddle.uint8).numpy())
