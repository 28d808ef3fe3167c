"""The interface of the package ``safetensors``, for files of every format.

A program changes one import: ``from apr.safetensors import safe_open``,
``from apr.safetensors.numpy import load_file, save_file``, or those of ``.torch``, ``.flax``,
``.tensorflow``, ``.paddle`` and ``.mlx``.

>>> import numpy as np
>>> from apr.safetensors import safe_open
>>> from apr.safetensors.numpy import save_file
>>> save_file({"weight": np.ones((2, 3), np.float32)}, FOLDER + "/a.safetensors", {"step": "7"})
>>> with safe_open(FOLDER + "/a.safetensors", framework="np") as file:
...     file.metadata(), file.get_slice("weight")[0, 1:].tolist()
({'step': '7'}, [1.0, 1.0])
"""

from ._open import _safe_open_handle, safe_open
from ._specs import SafetensorError, TensorSpec, deserialize, serialize, serialize_file

__all__ = [
    "SafetensorError",
    "TensorSpec",
    "__version__",
    "_safe_open_handle",
    "deserialize",
    "safe_open",
    "serialize",
    "serialize_file",
]

#: The version of ``safetensors`` whose interface this is.
__version__ = "0.8.0"
