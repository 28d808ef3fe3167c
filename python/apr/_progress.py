"""Progress bars of calls that take long, in terminals and notebooks."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Iterator, Optional, Union

#: Called with the phase, the number of bytes done and the total.
Progress = Callable[[str, int, int], None]

#: ``None`` shows a bar in a terminal or a notebook, ``True`` always and ``False`` never.
Shown = Union[None, bool, Progress]


@contextlib.contextmanager
def shown(progress: Shown) -> Iterator[Optional[Progress]]:
    """Returns the progress function of a job, for the duration of the job."""
    if callable(progress):
        yield progress
        return
    if not (_is_watched() if progress is None else progress):
        yield None
        return
    with contextlib.closing(_Bars()) as bars:
        yield bars


def _is_watched() -> bool:
    """Returns ``True`` if standard error is a terminal or the output of a notebook's cell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is not None:
        return True
    return sys.stderr is not None and sys.stderr.isatty()


class _Bars:
    """A bar for each phase, which disappears when the phase ends: tqdm's if tqdm is installed."""

    def __init__(self) -> None:
        self._make = _maker()
        self._phase: Optional[str] = None
        self._bar: Any = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase != self._phase:
            self.close()
            self._phase = phase
            self._bar = self._make(
                desc=phase, total=total, unit="B", unit_scale=True, leave=False, file=sys.stderr
            )
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = self._phase = None


def _maker() -> Callable[..., Any]:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Line
    return tqdm  # type: ignore[no-any-return]


class _Line:
    """The used part of tqdm's interface, as a line of text."""

    def __init__(self, desc: str, total: int, file: Any, **_: Any) -> None:
        self.n, self.total = 0, total
        self._desc, self._file, self._text = desc, file, ""

    def update(self, more: int) -> None:
        self.n += more
        text = f"{self._desc} {100 * self.n // max(self.total, 1)} %"
        if text != self._text:
            self._file.write("\r" + text.ljust(len(self._text)))
            self._file.flush()
            self._text = text

    def close(self) -> None:
        self._file.write("\r" + " " * len(self._text) + "\r")
        self._file.flush()
