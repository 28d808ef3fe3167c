"""The interface of the package ``safetensors``, for files of every format.

A program changes one import: ``from apr.safetensors import safe_open``,
``from apr.safetensors.numpy import load_file, save_file``, or ``.torch``.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Type, Union

from .. import _errors
from .._arrays import numpy_dtype, torch_dtype
from .._model import Model, open
from .._tensors import PathLike, Tensor

if TYPE_CHECKING:
    import numpy as np

__all__ = ["SafetensorError", "deserialize", "safe_open"]

#: What a file that can't be read raises.
SafetensorError = _errors.Error

_FRAMEWORKS = {"np": "np", "numpy": "np", "pt": "pt", "torch": "pt", "pytorch": "pt"}

#: Names of dtypes in headers of safetensors.
_DTYPES = {
    "f64": "F64", "f32": "F32", "f16": "F16", "bf16": "BF16", "i64": "I64", "i32": "I32",
    "i16": "I16", "i8": "I8", "u64": "U64", "u32": "U32", "u16": "U16", "u8": "U8",
    "bool": "BOOL", "c64": "C64", "f8_e4m3": "F8_E4M3", "f8_e5m2": "F8_E5M2",
    "f8_e8m0": "F8_E8M0",
}  # fmt: skip


class _Slice:
    """A tensor of which parts are read."""

    def __init__(self, tensor: Tensor, framework: str, device: Any) -> None:
        self._tensor = tensor
        self._framework = framework
        self._device = device

    def get_shape(self) -> List[int]:
        """Elements, outermost dimension first."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """As a header of safetensors names it."""
        return _DTYPES.get(self._tensor.dtype, self._tensor.dtype)

    def __getitem__(self, index: Any) -> Any:
        """Elements; no more is read than the rows that the first index takes."""
        if self._framework == "np":
            return self._tensor[index]
        import torch

        dtype = torch_dtype(self._tensor.dtype)
        # NumPy slices bits of every dtype; torch reads them as its own.
        bits = _Bits(self._tensor)[index]
        taken = torch.from_numpy(bits).view(dtype) if bits.ndim else torch.tensor(bits).view(dtype)
        return taken.to(self._device) if self._device != "cpu" else taken


class _Bits(Tensor):
    """A tensor whose elements are taken for integers of their size."""

    __slots__ = ()

    def __init__(self, tensor: Tensor) -> None:
        width = tensor.nbytes // tensor.size if tensor.size else 1
        dtype = {1: "u8", 2: "i16", 4: "i32", 8: "i64"}[width]
        entry = (tensor.name, dtype, tensor.shape, tensor.nbytes)
        super().__init__(tensor._model, tensor._maps, tensor._position, entry)


class safe_open:  # noqa: N801, the name is safetensors'
    """Opens a file lazily, and gives tensors as NumPy arrays or torch tensors.

    >>> with safe_open(MODEL + "/model.safetensors", framework="np") as file:
    ...     file.get_slice("model.embed_tokens.weight").get_shape()
    [259, 128]
    """

    def __init__(
        self, filename: PathLike, framework: str = "np", device: Union[str, int] = "cpu"
    ) -> None:
        if framework not in _FRAMEWORKS:
            raise SafetensorError(f"framework {framework} is invalid")
        self._framework = _FRAMEWORKS[framework]
        self._device = device
        self._model: Optional[Model] = open(filename)

    def __enter__(self) -> "safe_open":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self._model = None

    def _open(self) -> Model:
        if self._model is None:
            raise SafetensorError("File is closed")
        return self._model

    def _tensor(self, name: str) -> Tensor:
        try:
            return self._open()[name]
        except KeyError:
            raise SafetensorError(f"File does not contain tensor {name}") from None

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
        """A tensor: of NumPy in memory of its own, of torch as :meth:`apr.Tensor.torch` has it."""
        tensor = self._tensor(name)
        if self._framework == "np":
            return tensor.copy()
        made = tensor.torch()
        return made.to(self._device) if self._device != "cpu" else made

    def get_tensors(self) -> Dict[str, Any]:
        """All tensors by name."""
        return {name: self.get_tensor(name) for name in self.keys()}

    def get_slice(self, name: str) -> _Slice:
        """A tensor of which parts are read: ``get_slice("weight")[:, :10]``."""
        return _Slice(self._tensor(name), self._framework, self._device)


def deserialize(data: bytes) -> List[Tuple[str, Dict[str, Any]]]:
    """Names, and dtype, shape and bytes, of the tensors of a file in memory."""
    import io

    model = open(io.BytesIO(data))
    return [
        (
            name,
            {
                "dtype": _DTYPES.get(tensor.dtype, tensor.dtype),
                "shape": list(tensor.shape),
                "data": tensor.bytes(),
            },
        )
        for name, tensor in model.items()
    ]
