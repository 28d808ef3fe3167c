"""PyTorch's files, of any kind, without running anything that they hold.

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
    """The tensors of a model as a state dict, whatever its format.

    ``torch.load`` of a pickle executes what the pickle says. Here it is read for its tensors by
    their names; nothing of it is run, and what is no tensor is left out. With ``mmap``, tensors are
    read from the file when they are used. ``max_memory`` is that of :func:`apr.open`.
    """
    state = open(source, password=password, max_memory=max_memory).torch(copy=not mmap)
    if map_location is not None:
        state = {name: tensor.to(map_location) for name, tensor in state.items()}
    return state


def save(
    state: "Mapping[str, torch.Tensor]", path: PathLike, *, replace: bool = True
) -> "_jobs.Saved":
    """Writes a state dict, in the format that the extension names: ``.pt`` and ``.bin`` load in
    torch."""
    return _jobs.save(path, state, replace=replace)
