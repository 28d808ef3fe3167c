"""Texts that graphs are tried with, and what transformers computes of them, step by step."""

import copy

import torch

# Models of transformers whose padding, which nothing reads, sees padding before itself alone.
PADDING_SEES_PADDING = ("gpt_neo",)


def some_tokens(model, *shape):
    """Random tokens, none of which is a special one."""
    config = getattr(model.config, "text_config", None) or model.config
    return torch.randint(4, config.vocab_size - 1, shape)


def left_padded(model, batch, length, pads):
    """Random tokens with padding in front, and their mask."""
    tokens = some_tokens(model, batch, length)
    mask = torch.ones(batch, length, dtype=torch.long)
    for row, pad in enumerate(pads):
        mask[row, :pad] = 0
        tokens[row, :pad] = 0
    return tokens, mask


def positions_of(mask):
    return (mask.cumsum(-1) - 1).clamp(min=0)


def right_padded(model, lengths, end=None):
    tokens = torch.full((len(lengths), max(lengths)), getattr(model.config, "pad_token_id", None) or 0)
    mask = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    config = getattr(model.config, "text_config", None) or model.config
    # Tiny vocabularies may lack the token that the configuration names.
    end = end if end is not None and end < config.vocab_size else None
    for row, length in enumerate(lengths):
        tokens[row, :length] = some_tokens(model, length)
        if end is not None:
            tokens[row, length - 1] = end
        mask[row, :length] = 1
    return tokens, mask


class Reference:
    """A decoder of transformers that reads a batch of texts, and goes on with them.

    A model that turns a text by its length takes that of the longest text of a batch, so that the answer to one depends
    on the others. apr turns each by its own, and so each is computed alone here, by a model of its own: transformers
    keeps what it turned the last text by.
    """

    def __init__(self, model, pads):
        scaling = getattr(model.config, "rope_parameters", None) or {}
        is_alone = scaling.get("rope_type") in ("dynamic", "longrope")
        # For each model, the rows that it computes and the padding in front of them.
        self.parts = [(copy.deepcopy(model), slice(at, at + 1), pad) for at, pad in enumerate(pads)]
        if not is_alone:
            self.parts = [(model, slice(None), 0)]
        self.caches = [None] * len(self.parts)

    def __call__(self, feeds):
        """What the model computes of the next tokens of all texts, behind those before."""
        outputs = []
        for at, (model, rows, pad) in enumerate(self.parts):
            own = {name: value[rows] for name, value in feeds.items()}
            own = {
                name: value[:, pad:] if name == "attention_mask" or self.caches[at] is None else value
                for name, value in own.items()
            }
            with torch.no_grad():
                outputs.append(model(**own, use_cache=True, past_key_values=self.caches[at]))
            self.caches[at] = outputs[-1].past_key_values
        kind = self.parts[0][0].config.model_type
        counts = feeds["attention_mask"] if kind in PADDING_SEES_PADDING else None
        return Computed(outputs, [rows for _, rows, _ in self.parts], counts)


class Computed:
    """What was computed of some rows at a time. With `counts`, what is computed of padding is not compared."""

    def __init__(self, outputs, rows, counts=None):
        self.parts = list(zip(outputs, rows))
        self.counts = counts

    def add(self, worst, where, ours, theirs, rows, axis):
        if self.counts is not None:
            shape = [1] * theirs.dim()
            shape[0], shape[axis] = theirs.shape[0], theirs.shape[axis]
            counts = self.counts[rows][:, -theirs.shape[axis] :].reshape(shape)
            ours, theirs = ours * counts.numpy(), theirs * counts
        worst.add(where, ours, theirs)

    def compare(self, worst, where, ours, name):
        """Adds the differences from an output of the graph, but for padding in front that the reference has not."""
        for outputs, rows in self.parts:
            theirs = outputs[name]
            self.add(worst, where, ours[rows][:, -theirs.shape[1] :], theirs, rows, 1)

    def compare_cache(self, worst, where, results):
        """Adds the differences from the keys and values that the graph made."""
        for outputs, rows in self.parts:
            for layer, kept in enumerate(outputs.past_key_values.layers):
                if f"present_conv.{layer}" in results:
                    ours = results[f"present_conv.{layer}"][rows]
                    # The oldest input that transformers keeps is used no more.
                    worst.add(f"{where} present_conv.{layer}", ours, kept.conv_states[0][..., -ours.shape[2] :])
                for kind in ("ssm", "recurrent"):
                    if f"present_{kind}.{layer}" in results:
                        ours = results[f"present_{kind}.{layer}"][rows]
                        worst.add(f"{where} present_{kind}.{layer}", ours, kept.recurrent_states[0])
                if f"present.{layer}.key" not in results:
                    continue
                for kind, theirs in (("key", kept.keys), ("value", kept.values)):
                    ours = results[f"present.{layer}.{kind}"][rows]
                    if ours.shape[1] > theirs.shape[1]:
                        # transformers 5 keeps latents; --latent-cache heads what they become, which the outputs of
                        # later steps show.
                        continue
                    # transformers forgets what is outside of a window, and repeats Falcon's shared heads.
                    theirs = theirs[:, :: theirs.shape[1] // ours.shape[1]]
                    ours = ours[:, :, ours.shape[2] - theirs.shape[2] :]
                    self.add(worst, f"{where} present.{layer}.{kind}", ours, theirs, rows, 2)
