"""Merges random adapters into random models of several families with PEFT and with apr, and compares the results.

    python lora_check.py APR

Models and adapters are made by transformers and PEFT. Weights that apr writes may differ from those of PEFT's
`merge_and_unload` by one unit in the last place of their dtype, and by what the order leaves open in which products are
added in single precision: a unit for each of them (two with magnitudes, whose norms are sums, too, and of LoHa, which
multiplies two sums) of the largest of the weight before, the weight after and the sum of the products' magnitudes. The merged folder, loaded by transformers, must
answer as PEFT's model does that keeps the adapter apart.

PEFT also loads what `apr lora merge` makes of two adapters, and must answer as with what its own `add_weighted_adapter`
makes of them.
"""

import logging
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import torch  # noqa: E402
import transformers  # noqa: E402
from peft import LoHaConfig, LoKrConfig, LoraConfig, PeftModel, get_peft_model  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

COMMON = dict(vocab_size=48, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
              max_position_embeddings=64)
FAMILIES = {
    "llama": (transformers.LlamaConfig, COMMON | {"num_key_value_heads": 2}, ["q_proj", "v_proj", "down_proj"]),
    "qwen2": (transformers.Qwen2Config, COMMON | {"num_key_value_heads": 2}, ["q_proj", "k_proj", "up_proj"]),
    "gemma": (transformers.GemmaConfig, COMMON | {"num_key_value_heads": 1, "head_dim": 8}, ["q_proj", "o_proj", "gate_proj"]),
    "gpt2": (transformers.GPT2Config, dict(vocab_size=48, n_embd=32, n_layer=2, n_head=4, n_positions=64),
             ["c_attn", "c_proj", "c_fc"]),
    "gpt_neox": (transformers.GPTNeoXConfig, COMMON, ["query_key_value", "dense_4h_to_h"]),
    "bert": (transformers.BertConfig, COMMON, ["query", "value", "dense"]),
    "whisper": (transformers.WhisperConfig,
                dict(vocab_size=48, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
                     decoder_attention_heads=4, encoder_ffn_dim=56, decoder_ffn_dim=56, num_mel_bins=8,
                     max_source_positions=16, max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                     decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None),
                ["q_proj", "v_proj", "fc1"]),
}
BITS = {torch.float32: 23, torch.bfloat16: 7}


def kinds(family, targets):
    turned = {"fan_in_fan_out": True} if family == "gpt2" else {}
    yield "lora", LoraConfig(r=8, lora_alpha=16, target_modules=targets, **turned)
    yield "rslora", LoraConfig(r=5, lora_alpha=3, use_rslora=True, target_modules=targets, **turned)
    yield "dora", LoraConfig(r=4, lora_alpha=8, use_dora=True, target_modules=targets, **turned)
    if family != "gpt2":
        # PEFT has these for linear layers only.
        yield "loha", LoHaConfig(r=3, alpha=6, target_modules=targets)
        yield "lokr", LoKrConfig(r=2, alpha=4, target_modules=targets)
        yield "lokr_factored", LoKrConfig(r=2, alpha=4, decompose_both=True, decompose_factor=8, target_modules=targets)


def load(family, folder, **options):
    if family == "bert":
        return transformers.AutoModelForMaskedLM.from_pretrained(folder, **options)
    if family == "whisper":
        return transformers.WhisperForConditionalGeneration.from_pretrained(folder, **options)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def logits(family, model):
    ids = torch.arange(12).reshape(1, 12) % 48
    model = model.float().eval()
    with torch.no_grad():
        if family == "whisper":
            torch.manual_seed(0)
            return model(input_features=torch.randn(1, 8, 32), decoder_input_ids=ids).logits
        return model(input_ids=ids).logits


def unit(value, dtype):
    return torch.exp2(torch.floor(torch.log2(value.abs().clamp_min(1e-30))) - BITS[dtype])


def magnitudes(folder, adapter):
    """The sums of the magnitudes of what is added to each weight, by its name."""
    tensors = load_file(folder / "adapter_model.safetensors")
    of = lambda module, part: tensors[f"{module}.{part}"].abs().double()
    found = {}
    for name in tensors:
        if name.endswith(".lora_A.weight"):
            module = name.removesuffix(".lora_A.weight")
            rank = adapter.r**0.5 if adapter.use_rslora else adapter.r
            sums = of(module, "lora_B.weight") @ of(module, "lora_A.weight") * (adapter.lora_alpha / rank)
            sums = sums.T if adapter.fan_in_fan_out else sums
        elif name.endswith(".hada_w1_a"):
            module = name.removesuffix(".hada_w1_a")
            sums = (of(module, "hada_w1_a") @ of(module, "hada_w1_b")) * (of(module, "hada_w2_a") @ of(module, "hada_w2_b"))
            sums = sums * (adapter.alpha / adapter.r)
        elif name.endswith((".lokr_w1", ".lokr_w1_a")):
            module = name.removesuffix("_a").removesuffix(".lokr_w1")
            whole = lambda part: f"{module}.{part}" in tensors
            side = lambda part: of(module, part) if whole(part) else of(module, f"{part}_a") @ of(module, f"{part}_b")
            sums = torch.kron(side("lokr_w1"), side("lokr_w2")) * (adapter.alpha / adapter.r)
        else:
            continue
        found[module.removeprefix("base_model.model.") + ".weight"] = sums
    return found


