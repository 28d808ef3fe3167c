"""Compares the graphs of model families with transformers' own models.

For each case a tiny model with random weights is made, saved and computed twice: by transformers (eager attention,
single precision) and by onnxruntime, from the graph that apr builds of the saved folder. Sizes are odd on purpose:
hidden 320, 5 heads of 64, 1 key head where the family groups them, vocabulary 1003.

    python graphs.py PROGRAM [case ...]

PROGRAM is the example `graph_json` of apr-blocks. Needs torch, transformers 5.23, onnx and onnxruntime.
"""

import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import torch
import transformers

import graph_runner

transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-4
STEPS = 10
DECODER = dict(
    hidden_size=320, intermediate_size=448, vocab_size=1003, num_hidden_layers=3, num_attention_heads=5,
    num_key_value_heads=1, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
UNGROUPED = {name: value for name, value in DECODER.items() if name != "num_key_value_heads"}


def rope(kind, **more):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=10000.0, **more))


# name: (kind of test, class, configuration)
CASES = {
    "llama": ("decoder", "LlamaForCausalLM", DECODER),
    "llama_bias": ("decoder", "LlamaForCausalLM", DECODER | dict(attention_bias=True, mlp_bias=True, num_key_value_heads=5)),
    "llama_groups": ("decoder", "LlamaForCausalLM", DECODER | dict(num_attention_heads=4, num_key_value_heads=2, head_dim=48)),
    "llama_tied": ("decoder", "LlamaForCausalLM", DECODER | dict(tie_word_embeddings=True)),
    "llama_model": ("decoder", "LlamaModel", DECODER),
    "llama_linear": ("decoder", "LlamaForCausalLM", DECODER | rope("linear", factor=4.0)),
    "llama_dynamic": ("decoder", "LlamaForCausalLM", DECODER | dict(max_position_embeddings=12) | rope("dynamic", factor=3.0)),
    "llama_llama3": ("decoder", "LlamaForCausalLM", DECODER | rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)),
    "llama_yarn": ("decoder", "LlamaForCausalLM", DECODER | rope(
        "yarn", factor=4.0, original_max_position_embeddings=16)),
    "llama_longrope": ("decoder", "LlamaForCausalLM", DECODER | rope(
        "longrope", factor=4.0, original_max_position_embeddings=14,
        short_factor=[1.0 + 0.05 * at for at in range(32)], long_factor=[2.0 + 0.1 * at for at in range(32)])),
}


def made(case, folder):
    """The model of a case, saved in a folder."""
    _, name, settings = CASES[case]
    kind = getattr(transformers, name)
    torch.manual_seed(sum(case.encode()))
    config = kind.config_class(**settings)
    config._attn_implementation = "eager"
    model = kind(config).eval().float()
    with torch.no_grad():
        for tensor in model.parameters():
            # Norms and biases start as ones and zeros, and would hide what is done with them.
            tensor.add_(torch.randn_like(tensor) * (0.1 if tensor.dim() == 1 else 0.04))
    model.save_pretrained(folder)
    return model


class Worst:
    """The largest difference, relative to the largest value of its tensor."""

    def __init__(self):
        self.error, self.where = 0.0, ""

    def add(self, where, ours, theirs):
        theirs = theirs.detach().float().numpy()
        assert ours.shape == theirs.shape, f"{where}: shape {ours.shape} instead of {theirs.shape}"
        assert np.isfinite(theirs).all(), f"{where}: the reference is not finite"
        error = float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-9))
        if not error <= self.error:
            self.error, self.where = error, where


def left_padded(batch, length, pads):
    """Random tokens with padding in front, and its mask and positions."""
    tokens = torch.randint(3, 1003, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.long)
    for row, pad in enumerate(pads):
        mask[row, :pad] = 0
        tokens[row, :pad] = 0
    return tokens, mask


def positions_of(mask):
    return (mask.cumsum(-1) - 1).clamp(min=0)


def cache_layers(cache):
    return [(layer.keys, layer.values) for layer in cache.layers]


def add_cache(worst, where, results, cache):
    for layer, pair in enumerate(cache_layers(cache)):
        for kind, theirs in zip(("key", "value"), pair):
            ours = results[f"present.{layer}.{kind}"]
            # transformers forgets what is outside of a window.
            worst.add(f"{where} present.{layer}.{kind}", ours[:, :, ours.shape[2] - theirs.shape[2] :], theirs)


def decoder(model, program, folder, worst):
    parts, unused = graph_runner.sessions(program, folder)
    plain, _ = graph_runner.sessions(program, folder, past=False)
    session, plain = parts["model"], plain["model"]
    output = session.outputs[0]
    for batch, length, pads in ((1, 9, [0]), (3, 11, [0, 4, 1])):
        tokens, mask = left_padded(batch, length, pads)
        with torch.no_grad():
            theirs = model(tokens, attention_mask=mask, position_ids=positions_of(mask), use_cache=True)
        feeds = dict(input_ids=tokens, attention_mask=mask, position_ids=positions_of(mask))
        worst.add(f"without past, batch {batch}", plain(feeds)[output], theirs[output])
        past = {
            name: np.zeros((batch, port.shape[1], 0, port.shape[3]), np.float32)
            for port in session.session.get_inputs() if (name := port.name).startswith("past_key_values")
        }
        ours = session(feeds | past)
        worst.add(f"prefill, batch {batch}", ours[output], theirs[output])
        add_cache(worst, f"prefill, batch {batch}", ours, theirs.past_key_values)
        for step in range(STEPS):
            token = torch.randint(3, 1003, (batch, 1))
            mask = torch.cat([mask, torch.ones(batch, 1, dtype=torch.long)], 1)
            position = positions_of(mask)[:, -1:]
            with torch.no_grad():
                theirs = model(
                    token, attention_mask=mask, position_ids=position, use_cache=True,
                    past_key_values=theirs.past_key_values,
                )
            past = {name.replace("present", "past_key_values"): value for name, value in ours.items() if "present" in name}
            ours = session(dict(input_ids=token, attention_mask=mask, position_ids=position) | past)
            worst.add(f"step {step}, batch {batch}", ours[output], theirs[output])
    return unused


TESTS = dict(decoder=decoder)


def main():
    program, *wanted = sys.argv[1:]
    failed = []
    for case in wanted or CASES:
        worst = Worst()
        try:
            with tempfile.TemporaryDirectory() as folder:
                folder = Path(folder)
                model = made(case, folder)
                unused = TESTS[CASES[case][0]](model, program, folder, worst)
            verdict = "ok" if worst.error <= TOLERANCE else "WRONG"
            rest = f"; not used: {', '.join(unused)}" if unused else ""
            print(f"{case:24} {verdict:6} {worst.error:.2e} ({worst.where}){rest}", flush=True)
        except Exception as error:
            verdict = "FAILED"
            print(f"{case:24} {verdict} {type(error).__name__}: {error}"[:1500], flush=True)
            if "-v" in wanted or len(wanted) == 1:
                traceback.print_exc()
        if verdict != "ok":
            failed.append(case)
    if failed:
        sys.exit(f"{len(failed)} of the cases: {', '.join(failed)}")


if __name__ == "__main__":
    main()
