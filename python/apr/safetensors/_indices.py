"""Indices of parts of tensors, by the rules of the package ``safetensors``.

They are stricter than NumPy's: an index beyond a dimension is an error, and so are negative bounds
and steps.
"""

from __future__ import annotations

import operator
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

from .. import _errors

#: The largest index that is taken for one.
_LARGEST = (1 << 31) - 1

Index = Union[int, slice]


class _Narrow(NamedTuple):
    """A part of a dimension."""

    start: Optional[int]
    stop: Optional[int]
    step: int

    def __str__(self) -> str:
        bounds = ":".join("" if bound is None else str(bound) for bound in (self.start, self.stop))
        return bounds if self.step == 1 else f"{bounds}:{self.step}"


def basic(index: Any, shape: Sequence[int]) -> Tuple[Index, ...]:
    """An index as one for each of the first dimensions, all within them.

    >>> basic((..., 1), [10, 5])
    (slice(0, 10, 1), 1)
    >>> basic(slice(20), [10, 5])
    Traceback (most recent call last):
    ...
    apr._errors.Error: Error during slicing [:20] with shape [10, 5]: \
index 19 out of bounds for tensor dimension #0 of size 10
    """
    parts = _parsed(index, shape)
    reason = _out_of_bounds(parts, shape)
    if reason is not None:
        asked = ", ".join(map(str, parts))
        raise _errors.Error(f"Error during slicing [{asked}] with shape {list(shape)}: {reason}")
    return tuple(
        part if isinstance(part, int) else slice(*_bounds(part, dim), part.step)
        for part, dim in zip(parts, shape)
    )


def _bounds(part: Union[int, _Narrow], dim: int) -> Tuple[int, int]:
    if isinstance(part, int):
        return part, part + 1
    return (part.start or 0, dim if part.stop is None else part.stop)


def _out_of_bounds(parts: Sequence[Union[int, _Narrow]], shape: Sequence[int]) -> Optional[str]:
    if len(parts) > len(shape):
        return "more slicing indexes than dimensions in tensor"
    # From the innermost dimension on, as the package looks at them.
    for at in reversed(range(len(parts))):
        dim = shape[at]
        start, stop = _bounds(parts[at], dim)
        if start >= dim or stop > dim:
            asked = start if start >= dim else stop - 1
            return f"index {asked} out of bounds for tensor dimension #{at} of size {dim}"
    return None


def _parsed(index: Any, shape: Sequence[int]) -> List[Union[int, _Narrow]]:
    if isinstance(index, list):
        if index:
            raise _errors.Error("Non empty lists are not implemented")
        return [_Narrow(0, 0, 1)]
    given = index if isinstance(index, tuple) else (index,)
    ellipses = sum(part is Ellipsis for part in given)
    if ellipses > 1:
        raise _errors.Error("Only one ellipsis (...) is allowed in slice index")
    whole = [_Narrow(None, None, 1)] * max(len(shape) + ellipses - len(given), 0)
    parts: List[Union[int, _Narrow]] = []
    for part in given:
        if part is Ellipsis:
            parts.extend(whole)
        elif isinstance(part, slice):
            parts.append(_narrow(part))
        else:
            parts.append(_selected(part, len(parts), shape))
    return parts


def _narrow(part: slice) -> _Narrow:
    step = 1 if part.step is None else operator.index(part.step)
    if step < 1:
        raise _errors.Error(f"Slice step must be a positive integer, got {step}")
    return _Narrow(_bound(part.start), _bound(part.stop), step)


def _bound(value: Any) -> Optional[int]:
    if value is None:
        return None
    number = operator.index(value)
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    return number


def _selected(part: Any, at: int, shape: Sequence[int]) -> int:
    try:
        number = operator.index(part)
    except TypeError:
        number = None
    if number is None or not -_LARGEST <= number <= _LARGEST:
        raise _errors.Error(
            f"Unsupported slice index at position {at}: expected slice, int, or ellipsis"
        )
    dim = shape[at] if at < len(shape) else 0
    if number < -dim:
        raise _errors.Error(f"Invalid index {number} for dimension {at} of size {dim}")
    return number + dim if number < 0 else number
