"""``safetensors.torch``: files as torch tensors by name."""

from __future__ import annotations

import io
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

import torch

from .._arrays import Stored, stored
from .._model import open
from .._tensors import PathLike
from . import _specs
from ._frameworks import Device
from ._open import safe_open

__all__ = [
    "load",
    "load_file",
    "load_model",
    "save",
    "save_file",
    "save_model",
    "storage_ptr",
    "storage_size",
]


def load_file(
    filename: PathLike, device: Device = "cpu", *, backend: str = "mmap"
) -> Dict[str, torch.Tensor]:
    """Returns all tensors of a file: views of it, or copies with the backend ``pread``."""
    with safe_open(filename, framework="pt", device=device, backend=backend) as file:
        return file.get_tensors()


def load(data: bytes) -> Dict[str, torch.Tensor]:
    """Returns all tensors of a file in memory."""
    return open(io.BytesIO(data)).torch()


def save_file(
    tensors: Dict[str, torch.Tensor],
    filename: PathLike,
    metadata: Optional[Dict[str, str]] = None,
) -> None:
    """Writes tensors to a safetensors file; an existing file is overwritten.

    Tensors that share memory are refused, as the file would have each on its own.
    """
    _specs.save(_checked(tensors), filename, metadata)


def save(tensors: Dict[str, torch.Tensor], metadata: Optional[Dict[str, str]] = None) -> bytes:
    """Returns the bytes of a safetensors file."""
    return _specs.pack(_checked(tensors), metadata)


def _checked(tensors: Dict[str, torch.Tensor]) -> Dict[str, Stored]:
    """The tensors in the form of a file, if they can be written."""
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}"
            )
    sparse = [name for name, tensor in tensors.items() if tensor.layout != torch.strided]
    if sparse:
        raise ValueError(
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not "
            "support. You can make it a dense tensor before saving with `.to_dense()` but be aware "
            "this might make a much larger file than needed."
        )
    shared = [names for names in _find_shared_tensors(tensors) if len(names) > 1]
    if shared:
        raise RuntimeError(
            f"Some tensors share memory, and a file would have each on its own: {shared}. "
            "`save_model` keeps one of each."
        )
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. "
                "Call `.contiguous()` on it, or save the tensor that it is a part of."
            )
    return {name: stored(tensor) for name, tensor in tensors.items()}


def storage_ptr(tensor: torch.Tensor) -> int:
    """The address of the tensor's storage, or 0 if it has none."""
    try:
        return int(_storage(tensor).data_ptr())
    except (NotImplementedError, RuntimeError):
        return 0


def storage_size(tensor: torch.Tensor) -> int:
    """The length in bytes of the memory that a tensor is a part of."""
    return int(_storage(tensor).nbytes())


def _storage(tensor: torch.Tensor) -> Any:
    # Before torch 2, storages had a dtype.
    untyped = getattr(tensor, "untyped_storage", None)
    return getattr(tensor, "storage")() if untyped is None else untyped()  # noqa: B009


def _end_ptr(tensor: torch.Tensor) -> int:
    """The address behind the last byte of a tensor."""
    start = int(tensor.data_ptr())
    if tensor.numel() == 0:
        return start
    last = sum((dim - 1) * stride for dim, stride in zip(tensor.shape, tensor.stride()))
    return start + (int(last) + 1) * int(tensor.element_size())


def _is_complete(tensor: torch.Tensor) -> bool:
    """Returns ``True`` if the tensor covers its whole storage."""
    length = tensor.numel() * tensor.element_size()
    return bool(tensor.data_ptr() == storage_ptr(tensor) and length == storage_size(tensor))


def _find_shared_tensors(state_dict: Mapping[str, torch.Tensor]) -> List[Set[str]]:
    """Names of the tensors, grouped if their bytes overlap."""
    storages: Dict[Tuple[str, int, int], List[Tuple[int, int, str]]] = {}
    for name, tensor in state_dict.items():
        if tensor.device.type == "meta" or storage_ptr(tensor) == 0 or storage_size(tensor) == 0:
            continue
        key = (str(tensor.device), storage_ptr(tensor), storage_size(tensor))
        storages.setdefault(key, []).append((tensor.data_ptr(), _end_ptr(tensor), name))
    found: List[Set[str]] = []
    for ranges in storages.values():
        end = -1
        for start, stop, name in sorted(ranges):
            if start >= end:
                found.append(set())
            found[-1].add(name)
            end = max(end, stop)
    return found


def _remove_duplicate_names(
    state_dict: Mapping[str, torch.Tensor],
    *,
    preferred_names: Optional[Iterable[str]] = None,
    discard_names: Optional[Iterable[str]] = None,
) -> Dict[str, List[str]]:
    """The name to keep of tensors that share memory, with the names to drop.

    It is the first by name of the tensors that cover the whole storage: among the preferred ones,
    or else among the ones that are not to be discarded, if there are any.
    """
    preferred, discarded = set(preferred_names or ()), set(discard_names or ())
    removed: Dict[str, List[str]] = {}
    for names in _find_shared_tensors(state_dict):
        complete = {name for name in names if _is_complete(state_dict[name])}
        if not complete:
            raise RuntimeError(
                f"none of {sorted(names)} has all of the memory that they are parts of: it would "
                "not be clear what to save. Save copies of them by `.clone()`"
            )
        kept = min(complete & preferred or complete - discarded or complete)
        others = sorted(names - {kept})
        if others:
            removed[kept] = others
    return removed


def save_model(
    model: torch.nn.Module,
    filename: PathLike,
    metadata: Optional[Dict[str, str]] = None,
    force_contiguous: bool = True,
) -> None:
    """Writes the state dict of a module.

    If tensors share memory, the first by name that covers all of it is written. The metadata list
    the others, unless they have these names already. Tensors that are not
    contiguous are refused without ``force_contiguous``.
    """
    state = dict(model.state_dict())
    metadata = dict(metadata or {})
    for kept, others in _remove_duplicate_names(state).items():
        for name in others:
            metadata.setdefault(name, kept)
            del state[name]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    try:
        save_file(state, filename, metadata)
    except ValueError as error:
        raise ValueError(f"{error} Or use save_model(..., force_contiguous=True).") from error


def load_model(
    model: torch.nn.Module,
    filename: PathLike,
    strict: bool = True,
    device: Device = "cpu",
    *,
    backend: str = "mmap",
) -> Tuple[List[str], List[str]]:
    """Loads a file into a module; returns the names that the file lacks, and the names that the
    module does not have.

    A tensor that shares the memory of a loaded one is not missing. With ``strict``, a
    ``RuntimeError`` names what is missing and unexpected.
    """
    state = load_file(filename, device=device, backend=backend)
    duplicates = _remove_duplicate_names(model.state_dict(), preferred_names=state)
    lacking, beyond = model.load_state_dict(state, strict=False)
    missing, unexpected = set(lacking), list(beyond)
    for name in (name for names in duplicates.values() for name in names):
        if name in missing:
            missing.remove(name)
        else:
            # The file has it beside the one whose memory it shares: which is right?
            unexpected.append(name)
    if strict and (missing or unexpected):
        message = f"Error(s) in loading state_dict for {type(model).__name__}:"
        for what, names in (("Missing", sorted(missing)), ("Unexpected", sorted(unexpected))):
            if names:
                listed = ", ".join(f'"{name}"' for name in names)
                message += f"\n    {what} key(s) in state_dict: {listed}"
        raise RuntimeError(message)
    return sorted(missing), unexpected