def compare(ours, theirs, before, sums):
    """The largest difference beyond a unit in the last place, in units of single precision."""
    worst = 0.0
    for name, expected in theirs.items():
        found = ours.pop(name)
        assert found.dtype == expected.dtype and found.shape == expected.shape, name
        if not expected.is_floating_point():
            continue
        found, expected = found.double(), expected.double()
        base = before.get(name, theirs[name]).double()
        scale = torch.stack([expected.abs(), base.abs(), sums.get(name, torch.zeros_like(base))]).amax(0)
        one = unit(torch.maximum(expected.abs(), found.abs()), theirs[name].dtype)
        beyond = ((found - expected).abs() - one).clamp_min(0) / unit(scale, torch.float32)
        worst = max(worst, beyond.max().item())
    assert not ours, f"apr wrote more: {list(ours)}"
    return worst


COMBINED = {
    "cat": ([], {}),
    "linear": (["--method", "linear"], {}),
    "ties": (["--method", "ties", "--density", "0.5"], {"density": 0.5}),
    "magnitude_prune": (["--method", "magnitude_prune", "--density", "0.4"], {"density": 0.4}),
    "svd": (["--rank", "3"], {"svd_rank": 3}),
    "ties_svd": (["--method", "ties", "--density", "0.5", "--rank", "5"], {"density": 0.5, "svd_rank": 5}),
}


def combined(apr, family):
    """The number of methods with which a model answers differently with our adapter and with PEFT's."""
    config, options, targets = FAMILIES[family]
    turned = {"fan_in_fan_out": True} if family == "gpt2" else {}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        torch.manual_seed(4)
        kind = transformers.WhisperForConditionalGeneration if family == "whisper" else transformers.AutoModelForCausalLM
        model = kind(config(**options)) if family == "whisper" else kind.from_config(config(**options))
        model.save_pretrained(folder / "base")
        for name, of, alpha in (("one", targets[:2], 8), ("two", targets[1:], 2)):
            adapted = get_peft_model(load(family, folder / "base"), LoraConfig(r=4, lora_alpha=alpha, target_modules=of, **turned))
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter.data = torch.randn(parameter.shape) * 0.2
            adapted.save_pretrained(folder / name)
        for name, (arguments, settings) in COMBINED.items():
            both = PeftModel.from_pretrained(load(family, folder / "base"), folder / "one", adapter_name="one")
            both.load_adapter(folder / "two", adapter_name="two")
            both.add_weighted_adapter(["one", "two"], [0.75, -0.5], "made", combination_type=name, **settings)
            both.set_adapter("made")
            theirs = logits(family, both)
            subprocess.run([apr, "lora", "merge", f"{folder}/one:0.75", f"{folder}/two:-0.5", "-o", folder / "ours", "-f", *arguments],
                           check=True, capture_output=True)
            ours = logits(family, PeftModel.from_pretrained(load(family, folder / "base"), folder / "ours"))
            distance = ((ours - theirs).norm() / theirs.norm()).item()
            good = distance <= 1e-5
            failed += not good
            print(f"{'ok    ' if good else 'WRONG '} {family:9} two adapters by {name:15} logits {distance:.1e} apart", flush=True)
    return failed


def main():
    apr, failed = Path(sys.argv[1]).resolve(), 0
    for family in ("llama", "gpt2", "whisper"):
        failed += combined(apr, family)
    for family, (config, options, targets) in FAMILIES.items():
        for dtype in (torch.float32, torch.bfloat16):
            with tempfile.TemporaryDirectory() as folder:
                folder = Path(folder)
                torch.manual_seed(3)
                kind = {"bert": transformers.BertForMaskedLM, "whisper": transformers.WhisperForConditionalGeneration}
                if family in kind:
                    model = kind[family](config(**options))
                else:
                    model = transformers.AutoModelForCausalLM.from_config(config(**options))
                model.to(dtype).save_pretrained(folder / "base")
                before = load_file(folder / "base/model.safetensors")
                for name, adapter in kinds(family, targets):
                    model = get_peft_model(load(family, folder / "base", dtype=dtype), adapter)
                    torch.manual_seed(5)
                    for key, parameter in model.named_parameters():
                        if parameter.requires_grad:
                            change = torch.randn(parameter.shape) * 0.1
                            parameter.data = parameter.data * 1.1 if "magnitude" in key else change
                    model.save_pretrained(folder / name)
                    apart = logits(family, PeftModel.from_pretrained(load(family, folder / "base"), folder / name))
                    merged = PeftModel.from_pretrained(load(family, folder / "base", dtype=dtype), folder / name)
                    merged.merge_and_unload().save_pretrained(folder / "theirs")
                    ours = folder / "ours"
                    run = subprocess.run([apr, "merge", folder / "base", "--lora", folder / name, "-o", ours, "-f", "--relaxed"],
                                         capture_output=True, text=True)
                    if run.returncode:
                        print(f"FAILED {family} {dtype} {name}: {run.stderr.strip()}")
                        failed += 1
                        continue
                    sums = magnitudes(folder / name, adapter)
                    worst = compare(load_file(ours / "model.safetensors"), load_file(folder / "theirs/model.safetensors"), before, sums)
                    answer = logits(family, load(family, ours))
                    distance = ((answer - apart).norm() / apart.norm()).item()
                    allowed = adapter.r * (2 if name in ("dora", "loha") else 1)
                    near = 1e-5 if dtype == torch.float32 else 3e-2
                    good = worst <= allowed and distance <= near
                    failed += not good
                    print(f"{'ok    ' if good else 'WRONG '} {family:9} {str(dtype)[6:]:9} {name:14} {worst:.2f} of {allowed} units, "
                          f"logits {distance:.1e} apart", flush=True)
    print(f"{failed} failed" if failed else "all adapters agree")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
