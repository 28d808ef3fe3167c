"""Models and their tensors."""

from __future__ import annotations

import io
import json
import mmap
import operator
import os
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Dict,
    Iterable,
    Iterator,
    List,
    Literal,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from . import _apr
from ._arrays import numpy_dtype, torch_dtype

if TYPE_CHECKING:
    import torch

#: Bytes from which on it pays to find out whether they lie flat in a file.
_LARGE = 1 << 20

PathLike = Union[str, "os.PathLike[str]"]

#: What keys and values of earlier tokens are kept as.
CacheType = Literal["f32", "f16", "q8_0"]


def _cache_type(name: str) -> str:
    if name not in ("f32", "f16", "q8_0"):
        raise ValueError(f"cache_type is 'f32', 'f16' or 'q8_0', not {name!r}")
    return name



def open(source: Union[PathLike, BinaryIO], *, password: Optional[str] = None) -> "Model":
    """Opens a model: a file or folder, ``hf://`` or another location, or a file object.

    The header is read; weights are when they are asked for. Nothing of the file is run.

    >>> model = open(MODEL)
    >>> model.family
    'llama'
    """
    if isinstance(source, (str, os.PathLike)):
        return Model(_apr.Model.open(os.fspath(source), password))
    return Model(_of_file(source, password))


def _of_file(file: BinaryIO, password: Optional[str]) -> "_apr.Model":
    length = file.seek(0, io.SEEK_END)

    def read(offset: int, length: int) -> bytes:
        file.seek(offset)
        return bytes(file.read(length))

    return _apr.Model.open_file(read, length, str(getattr(file, "name", "file object")), password)


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


class _Maps:
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

    >>> norm = open(MODEL)["model.norm.weight"]
    >>> norm.dtype, norm.shape
    ('bf16', (128,))
    >>> norm.dequantize().dtype
    dtype('float32')
    """

    __slots__ = ("_model", "_maps", "_position", "name", "dtype", "shape", "nbytes")

    def __init__(
        self,
        model: "_apr.Model",
        maps: _Maps,
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

        >>> open(MODEL)["model.embed_tokens.weight"][3:5, :2].shape
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


class Tokenizer:
    """The tokenizer of a model."""

    def __init__(self, model: "_apr.Model") -> None:
        self._model = model

    def encode(self, text: str, *, special: bool = True) -> List[int]:
        """The tokens of a text; with ``special``, those that the model puts around it.

        >>> open(MODEL).tokenizer.decode(open(MODEL).tokenizer.encode("12+34="))
        '12+34='
        """
        return self._model.encode(text, special)

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens; with ``special``, the special ones are written too."""
        return self._model.decode(list(tokens), special)


class Completion(NamedTuple):
    """What a model wrote."""

    text: str
    #: ``end``, ``stop``, ``max_tokens`` or ``context``.
    ended: str
    #: Tokens that were generated.
    tokens: List[int]
    #: The whole report: timings, arithmetic, log probabilities.
    report: Dict[str, Any]


def _completion(report: Dict[str, Any]) -> Completion:
    return Completion(
        report.get("text") or "", report.get("ended", ""), report.get("added", []), report
    )


class Generation(Iterator[str]):
    """A text that is being written: an iterator of its pieces.

    Once it is exhausted, :attr:`completion` has the whole.
    """

    def __init__(self, generation: "_apr.Generation") -> None:
        self._generation = generation

    def __next__(self) -> str:
        return next(self._generation)

    @property
    def completion(self) -> Completion:
        """The whole text; what was not read yet is read."""
        for _ in self:
            pass
        return _completion(json.loads(self._generation.report or "{}"))


class Conversation:
    """A chat whose history is kept from turn to turn, as :meth:`Model.chat` begins it."""

    def __init__(
        self, model: "_apr.Model", asked: Dict[str, Any], messages: Sequence[Mapping[str, str]]
    ) -> None:
        self._model = model
        self._asked = asked
        self._history = _apr.History([(said["role"], said["content"]) for said in messages])

    def say(self, message: str) -> Generation:
        """The answer to a message; an iterator of its pieces.

        It is in the history once it is complete: one that is abandoned leaves the history as it was.
        """
        asked = {**self._asked, "prompt": message, "history": self._history}
        return Generation(self._model.generate(asked))

    @property
    def messages(self) -> List[Dict[str, str]]:
        """The history, without the system message: ``role`` and ``content`` of each."""
        return [{"role": role, "content": text} for role, text in self._history.messages()]

    def reset(self) -> None:
        """Forgets the history; the system message stays."""
        self._history = _apr.History([])


