"""Model files of every format: opened, checked, compared, converted, quantized and run.

>>> model = open(MODEL)
>>> model["model.norm.weight"].shape
(128,)

Nothing of a file is ever run, headers alone are read when a model is opened, and jobs take bounded
memory. :func:`command` runs whatever the command ``apr`` does.
"""

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
from ._tensors import Tensor
from ._texts import Completion, Generation, Tokenizer

__all__ = [
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
