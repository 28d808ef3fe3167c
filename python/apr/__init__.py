"""Model files of every format: opened, checked, compared, converted, quantized and run.

>>> model = open(MODEL)
>>> model["model.norm.weight"].shape
(128,)

Nothing of a file is ever run, headers alone are read when a model is opened, and jobs take bounded
memory. :func:`command` runs whatever the command ``apr`` does.
"""

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
from ._model import Completion, Conversation, Generation, Model, Tensor, Tokenizer, open

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
