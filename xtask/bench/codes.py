"""Weights in codes and scales: decoded to a plain folder, apr beside compressed-tensors; and from FP8 in blocks to a
GGUF file, apr beside llama.cpp's converter."""

import json
import os
import shutil
import subprocess
from pathlib import Path

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


# Matrices of layers as DeepSeek's models have them: 8-bit floats, and a scale for each 128 x 128.
BLOCKS = """
import json, shutil, sys
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
source, target, side = Path(sys.argv[1]), Path(sys.argv[2]), 128
stored = {}
for name, weight in load_file(source / "model.safetensors").items():
    if weight.ndim != 2 or "layers." not in name:
        stored[name] = weight
        continue
    rows, columns = (length // side for length in weight.shape)
    blocks = weight.float().reshape(rows, side, columns, side)
    scale = blocks.abs().amax((1, 3)) / 448
    codes = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
    stored[name] = codes.reshape(weight.shape)
    stored[name + "_scale_inv"] = scale
target.mkdir()
save_file(stored, target / "model.safetensors", metadata={"format": "pt"})
config = json.loads((source / "config.json").read_text())
config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [side, side]}
(target / "config.json").write_text(json.dumps(config))
shutil.copy(source / "README.md", target)
"""

# The converter, without the vocabulary that the model does not have.
CONVERTER = """
import sys
source = sys.argv.pop(1)
sys.path[:0] = [source, source + "/gguf-py"]
import convert_hf_to_gguf
from conversion.llama import LlamaModel
LlamaModel.set_vocab = lambda self: self.gguf_writer.add_tokenizer_model("none")
convert_hf_to_gguf.main()
"""


def converter():
    """The folder of llama.cpp's converter."""
    given = os.environ.get("APR_LLAMA_PROGRAMS")
    folder = Path(given or HERE.parent.parent / "target" / "reference" / "llama.cpp")
    return next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))


def bench_converter(apr, folder, source, size, runs, rows):
    """Writes GGUF with blocks of 8 bits, from FP8 in blocks."""
    coded, ours, theirs = (folder / name for name in ("blocks", "ours.gguf", "theirs.gguf"))
    python = python_of_codes()
    run(python, "-c", BLOCKS, source, coded)
    options = ["--outtype", "q8_0", "--outfile", theirs]
    found = alternate(runs, lambda: run(python, "-c", CONVERTER, converter(), coded, *options),
                      lambda: run(apr, "quantize", coded, "--type", "q8_0", "-o", ours, "-f", "-q"))
    differences = subprocess.run([apr, "diff", ours, theirs, "--json"], stdout=subprocess.PIPE, check=True).stdout
    verdicts = {tensor["verdict"] for tensor in json.loads(differences)["tensors"]}
    assert verdicts == {"identical"}, f"apr and llama.cpp's converter wrote other weights: {verdicts}"
    rows.append((f"FP8 in blocks to GGUF `q8_0`, {size / GB:.1f} GB in bf16",
                 f"{ratio(*found):.2f} x llama.cpp's converter", against(*reversed(found))))
    shutil.rmtree(coded)
    for path in (ours, theirs):
        path.unlink()


def python_of_codes():
    """The Python that has compressed-tensors."""
    given = os.environ.get("APR_CODES_PYTHON")
    return given or HERE.parent.parent / "target" / "reference" / "codes" / "bin" / "python"


def bench(apr, folder, size, make_folder, runs, rows):
    """Decodes a LLaMA of so many bytes in bf16, which `make_folder` writes, from each layout."""
    source, coded, ours, theirs = (folder / name for name in ("bf16", "coded", "ours", "theirs"))
    source.mkdir()
    make_folder(source, size)
    bench_converter(apr, folder, source, size, runs, rows)
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
