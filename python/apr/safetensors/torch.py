"""``safetensors.torch``: files as torch tensors by name."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple, Union

from .. import _errors
from .._model import open
from .._tensors import PathLike
from . import numpy as _numpy

if TYPE_CHECKING:
    import torch

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def load_file(filename: PathLike, device: Union[str, int] = "cpu") -> "Dict[str, torch.Tensor]":
    """All tensors of a file, as :meth:`apr.Tensor.torch` has them."""
    state = open(filename).torch()
    if device != "cpu":
        state = {name: tensor.to(device) for name, tensor in state.items()}
    return state


def load(data: bytes) -> "Dict[str, torch.Tensor]":
    """All tensors of a file in memory."""
    return open(io.BytesIO(data)).torch()


def save_file(
    tensors: "Dict[str, torch.Tensor]",
    filename: PathLike,
    metadata: Optional[Dict[str, str]] = None,
) -> None:
    """Writes tensors to a file of safetensors; what is there is replaced.

    Tensors that share memory are refused, as the file would have each on its own.
    """
    _check(tensors)
    _numpy.write(filename, tensors, metadata)


def save(tensors: "Dict[str, torch.Tensor]", metadata: Optional[Dict[str, str]] = None) -> bytes:
    """The bytes of such a file."""
    _check(tensors)
    arrays: Dict[str, Any] = dict(tensors)
    return _numpy.save(arrays, metadata)


def _check(tensors: "Dict[str, torch.Tensor]") -> None:
    import torch

    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor: {type(tensor)}")
        if tensor.layout != torch.strided:
            raise ValueError(f"Key `{name}` is sparse: it is saved by its dense form")
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` which is not allowed."
            )
    shared = [names for names in _shared(tensors) if len(names) > 1]
    if shared:
        raise RuntimeError(
            f"Some tensors share memory, this will lead to duplicate memory on disk: {shared}. "
            "Use `save_model`, which keeps one of each."
        )


def _shared(tensors: "Dict[str, torch.Tensor]") -> List[Set[str]]:
    """Names of tensors whose bytes lie over each other."""
    places: Dict[Tuple[str, int], List[Tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        if tensor.numel() == 0 or tensor.device.type == "meta":
            continue
        start = tensor.data_ptr()
        key = (str(tensor.device), _storage(tensor).data_ptr())
        places.setdefault(key, []).append((start, start + _length(tensor), name))
    found = []
    for ranges in places.values():
        end = -1
        names: Set[str] = set()
        for start, stop, name in sorted(ranges):
            if start >= end and names:
                found.append(names)
                names = set()
            names.add(name)
            end = max(end, stop)
        found.append(names)
    return found


def save_model(
    model: "torch.nn.Module",
    filename: PathLike,
    metadata: Optional[Dict[str, str]] = None,
    force_contiguous: bool = True,
) -> None:
    """Writes the state dict of a module; of tensors that are one, the first by name."""
    state = dict(model.state_dict())
    metadata = dict(metadata or {})
    for names in _shared(state):
        whole = [name for name in sorted(names) if _is_whole(state[name])]
        if len(names) > 1 and not whole:
            raise RuntimeError(f"none of {sorted(names)} has all of the memory that they share")
        for name in sorted(names):
            if name != (whole or sorted(names))[0]:
                metadata[name] = (whole or sorted(names))[0]
                del state[name]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(state, filename, metadata)


def _is_whole(tensor: "torch.Tensor") -> bool:
    return bool(_length(tensor) == _storage(tensor).nbytes())


def _length(tensor: "torch.Tensor") -> int:
    return int(tensor.numel() * tensor.element_size())


def _storage(tensor: "torch.Tensor") -> Any:
    # Before torch 2, storages had a dtype.
    untyped = getattr(tensor, "untyped_storage", None)
    return getattr(tensor, "storage")() if untyped is None else untyped()  # noqa: B009


def load_model(
    model: "torch.nn.Module",
    filename: PathLike,
    strict: bool = True,
    device: Union[str, int] = "cpu",
) -> Tuple[List[str], List[str]]:
    """Loads a file into a module; returns the names that it lacks, and those that it has no place
    for."""
    state = load_file(filename, device=device)
    missing, unexpected = model.load_state_dict(state, strict=False)
    own = model.state_dict()
    shared: Dict[str, Any] = {name: names for names in _shared(own) for name in names}
    lacking = [name for name in missing if not (shared.get(name, set()) & set(state))]
    if strict and (lacking or unexpected):
        raise _errors.RequestError(
            f"the file lacks {sorted(lacking)} and has {sorted(unexpected)} beside the module's"
        )
    return lacking, list(unexpected)
