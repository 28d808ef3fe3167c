"""Weights in codes and scales, decoded to a plain folder: apr beside compressed-tensors."""

import os
import shutil
import subprocess

from harness import GB, HERE, against, alternate, ratio, run

#: The layouts, and the compressors that decode them.
LAYOUTS = {"fp8": "FloatQuantizationCompressor", "w4a16": "PackedQuantizationCompressor"}

# Weights one after another, as compressed-tensors decodes those of a module.
PEER = """
import json, sys
from pathlib import Path
import torch
from compressed_tensors import compressors
from compressed_tensors.quantization import QuantizationScheme
from safetensors import safe_open
from safetensors.torch import save_file
source, target, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
group = json.loads((source / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]
decode = getattr(compressors, kind).decompress
scheme = QuantizationScheme.model_validate(group)
plain = {}
with safe_open(source / "model.safetensors", "pt") as file:
    names = set(file.keys())
    for scale in sorted(name for name in names if name.endswith(".weight_scale")):
        module = scale.removesuffix("weight_scale")
        own = [name for name in names if name.startswith(module)]
        parts = {name.removeprefix(module): file.get_tensor(name) for name in own}
        plain[module + "weight"] = decode(parts, scheme)["weight"].to(torch.bfloat16)
        names -= set(own)
    plain |= {name: file.get_tensor(name) for name in names}
target.mkdir()
save_file(plain, target / "model.safetensors")
"""


def python_of_codes():
    """The Python that has compressed-tensors."""
    given = os.environ.get("APR_CODES_PYTHON")
    return given or HERE.parent.parent / "target" / "reference" / "codes" / "bin" / "python"


def bench(apr, folder, size, make_folder, runs, rows):
    """Decodes a LLaMA of so many bytes in bf16, which `make_folder` writes, from each layout."""
    source, coded, ours, theirs = (folder / name for name in ("bf16", "coded", "ours", "theirs"))
    source.mkdir()
    make_folder(source, size)
    for layout, kind in LAYOUTS.items():
        run(apr, "quantize", source, "--type", layout, "--format", "safetensors", "-o", coded, "-q")

        def peer():
            shutil.rmtree(theirs, ignore_errors=True)
            return run(python_of_codes(), "-c", PEER, coded, theirs, kind)

        def own():
            shutil.rmtree(ours, ignore_errors=True)
            return run(apr, "export", coded, "--dequantize", "bf16", "-o", ours, "-q")

        found = alternate(runs, peer, own)
        subprocess.run([apr, "diff", ours, theirs / "model.safetensors", "--exit-code", "-q"], check=True)
        rows.append((f"`export --dequantize bf16` of {layout}, {size / GB:.1f} GB written",
                     f"{ratio(*found):.2f} x compressed-tensors", against(*reversed(found))))
        for path in (coded, ours, theirs):
            shutil.rmtree(path)
    shutil.rmtree(source)
