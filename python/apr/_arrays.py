"""Dtypes of files as NumPy's and torch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

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

#: Those that NumPy has not, by their names in ml_dtypes.
_ML_DTYPES: Dict[str, str] = {
    "bf16": "bfloat16",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
    "f8_e8m0": "float8_e8m0fnu",
}

_TORCH: Dict[str, str] = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
    "f8_e8m0": "float8_e8m0fnu",
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


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype for one of a file."""
    if name in _NUMPY:
        return np.dtype(_NUMPY[name])
    if name in _ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError as error:
            raise VersionError(
                f"NumPy has no {name}: install ml_dtypes, or take dequantize() or torch()"
            ) from error
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
        return dtype
    raise VersionError(f"NumPy has no {name}: dequantize() gives float32, bytes() what is stored")


def torch_dtype(name: str) -> "torch.dtype":
    """torch's dtype for one of a file."""
    import torch

    found: Optional[torch.dtype] = getattr(torch, _TORCH.get(name, ""), None)
    if found is None:
        raise VersionError(
            f"torch has no {name}: dequantize() gives float32, bytes() what is stored"
        )
    return found


_OF_NUMPY: Dict[str, str] = {
    np.dtype(code).str.lstrip("<|="): name for name, code in _NUMPY.items()
}
_OF_ML_DTYPES = {dtype: name for name, dtype in _ML_DTYPES.items()}
_OF_TORCH = {f"torch.{dtype}": name for name, dtype in _TORCH.items()}


def stored(value: Any) -> Tuple[str, Tuple[int, ...], "np.ndarray[Any, Any]"]:
    """Dtype, shape and the bytes, little-endian and row by row, of an array or a torch tensor."""
    if type(value).__module__.split(".")[0] == "torch":
        import torch

        tensor: torch.Tensor = value.detach().cpu().contiguous()
        name = _OF_TORCH.get(str(tensor.dtype))
        if name is None:
            raise VersionError(f"no file has {tensor.dtype}")
        flat = tensor.reshape(-1).view(torch.uint8).numpy()
        return name, tuple(tensor.shape), flat
    array = np.asarray(value)
    shape = array.shape
    name = _OF_ML_DTYPES.get(array.dtype.name)
    if name is None:
        little = array.dtype.newbyteorder("<")
        name = _OF_NUMPY.get(little.str.lstrip("<|="))
        if name is None:
            raise VersionError(f"no file has NumPy's {array.dtype}")
        array = array.astype(little, copy=False)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return name, shape, flat
