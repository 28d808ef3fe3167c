"""Arrays of frameworks, and the devices that they are on."""

from __future__ import annotations

import math
from typing import Any, Callable, Iterable, Sequence, Tuple, Union

import numpy as np

from .. import _errors
from .._arrays import F4, TORCH, elements, torch_dtype, torch_shape
from .._tensors import Tensor, read_all, torch_memory

#: Frameworks by what they are called.
_NAMES = {
    "pt": "pytorch", "torch": "pytorch", "pytorch": "pytorch", "np": "numpy", "numpy": "numpy",
    "tf": "tensorflow", "tensorflow": "tensorflow", "jax": "flax", "flax": "flax", "mlx": "mlx",
    "paddle": "paddle",
}  # fmt: skip

#: Kinds of devices that are numbered.
_NUMBERED = ("cuda", "musa", "npu", "xpu", "xla", "mlu", "hpu")

Device = Union[str, int]


def framework_named(name: str) -> str:
    """Returns the framework with this name."""
    if name not in _NAMES:
        raise _errors.Error(f"framework {name} is invalid")
    return _NAMES[name]


def device_named(device: Any, framework: str) -> Device:
    """A device, with its number if there are several of a kind; ``None`` is the processor."""
    if isinstance(device, int) and device >= 0:
        found: Device = device
    else:
        found = _device_called("cpu" if device is None else str(device))
    if found != "cpu" and framework not in ("pytorch", "paddle"):
        raise _errors.Error(f"Device {found} is not supported for framework {framework}")
    return found


def _device_called(name: str) -> str:
    kind, colon, number = name.partition(":")
    if name in ("cpu", "mps", "mps:0"):
        return kind
    if kind in _NUMBERED and (number.isdecimal() or not colon):
        return f"{kind}:{int(number or 0)}"
    known = ": only mps or mps:0 is supported" if kind == "mps" else ""
    raise _errors.Error(f"device {name} is invalid{known}")


class _Bits(Tensor):
    """A tensor whose elements are taken for integers of their size, and two of 4 bits for one of a
    byte: NumPy slices them without knowing the dtype."""

    __slots__ = ()

    def __init__(self, tensor: Tensor) -> None:
        if tensor.dtype not in TORCH:
            raise _errors.VersionError(
                f"no framework has {tensor.dtype}: apr.open() dequantizes it"
            )
        shape = torch_shape(tensor.dtype, tensor.shape)
        width = tensor.nbytes // math.prod(shape) if tensor.nbytes else 1
        dtype = {1: "u8", 2: "i16", 4: "i32", 8: "i64"}[width]
        entry = (tensor.name, dtype, shape, tensor.nbytes)
        super().__init__(tensor._model, tensor._files, tensor._position, entry)


def whole(tensor: Tensor, framework: str, device: Device, *, copy: bool) -> Any:
    """A tensor as one of a framework. One of torch may be a view of the file, without ``copy``."""
    if framework == "pytorch":
        return _moved(tensor.torch(copy=copy), device)
    if framework == "paddle":
        return _paddle(_Bits(tensor).numpy(), tensor.dtype, device)
    return _made(tensor.copy, framework)


def wholes(
    tensors: Sequence[Tensor], framework: str, device: Device, *, copy: bool
) -> Iterable[Any]:
    """All of the tensors, as :func:`whole` makes each."""
    if framework == "numpy":
        read = zip(tensors, read_all(tensors))
        return (elements(bits, tensor.dtype, tensor.shape) for tensor, bits in read)
    # What goes to a device is in memory one after the other.
    if framework == "pytorch" and copy and device == "cpu":
        read = zip(tensors, read_all(tensors, torch_memory))
        return (tensor._torch_of(bits) for tensor, bits in read)
    return (whole(tensor, framework, device, copy=copy) for tensor in tensors)


def part(
    tensor: Tensor, index: Tuple[Union[int, slice], ...], framework: str, device: Device
) -> Any:
    """Elements of a tensor as a tensor of a framework. No more rows are read than are taken."""
    if framework not in ("pytorch", "paddle"):
        return _made(lambda: _own(tensor[index]), framework)
    bits = _own(_Bits(tensor)[_of_bytes(index, tensor) if tensor.dtype == F4 else index])
    if framework == "paddle":
        return _paddle(bits, tensor.dtype, device)
    return _moved(_torch(bits, tensor.dtype), device)


def _of_bytes(
    index: Tuple[Union[int, slice], ...], tensor: Tensor
) -> Tuple[Union[int, slice], ...]:
    """An index of elements of 4 bits as one of the bytes that they fill."""
    if len(index) < tensor.ndim:
        return index
    last = index[-1]
    if not isinstance(last, slice) or last.start % 2 or last.stop % 2 or last.step != 1:
        raise _errors.Error(
            f"two elements of {tensor.dtype} are a byte, of which one was asked for"
        )
    return (*index[:-1], slice(last.start // 2, last.stop // 2))


def part_of_torch(tensor: Tensor, index: Any, device: Device) -> Any:
    """Elements of a tensor as torch indexes them, which may be a view of the file."""
    view = tensor._torch_view()
    taken = _torch(_own(_Bits(tensor)[index]), tensor.dtype) if view is None else view[index]
    return _moved(taken, device)


def _torch(bits: "np.ndarray[Any, Any]", dtype: str) -> Any:
    import torch

    if bits.size == 0:
        return torch.empty(bits.shape, dtype=torch_dtype(dtype))
    # A scalar of NumPy is no array.
    return torch.from_numpy(bits.reshape(-1)).view(torch_dtype(dtype)).reshape(bits.shape)


def _paddle(bits: "np.ndarray[Any, Any]", dtype: str, device: Device) -> Any:
    import paddle

    # paddle's arrays of NumPy have bfloat16 as uint16, and files that were written of them, too.
    kind = getattr(paddle, "bfloat16" if dtype == "u16" else TORCH.get(dtype, ""), None)
    if kind is None:
        raise _errors.VersionError(f"paddle has no {dtype}")
    if bits.size == 0:
        return paddle.empty(list(bits.shape), dtype=kind)
    flat: Any = paddle.to_tensor(bits.reshape(-1).view(np.uint8), place="cpu")
    tensor = flat.view(kind).reshape(list(bits.shape))
    return tensor if device == "cpu" else tensor.to(paddle_device(device))


def paddle_device(device: Device) -> Device:
    """A device as paddle calls it."""
    return device.replace("cuda", "gpu") if isinstance(device, str) else device


def _moved(tensor: Any, device: Device) -> Any:
    return tensor if device == "cpu" else tensor.to(device)


def _own(array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """An array, row by row and without what else was read for it."""
    return array if array.flags.c_contiguous else array.copy()


def _made(array: "Callable[[], np.ndarray[Any, Any]]", framework: str) -> Any:
    # The framework comes first, as it may bring dtypes that NumPy has not.
    if framework == "tensorflow":
        import tensorflow

        return tensorflow.convert_to_tensor(array())
    if framework == "flax":
        import jax

        return jax.numpy.array(array())
    if framework == "mlx":
        import mlx.core

        return mlx.core.array(array())
    return array()
