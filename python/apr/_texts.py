"""Tokens of texts, and texts that models write."""

from __future__ import annotations

import json
from typing import (
    Any,
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

from . import _apr

#: What keys and values of earlier tokens are kept as.
CacheType = Literal["f32", "f16", "q8_0"]


def cache_type_name(name: str) -> str:
    """The name of a :data:`CacheType`; other names raise."""
    if name not in ("f32", "f16", "q8_0"):
        raise ValueError(f"cache_type is 'f32', 'f16' or 'q8_0', not {name!r}")
    return name


def chat_files(
    messages: Optional[Sequence[Mapping[str, Any]]] = None,
    tools: Optional[Sequence[Mapping[str, Any]]] = None,
    documents: Optional[Sequence[Mapping[str, Any]]] = None,
    template_args: Optional[Mapping[str, Any]] = None,
) -> Dict[str, Any]:
    """A chat, and what its template gets besides, as the files of the command have them."""

    def listed(items: Optional[Sequence[Mapping[str, Any]]]) -> Optional[str]:
        return None if items is None else json.dumps([dict(item) for item in items])

    arguments = [(name, json.dumps(value)) for name, value in (template_args or {}).items()]
    return {
        "messages": listed(messages),
        "tools": listed(tools),
        "documents": listed(documents),
        "template_args": arguments,
    }


def grammar_of(
    json_schema: Union[None, bool, str, Mapping[str, Any], type],
    regex: Optional[str],
    grammar: Optional[str],
) -> Optional[Tuple[str, str]]:
    """The grammar that a text keeps to: its kind, and how it is written."""
    if sum(given is not None for given in (json_schema, regex, grammar)) > 1:
        raise ValueError("pass one of json_schema, regex and grammar")
    if json_schema is not None:
        # Classes of pydantic say what their schema is.
        of_class = getattr(json_schema, "model_json_schema", None)
        schema = of_class() if of_class is not None else json_schema
        return "json_schema", schema if isinstance(schema, str) else json.dumps(schema)
    if regex is not None:
        return "regex", regex
    return None if grammar is None else ("rules", grammar)


class Tokenizer:
    """The tokenizer of a model."""

    def __init__(self, model: "_apr.Model") -> None:
        self._model = model

    def encode(self, text: str, *, special: bool = True) -> List[int]:
        """The tokens of a text; with ``special``, those that the model puts around it.

        >>> apr.open(MODEL).tokenizer.decode(apr.open(MODEL).tokenizer.encode("12+34="))
        '12+34='
        """
        return self._model.encode(text, special)

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens; with ``special``, the special ones are written too."""
        return self._model.decode(list(tokens), special)


class Completion(NamedTuple):
    """What a model wrote."""

    text: str
    #: ``end``, ``stop``, ``grammar``, ``max_tokens`` or ``context``.
    ended: str
    #: Tokens that were generated.
    tokens: List[int]
    #: The whole report: timings, arithmetic, log probabilities.
    report: Dict[str, Any]

    @property
    def answer(self) -> Dict[str, Any]:
        """The answer of a chat taken apart, as its template has it: ``text``, and where there are
        any ``thinking`` and ``tool_calls``."""
        answer: Dict[str, Any] = self.report.get("answer", {"text": self.text})
        return answer


def completion(report: Dict[str, Any]) -> Completion:
    """What the report of a run says that a model wrote."""
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
        return completion(json.loads(self._generation.report or "{}"))
