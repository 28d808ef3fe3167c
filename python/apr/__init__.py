"""Opens, checks, compares, converts, quantizes and runs model files of every format.

>>> model = apr.open(MODEL)
>>> model["model.norm.weight"].shape
(128,)

Code in a file is never run. Opening a model reads its header only, and jobs take bounded memory.
:func:`command` runs any command of ``apr``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from ._apr import __version__
    from ._chats import Conversation
    from ._errors import (
        CheckError,
        ChecksumError,
        CorruptError,
        DecryptError,
        Error,
        ExistsError,
        FormatError,
        IoError,
        MemoryLimitError,
        NotFoundError,
        RequestError,
        SignatureError,
        VersionError,
        Where,
    )
    from ._jobs import (
        Saved,
        command,
        convert,
        diff,
        export,
        inspect,
        lint,
        quantize,
        save,
        scan,
        schemes,
        validate,
        writable_formats,
    )
    from ._model import Model, open
    from ._sampling import Sampling
    from ._tensors import Tensor
    from ._texts import Completion, Generation, Tokenizer

__all__ = [
    "__version__",
    "CheckError",
    "ChecksumError",
    "Completion",
    "Conversation",
    "CorruptError",
    "DecryptError",
    "Error",
    "ExistsError",
    "FormatError",
    "Generation",
    "IoError",
    "MemoryLimitError",
    "Model",
    "NotFoundError",
    "RequestError",
    "Sampling",
    "Saved",
    "SignatureError",
    "Tensor",
    "Tokenizer",
    "VersionError",
    "Where",
    "command",
    "convert",
    "diff",
    "export",
    "inspect",
    "lint",
    "open",
    "quantize",
    "save",
    "scan",
    "schemes",
    "validate",
    "writable_formats",
]

#: Modules by the names that they have, the modules without dependencies first. The compiled module
#: comes last, because its functions have names of the package.
_MODULES = ("_errors", "_jobs", "_tensors", "_texts", "_chats", "_sampling", "_model", "_apr")


def __getattr__(name: str) -> Any:
    """Loads a module when one of its names is used, so that the command starts without NumPy."""
    if name in __all__:
        for module in _MODULES:
            found = vars(import_module(f".{module}", __name__))
            if name in found:
                globals()[name] = found[name]
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
