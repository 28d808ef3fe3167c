"""Tensors of models, and the files that their bytes lie in."""

from __future__ import annotations

import io
import mmap
import operator
import os
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Tuple, Union

import numpy as np

from . import _apr
from ._arrays import numpy_dtype, torch_dtype

if TYPE_CHECKING:
    import torch

#: Bytes from which on it pays to find out whether they lie flat in a file.
_LARGE = 1 << 20

PathLike = Union[str, "os.PathLike[str]"]


def _fill(memory: memoryview, place: Tuple[str, int]) -> bool:
    """Reads from a file on an offset; ``False`` where it ends before."""
    path, offset = place
    with io.open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while memory:
            count = file.readinto(memory)
            if not count:
                return False
            memory = memory[count:]
    return True


class Maps:
    """Maps of the files of a model, each made once."""

    def __init__(self) -> None:
        self._made: Dict[Tuple[str, int], mmap.mmap] = {}

    def part(
        self, place: Tuple[str, int], length: int, access: int
    ) -> "Optional[np.ndarray[Any, Any]]":
        """Bytes of a file from an offset on; ``None`` where it ends before."""
        path, offset = place
        made = self._made.get((path, access))
        if made is None:
            with io.open(path, "rb") as file:
                made = mmap.mmap(file.fileno(), 0, access=access)
            self._made[path, access] = made
        if offset + length > len(made):
            return None
        return np.frombuffer(made, dtype=np.uint8, count=length, offset=offset)


class Tensor:
    """A tensor of a model. Its bytes are read when they are asked for.

    >>> norm = apr.open(MODEL)["model.norm.weight"]
    >>> norm.dtype, norm.shape
    ('bf16', (128,))
    >>> norm.dequantize().dtype
    dtype('float32')
    """

    __slots__ = ("_model", "_maps", "_position", "name", "dtype", "shape", "nbytes")

    def __init__(
        self,
        model: "_apr.Model",
        maps: Maps,
        position: int,
        entry: Tuple[str, str, Sequence[int], int],
    ) -> None:
        self._model = model
        self._maps = maps
        self._position = position
        #: Name in the file.
        self.name = entry[0]
        #: As apr calls it: ``f32``, ``bf16``, ``q4_k``.
        self.dtype = entry[1]
        #: Elements, outermost dimension first.
        self.shape = tuple(entry[2])
        #: Length of the stored bytes.
        self.nbytes = entry[3]

    def __repr__(self) -> str:
        return f"<apr.Tensor {self.name!r} {self.dtype} {list(self.shape)}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for dim in self.shape:
            count *= dim
        return count

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def bytes(self) -> bytearray:
        """The stored bytes: little-endian elements row by row, or blocks of a quantized tensor."""
        return self._model.read(self._position, 0, self.nbytes)

    def numpy(self) -> "np.ndarray[Any, Any]":
        """The elements. Where they lie flat in a file of this machine, a read-only view of it.

        A view changes with the file: :meth:`copy` does not.
        """
        dtype = numpy_dtype(self.dtype)
        flat = self._flat(mmap.ACCESS_READ)
        if flat is not None:
            return flat.view(dtype).reshape(self.shape)
        return self.copy()

    def copy(self) -> "np.ndarray[Any, Any]":
        """The elements in memory of their own, which may be written to."""
        dtype = numpy_dtype(self.dtype)
        return self._stored().view(dtype).reshape(self.shape)

    def _stored(self) -> "np.ndarray[Any, Any]":
        """The stored bytes, in memory of their own."""
        place = self._model.flat(self._position) if self.nbytes >= _LARGE else None
        if place is not None:
            # Memory that is written once, where a bytearray is filled with zeros before.
            bits = np.empty(self.nbytes, np.uint8)
            if _fill(bits.data, place):
                return bits
        return np.frombuffer(self.bytes(), dtype=np.uint8)

    def _flat(self, access: int) -> "Optional[np.ndarray[Any, Any]]":
        """The stored bytes as they lie in a file of this machine."""
        place = self._model.flat(self._position) if self.nbytes else None
        return None if place is None else self._maps.part(place, self.nbytes, access)

    def torch(self, *, copy: bool = False) -> "torch.Tensor":
        """The elements as a torch tensor. Where they lie flat in a file of this machine, they are
        read when they are used, and what is written to them stays in memory.

        They change where the file is overwritten in place, which ``copy`` prevents: it reads all
        into memory of its own.
        """
        import torch

        dtype = torch_dtype(self.dtype)
        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=dtype)
        place = self._model.flat(self._position)
        bits = None
        if place is not None and place[1] % dtype.itemsize == 0:
            bits = self._maps.part(place, self.nbytes, mmap.ACCESS_COPY)
        if bits is None:
            return torch.from_numpy(self._stored()).view(dtype).reshape(self.shape)
        view = torch.from_numpy(bits).view(dtype).reshape(self.shape)
        return view.clone() if copy else view

    def dequantize(self) -> "np.ndarray[Any, Any]":
        """The elements as ``float32``, whatever they are stored as."""
        floats = self._model.floats(self._position, 0, self.size)
        return np.frombuffer(floats, dtype=np.float32).reshape(self.shape)

    def __array__(
        self, dtype: Optional[Any] = None, copy: Optional[bool] = None
    ) -> "np.ndarray[Any, Any]":
        array = self.copy() if copy else self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __getitem__(self, index: Any) -> "np.ndarray[Any, Any]":
        """Elements as NumPy indexes them. No more is read than the rows that the first index takes.

        >>> apr.open(MODEL)["model.embed_tokens.weight"][3:5, :2].shape
        (2, 2)
        """
        dtype = numpy_dtype(self.dtype)
        first, rest = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
        if not self.shape or not isinstance(first, (int, np.integer, slice)):
            return np.array(self.numpy()[index])
        row = self.nbytes // self.shape[0] if self.shape[0] else 0
        if isinstance(first, slice):
            rows = range(*first.indices(self.shape[0]))
            low, high = (min(rows), max(rows) + 1) if rows else (0, 0)
            step = slice(None) if rows.step > 0 else slice(None, None, -1)
            inner: Any = (
                (step, *rest) if abs(rows.step) == 1 else ([at - low for at in rows], *rest)
            )
        else:
            at = operator.index(first)
            low = at + self.shape[0] if at < 0 else at
            if not 0 <= low < self.shape[0]:
                raise IndexError(f"row {at} of a tensor with {self.shape[0]}")
            high, inner = low + 1, (0, *rest)
        if rest and (high - low) * row >= _LARGE:
            # A part of many rows: what is not taken of them need not be read.
            flat = self._flat(mmap.ACCESS_READ)
            if flat is not None:
                return np.array(flat.view(dtype).reshape(self.shape)[index])
        read = self._model.read(self._position, low * row, (high - low) * row)
        rows_read = np.frombuffer(read, dtype=dtype).reshape(high - low, *self.shape[1:])
        return np.asarray(rows_read[inner])
