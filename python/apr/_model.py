"""Models."""

from __future__ import annotations

import functools
import html
import io
import json
import os
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
    cast,
)

import numpy as np

from . import _apr
from ._chats import Conversation
from ._progress import Shown, shown
from ._sampling import Sampling, sampling_of
from ._tensors import Files, PathLike, Tensor, read_all, torch_memory
from ._texts import (
    CacheType,
    Completion,
    Generation,
    Tokenizer,
    cache_type_name,
    chat_files,
    completion,
    grammar_of,
)

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack


def open(
    source: Union[PathLike, BinaryIO],
    *,
    password: Optional[str] = None,
    max_memory: Optional[int] = None,
) -> "Model":
    """Opens a model: a file or folder, ``hf://`` or another location, or a file object.

    Reads the header, and weights when they are used. Code in the file is never run. A header that
    takes more than ``max_memory`` bytes is rejected with ``E008``.

    >>> with open(MODEL) as model:
    ...     model.family
    'llama'
    """
    if not isinstance(source, (str, os.PathLike)):
        return Model(_of_file(source, password, max_memory))
    path = os.fspath(source)
    model = Model(_apr.Model.open(path, password, max_memory))
    if password is None:
        # A process that loads the pickle can be in another folder.
        again = os.path.abspath(path) if os.path.exists(path) else path
        model._again = functools.partial(open, again, max_memory=max_memory)
    return model


def _of_file(
    file: BinaryIO, password: Optional[str], max_memory: Optional[int]
) -> "_apr.Model":
    length = file.seek(0, io.SEEK_END)

    def read(offset: int, length: int) -> bytes:
        file.seek(offset)
        return bytes(file.read(length))

    name = str(getattr(file, "name", "file object"))
    return _apr.Model.open_file(read, length, name, password, max_memory)


