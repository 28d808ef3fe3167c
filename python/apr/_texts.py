"""Tokens of texts, and texts that models generate."""

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

#: Dtype for the keys and values of earlier tokens.
CacheType = Literal["f32", "f16", "q8_0"]


def cache_type_name(name: str) -> str:
    """Returns the name of a :data:`CacheType`; raises for other names."""
    if name not in ("f32", "f16", "q8_0"):
        raise ValueError(f"cache_type is 'f32', 'f16' or 'q8_0', not {name!r}")
    return name


def chat_files(
    messages: Optional[Sequence[Mapping[str, Any]]] = None,
    tools: Optional[Sequence[Mapping[str, Any]]] = None,
    documents: Optional[Sequence[Mapping[str, Any]]] = None,
    template_args: Optional[Mapping[str, Any]] = None,
) -> Dict[str, Any]:
    """Returns a chat and the other arguments of its template in the form of the command's files."""

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
    """Returns the kind and the text of the grammar for a generated text."""
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
        """Returns the tokens of a text; with ``special``, also the tokens that the model adds.

        >>> apr.open(MODEL).tokenizer.decode(apr.open(MODEL).tokenizer.encode("12+34="))
        '12+34='
        """
        return self._model.encode(text, special)

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """Returns the text of tokens; with ``special``, including special tokens."""
        return self._model.decode(list(tokens), special)


class Completion(NamedTuple):
    """A generated text."""

    text: str
    #: ``end``, ``stop``, ``grammar``, ``max_tokens`` or ``context``.
    ended: str
    #: Tokens that were generated.
    tokens: List[int]
    #: The whole report: timings, arithmetic, log probabilities.
    report: Dict[str, Any]

    @property
    def answer(self) -> Dict[str, Any]:
        """The parts of a chat's answer by its template: ``text``, and ``thinking`` and
        ``tool_calls`` if there are any."""
        answer: Dict[str, Any] = self.report.get("answer", {"text": self.text})
        return answer


def completion(report: Dict[str, Any]) -> Completion:
    """Returns the generated text in the report of a run."""
    return Completion(
        report.get("text") or "", report.get("ended", ""), report.get("added", []), report
    )


class Generation(Iterator[str]):
    """A text that is being generated: an iterator of its pieces.

    :attr:`completion` is the whole text.
    """

    def __init__(self, generation: "_apr.Generation") -> None:
        self._generation = generation

    def __next__(self) -> str:
        return next(self._generation)

    @property
    def completion(self) -> Completion:
        """The whole text; generates the rest first."""
        for _ in self:
            pass
        return completion(json.loads(self._generation.report or "{}"))
