"""Lets other libraries load the quantized layouts that apr writes, and compares their weights with those that apr reads.

    python codes_check.py APR MODEL PROMPT ANSWER

transformers with compressed-tensors loads the layouts for servers (one is decoded by compressed-tensors alone),
auto-round's layer that of GPTQ, and mlx-lm those of MLX, all on the CPU. Each has to
answer the prompt, and what it makes of the codes has to be what `apr convert --dequantize` makes of them, bit by bit.
"""

import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import types
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import torch  # noqa: E402
import transformers  # noqa: E402
from compressed_tensors.compressors import PackedQuantizationCompressor  # noqa: E402
from compressed_tensors.quantization import QuantizationScheme  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

SERVERS = ["fp8", "w8a8", "w4a16", "mxfp4", "nvfp4"]
# transformers 5.23 refuses the packed zero points of such folders, those of llm-compressor too.
UNLOADED = ["w4a16-asym"]
GPTQ = ["gptq-4"]
MLX = ["mlx-4", "mlx-6", "mlx-8"]
# Weights of a second layout, and some in floats, beside the first.
MIXED = ["--tensor-type", "*layers.0.mlp*=fp8", "--tensor-type", "*layers.1.self_attn*=bf16"]
MIXED_MLX = ["--tensor-type", "*layers.0.mlp*=mlx-8", "--tensor-type", "*layers.1.self_attn*=mlx-6",
             "--tensor-type", "*layers.1.mlp.up*=bf16"]


def of_transformers(folder, plain, prompt):
    """What transformers answers, and the weights of which it has others than apr."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    answer = tokenizer.decode(model.generate(ids, max_new_tokens=3, do_sample=False)[0][ids.shape[1]:])
    ours = load_file(plain / "model.safetensors")
    stated = json.loads((folder / "config.json").read_text())["quantization_config"]
    if len(stated["config_groups"]) > 1:
        # transformers dequantizes with the first group alone; to compute, compressed-tensors does it by each module's.
        theirs = model.state_dict()
    else:
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, quantization_config=transformers.CompressedTensorsConfig(dequantize=True)).state_dict()
    assert ours.keys() <= theirs.keys(), ours.keys() - theirs.keys()
    return answer, len(ours), [name for name in ours if not torch.equal(theirs[name].float(), ours[name].float())]


def of_compressed_tensors(folder, plain, prompt):
    """What apr answers, and the weights of which compressed-tensors has others."""
    answer = subprocess.run([sys.argv[1], "run", folder, "--prompt", prompt], check=True, capture_output=True, text=True)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    scheme = QuantizationScheme(**config["config_groups"]["group_0"])
    theirs, ours = load_file(folder / "model.safetensors"), load_file(plain / "model.safetensors")
    modules = [name.removesuffix(".weight_packed") for name in theirs if name.endswith(".weight_packed")]
    others = []
    for module in modules:
        parts = {name.rpartition(".")[2]: part for name, part in theirs.items() if name.startswith(f"{module}.")}
        weight = PackedQuantizationCompressor.decompress(parts, scheme)["weight"]
        if not torch.equal(weight, ours[f"{module}.weight"]):
            others.append(module)
    return answer.stdout, len(modules), others


def layer_of_gptq():
    """auto-round's layer of weights in GPTQ's layout, without the package around it, which needs many others."""
    for top, below in [("auto_round", "utils"), ("auto_round_extension", "torch")]:
        root = Path(importlib.util.find_spec(top).submodule_search_locations[0])
        for name, folder in [(top, root), (f"{top}.{below}", root / below)]:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [str(folder)]
    sys.modules["auto_round.utils"].get_packing_device = None
    sys.modules["auto_round.utils"].logger = logging.getLogger()
    from auto_round_extension.torch.qlinear_torch_zp import QuantLinear

    return QuantLinear


def of_gptq(folder, plain, prompt):
    """What apr answers, and the weights of which auto-round's layer has others."""
    answer = subprocess.run([sys.argv[1], "run", folder, "--prompt", prompt], check=True, capture_output=True, text=True)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    theirs, ours = load_file(folder / "model.safetensors"), load_file(plain / "model.safetensors")
    modules = [name.removesuffix(".qweight") for name in theirs if name.endswith(".qweight")]
    others, layer_of = [], layer_of_gptq()
    for module in modules:
        weight = ours[f"{module}.weight"]
        rows, columns = weight.shape
        layer = layer_of(config["bits"], config["group_size"], columns, rows, False)
        for part in ["qweight", "qzeros", "scales"]:
            setattr(layer, part, theirs[f"{module}.{part}"])
        # With groups that are stored, the layer takes too few outputs: these are in the order of the columns.
        in_order = torch.equal(theirs[f"{module}.g_idx"], torch.arange(columns).int() // config["group_size"])
        if not in_order or not torch.equal(layer(torch.eye(columns, dtype=weight.dtype)).T, weight):
            others.append(module)
    return answer.stdout, len(modules), others


def of_mlx(folder, plain, prompt):
    """What mlx-lm answers, and the weights of which it has others than apr."""
    import mlx.core as mx
    from mlx import nn
    from mlx_lm import generate, load

    model, tokenizer = load(str(folder))
    answer = generate(model, tokenizer, prompt, max_tokens=3)
    ours, compared, others = mx.load(str(plain / "model.safetensors")), 0, []
    for name, module in model.named_modules():
        if isinstance(module, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
            theirs = mx.dequantize(module.weight, module.scales, module.biases, module.group_size, module.bits)
            compared += 1
            if not mx.array_equal(theirs, ours[f"{name}.weight"]):
                others.append(name)
    return answer, compared, others


def main():
    apr, model, prompt, expected = sys.argv[1:]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        ways = [(SERVERS, of_transformers), (UNLOADED, of_compressed_tensors), (GPTQ, of_gptq), (MLX, of_mlx)]
        cases = [(layout, [], ask) for layouts, ask in ways for layout in layouts]
        cases += [("w4a16", MIXED, of_transformers), ("nvfp4", MIXED, of_transformers), ("mlx-4", MIXED_MLX, of_mlx)]
        for number, (layout, mixed, ask) in enumerate(cases):
            coded, plain = Path(folder) / f"{number}", Path(folder) / f"{number}-plain"
            run = [apr, "quantize", model, "--type", layout, *mixed, "--format", "safetensors", "-o", coded]
            subprocess.run(run, check=True, capture_output=True)
            dtype = "f16" if layout in GPTQ else "bf16"
            run = [apr, "convert", coded, "--dequantize", dtype, "--format", "safetensors", "-o", plain]
            subprocess.run(run, check=True, capture_output=True)
            answer, compared, others = ask(coded, plain, prompt)
            good = answer.strip() == expected and compared > 0 and not others
            failed += not good
            said = "" if good else f", {others[:4]} differ, answer {answer!r}"
            layout = f"{layout} mixed" if mixed else layout
            print(f"{layout:11} {compared} weights compared{said}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
