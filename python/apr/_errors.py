"""Exceptions. Each error of the library has a code, E001 to E008, and a place."""

from __future__ import annotations

from typing import NamedTuple, Optional


class Where(NamedTuple):
    """Place of an error."""

    file: Optional[str] = None
    tensor: Optional[str] = None
    #: Offset in bytes within the file.
    offset: Optional[int] = None


class Error(Exception):
    """An error of the library.

    ``code`` is ``"E001"`` to ``"E008"``, or ``None`` if a request can't be met. ``where`` has the
    file, the tensor and the offset, as far as known.
    """

    code: Optional[str] = None

    def __init__(self, message: str = "", where: Where = Where()) -> None:
        super().__init__(message)
        self.message = message
        self.where = where

    def __str__(self) -> str:
        place = self.where.file or ""
        if self.where.tensor is not None:
            place += f"{': ' if place else ''}tensor '{self.where.tensor}'"
        if self.where.offset is not None:
            place += f"{' ' if place else ''}at offset {self.where.offset}"
        text = f"{place}: {self.message}" if place else self.message
        return f"{self.code}: {text}" if self.code else text


class FormatError(Error, ValueError):
    """E001: the bytes are not a valid file of the format."""

    code = "E001"


class CorruptError(Error, ValueError):
    """E002: the file is damaged: bytes are missing or contradict each other."""

    code = "E002"


class VersionError(Error):
    """E003: the file needs a version or a feature that is not supported."""

    code = "E003"


class ChecksumError(Error):
    """E004: a checksum does not match the bytes it covers."""

    code = "E004"


class DecryptError(Error):
    """E005: the key is wrong, or encrypted bytes were changed."""

    code = "E005"


class SignatureError(Error):
    """E006: a signature is missing, unknown or invalid."""

    code = "E006"


class IoError(Error, OSError):
    """E007: the operating system refused an operation."""

    code = "E007"


class NotFoundError(IoError, FileNotFoundError):
    """E007: a file or folder does not exist."""


class ExistsError(IoError, FileExistsError):
    """E007: the output exists, and ``replace=True`` was not passed."""


class MemoryLimitError(Error, MemoryError):
    """E008: a limit or the memory budget would be exceeded."""

    code = "E008"


class RequestError(Error, ValueError):
    """A request does not fit the model, or contradicts itself."""


class CheckError(Error):
    """The result failed a quality gate. Nothing was written."""


_BY_CODE = {
    kind.code: kind
    for kind in (
        FormatError,
        CorruptError,
        VersionError,
        ChecksumError,
        DecryptError,
        SignatureError,
        IoError,
        MemoryLimitError,
    )
}


def made(
    *,
    message: str,
    code: Optional[str] = None,
    file: Optional[str] = None,
    tensor: Optional[str] = None,
    offset: Optional[int] = None,
    is_absent: bool = False,
    is_there: bool = False,
    is_check: bool = False,
) -> Error:
    """Returns the exception for an error of the library."""
    where = Where(file, tensor, offset)
    if is_check:
        return CheckError(message, where)
    if code is None:
        return RequestError(message, where)
    if is_absent:
        return NotFoundError(message, where)
    if is_there:
        return ExistsError(message, where)
    return _BY_CODE[code](message, where)
