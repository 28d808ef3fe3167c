"""Dtypes of NumPy and torch for the dtypes of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ._errors import VersionError

if TYPE_CHECKING:
    import torch

_NUMPY: Dict[str, str] = {
    "f64": "<f8",
    "f32": "<f4",
    "f16": "<f2",
    "i64": "<i8",
    "i32": "<i4",
    "i16": "<i2",
    "i8": "i1",
    "u64": "<u8",
    "u32": "<u4",
    "u16": "<u2",
    "u8": "u1",
    "bool": "?",
    "c64": "<c8",
}

#: Dtypes that NumPy does not have, by their names in ml_dtypes.
_ML_DTYPES: Dict[str, str] = {
    "bf16": "bfloat16",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e4m3fnuz": "float8_e4m3fnuz",
    "f8_e5m2": "float8_e5m2",
    "f8_e5m2fnuz": "float8_e5m2fnuz",
    "f8_e8m0": "float8_e8m0fnu",
    "f4_e2m1": "float4_e2m1fn",
}

#: Includes paddle's names.
TORCH: Dict[str, str] = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e4m3fnuz": "float8_e4m3fnuz",
    "f8_e5m2": "float8_e5m2",
    "f8_e5m2fnuz": "float8_e5m2fnuz",
    "f8_e8m0": "float8_e8m0fnu",
    "f4_e2m1": "float4_e2m1fn_x2",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u64": "uint64",
    "u32": "uint32",
    "u16": "uint16",
    "u8": "uint8",
    "bool": "bool",
    "c64": "complex64",
}

#: Two values in a byte, the first in the lower half. In ml_dtypes, an element is one value in a
#: byte of its own; in torch, it is both values.
F4 = "f4_e2m1"


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Returns NumPy's dtype for a dtype of a file."""
    if name in _NUMPY:
        return np.dtype(_NUMPY[name])
    if name in _ML_DTYPES:
        # Only where it is needed: importing it takes longer than importing apr.
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
        return dtype
    raise VersionError(f"NumPy has no {name}: dequantize() gives float32, bytes() what is stored")


def elements(
    bits: "np.ndarray[Any, Any]", name: str, shape: Sequence[int]
) -> "np.ndarray[Any, Any]":
    """Returns stored bytes as elements of a dtype: a view, or a copy of packed elements."""
    dtype = numpy_dtype(name)
    if name == F4:
        bits = np.stack([bits & 15, bits >> 4], axis=-1)
    return bits.view(dtype).reshape(shape)


def torch_dtype(name: str) -> "torch.dtype":
    """Returns torch's dtype for a dtype of a file."""
    import torch

    found: Optional[torch.dtype] = getattr(torch, TORCH.get(name, ""), None)
    if found is None:
        raise VersionError(
            f"torch has no {name}: dequantize() gives float32, bytes() what is stored"
        )
    return found


def torch_shape(name: str, shape: Sequence[int]) -> Tuple[int, ...]:
    """Returns the shape of a torch tensor: the shape in the file, with the last dimension halved if
    an element of torch is two values."""
    if name != F4:
        return tuple(shape)
    if not shape or shape[-1] % 2:
        raise VersionError(f"torch has two values of {name} in an element: {list(shape)} is odd")
    return (*shape[:-1], shape[-1] // 2)


_OF_NUMPY: Dict[str, str] = {
    np.dtype(code).str.lstrip("<|="): name for name, code in _NUMPY.items()
}
_OF_ML_DTYPES = {dtype: name for name, dtype in _ML_DTYPES.items()}
OF_TORCH = {dtype: name for name, dtype in TORCH.items()}


class Stored(NamedTuple):
    """A tensor in the form that a file stores."""

    #: Name of the dtype, such as ``bf16``.
    dtype: str
    #: Sizes of the dimensions, outermost first.
    shape: Tuple[int, ...]
    #: Bytes of the elements, little-endian and row by row.
    bits: "np.ndarray[Any, Any]"


def stored(value: Any) -> Stored:
    """Returns an array or a torch tensor in the form that a file stores."""
    if type(value).__module__.split(".")[0] == "torch":
        return _stored_torch(value)
    array = np.asarray(value)
    shape = array.shape
    name = _OF_ML_DTYPES.get(array.dtype.name)
    if name is None:
        little = array.dtype.newbyteorder("<")
        name = _OF_NUMPY.get(little.str.lstrip("<|="))
        if name is None:
            raise VersionError(f"no file has NumPy's {array.dtype}")
        array = array.astype(little, copy=False)
    bits: np.ndarray[Any, Any] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if name == F4:
        if bits.size % 2:
            raise VersionError(f"an odd number of elements of {name} does not fill its bytes")
        bits = (bits[::2] & 15) | (bits[1::2] << 4)
    return Stored(name, shape, bits)


def _stored_torch(value: "torch.Tensor") -> Stored:
    import torch

    tensor = value.detach().cpu().contiguous()
    name = OF_TORCH.get(str(tensor.dtype).split(".")[-1])
    if name is None:
        raise VersionError(f"no file has {tensor.dtype}")
    bits = tensor.reshape(-1).view(torch.uint8).numpy()
    shape = tuple(tensor.shape)
    if name == F4 and shape:
        shape = (*shape[:-1], 2 * shape[-1])
    return Stored(name, shape, bits)
