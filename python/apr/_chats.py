"""Chats with models."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from . import _apr
from ._texts import Generation


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

        It is in the history once it is complete: one that is abandoned leaves the history as it
        was.
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
