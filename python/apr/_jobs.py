"""Jobs that write, check and scan files, and commands in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from . import _apr, _errors
from ._arrays import Stored, stored
from ._model import Model, open
from ._progress import Shown, shown
from ._tensors import PathLike, Tensor

if TYPE_CHECKING:
    import numpy as np

#: Exit code of the command if a file does not exist.
_NOT_FOUND = 3


class Saved(NamedTuple):
    """Result of writing a file."""

    #: Length of the file in bytes.
    nbytes: int
    #: Data that the format can't store.
    losses: List[str]


def save(
    path: PathLike,
    tensors: Mapping[str, Any],
    metadata: Optional[Mapping[str, str]] = None,
    *,
    format: Optional[str] = None,
    replace: bool = False,
) -> Saved:
    """Writes arrays, torch tensors or tensors of a model to a file, in the format that its
    extension names.

    The file appears when it is complete. An existing file is replaced only with ``replace``. A
    safetensors file without metadata gets ``{"format": "pt"}``, which transformers requires.

    >>> import numpy as np
    >>> save(FOLDER + "/new.safetensors", {"bias": np.zeros(3, np.float32)}).losses
    []
    """
    wishes = _wishes(metadata or {}, format, replace=replace)
    entries, read = _contents(tensors)
    return Saved(*_apr.save(os.fspath(path), entries, wishes, read))


def save_safetensors(
    path: PathLike, tensors: Mapping[str, Stored], metadata: Mapping[str, str]
) -> None:
    """Writes a safetensors file with exactly these metadata, and replaces an existing file."""
    wishes = _wishes(metadata, "safetensors", replace=True, adds_metadata=False)
    entries, read = _contents(tensors)
    _apr.save(os.fspath(path), entries, wishes, read)


def pack_safetensors(tensors: Mapping[str, Stored], metadata: Mapping[str, str]) -> bytes:
    """Returns the bytes that :func:`save_safetensors` writes."""
    wishes = _wishes(metadata, "safetensors", adds_metadata=False)
    entries, read = _contents(tensors)
    return _apr.pack(entries, wishes, read)


def _wishes(
    metadata: Mapping[str, str],
    format: Optional[str],
    *,
    replace: bool = False,
    adds_metadata: bool = True,
) -> Dict[str, Any]:
    return {
        "metadata": list(metadata.items()),
        "format": format,
        "replace": replace,
        "adds_metadata": adds_metadata,
    }


def _contents(
    tensors: Mapping[str, Any],
) -> Tuple[List[Tuple[str, str, List[int], int]], Callable[[int, int, int], bytes]]:
    """Returns name, dtype, shape and length of each tensor, and a function that reads a number of
    bytes of the tensor at a position, from an offset on."""
    entries, readers = [], []
    for name, value in tensors.items():
        if isinstance(value, Tensor):
            dtype, shape, length = value.dtype, value.shape, value.nbytes
            readers.append(_reader_of(value))
        else:
            dtype, shape, bits = value if isinstance(value, Stored) else stored(value)
            length = bits.nbytes
            readers.append(_reader_of_bytes(bits))
        entries.append((name, dtype, list(shape), length))
    return entries, lambda at, offset, count: readers[at](offset, count)


def _reader_of_bytes(bits: "np.ndarray[Any, Any]") -> Callable[[int, int], bytes]:
    return lambda offset, count: bits[offset : offset + count].tobytes()


def _reader_of(tensor: Tensor) -> Callable[[int, int], bytes]:
    return lambda offset, count: bytes(tensor._model.read(tensor._position, offset, count))


def convert(
    source: PathLike,
    output: PathLike,
    *,
    format: Optional[str] = None,
    quantize: Optional[str] = None,
    tensor_types: Sequence[str] = (),
    requantize: bool = False,
    dequantize: Optional[str] = None,
    precision: Optional[str] = None,
    simplify: bool = False,
    shapes: Sequence[str] = (),
    from_nodes: Sequence[str] = (),
    to_nodes: Sequence[str] = (),
    keep_io: bool = False,
    exclude_ops: Sequence[str] = (),
    exclude_nodes: Sequence[str] = (),
    prefix: Optional[str] = None,
    compress: Optional[str] = None,
    license: Optional[str] = None,
    shard_size: Optional[int] = None,
    alignment: Optional[int] = None,
    companions: bool = False,
    replace: bool = False,
    threads: Optional[int] = None,
    max_memory: Optional[int] = None,
    password: Optional[str] = None,
    progress: Shown = None,
) -> Dict[str, Any]:
    """Converts a model in bounded memory, and checks every tensor on the way.

    ``quantize`` is a type or mix, such as ``q4_k_m`` (:func:`schemes` lists them). ``tensor_types``
    are types of single tensors by their names, such as ``["*ffn_down*=q6_k"]``; the first match
    counts. ``requantize`` allows to quantize quantized tensors again. ``dequantize`` and
    ``precision`` are floats, such as ``f16``. ``simplify`` simplifies the graph of an ONNX
    output and compares its outputs before and after. ``shapes`` are new shapes of its inputs, such
    as ``["x=1,3,224,224"]``. ``from_nodes`` and ``to_nodes`` extract the part of the graph between
    values or nodes. ``precision="f16"`` makes an ONNX file compute in halves, except the operators
    ``exclude_ops`` and the nodes that match ``exclude_nodes``, which also stay out of ``w8a8``;
    ``keep_io`` keeps inputs and outputs in ``f32``. ``max_memory`` limits the bytes of buffers and of
    what is read to open the source. ``progress`` is called with the phase, the number of bytes done
    and the total. Without it, terminals and notebooks show a bar (tqdm's if it is installed);
    ``False`` hides the bar. Returns the report of ``apr convert --json``.

    >>> report = convert(MODEL, FOLDER + "/small.gguf", quantize="q8_0")
    >>> open(FOLDER + "/small.gguf").format
    'gguf'
    """
    wishes = {
        "format": format,
        "quantize": quantize,
        "tensor_types": list(tensor_types),
        "requantize": requantize,
        "dequantize": dequantize,
        "precision": precision,
        "simplify": simplify,
        "shapes": list(shapes),
        "from_nodes": list(from_nodes),
        "to_nodes": list(to_nodes),
        "keep_io": keep_io,
        "exclude_ops": list(exclude_ops),
        "exclude_nodes": list(exclude_nodes),
        "prefix": prefix,
        "compress": compress,
        "license": license,
        "shard_size": shard_size,
        "alignment": alignment,
        "companions": companions,
        "replace": replace,
        "threads": threads,
        "max_memory": max_memory,
        "password": password,
    }
    with shown(progress) as tell:
        text = _apr.convert(os.fspath(source), os.fspath(output), wishes, tell)
    report: Dict[str, Any] = json.loads(text)
    return report


def quantize(source: PathLike, output: PathLike, type: str, **options: Any) -> Dict[str, Any]:
    """Quantizes a model to a type or mix: ``quantize("model", "model.gguf", "q4_k_m")``."""
    return convert(source, output, quantize=type, **options)


def export(source: PathLike, output: PathLike, **options: Any) -> Dict[str, Any]:
    """Converts a model and copies its companion files."""
    return convert(source, output, **{"companions": True, **options})


def _opened(model: Union[Model, PathLike]) -> Model:
    return model if isinstance(model, Model) else open(model)


def validate(model: Union[Model, PathLike], *, progress: Shown = None) -> Dict[str, Any]:
    """Validates a model; returns the report of ``apr validate --json``."""
    return _opened(model).validate(progress=progress)


def lint(model: Union[Model, PathLike]) -> Dict[str, Any]:
    """Checks a model against best practices; returns the report of ``apr lint --json``."""
    return _opened(model).lint()


def inspect(model: Union[Model, PathLike]) -> Dict[str, Any]:
    """Describes a model; returns the report of ``apr inspect --json``."""
    return _opened(model).inspect()


def diff(
    left: Union[Model, PathLike],
    right: Union[Model, PathLike],
    *,
    tolerance: float = 1e-6,
    progress: Shown = None,
) -> Dict[str, Any]:
    """Compares two models of any formats; returns the report of ``apr diff --json``."""
    return _opened(left).diff(_opened(right), tolerance=tolerance, progress=progress)


def scan(path: PathLike) -> Dict[str, Any]:
    """Finds code that loading a file, or the files of a folder, would run; returns the report of
    ``apr scan --json``. Does not run the code.

    >>> scan(MODEL + "/model.safetensors")["verdict"]
    'clean'
    """
    report: Dict[str, Any] = json.loads(_apr.scan(os.fspath(path)))
    return report


def _reports(text: str) -> Any:
    """Returns the document that was printed, a list of documents if each is a line, or None."""
    lines = text.splitlines()
    if len(lines) > 1 and lines[0] != "{":
        return [json.loads(line) for line in lines]
    return json.loads(text) if lines else None


def command(*arguments: PathLike) -> Any:
    """Runs a command of ``apr`` in a process of its own, and returns its ``--json`` report, or the
    list of reports for several models or texts.

    It runs every command, such as ``command("merge", "a", "b", "-o", "c")``.

    >>> command("tensors", MODEL)["tensor_count"]
    21
    """
    words = [sys.executable, "-m", "apr", "--json", *(os.fspath(word) for word in arguments)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    try:
        report = _reports(done.stdout.decode())
    except ValueError:
        report = None
    # A report that says what is wrong is one, too.
    error = report.get("error") if isinstance(report, dict) else None
    if done.returncode == 0 or (report is not None and error is None):
        return report
    if error is not None:
        fields = {key: error.get(key) for key in ("code", "file", "tensor", "offset")}
        is_absent = done.returncode == _NOT_FOUND
        raise _errors.made(message=error.get("message", ""), is_absent=is_absent, **fields)
    raise _errors.RequestError(done.stderr.decode(errors="replace").strip())


schemes = _apr.schemes
writable_formats = _apr.writable_formats
