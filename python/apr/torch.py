"""Reads and writes PyTorch's files without running code from them.

>>> import apr.torch
>>> state = apr.torch.load(MODEL)        # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, Dict, Mapping, Optional, Union

from . import _jobs
from ._model import open
from ._tensors import PathLike

if TYPE_CHECKING:
    import torch

__all__ = ["load", "save"]


def load(
    source: Union[PathLike, BinaryIO],
    *,
    map_location: Any = None,
    mmap: bool = False,
    password: Optional[str] = None,
    max_memory: Optional[int] = None,
) -> "Dict[str, torch.Tensor]":
    """Returns the tensors of a model of any format as a state dict.

    ``torch.load`` of a pickle executes the code in it. This function reads the tensors by name,
    runs nothing, and leaves out values that are not tensors. With ``mmap``, tensors are read from
    the file when they are used. ``max_memory`` has the meaning of :func:`apr.open`.
    """
    state = open(source, password=password, max_memory=max_memory).torch(copy=not mmap)
    if map_location is not None:
        state = {name: tensor.to(map_location) for name, tensor in state.items()}
    return state


def save(
    state: "Mapping[str, torch.Tensor]", path: PathLike, *, replace: bool = True
) -> "_jobs.Saved":
    """Writes a state dict in the format of the extension; torch loads ``.pt`` and ``.bin``."""
    return _jobs.save(path, state, replace=replace)
