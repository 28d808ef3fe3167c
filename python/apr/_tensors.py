"""Tensors of models, and the files that store their bytes."""

from __future__ import annotations

import io
import mmap
import operator
import os
import sys
import weakref
from collections import deque
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Deque,
    Dict,
    List,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import numpy as np

from . import _apr
from ._arrays import F4, elements, numpy_dtype, torch_dtype, torch_shape

if TYPE_CHECKING:
    import torch

#: Minimum bytes for which several threads read uncompressed tensors.
_LARGE = 1 << 20
#: Minimum bytes of a tensor that Python reads from the file itself.
_SMALL = 1 << 16
#: Bytes that a thread reads at once.
_PIECE = 4 << 20
#: Maximum number of threads; more read no faster.
_THREADS = 4

PathLike = Union[str, "os.PathLike[str]"]


def _numpy_memory(length: int) -> "np.ndarray[Any, Any]":
    return np.empty(length, np.uint8)


def torch_memory(length: int) -> "np.ndarray[Any, Any]":
    """Returns memory of torch. NumPy requests huge pages, which can take longer to obtain than to
    fill."""
    import torch

    memory: np.ndarray[Any, Any] = torch.empty(length, dtype=torch.uint8).numpy()
    return memory


def read_all(
    tensors: "Sequence[Tensor]",
    memory: "Callable[[int], np.ndarray[Any, Any]]" = _numpy_memory,
) -> "List[np.ndarray[Any, Any]]":
    """Returns the stored bytes of tensors, each in memory of its own, which ``memory`` allocates.

    Several threads read tensors that are stored uncompressed in local files, because much of the
    time goes to memory that is used for the first time.
    """
    made: List[np.ndarray[Any, Any]] = []
    pieces: Deque[_Piece] = deque()
    is_large = sum(tensor.nbytes for tensor in tensors) >= _LARGE
    for tensor in tensors:
        place = None
        if is_large and tensor.nbytes >= _SMALL:
            place = tensor._model.flat(tensor._position)
        if place is None:
            made.append(np.frombuffer(tensor.bytes(), dtype=np.uint8))
            continue
        # It is written once, where a bytearray is filled with zeros before.
        bits = memory(tensor.nbytes)
        for start in range(0, tensor.nbytes, _PIECE):
            part = bits.data[start : start + _PIECE]
            pieces.append(_Piece(len(made), part, tensor._files, place[0], place[1] + start))
        made.append(bits)
    for position in _read_by_threads(pieces):
        # The library says what is wrong with the file.
        made[position] = np.frombuffer(tensors[position].bytes(), dtype=np.uint8)
    return made


class _Piece(NamedTuple):
    """A part of the bytes of a tensor."""

    #: Position of the tensor in the list of tensors to read.
    tensor: int
    memory: memoryview
    files: "Files"
    path: str
    offset: int


