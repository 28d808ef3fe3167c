"""Compares what is inside of models: hidden states and attention of every layer, as `apr run --want` shows them.

The models are those of graphs.py: tiny, random, of odd sizes. transformers gives its hidden states and attentions; apr runs
the saved folder and shows the values `layers.N` and `layers.N/attention/probs`. Texts are run alone and as a batch of three
with padding, of which rows and columns of padding are left out. Within 1e-4 of the largest value.

    python inside.py APR [case ...]

Needs torch and transformers 5.23.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from graph_cases import CASES, RENAMED
from graphs import TOLERANCE, Worst, left_padded, made, positions_of, right_padded, some_tokens


def ask(apr, folder, feeds, names, part):
    """Values of a graph by their names, in one run."""
    with tempfile.TemporaryDirectory() as place:
        arrays, values = Path(place) / "in.npz", Path(place) / "out.npz"
        np.savez(arrays, **{name: np.asarray(value) for name, value in feeds.items()})
        wants = [word for name in names for word in ("--want", name)]
        command = [apr, "run", folder, "-i", arrays, "-o", values, "-q", *part, *wants]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        with np.load(values) as found:
            return {name: found[name] for name in names}


def probs(model, layer):
    """The attention of a layer; gpt-oss has one more probability in it, of no token, which is cut off last."""
    return f"layers.{layer}/attention/{'sinks/' if model.config.model_type == 'gpt_oss' else ''}probs"


def state_of(model, layer):
    """The state behind a layer; DeBERTa's convolution behind the first one belongs to it."""
    is_changed = layer == 0 and getattr(model.config, "conv_kernel_size", 0) and model.config.model_type == "deberta-v2"
    return "between/output" if is_changed else f"layers.{layer}"


def compare(worst, where, model, apr, folder, feeds, theirs, mask, part=()):
    """All layers but the last, whose state goes through a norm in transformers, and the attention of all."""
    states, attentions = theirs
    layers = len(attentions)
    at = [state_of(model, layer) for layer in range(layers - 1)]
    names = list(at)
    names += [probs(model, layer) for layer in range(layers)]
    ours = ask(apr, folder, feeds, names, part)
    for layer, theirs in enumerate(states[1:layers]):
        rows = torch.ones(theirs.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
        worst.add(f"{where} state {layer}", ours[at[layer]][rows.numpy()], theirs[rows])
    for layer, theirs in enumerate(attentions):
        mine = ours[probs(model, layer)].reshape(theirs.shape)
        # A row of padding has looked at nothing.
        rows = torch.ones(theirs.shape[0], theirs.shape[2], dtype=torch.bool) if mask is None else mask.bool()
        by_row = lambda values: np.moveaxis(np.asarray(values), 1, 2)[rows.numpy()]
        worst.add(f"{where} attention {layer}", by_row(mine), torch.from_numpy(by_row(theirs.detach())))


def run(model, **feeds):
    with torch.no_grad():
        found = model(**feeds, output_hidden_states=True, output_attentions=True)
    return found


def of_text(model, apr, folder, worst, test):
    for batch in (1, 3):
        if test == "decoder":
            tokens, mask = left_padded(model, batch, 9, [0, 4, 1][:batch])
            feeds = dict(input_ids=tokens, attention_mask=mask)
            # ALiBi counts distances by the mask.
            if model.config.model_type != "bloom":
                feeds["position_ids"] = positions_of(mask)
            found = run(model, **feeds, use_cache=False)
        else:
            tokens, mask = right_padded(model, [7] if batch == 1 else [5, 9, 2])
            feeds = dict(input_ids=tokens, attention_mask=mask)
            if getattr(model.config, "type_vocab_size", 0) and model.config.model_type in TYPED:
                feeds["token_type_ids"] = torch.randint(0, model.config.type_vocab_size, tokens.shape)
            found = run(model, **feeds)
        compare(worst, f"batch {batch}", model, apr, folder, feeds, (found.hidden_states, found.attentions), mask)


def of_pictures(model, apr, folder, worst, test):
    config = getattr(model.config, "vision_config", None) or model.config
    for batch in (1, 3):
        sides = config.image_size if isinstance(config.image_size, (list, tuple)) else [config.image_size] * 2
        pixels = torch.randn(batch, config.num_channels, *sides)
        found = run(model, pixel_values=pixels)
        compare(worst, f"batch {batch}", model, apr, folder, dict(pixel_values=pixels), (found.hidden_states, found.attentions), None)


def of_sounds(model, apr, folder, worst, test):
    for batch in (1, 3):
        waves = torch.randn(batch, 400)
        found = run(model, input_values=waves)
        compare(worst, f"batch {batch}", model, apr, folder, dict(input_values=waves), (found.hidden_states, found.attentions), None)


def of_both(model, apr, folder, worst, test):
    """Encoder and decoder."""
    for batch in (1, 3):
        if model.config.model_type == "whisper":
            frames = 2 * model.config.max_source_positions
            given, mask = dict(input_features=torch.randn(batch, model.config.num_mel_bins, frames)), None
        else:
            tokens, mask = right_padded(model, [7] if batch == 1 else [5, 9, 2])
            given = dict(input_ids=tokens, attention_mask=mask)
        tokens = some_tokens(model, batch, 6)
        found = run(model, **given, decoder_input_ids=tokens, use_cache=False)
        encoder = (found.encoder_hidden_states, found.encoder_attentions)
        compare(worst, f"encoder, batch {batch}", model, apr, folder, given, encoder, mask, ("--part", "encoder_model"))
        feeds = dict(input_ids=tokens, encoder_hidden_states=found.encoder_last_hidden_state)
        if mask is not None:
            feeds["encoder_attention_mask"] = mask
        decoder = (found.decoder_hidden_states, found.decoder_attentions)
        compare(worst, f"decoder, batch {batch}", model, apr, folder, feeds, decoder, None, ("--part", "decoder_model"))


# Families whose graphs take types of tokens.
TYPED = {"bert", "electra", "albert", "deberta-v2", "nomic_bert"}
# Families without layers of attention whose states transformers shows one by one.
WITHOUT_LAYERS = {"resnet", "regnet", "convnext", "convnextv2", "swin"}
# Those whose states transformers has in a random order.
SHUFFLED = {"vit_mae"}
TESTS = {"decoder": of_text, "encoder": of_text, "vision": of_pictures, "sound": of_sounds, "seq2seq": of_both}


def main():
    apr, *cases = sys.argv[1:]
    failed = 0
    for case in cases or CASES:
        test = CASES[case][0]
        if case in RENAMED or case in SHUFFLED or test not in TESTS or case.split("_")[0] in WITHOUT_LAYERS:
            continue
        torch.manual_seed(0)
        worst = Worst()
        with tempfile.TemporaryDirectory() as folder:
            try:
                model, _ = made(case, Path(folder))
                TESTS[test](model, apr, Path(folder), worst, test)
                verdict = "ok" if worst.error <= TOLERANCE else "FAILED"
            except Exception as error:
                verdict = f"FAILED: {error}"
        failed += verdict != "ok"
        print(f"{case:24} {verdict:8} {worst.error:.2e} ({worst.where})", flush=True)
    raise SystemExit(f"{failed} cases failed" if failed else 0)


if __name__ == "__main__":
    main()
