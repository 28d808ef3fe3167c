"""Files that are opened lazily."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, BinaryIO, Dict, List, Optional, Type, Union

from .. import _errors
from .._model import Model, open
from .._tensors import PathLike, Tensor
from ._frameworks import Device, device_named, framework_named, part, part_of_torch, whole, wholes
from ._indices import basic
from ._specs import header_dtype

_BACKENDS = ("mmap", "pread")


class _Slice:
    """A tensor of which parts are read."""

    def __init__(self, tensor: Tensor, framework: str, device: Device, backend: str) -> None:
        self._tensor = tensor
        self._framework = framework
        self._device = device
        self._backend = backend

    def get_shape(self) -> List[int]:
        """Elements, outermost dimension first."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """The dtype's name in safetensors headers."""
        return header_dtype(self._tensor.dtype)

    def __getitem__(self, index: Any) -> Any:
        """Elements; no more is read than the rows that the first index takes.

        A view of a file is torch's, and so are its indices. Others are integers and slices within
        the dimensions.
        """
        if self._framework == "pytorch" and self._backend == "mmap":
            return part_of_torch(self._tensor, index, self._device)
        return part(self._tensor, basic(index, self._tensor.shape), self._framework, self._device)


class _File:
    """A file whose tensors are those of a framework."""

    def __init__(
        self, source: Union[PathLike, BinaryIO], framework: str, device: Any, backend: str
    ) -> None:
        if backend not in _BACKENDS:
            known = ", ".join(f'"{name}"' for name in _BACKENDS)
            raise _errors.Error(f'backend "{backend}" is invalid (expected one of: {known})')
        self._backend = backend
        self._framework = framework_named(framework)
        self._device = device_named(device, self._framework)
        self._model: Optional[Model] = _opened(source)

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self._model = None

    def _open(self) -> Model:
        if self._model is None:
            raise _errors.Error("File is closed")
        return self._model

    def _tensor(self, name: str) -> Tensor:
        try:
            return self._open()[name]
        except KeyError:
            raise _errors.Error(f"File does not contain tensor {name}") from None

    def keys(self) -> List[str]:
        """Names in alphabetical order."""
        return sorted(self._open())

    def offset_keys(self) -> List[str]:
        """Names in the order of the file."""
        return list(self._open())

    def metadata(self) -> Optional[Dict[str, str]]:
        """The texts of ``__metadata__``."""
        found = self._open().metadata.get("safetensors", {}).get("metadata")
        return dict(found) if found else None

    def get_tensor(self, name: str) -> Any:
        """A tensor of the framework. One of torch is a view of the file, as
        :meth:`apr.Tensor.torch` has it, unless the backend is ``pread``; others have memory of
        their own."""
        copy = self._backend == "pread"
        return whole(self._tensor(name), self._framework, self._device, copy=copy)

    def get_tensors(self) -> Dict[str, Any]:
        """All tensors by name, in the order of the file."""
        names = self.offset_keys()
        tensors = [self._tensor(name) for name in names]
        copy = self._backend == "pread"
        return dict(zip(names, wholes(tensors, self._framework, self._device, copy=copy)))

    def get_slice(self, name: str) -> _Slice:
        """A tensor of which parts are read: ``get_slice("weight")[:, :10]``."""
        return _Slice(self._tensor(name), self._framework, self._device, self._backend)


class safe_open(_File):  # noqa: N801, the name is safetensors'
    """Opens a file lazily, and gives tensors of a framework: ``np``, ``pt``, ``tf``, ``flax``,
    ``mlx`` or ``paddle``.

    With the backend ``pread``, tensors are read into memory of their own; with ``mmap``, those of
    torch are views of the file.

    >>> with safe_open(MODEL + "/model.safetensors", framework="np") as file:
    ...     file.get_slice("model.embed_tokens.weight").get_shape()
    [259, 128]
    """

    def __init__(
        self,
        filename: PathLike,
        framework: str,
        device: Optional[Device] = "cpu",
        *,
        backend: str = "mmap",
    ) -> None:
        super().__init__(filename, framework, device, backend)

    def __enter__(self) -> "safe_open":
        return self


class _safe_open_handle(_File):  # noqa: N801, the name is safetensors'
    """:class:`safe_open` for a file object. One of a file with a name is opened by that."""

    def __init__(
        self, f: Any, framework: str, device: Optional[Device] = "cpu", *, backend: str = "mmap"
    ) -> None:
        name = getattr(f, "name", None)
        if not hasattr(f, "fileno") or not isinstance(name, (str, os.PathLike)):
            name = f
        super().__init__(name, framework, device, backend)

    def __enter__(self) -> "_safe_open_handle":
        return self


def _opened(source: Union[PathLike, BinaryIO]) -> Model:
    try:
        return open(source)
    except _errors.NotFoundError as error:
        if isinstance(source, (str, os.PathLike)) and "://" not in os.fspath(source):
            raise FileNotFoundError(f"No such file or directory: {os.fspath(source)}") from error
        raise
