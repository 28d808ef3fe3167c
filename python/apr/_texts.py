"""Tokens of texts, and texts that models write."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, Iterator, List, Literal, NamedTuple

from . import _apr

#: What keys and values of earlier tokens are kept as.
CacheType = Literal["f32", "f16", "q8_0"]


def cache_type_name(name: str) -> str:
    """The name of a :data:`CacheType`; other names raise."""
    if name not in ("f32", "f16", "q8_0"):
        raise ValueError(f"cache_type is 'f32', 'f16' or 'q8_0', not {name!r}")
    return name


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
    #: ``end``, ``stop``, ``max_tokens`` or ``context``.
    ended: str
    #: Tokens that were generated.
    tokens: List[int]
    #: The whole report: timings, arithmetic, log probabilities.
    report: Dict[str, Any]


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