class Model(Mapping[str, Tensor]):
    """An opened model: a mapping of names to tensors.

    >>> model = open(MODEL)
    >>> len(model), "lm_head.weight" in model
    (21, True)
    """

    def __init__(self, model: "_apr.Model") -> None:
        self._model = model
        self._maps = _Maps()
        self._positions = {name: position for position, name in enumerate(model.names())}
        self._inspected: Optional[Dict[str, Any]] = None

    def __repr__(self) -> str:
        return f"<apr.Model {self.format}, {len(self)} tensors>"

    def __getitem__(self, name: str) -> Tensor:
        position = self._positions[name]
        return Tensor(self._model, self._maps, position, self._model.entry(position))

    def __iter__(self) -> Iterator[str]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, name: object) -> bool:
        return name in self._positions

    @property
    def format(self) -> str:
        """The format of the file."""
        return self._model.format

    @property
    def metadata(self) -> Dict[str, Any]:
        """Metadata of the file, under the keys of ``apr inspect --json``."""
        metadata: Dict[str, Any] = json.loads(self._model.metadata())
        return metadata

    @property
    def family(self) -> Optional[str]:
        """The family, such as ``llama``, where it is known."""
        return self._model.family

    @property
    def config(self) -> Optional[Dict[str, Any]]:
        """``config.json`` beside the weights."""
        names = self._model.companions()
        if "config.json" not in names:
            return None
        config: Dict[str, Any] = json.loads(self._model.companion(names.index("config.json")))
        return config

    @property
    def companions(self) -> Dict[str, bytes]:
        """Files that travel with the weights, by their names."""
        return {name: self._model.companion(at) for at, name in enumerate(self._model.companions())}

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return Tokenizer(self._model)

    def numpy(self) -> "Dict[str, np.ndarray[Any, Any]]":
        """All tensors by :meth:`Tensor.numpy`."""
        return {name: tensor.numpy() for name, tensor in self.items()}

    def torch(self, *, copy: bool = False) -> "Dict[str, torch.Tensor]":
        """All tensors by :meth:`Tensor.torch`: a state dict."""
        return {name: tensor.torch(copy=copy) for name, tensor in self.items()}

    def inspect(self) -> Dict[str, Any]:
        """What it is: the report of ``apr inspect --json``."""
        if self._inspected is None:
            self._inspected = json.loads(self._model.inspect())
        return self._inspected

    def validate(self) -> Dict[str, Any]:
        """Whether it is sound: the report of ``apr validate --json``.

        >>> open(MODEL).validate()["valid"]
        True
        """
        report: Dict[str, Any] = json.loads(self._model.validate())
        return report

    def lint(self) -> Dict[str, Any]:
        """What could be better about it: the report of ``apr lint --json``."""
        report: Dict[str, Any] = json.loads(self._model.lint())
        return report

    def diff(self, other: "Model", *, tolerance: float = 1e-6) -> Dict[str, Any]:
        """How another model differs: the report of ``apr diff --json``."""
        report: Dict[str, Any] = json.loads(self._model.diff(other._model, tolerance))
        return report

    def generate(
        self,
        prompt: Optional[str] = None,
        *,
        tokens: Optional[Sequence[int]] = None,
        chat: bool = False,
        system: Optional[str] = None,
        max_tokens: Optional[int] = None,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repeat_penalty: Optional[float] = None,
        presence_penalty: Optional[float] = None,
        beams: Optional[int] = None,
        length_penalty: Optional[float] = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        logprobs: Optional[int] = None,
        exact: bool = False,
        cache_type: CacheType = "f32",
        max_memory: Optional[int] = None,
    ) -> Generation:
        """Writes a text behind a prompt, or behind tokens; an iterator of its pieces.

        What is ``None`` is as the model's own settings say; temperature 0 is greedy. ``beams`` is the
        number of beams of a beam search, whose text comes as one piece. With ``chat`` the prompt is a
        message, which the model's template writes; :meth:`chat` keeps a history. With ``exact``,
        quantized weights are multiplied as floats. Keys and values of earlier tokens are kept as
        ``cache_type``: ``"f32"``, ``"f16"`` or ``"q8_0"``.

        >>> "".join(open(MODEL).generate("12+34=")).strip()
        '46'
        """
        if (prompt is None) == (tokens is None):
            raise ValueError("pass either a prompt or tokens")
        asked = {
            "prompt": prompt,
            "tokens": None if tokens is None else list(tokens),
            "chat": chat or system is not None,
            "system": system,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repeat_penalty": repeat_penalty,
            "presence_penalty": presence_penalty,
            "beams": beams,
            "length_penalty": length_penalty,
            "seed": seed,
            "stop": list(stop),
            "logprobs": logprobs,
            "exact": exact,
            "cache_type": _cache_type(cache_type),
            "max_memory": max_memory,
            "history": None,
        }
        return Generation(self._model.generate(asked))

    def generate_all(
        self,
        prompts: Sequence[str],
        *,
        batch: int = 8,
        chat: bool = False,
        system: Optional[str] = None,
        max_tokens: Optional[int] = None,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repeat_penalty: Optional[float] = None,
        presence_penalty: Optional[float] = None,
        beams: Optional[int] = None,
        length_penalty: Optional[float] = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        logprobs: Optional[int] = None,
        exact: bool = False,
        cache_type: CacheType = "f32",
        max_memory: Optional[int] = None,
    ) -> List[Completion]:
        """Writes a text behind each prompt, up to ``batch`` of them side by side; options are those
        of :meth:`generate`.

        The texts are those of :meth:`generate` but for rounding, which can change a token where two
        are as likely. ``report["batch"]`` says how many grew side by side.

        >>> [made.text.strip() for made in open(MODEL).generate_all(["12+34=", "20+22="])]
        ['46', '42']
        """
        if batch < 1:
            raise ValueError("batch is at least 1")
        asked = {
            "prompt": None,
            "tokens": None,
            "chat": chat or system is not None,
            "system": system,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repeat_penalty": repeat_penalty,
            "presence_penalty": presence_penalty,
            "beams": beams,
            "length_penalty": length_penalty,
            "seed": seed,
            "stop": list(stop),
            "logprobs": logprobs,
            "exact": exact,
            "cache_type": _cache_type(cache_type),
            "max_memory": max_memory,
            "history": None,
        }
        made = self._model.generate_all(asked, list(prompts), batch)
        return [_completion(report) for report in json.loads(made)]

    def chat(
        self,
        system: Optional[str] = None,
        *,
        messages: Sequence[Mapping[str, str]] = (),
        max_tokens: Optional[int] = None,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repeat_penalty: Optional[float] = None,
        presence_penalty: Optional[float] = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        exact: bool = False,
        cache_type: CacheType = "f32",
        max_memory: Optional[int] = None,
    ) -> "Conversation":
        """Begins a conversation, behind ``messages`` where there was one; options are those of
        :meth:`generate`.

        A turn reads what is new: keys and values of the earlier ones are kept.
        """
        asked = {
            "tokens": None,
            "chat": True,
            "system": system,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repeat_penalty": repeat_penalty,
            "presence_penalty": presence_penalty,
            "beams": None,
            "length_penalty": None,
            "seed": seed,
            "stop": list(stop),
            "logprobs": None,
            "exact": exact,
            "cache_type": _cache_type(cache_type),
            "max_memory": max_memory,
        }
        return Conversation(self._model, asked, messages)

    def embed(self, texts: Union[str, Sequence[str]]) -> "np.ndarray[Any, Any]":
        """One ``float32`` vector for each text, as the model pools and normalizes; of one text, one
        vector."""
        vectors = self._model.embed([texts] if isinstance(texts, str) else list(texts))
        arrays = [np.frombuffer(vector, dtype=np.float32) for vector in vectors]
        if isinstance(texts, str):
            return arrays[0]
        return np.stack(arrays) if arrays else np.empty((0, 0), dtype=np.float32)

    def read_texts(self, texts: Sequence[str], *, top: int = 5) -> List[Dict[str, Any]]:
        """What the model makes of each text by its head: an embedding, labels, tokens for masks."""
        return [json.loads(made) for made in self._model.read_texts(list(texts), top)]

    def run(
        self,
        inputs: "Mapping[str, Any]",
        *,
        want: Sequence[str] = (),
        part: Optional[str] = None,
    ) -> "Dict[str, np.ndarray[Any, Any]]":
        """Runs the model's graph on arrays by name.

        Returns its outputs, or the values that ``want`` names: outputs, weights, or any value inside
        by the path that ``apr graph`` shows.

        >>> states = open(MODEL).run({"input_ids": [[1, 5, 20]]}, want=["layers.1/output"])
        >>> states["layers.1/output"].shape
        (1, 3, 128)
        """
        packed = io.BytesIO()
        arrays_in: Dict[str, Any] = {name: np.asarray(value) for name, value in inputs.items()}
        np.savez(packed, **arrays_in)
        outputs = self._model.run(packed.getvalue(), list(want), part)
        with np.load(io.BytesIO(outputs), allow_pickle=False) as arrays_out:
            return dict(arrays_out)

    def transcribe(
        self,
        audio: Union[PathLike, bytes],
        *,
        language: Optional[str] = None,
        translate: bool = False,
        timestamps: bool = False,
        fallback: bool = False,
        beams: Optional[int] = None,
        max_tokens: Optional[int] = None,
    ) -> Dict[str, Any]:
        """Transcribes an audio file with a Whisper: the report of ``apr run --json``, and the segments
        as subtitles, ``srt`` and ``vtt``.

        With ``fallback``, a window whose text repeats itself or is unlikely is transcribed again at
        higher temperatures, and silence is left out.
        """
        if isinstance(audio, (bytes, bytearray)):
            name, content = "audio", bytes(audio)
        else:
            name = os.fspath(audio)
            with io.open(name, "rb") as file:
                content = file.read()
        asked = {
            "language": language,
            "translate": translate,
            "timestamps": timestamps,
            "fallback": fallback,
            "beams": beams,
            "max_tokens": max_tokens,
        }
        made = self._model.transcribe(name, content, asked)
        report: Dict[str, Any] = json.loads(made)
        return report
