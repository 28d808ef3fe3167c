"""Merges random models of several families with mergekit and with apr, and compares the results.

    python merge_check.py APR

For each family a base and two models that were moved a little are made by transformers; each method
merges them in f32 and bf16, by the same configuration. Differences are counted in units of the last
place of the output's dtype: one is allowed, and where a method needs sums over a tensor in f32, two
units of the largest term or more, by the scalars that follow from them, since PyTorch adds in an
order of its own. A Karcher mean in bf16 is a sum of rounded terms: one unit of the larger. Of
differences of equal magnitude at a cut, mergekit leaves open which stay: elements whose difference
lies there are not compared.

DARE and DELLA are compared in distribution: the share of elements that stay, and their factor.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import torch  # noqa: E402
import transformers  # noqa: E402
import yaml  # noqa: E402
from mergekit.config import MergeConfiguration  # noqa: E402
from mergekit.merge import run_merge  # noqa: E402
from mergekit.options import MergeOptions  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

COMMON = dict(
    vocab_size=48,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=64,
)
FAMILIES = {
    "llama": (transformers.LlamaConfig, COMMON | {"num_key_value_heads": 2}),
    "mistral": (transformers.MistralConfig, COMMON | {"num_key_value_heads": 2, "head_dim": 8}),
    "qwen2": (transformers.Qwen2Config, COMMON | {"num_key_value_heads": 2}),
    "gemma": (
        transformers.GemmaConfig,
        COMMON | {"num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": True},
    ),
    "gpt2": (
        transformers.GPT2Config,
        dict(vocab_size=48, n_embd=32, n_inner=48, n_layer=3, n_head=4, n_positions=64),
    ),
    "phi3": (transformers.Phi3Config, COMMON | {"num_key_value_heads": 2, "pad_token_id": 0}),
}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
BITS = {torch.float32: 23, torch.bfloat16: 7, torch.float16: 10}

# Methods of which scalars are sums over a whole tensor, and the units that are allowed in f32: two
# coefficients, with a divisor in nuslerp; or the lengths of models and of their mean, and the mean
# of lengths.
SUMMED = {"slerp": 2, "nuslerp": 3, "model_stock": 2, "sce": 2, "multislerp": 4, "karcher": 4}
# Methods that keep a share of the differences by their magnitude.
CUT = {"ties", "breadcrumbs", "breadcrumbs_ties", "sce_selected"}


def make(folder, family, seed, dtype, base=None):
    torch.manual_seed(seed)
    config, options = FAMILIES[family]
    model = transformers.AutoModelForCausalLM.from_config(config(**options))
    tensors = model.state_dict()
    with torch.no_grad():
        for name, tensor in tensors.items():
            if not tensor.is_floating_point():
                continue
            if base is None:
                # Weights of norms are about 1: apr writes no model in which they are about 0.
                is_norm = ("norm" in name or ".ln_" in name) and name.endswith("weight")
                middle = 1.0 if is_norm else 0.0
                tensor.copy_(middle + 0.2 * torch.randn(tensor.shape))
            else:
                tensor.copy_(base[name] + 0.05 * torch.randn(tensor.shape))
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    model.to(dtype).save_pretrained(folder)
    return kept


def configurations():
    weights = {"b": 0.6, "c": 0.45}
    others = [{"model": m, "parameters": {"weight": w}} for m, w in weights.items()]
    both = [{"model": "a"}, {"model": "b"}]

    def task(method, **parameters):
        return {
            "merge_method": method,
            "base_model": "a",
            "models": others,
            "parameters": parameters,
        }

    yield "linear", {"merge_method": "linear", "models": others}
    gradient = [{"filter": "attn", "value": [0, 0.5, 0.3]}, {"value": 0.6}]
    yield "slerp", {
        "merge_method": "slerp",
        "base_model": "a",
        "models": both,
        "parameters": {"t": gradient},
    }
    yield "nuslerp", {"merge_method": "nuslerp", "models": others}
    yield "multislerp", {"merge_method": "multislerp", "models": others}
    yield "karcher", {"merge_method": "karcher", "models": both}
    yield "task_arithmetic", task("task_arithmetic", **{"lambda": 0.8})
    yield "ties", task("ties", density=[0.3, 0.7])
    yield "breadcrumbs", task("breadcrumbs", density=0.5, gamma=0.05)
    yield "breadcrumbs_ties", task("breadcrumbs_ties", density=0.5, gamma=0.05)
    yield "sce", task("sce")
    yield "sce_selected", task("sce", select_topk=0.4)
    yield "ram", task("ram")
    yield "ramplus_tl", task("ramplus_tl")
    yield "model_stock", task("model_stock")
    yield "nearswap", {
        "merge_method": "nearswap",
        "base_model": "a",
        "models": both,
        "parameters": {"t": 0.01},
    }
    yield "arcee_fusion", {"merge_method": "arcee_fusion", "base_model": "a", "models": both}
    source = lambda model, first, last: {  # noqa: E731
        "model": model,
        "layer_range": [first, last],
    }
    yield "layers", {
        "merge_method": "passthrough",
        "slices": [{"sources": [source("a", 0, 2)]}, {"sources": [source("b", 1, 3)]}],
    }
    yield "dare_linear", task("dare_linear", density=1.0)
    yield "della", task("della", density=1.0)


def theirs(family, configuration):
    config, _ = FAMILIES[family]
    parsed = MergeConfiguration.model_validate(configuration)
    options = MergeOptions(quiet=True, write_model_card=False, copy_tokenizer=False)
    # mergekit counts layers and keeps the list of their types, which transformers refuses to write:
    # tensors are compared, and configurations are not.
    with tempfile.TemporaryDirectory() as out, mock.patch.object(config, "validate", create=True):
        run_merge(parsed, out, options)
        return load(out)


def ours(apr, configuration, more=()):
    Path("merge.yml").write_text(yaml.safe_dump(configuration, sort_keys=False))
    command = [apr, "merge", "merge.yml", "-o", "merged", "-f", "--quiet", *more]
    subprocess.run(command, check=True)
    transformers.AutoConfig.from_pretrained("merged")
    return load("merged")


def load(folder):
    tensors = {}
    for file in Path(folder).glob("*.safetensors"):
        tensors.update(load_file(file))
    return tensors


def units(found, expected, term=None):
    """The largest difference in units of the last place of the dtype of `found`."""
    expected = expected.to(found.dtype)
    scale = expected.double().abs() if term is None else term.double().expand(found.shape)
    exponent = torch.floor(torch.log2(scale.clamp(min=1e-30)))
    unit = torch.exp2(exponent - BITS[found.dtype])
    return (found.double() - expected.double()).abs() / unit


def tied(name, models, tensor, fraction):
    """Elements whose difference is as large as one at a cut."""
    found = torch.zeros(models["a"][tensor].shape, dtype=torch.bool)
    deltas = [models[m][tensor] - models["a"][tensor] for m in "bc"]
    count = deltas[0].numel()
    if name == "sce_selected":
        values = [torch.stack(deltas).var(dim=0, unbiased=False)]
        cuts = [int(int(torch.count_nonzero(values[0])) * 0.4)]
    elif name == "ties":
        values, cuts = [delta.abs() for delta in deltas], [int(fraction * count)]
    else:
        values = [delta.abs() for delta in deltas]
        top = int(0.05 * count)
        cuts = [top, top + int(0.5 * count)]
    for value in values:
        ranked = value.flatten().float().sort(descending=True).values
        for cut in cuts:
            if 0 < cut < count and ranked[cut - 1] == ranked[cut]:
                found |= value.float() == ranked[cut]
    return found


def compare(apr, family, dtype):
    models = {m: load(m) for m in "abc"}
    for name, configuration in configurations():
        expected, found = theirs(family, configuration), ours(apr, configuration)
        if set(expected) != set(found):
            raise SystemExit(f"{family} {name}: {sorted(set(expected) ^ set(found))[:4]}")
        method = configuration["merge_method"]
        worst = (0.0, "")
        for tensor, ours_ in found.items():
            if not ours_.is_floating_point():
                continue
            summed = method in SUMMED and dtype == "f32"
            present = [m[tensor].abs() for m in models.values() if tensor in m]
            term = None
            if present and summed:
                term = torch.stack(present).max()
            elif present and method == "karcher":
                # mergekit rounds each direction to the dtype before it adds them.
                term = torch.stack(present).amax(dim=0)
            apart = units(ours_, expected[tensor], term)
            if name in CUT and tensor in models["a"]:
                layer = [part for part in tensor.split(".") if part.isdigit()]
                fraction = 0.3 + 0.2 * int(layer[0]) if layer else 0.3
                open_ = tied(name, models, tensor, fraction)
                # Which elements are selected decides about the weights of all.
                if name == "sce_selected" and open_.any():
                    continue
                apart[open_] = 0
            if method == "arcee_fusion":
                # Divergences are small sums of terms that cancel: an element at the threshold may
                # be chosen otherwise, by the rounding of exponentials.
                flipped = apart > 1
                assert int(flipped.sum()) <= 2, (tensor, int(flipped.sum()))
                apart[flipped] = 0
            limit = SUMMED[method] if summed else 1
            worst = max(worst, (float(apart.max()) / limit, tensor))
        print(f"{family:9} {dtype:4} {name:17} {worst[0]:.2f} of what is allowed  {worst[1]}")
        if worst[0] > 1:
            raise SystemExit(1)


def check_draws(apr):
    """The share of differences that stay, and what they are multiplied by."""
    models = {m: load(m) for m in "ab"}
    for method, density in (("dare_linear", 0.3), ("della_linear", 0.6)):
        configuration = {
            "merge_method": method,
            "base_model": "a",
            "models": [{"model": "b", "parameters": {"weight": 1.0, "density": density}}],
        }
        kept, count = 0, 0
        for seed in range(20):
            found = ours(apr, configuration, ["--seed", str(seed)])
            for name, tensor in found.items():
                delta = (models["b"][name] - models["a"][name]).double()
                moved = (tensor - models["a"][name]).double()
                stays = moved != 0
                kept, count = kept + int(stays.sum()), count + delta.numel()
                if stays.any():
                    factor = float(delta.abs().sum() / delta[stays].abs().sum())
                    error = ((moved - factor * delta)[stays].abs() / 1e-5).max()
                    assert error < 1, (method, name, float(error))
        deviation = (density * (1 - density) / count) ** 0.5
        share = kept / count
        print(f"{method}: {share:.5f} of {count} stay, {density} +- {deviation:.5f}")
        assert abs(share - density) < 5 * deviation, method


def check(apr, family, dtype):
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        base = make("a", family, 1, DTYPES[dtype])
        make("b", family, 2, DTYPES[dtype], base)
        make("c", family, 3, DTYPES[dtype], base)
        compare(apr, family, dtype)
        if (family, dtype) == ("llama", "f32"):
            check_draws(apr)
        os.chdir("/")


def main():
    apr = str(Path(sys.argv[1]).resolve())
    if len(sys.argv) > 2:
        check(apr, *sys.argv[2:])
        return
    # mergekit keeps files open by their names: a process for each.
    for family in FAMILIES:
        for dtype in DTYPES:
            command = [sys.executable, str(Path(__file__).resolve()), apr, family, dtype]
            subprocess.run(command, check=True)
    print(json.dumps({"families": len(FAMILIES), "methods": len(list(configurations()))}))


if __name__ == "__main__":
    main()