class _Closed:
    """Replacement for the file of a closed model."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError("the model is closed")


#: Number of tensors that a notebook shows.
_SHOWN = 20


class Model(Mapping[str, Tensor]):
    """An opened model: a mapping of names to tensors.

    It is closed by :meth:`close`, or at the end of a ``with`` block. A model that was opened by a
    path, without a password, can be pickled: the pickle has the path, and loading opens it again.

    >>> model = open(MODEL)
    >>> len(model), "lm_head.weight" in model
    (21, True)
    """

    def __init__(self, model: "_apr.Model") -> None:
        self._model = model
        self._again: "Optional[Callable[[], Model]]" = None
        self._files = Files()
        self._positions = {name: position for position, name in enumerate(model.names())}
        self._inspected: Optional[Dict[str, Any]] = None

    def __repr__(self) -> str:
        if isinstance(self._model, _Closed):
            return "<apr.Model, closed>"
        return f"<apr.Model {self.format}, {self._count()}>"

    def _count(self) -> str:
        return f"{len(self)} tensor{'' if len(self) == 1 else 's'}"

    def _repr_html_(self) -> str:
        """Returns a table of the tensors for notebooks."""
        if isinstance(self._model, _Closed):
            return html.escape(repr(self))
        row = "<tr><td>{}</td><td>{}</td><td>{}</td></tr>".format
        shown = [self[name] for name in list(self)[:_SHOWN]]
        rows = [
            row(html.escape(tensor.name), tensor.dtype, " x ".join(map(str, tensor.shape)))
            for tensor in shown
        ]
        if len(self) > _SHOWN:
            rows.append(row(f"and {len(self) - _SHOWN} more", "", ""))
        head = "<tr><th>Tensor</th><th>Dtype</th><th>Shape</th></tr>"
        title = html.escape(f"{self.format}, {self._count()}")
        return f"<table><caption>{title}</caption>{head}{''.join(rows)}</table>"

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> "Tuple[Callable[[], Model], Tuple[()]]":
        if self._again is None:
            raise TypeError(
                "only a model that was opened by a path, without a password, can be pickled"
            )
        return self._again, ()

    def close(self) -> None:
        """Closes the files. Arrays and tensors of the model stay valid and keep their files open;
        everything else raises :class:`ValueError` from then on.
        """
        self._model = cast("_apr.Model", _Closed())
        self._files = Files()

    def __getitem__(self, name: str) -> Tensor:
        position = self._positions[name]
        return Tensor(self._model, self._files, position, self._model.entry(position))

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
        """Metadata of the file, with the keys of ``apr inspect --json``."""
        metadata: Dict[str, Any] = json.loads(self._model.metadata())
        return metadata

    @property
    def family(self) -> Optional[str]:
        """The family, such as ``llama``, or ``None`` if unknown."""
        return self._model.family

    @property
    def config(self) -> Optional[Dict[str, Any]]:
        """Content of the ``config.json`` next to the weights, or ``None``."""
        names = self._model.companions()
        if "config.json" not in names:
            return None
        config: Dict[str, Any] = json.loads(self._model.companion(names.index("config.json")))
        return config

    @property
    def companions(self) -> Dict[str, bytes]:
        """Companion files, such as the tokenizer, by name."""
        return {name: self._model.companion(at) for at, name in enumerate(self._model.companions())}

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return Tokenizer(self._model)

    def numpy(self) -> "Dict[str, np.ndarray[Any, Any]]":
        """Returns all tensors by :meth:`Tensor.numpy`."""
        return {name: tensor.numpy() for name, tensor in self.items()}

    def torch(self, *, copy: bool = False) -> "Dict[str, torch.Tensor]":
        """Returns all tensors by :meth:`Tensor.torch`: a state dict."""
        if copy:
            bits = read_all(list(self.values()), torch_memory)
            return {name: tensor._torch_of(own) for (name, tensor), own in zip(self.items(), bits)}
        return {name: tensor.torch() for name, tensor in self.items()}

    def inspect(self) -> Dict[str, Any]:
        """Describes the model; returns the report of ``apr inspect --json``."""
        report = self._inspected
        if report is None:
            report = self._inspected = json.loads(self._model.inspect())
        return report

    def validate(self, *, progress: Shown = None) -> Dict[str, Any]:
        """Validates the model; returns the report of ``apr validate --json``. ``progress`` has the
        meaning of :func:`convert`.

        >>> open(MODEL).validate()["valid"]
        True
        """
        with shown(progress) as tell:
            report: Dict[str, Any] = json.loads(self._model.validate(tell))
        return report

    def lint(self) -> Dict[str, Any]:
        """Checks the model against best practices; returns the report of ``apr lint --json``."""
        report: Dict[str, Any] = json.loads(self._model.lint())
        return report

    def diff(
        self, other: "Model", *, tolerance: float = 1e-6, progress: Shown = None
    ) -> Dict[str, Any]:
        """Compares with another model; returns the report of ``apr diff --json``. ``progress`` has
        the meaning of :func:`convert`."""
        with shown(progress) as tell:
            report: Dict[str, Any] = json.loads(self._model.diff(other._model, tolerance, tell))
        return report

    def generate(
        self,
        prompt: Optional[str] = None,
        *,
        tokens: Optional[Sequence[int]] = None,
        chat: bool = False,
        system: Optional[str] = None,
        messages: Optional[Sequence[Mapping[str, Any]]] = None,
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        documents: Optional[Sequence[Mapping[str, Any]]] = None,
        template_args: Optional[Mapping[str, Any]] = None,
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
        json_schema: Union[None, bool, str, Mapping[str, Any], type] = None,
        regex: Optional[str] = None,
        grammar: Optional[str] = None,
        exact: bool = False,
        cache_type: CacheType = "f32",
        max_memory: Optional[int] = None,
        **sampling: "Unpack[Sampling]",
    ) -> Generation:
        """Generates text that continues a prompt or tokens; returns an iterator of its pieces.

        ``None`` means the value of the model's own settings; temperature 0 is greedy. ``beams`` is
        the number of beams of a beam search, whose text is one piece. With ``chat``, the prompt is
        a message for the model's template; :meth:`chat` keeps a history. With ``exact``, quantized
        weights are multiplied as floats. ``cache_type`` is the dtype for the keys and values of
        earlier tokens: ``"f32"``, ``"f16"`` or ``"q8_0"``.

        ``messages`` is a chat instead of a prompt, the oldest message first: dictionaries with
        ``role`` and ``content``, as in transformers. The model's template also receives ``tools``,
        ``documents`` and ``template_args``. ``completion.answer`` has the thinking, the text and
        the tool calls of the answer.

        ``sampling`` has the options of llama.cpp's samplers: ``frequency_penalty``,
        ``repeat_last_n``, ``logit_bias``, ``typical_p``, ``mirostat``, ``dry_multiplier``,
        ``xtc_probability``, ``ignore_eos``, ``min_tokens`` and others (:class:`Sampling`).

        The text is constrained to ``json_schema`` (a dictionary, its JSON, or a class of pydantic),
        to ``regex`` as a whole, or to ``grammar``, in the notation of Lark or of llama.cpp.

        >>> "".join(open(MODEL).generate("12+34=")).strip()
        '46'
        """
        if sum(given is not None for given in (prompt, tokens, messages)) != 1:
            raise ValueError("pass either a prompt, tokens or messages")
        if messages is not None and (chat or system is not None):
            raise ValueError("messages are a chat: chat and system are for a prompt")
        asked = {
            "prompt": prompt,
            "tokens": None if tokens is None else list(tokens),
            "chat": chat or system is not None,
            **chat_files(messages, tools, documents, template_args),
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
            "sampling": sampling_of(sampling),
            "seed": seed,
            "stop": list(stop),
            "logprobs": logprobs,
            "grammar": grammar_of(json_schema, regex, grammar),
            "exact": exact,
            "cache_type": cache_type_name(cache_type),
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
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        documents: Optional[Sequence[Mapping[str, Any]]] = None,
        template_args: Optional[Mapping[str, Any]] = None,
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
        json_schema: Union[None, bool, str, Mapping[str, Any], type] = None,
        regex: Optional[str] = None,
        grammar: Optional[str] = None,
        exact: bool = False,
        cache_type: CacheType = "f32",
        max_memory: Optional[int] = None,
        **sampling: "Unpack[Sampling]",
    ) -> List[Completion]:
        """Generates a text for each prompt, in batches of up to ``batch``; the options are those of
        :meth:`generate`.

        The texts equal those of :meth:`generate`, except that rounding can change a token if two
        are equally likely. ``report["batch"]`` is the size of the batch.

        >>> [made.text.strip() for made in open(MODEL).generate_all(["12+34=", "20+22="])]
        ['46', '42']
        """
        if batch < 1:
            raise ValueError("batch is at least 1")
        asked = {
            "prompt": None,
            "tokens": None,
            "chat": chat or system is not None,
            **chat_files(None, tools, documents, template_args),
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
            "sampling": sampling_of(sampling),
            "seed": seed,
            "stop": list(stop),
            "logprobs": logprobs,
            "grammar": grammar_of(json_schema, regex, grammar),
            "exact": exact,
            "cache_type": cache_type_name(cache_type),
            "max_memory": max_memory,
            "history": None,
        }
        made = self._model.generate_all(asked, list(prompts), batch)
        return [completion(report) for report in json.loads(made)]

    def chat(
        self,
        system: Optional[str] = None,
        *,
        messages: Sequence[Mapping[str, str]] = (),
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        documents: Optional[Sequence[Mapping[str, Any]]] = None,
        template_args: Optional[Mapping[str, Any]] = None,
        max_tokens: Optional[int] = None,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repeat_penalty: Optional[float] = None,
        presence_penalty: Optional[float] = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        json_schema: Union[None, bool, str, Mapping[str, Any], type] = None,
        regex: Optional[str] = None,
        grammar: Optional[str] = None,
        exact: bool = False,
        cache_type: CacheType = "f32",
        max_memory: Optional[int] = None,
        **sampling: "Unpack[Sampling]",
    ) -> "Conversation":
        """Begins a conversation, or continues the one in ``messages``; the options are those of
        :meth:`generate`.

        A turn reads only its own tokens: keys and values of earlier turns are kept.
        """
        asked = {
            "tokens": None,
            "chat": True,
            **chat_files(None, tools, documents, template_args),
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
            "sampling": sampling_of(sampling),
            "seed": seed,
            "stop": list(stop),
            "logprobs": None,
            "grammar": grammar_of(json_schema, regex, grammar),
            "exact": exact,
            "cache_type": cache_type_name(cache_type),
            "max_memory": max_memory,
        }
        return Conversation(self._model, asked, messages)

    def embed(self, texts: Union[str, Sequence[str]]) -> "np.ndarray[Any, Any]":
        """Returns a ``float32`` vector for each text, pooled and normalized as the model defines;
        for a single text, one vector."""
        vectors = self._model.embed([texts] if isinstance(texts, str) else list(texts))
        arrays = [np.frombuffer(vector, dtype=np.float32) for vector in vectors]
        if isinstance(texts, str):
            return arrays[0]
        return np.stack(arrays) if arrays else np.empty((0, 0), dtype=np.float32)

    def read_texts(self, texts: Sequence[str], *, top: int = 5) -> List[Dict[str, Any]]:
        """Returns the output of the model's head for each text: an embedding, labels, or tokens for
        masks."""
        return [json.loads(made) for made in self._model.read_texts(list(texts), top)]

    def rank(
        self, query: str, documents: Sequence[str], *, top: Optional[int] = None
    ) -> Dict[str, Any]:
        """Scores documents by how well they match a query, with a reranker.

        ``documents`` of the result has ``index``, ``document``, ``score`` and ``logits`` of the
        ``top`` best documents, the best first.
        """
        ranking: Dict[str, Any] = json.loads(self._model.rank(query, list(documents), top))
        return ranking

    def run(
        self,
        inputs: "Mapping[str, Any]",
        *,
        want: Sequence[str] = (),
        part: Optional[str] = None,
    ) -> "Dict[str, np.ndarray[Any, Any]]":
        """Runs the model's graph on arrays by name.

        Returns the outputs, or the values named in ``want``: outputs, weights, or any inner value
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
        word_timestamps: bool = False,
        fallback: bool = False,
        beams: Optional[int] = None,
        max_tokens: Optional[int] = None,
    ) -> Dict[str, Any]:
        """Transcribes an audio file with a Whisper model; returns the report of ``apr run --json``,
        with the segments as subtitles in ``srt`` and ``vtt``. With ``word_timestamps``, segments
        have their words.

        With ``fallback``, windows with repetitive or unlikely text are transcribed again at higher
        temperatures, and silence is left out.
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
            "word_timestamps": word_timestamps,
            "fallback": fallback,
            "beams": beams,
            "max_tokens": max_tokens,
        }
        made = self._model.transcribe(name, content, asked)
        report: Dict[str, Any] = json.loads(made)
        return report
