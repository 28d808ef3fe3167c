"""Tensors by the address of their bytes, and files of them."""

from __future__ import annotations

import ctypes
import io
import operator
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from .. import _errors, _jobs
from .._arrays import F4, OF_TORCH, Stored
from .._model import open
from .._tensors import PathLike

#: What a file that can't be read raises, and a request that can't be met.
SafetensorError = _errors.Error

#: Dtypes in the order in which the package writes them.
_ORDER = (
    "u64 i64 f64 c64 f32 u32 i32 bf16 f16 u16 i16 f8_e5m2fnuz f8_e4m3fnuz f8_e8m0 f8_e4m3 f8_e5m2 "
    "i8 u8 f6_e3m2 f6_e2m3 f4_e2m1 bool"
).split()


def header_dtype(name: str) -> str:
    """The name of a dtype in safetensors headers, or apr's name if the headers have none."""
    if name == F4:
        return "F4"
    return name.upper() if name in _ORDER else name


class TensorSpec:
    """A tensor to write: its dtype and shape, and where its bytes lie in memory.

    They have to stay there until :func:`serialize` or :func:`serialize_file` has returned.

    >>> import numpy as np
    >>> array = np.zeros((2, 3), np.float32)
    >>> spec = TensorSpec(
    ...     dtype="float32", shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes
    ... )
    >>> spec.dtype, spec.shape, spec.data_len
    ('F32', [2, 3], 24)
    >>> len(serialize({"zeros": spec}))
    96
    """

    __slots__ = ("_name", "_shape", "_data_ptr", "_data_len")

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        """``dtype`` is torch's name. If an element is two values (``float4_e2m1fn_x2``), ``shape``
        counts elements."""
        if dtype not in OF_TORCH:
            known = ", ".join(OF_TORCH)
            raise SafetensorError(f'Unknown dtype "{dtype}". Supported dtypes: {known}')
        self._name = OF_TORCH[dtype]
        self._shape = [_unsigned(dim) for dim in shape]
        if self._name == F4 and self._shape:
            self._shape[-1] *= 2
        self._data_ptr = _unsigned(data_ptr)
        self._data_len = _unsigned(data_len)

    def __repr__(self) -> str:
        return (
            f"TensorSpec(dtype={self.dtype!r}, shape={self._shape}, data_ptr={self._data_ptr}, "
            f"data_len={self._data_len})"
        )

    @property
    def dtype(self) -> str:
        """The dtype's name in headers: ``F32``."""
        return header_dtype(self._name)

    @property
    def shape(self) -> List[int]:
        """Dimensions in values, outermost first."""
        return list(self._shape)

    @property
    def data_ptr(self) -> int:
        """The address of the bytes, which are little-endian and row by row."""
        return self._data_ptr

    @property
    def data_len(self) -> int:
        """Number of bytes."""
        return self._data_len

    def _stored(self) -> Stored:
        if self._data_len == 0:
            return Stored(self._name, tuple(self._shape), np.empty(0, np.uint8))
        if self._data_ptr == 0:
            raise SafetensorError(f"{self._data_len} bytes at no address")
        memory = (ctypes.c_ubyte * self._data_len).from_address(self._data_ptr)
        return Stored(self._name, tuple(self._shape), np.frombuffer(memoryview(memory), np.uint8))


def _unsigned(value: int) -> int:
    number = operator.index(value)
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    return number


def save(
    tensors: Mapping[str, Stored], filename: PathLike, metadata: Optional[Dict[str, str]]
) -> None:
    """Writes a file as the package ``safetensors`` does, to the byte."""
    _jobs.save_safetensors(filename, _ordered(tensors), metadata or {})


def pack(tensors: Mapping[str, Stored], metadata: Optional[Dict[str, str]]) -> bytes:
    """Returns the bytes of a safetensors file."""
    return _jobs.pack_safetensors(_ordered(tensors), metadata or {})


def _ordered(tensors: Mapping[str, Stored]) -> Dict[str, Stored]:
    """The tensors with the largest elements first, then by name."""
    ranks = {name: position for position, name in enumerate(_ORDER)}
    return dict(sorted(tensors.items(), key=lambda item: (ranks[item[1].dtype], item[0])))


def serialize(
    tensor_dict: Dict[str, TensorSpec], metadata: Optional[Dict[str, str]] = None
) -> bytes:
    """Returns the bytes of a safetensors file with these tensors."""
    return pack(_checked(tensor_dict), metadata)


def serialize_file(
    tensor_dict: Dict[str, TensorSpec],
    filename: PathLike,
    metadata: Optional[Dict[str, str]] = None,
) -> None:
    """Writes these tensors to a file; an existing file is overwritten."""
    save(_checked(tensor_dict), filename, metadata)


def _checked(tensors: Dict[str, TensorSpec]) -> Dict[str, Stored]:
    for spec in tensors.values():
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"expected a TensorSpec, not {type(spec).__name__}")
    return {name: spec._stored() for name, spec in tensors.items()}


def deserialize(bytes: bytes) -> List[Tuple[str, Dict[str, Any]]]:
    """Names, and ``dtype``, ``shape`` and ``data``, of the tensors of a file in memory."""
    return [
        (
            name,
            {
                "dtype": header_dtype(tensor.dtype),
                "shape": list(tensor.shape),
                "data": tensor.bytes(),
            },
        )
        for name, tensor in open(io.BytesIO(bytes)).items()
    ]
