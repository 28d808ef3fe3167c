"""Chats with models."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from . import _apr
from ._texts import Generation


class Conversation:
    """A chat that keeps its history from turn to turn; :meth:`Model.chat` begins one."""

    def __init__(
        self, model: "_apr.Model", asked: Dict[str, Any], messages: Sequence[Mapping[str, str]]
    ) -> None:
        self._model = model
        self._asked = asked
        self._history = _apr.History([(said["role"], said["content"]) for said in messages])

    def say(self, message: str) -> Generation:
        """Answers a message; returns an iterator of the pieces of the answer.

        A complete answer is added to the history. An abandoned one leaves the history unchanged.
        """
        asked = {**self._asked, "prompt": message, "history": self._history}
        return Generation(self._model.generate(asked))

    @property
    def messages(self) -> List[Dict[str, str]]:
        """The history without the system message: ``role`` and ``content`` of each message."""
        return [{"role": role, "content": text} for role, text in self._history.messages()]

    def reset(self) -> None:
        """Clears the history, and keeps the system message."""
        self._history = _apr.History([])