def _read_by_threads(pieces: "Deque[_Piece]") -> Set[int]:
    """Reads pieces; returns the tensors whose file ended early."""
    total = sum(len(piece.memory) for piece in pieces)
    count = min(total // _PIECE, os.cpu_count() or 1, _THREADS)
    if count < 2:
        return _read_pieces(pieces)
    # Imported late: who reads nothing large need not wait for it.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(count) as threads:
        return set().union(*threads.map(_read_pieces, [pieces] * count))


def _read_pieces(pieces: "Deque[_Piece]") -> Set[int]:
    """Reads pieces until none is left."""
    cut: Set[int] = set()
    while True:
        try:
            tensor, memory, files, path, offset = pieces.popleft()
        except IndexError:
            return cut
        while memory:
            count = files.read(path, offset, memory)
            if not count:
                cut.add(tensor)
                break
            memory, offset = memory[count:], offset + count


class Files:
    """Files of a model, each opened once and mapped once, so that all tensors are of the same file
    even if another file replaces it."""

    def __init__(self) -> None:
        self._opened: Dict[str, int] = {}
        self._mapped: Dict[Tuple[str, int], mmap.mmap] = {}

    def _open(self, path: str) -> int:
        opened = self._opened.get(path)
        if opened is None:
            opened = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            weakref.finalize(self, os.close, opened)
            # Another thread may have been faster.
            opened = self._opened.setdefault(path, opened)
        return opened

    def read(self, path: str, offset: int, memory: memoryview) -> int:
        """Reads bytes from an offset on; returns their number, 0 at the end of the file."""
        if sys.platform != "win32":
            return os.preadv(self._open(path), [memory], offset)
        # An open file can't be replaced there.
        with io.FileIO(path) as file:
            file.seek(offset)
            return file.readinto(memory) or 0

    def part(
        self, place: Tuple[str, int], length: int, access: int
    ) -> "Optional[np.ndarray[Any, Any]]":
        """Returns a map of bytes from an offset on, or ``None`` if the file ends early."""
        path, offset = place
        mapped = self._mapped.get((path, access))
        if mapped is None:
            mapped = mmap.mmap(self._open(path), 0, access=access)
            self._mapped[path, access] = mapped
        if offset + length > len(mapped):
            return None
        return np.frombuffer(mapped, dtype=np.uint8, count=length, offset=offset)


class Tensor:
    """A tensor of a model. Its bytes are read when they are used.

    >>> norm = apr.open(MODEL)["model.norm.weight"]
    >>> norm.dtype, norm.shape
    ('bf16', (128,))
    >>> norm.dequantize().dtype
    dtype('float32')
    """

    __slots__ = ("_model", "_files", "_position", "name", "dtype", "shape", "nbytes")

    def __init__(
        self,
        model: "_apr.Model",
        files: Files,
        position: int,
        entry: Tuple[str, str, Sequence[int], int],
    ) -> None:
        self._model = model
        self._files = files
        self._position = position
        #: Name in the file.
        self.name = entry[0]
        #: Name of the dtype: ``f32``, ``bf16``, ``q4_k``.
        self.dtype = entry[1]
        #: Sizes of the dimensions, outermost first.
        self.shape = tuple(entry[2])
        #: Length of the stored bytes.
        self.nbytes = entry[3]

    def __repr__(self) -> str:
        return f"<apr.Tensor {self.name!r} {self.dtype} {list(self.shape)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a tensor can't be pickled: pickle its model, or the array of copy()")

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
        """Returns the stored bytes: little-endian elements row by row, or blocks of a quantized
        tensor."""
        return self._model.read(self._position, 0, self.nbytes)

    def numpy(self) -> "np.ndarray[Any, Any]":
        """Returns the elements: a read-only view of the file if it is local and stores them
        uncompressed, otherwise a copy. Elements of ``f4_e2m1``, two in a byte, are a copy.

        A view changes with the file; :meth:`copy` returns elements that do not.
        """
        flat = None if self.dtype == F4 else self._flat(mmap.ACCESS_READ)
        return self.copy() if flat is None else elements(flat, self.dtype, self.shape)

    def copy(self) -> "np.ndarray[Any, Any]":
        """Returns the elements in memory of their own, which can be written to."""
        return elements(read_all([self])[0], self.dtype, self.shape)

    def _flat(self, access: int) -> "Optional[np.ndarray[Any, Any]]":
        """Returns the stored bytes as a map of a local file, or ``None``."""
        place = self._model.flat(self._position) if self.nbytes else None
        return None if place is None else self._files.part(place, self.nbytes, access)

    def _torch_view(self) -> "Optional[torch.Tensor]":
        """Returns the elements as a view of a local file, or ``None`` if the file does not store
        them in a form that torch can use."""
        if self.nbytes == 0:
            return self._torch_of(np.empty(0, np.uint8))
        place = self._model.flat(self._position)
        if place is None or place[1] % torch_dtype(self.dtype).itemsize != 0:
            return None
        bits = self._files.part(place, self.nbytes, mmap.ACCESS_COPY)
        return None if bits is None else self._torch_of(bits)

    def _torch_of(self, bits: "np.ndarray[Any, Any]") -> "torch.Tensor":
        """Returns a torch tensor of stored bytes."""
        import torch

        dtype, shape = torch_dtype(self.dtype), torch_shape(self.dtype, self.shape)
        if self.nbytes == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.from_numpy(bits).view(dtype).reshape(shape)

    def torch(self, *, copy: bool = False) -> "torch.Tensor":
        """Returns the elements as a torch tensor. If a local file stores them uncompressed, they
        are read when they are used, and writing to them changes memory only.

        They change if the file is overwritten in place. ``copy`` prevents that by reading all into
        memory of its own. An element of torch's ``float4_e2m1fn_x2`` is two elements of the file,
        so the last dimension is half as long.
        """
        import torch

        view = None if copy else self._torch_view()
        return self._torch_of(read_all([self], torch_memory)[0]) if view is None else view

    def dequantize(self) -> "np.ndarray[Any, Any]":
        """Returns the elements as ``float32``, for every stored dtype."""
        floats = self._model.floats(self._position, 0, self.size)
        return np.frombuffer(floats, dtype=np.float32).reshape(self.shape)

    def __array__(
        self, dtype: Optional[Any] = None, copy: Optional[bool] = None
    ) -> "np.ndarray[Any, Any]":
        array = self.copy() if copy else self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __getitem__(self, index: Any) -> "np.ndarray[Any, Any]":
        """Returns elements by NumPy's indexing. Only the rows of the first index are read.

        >>> apr.open(MODEL)["model.embed_tokens.weight"][3:5, :2].shape
        (2, 2)
        """
        dtype = numpy_dtype(self.dtype)
        first, rest = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
        is_basic = isinstance(first, (int, np.integer, slice))
        if not self.shape or not is_basic or self.dtype == F4:
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
