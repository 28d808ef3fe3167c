"""Writes the gradients that torch's autograd finds for models of all families.

For each model, inputs are made, each element of its output is weighed by another number, and the gradient of the sum is
found for every weight. A folder of OUT then has the model as transformers saves it, and beside it PART.gradients for
each part: `input.NAME`, `seed.NAME` with what the elements of the output count with, and `gradient.TENSOR`, of which
every n-th element is kept where there are many. `apr-distill`'s test `torch_gradients` compares its own with them.

    python gradients.py OUT [case ...]             the cases of graphs.py
    python gradients.py OUT --families FOLDER      those of fixtures/families
    python gradients.py OUT --folders FOLDER ...   models in Hugging Face folders; only the gradients are written

Needs what graphs.py needs.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from graphs import (
    ANY_SIZE, CASES, left_padded, made, made_of_fixture, positions_of, right_padded, some_tokens, test_of,
)
from safetensors import safe_open
from safetensors.torch import load_file, save_file

# Elements of a gradient that are kept at least, where there are so many.
KEPT = 500


def weighed(output):
    """What the elements of an output count with: numbers of either sign, all different."""
    numbers = torch.arange(output.numel(), dtype=torch.float64)
    return torch.sin(numbers * 0.7 + 0.3).float().reshape(output.shape)


def name_and_output(results):
    """The first output that is a tensor of floats, and what it is called."""
    names = ("logits", "logits_per_image", "last_hidden_state", "start_logits", "pooler_output")
    for name in (*names, *results.keys()):
        value = results.get(name)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.requires_grad:
            return name, value
    raise ValueError("no output has a gradient")


def write(path, model, feeds, name, output):
    """Writes inputs, what the output counts with, and the gradients of all weights."""
    seed = weighed(output)
    mask = feeds.get("attention_mask")
    if mask is not None and output.shape[:2] == mask.shape:
        # What comes out at padding differs between implementations, and nobody reads it.
        seed = seed * mask.reshape(*mask.shape, *[1] * (output.dim() - 2))
    model.zero_grad()
    (output * seed).sum().backward()
    tensors = {f"input.{key}": value.detach().contiguous() for key, value in feeds.items()}
    tensors[f"seed.{name}"] = seed
    for key, gradient in saved_gradients(model).items():
        flat = gradient.flatten()
        tensors[f"gradient.{key}"] = flat[:: max(1, flat.numel() // KEPT)].clone()
    save_file(tensors, path)


def saved_gradients(model):
    """Gradients by the names that the files have: the model is saved with them in the place of its weights."""
    weights = {key: value.detach().clone() for key, value in model.named_parameters()}
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        buffers = {key: value.clone() for key, value in model.named_buffers()}
        for value in model.buffers():
            if value.is_floating_point():
                value.fill_(torch.nan)
        for parameter in model.parameters():
            parameter.copy_(torch.full_like(parameter, torch.nan) if parameter.grad is None else parameter.grad)
        model.save_pretrained(folder)
        for key, parameter in model.named_parameters():
            parameter.copy_(weights[key])
        for key, value in model.named_buffers():
            value.copy_(buffers[key])
        saved = {}
        for path in Path(folder).glob("*.safetensors"):
            saved |= load_file(path)
    return {key: value.float() for key, value in saved.items() if value.is_floating_point() and not value.isnan().any()}


def texts(model, test):
    """Texts of different lengths, as the test of the family gives them."""
    if test == "decoder":
        tokens, mask = left_padded(model, 2, 7, [0, 2])
        return dict(input_ids=tokens, attention_mask=mask, position_ids=positions_of(mask))
    config = getattr(model.config, "text_config", model.config)
    end = config.eos_token_id if test in ("ended", "text", "dual") else None
    lengths = [7] if test == "classifier" and model.config.pad_token_id is None else [7, 4]
    tokens, mask = right_padded(model, lengths, end=end)
    return dict(input_ids=tokens, attention_mask=mask, token_type_ids=torch.zeros_like(tokens))


def pictures(model):
    config = getattr(model.config, "vision_config", None) or model.config
    size = getattr(config, "image_size", 64)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    if config.model_type in ANY_SIZE:
        height, width = 61, 76
    return dict(pixel_values=torch.randn(2, config.num_channels, height, width))


def taken(model, feeds):
    """Those that the model takes."""
    import inspect
    known = set(inspect.signature(model.forward).parameters)
    if not getattr(model.config, "type_vocab_size", 0):
        # GPT-2 would add the vectors of tokens for it.
        known.discard("token_type_ids")
    if model.config.model_type in ("siglip", "siglip_text_model"):
        known.discard("attention_mask")
    return {name: value for name, value in feeds.items() if name in known}


def graded(model, test, folder):
    """Writes the gradients of the parts of a model."""
    torch.manual_seed(11)
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            # Torch leaves the row of the padding out, which no mathematics does.
            module.padding_idx = None
    if test == "seq2seq":
        encoder = model.get_encoder()
        if "whisper" in model.config.model_type:
            length = 2 * model.config.max_source_positions
            feeds = dict(input_features=torch.randn(2, model.config.num_mel_bins, length))
            mask = {}
        else:
            feeds = taken(encoder, texts(model, "encoder"))
            mask = dict(attention_mask=feeds["attention_mask"])
        states = encoder(**feeds).last_hidden_state
        write(folder / "encoder_model.gradients", model, feeds, "last_hidden_state", states)
        states = states.detach()
        tokens = some_tokens(model, 2, 5)
        results = model(encoder_outputs=(states,), decoder_input_ids=tokens, **mask)
        feeds = dict(input_ids=tokens, encoder_hidden_states=states)
        if mask:
            feeds["encoder_attention_mask"] = mask["attention_mask"]
        name, output = name_and_output(results)
        write(folder / "decoder_model.gradients", model, feeds, name, output)
        return
    if test == "vision":
        feeds = pictures(model)
    elif test == "dual":
        feeds = texts(model, test) | pictures(model)
    elif test == "sound":
        feeds = dict(input_values=torch.randn(2, 400))
    elif test in ("decoder", "encoder", "classifier", "ended", "text"):
        feeds = texts(model, test)
    else:
        raise ValueError(f"models of the kind '{test}' are not compared")
    feeds = taken(model, feeds)
    name, output = name_and_output(model(**feeds))
    write(folder / "model.gradients", model, feeds, name, output)


def loaded(folder):
    config = json.loads((Path(folder) / "config.json").read_text())
    name = config["architectures"][0]
    kind = getattr(transformers, name)
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    names = [name for path in Path(folder).glob("*.safetensors") for name in safe_open(path, "pt").keys()]
    if head is not None and head.weight is table.weight and "lm_head.weight" in names:
        # What is there twice has two gradients.
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
    return model.eval(), test_of(config["model_type"], name)


def main():
    out, *wanted = sys.argv[1:]
    out = Path(out)
    if wanted[:1] == ["--folders"]:
        cases = {Path(folder).name: (lambda _, folder=folder: loaded(folder)) for folder in wanted[1:]}
    elif wanted[:1] == ["--families"]:
        paths = sorted(Path(wanted[1]).glob("*.json"))
        cases = {path.stem: (lambda folder, path=path: made_of_fixture(path, folder)) for path in paths}
    else:
        cases = {case: (lambda folder, case=case: made(case, folder)) for case in wanted or CASES}
    for case, make in cases.items():
        folder = out / case
        folder.mkdir(parents=True, exist_ok=True)
        try:
            model, test = make(folder)
            if test is not None:
                graded(model, test, folder)
        except Exception as error:  # noqa: BLE001
            print(f"{case:24} left out: {type(error).__name__}: {error}"[:300], flush=True)


if __name__ == "__main__":
    main()
