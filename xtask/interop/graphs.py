"""Compares what apr says that models compute with what transformers computes.

For each case a tiny model with random weights is made, saved and computed twice: by transformers (eager attention,
single precision), and by onnxruntime from the files that `apr export --format onnx` writes. Sizes are odd on purpose:
hidden 320, 5 heads of 64, 1 key head where the family groups them, vocabulary 1003. The files must pass onnx's full
check, every output must be within 1e-4 of the largest value of transformers', with padding, in batches, and for ten
steps with keys and values of earlier tokens.

    python graphs.py APR [case ...]               the cases of this file
    python graphs.py APR --families FOLDER        those of fixtures/families: configurations as they were saved by
                                                  transformers 4 and 5, and the smallest sizes
    python graphs.py --exported FOLDER OUT        a Hugging Face folder beside OUT/plain and OUT/past, which were exported
                                                  from it before (programs for torch as OUT/plain.pt and OUT/past.pt)

With APR_GRAPH_ENGINE=apr, `apr run` computes the files instead of onnxruntime; with APR_GRAPH_ENGINE=torchscript, torch
computes what `apr export --format torchscript` writes.

Needs torch, transformers 5.23, onnx and onnxruntime.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import transformers

from graph_cases import CASES, RENAMED
from graph_texts import Reference, left_padded, positions_of, right_padded, some_tokens

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

TOLERANCE = 1e-4
# Inputs that take the states of earlier tokens.
STATES = ("past_conv", "past_ssm", "past_recurrent")
# What computes the graphs: onnxruntime, `apr run`, or torch.
ENGINE = os.environ.get("APR_GRAPH_ENGINE", "onnxruntime")
STEPS = 10


def made(case, folder):
    """The model of a case, saved in a folder, and the kind of its test."""
    test, name, settings = CASES[case]
    model = saved(case, getattr(transformers, name), settings, folder)
    if case in RENAMED:
        change_config(folder, RENAMED[case])
    if "_default" in case:
        strip_config(folder, {"model_type", "architectures", *settings})
    return model, test


def strip_config(folder, kept):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in config.items() if key in kept}))


def change_config(folder, changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def with_infinity(value):
    """A setting, with the numbers that transformers saves as an object."""
    if isinstance(value, list):
        return [with_infinity(item) for item in value]
    return float(value["__float__"]) if isinstance(value, dict) and "__float__" in value else value


def saved(case, kind, settings, folder):
    """A model with random weights, saved in a folder."""
    torch.manual_seed(sum(case.encode()))
    # Some types of models have a configuration of their own and the class of another one.
    named = settings.get("model_type")
    config_class = transformers.CONFIG_MAPPING[named] if named in transformers.CONFIG_MAPPING else kind.config_class
    config = config_class(**{name: with_infinity(value) for name, value in settings.items() if name != "model_type"})
    config._attn_implementation = "eager"
    model = kind(config).eval().float()
    unsaved = model._keys_to_ignore_on_save or ()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            # Marian's positions are computed anew by whoever loads the model.
            if name in unsaved:
                continue
            # Norms and biases start as ones and zeros, and would hide what is done with them.
            tensor.add_(torch.randn_like(tensor) * (0.1 if tensor.dim() == 1 else 0.04))
        for name, buffer in model.named_buffers():
            # What training would have left.
            if name.endswith("running_mean"):
                buffer.normal_(0.0, 0.2)
            if name.endswith("running_var"):
                buffer.uniform_(0.4, 2.0)
    model.save_pretrained(folder)
    return model


# Tasks and kinds of models of fixtures/families, by the end of the class's name and by the family.
TEST_OF_FAMILY = dict(
    wav2vec2="sound", unispeech_sat="sound", hubert="sound", clip="dual", siglip="dual", chinese_clip="dual",
    data2vec_audio="sound", wavlm="sound", sew="sound", mamba="recurrent", mamba2="recurrent",
    falcon_mamba="recurrent", openai_gpt="uncached",
) | {
    family: "encoder" for family in (
        "bert", "roberta", "distilbert", "modernbert", "electra", "albert", "mpnet", "deberta_v2", "nomic_bert",
        "eurobert", "ernie", "data2vec_text", "roberta_prelayernorm", "xlm_roberta_xl",
    )
} | {family: "seq2seq" for family in ("t5", "whisper", "bart", "mbart", "marian", "pegasus", "blenderbot", "m2m_100")} | {
    family: "vision" for family in (
        "vit", "beit", "data2vec_vision", "deit", "vit_msn", "ijepa", "vit_mae", "resnet", "regnet", "convnext",
        "convnextv2", "dinov2", "dinov2_with_registers", "swin", "swinv2", "yolos",
    )
}
# Those that take pictures of any size.
ANY_SIZE = ("resnet", "regnet", "convnext", "convnextv2", "dinov2", "dinov2_with_registers", "yolos")


def test_of(family, name):
    """The test for a class of a family; `None` where it has no graph."""
    if name.endswith(NO_GRAPH) and family != "electra":
        return None
    if name.startswith("AST"):
        return "spectrogram"
    if name.endswith("MultipleChoice"):
        return "choices"
    if name.endswith("ForAudioClassification"):
        return "mel"
    if "Encoder" in name:
        return "encoder"
    if family in ("clip", "siglip") and ("Vision" in name or "Image" in name):
        return "vision"
    if family in ("clip", "siglip") and "Text" in name:
        return "text"
    if TEST_OF_FAMILY.get(family, "uncached") == "uncached" and name.endswith(CLASSIFIERS):
        return "classifier"
    if family in ("bart", "mbart") and name.endswith(CLASSIFIERS):
        return "ended"
    return TEST_OF_FAMILY.get(family, "decoder")


CLASSIFIERS = ("SequenceClassification", "TokenClassification", "QuestionAnswering")
NO_GRAPH = ("ForPreTraining",)


def made_of_fixture(path, folder):
    """The model of a file of fixtures/families, saved with the configuration that the file has, and its test."""
    case = json.loads(path.read_text())
    name = case["config"]["architectures"][0]
    test = test_of(case["family"], name)
    kind = getattr(transformers, name, None)
    if test is None or kind is None:
        return None, None
    model = saved(path.stem, kind, case["config"], folder)
    (folder / "config.json").write_text(json.dumps(case["config"]))
    return model, test


class Refused(Exception):
    """apr says that no block computes this."""


class Session:
    """A part of a model in onnxruntime."""

    def __init__(self, path):
        onnx.checker.check_model(path, full_check=True)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        # As written: what is fused rounds differently.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        self.shapes = {port.name: port.shape for port in self.session.get_inputs()}
        self.inputs = list(self.shapes)
        self.outputs = [port.name for port in self.session.get_outputs()]

    def __call__(self, feeds):
        results = self.session.run(None, {name: np.asarray(feeds[name]) for name in self.inputs})
        return dict(zip(self.outputs, results))


class OwnSession:
    """The same part, run by apr itself."""

    def __init__(self, apr, path):
        self.apr, self.folder = apr, tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "model.onnx"
        shutil.copytree(Path(path).parent, self.path.parent, dirs_exist_ok=True)
        Path(self.path.parent / Path(path).name).rename(self.path)
        model = onnx.load(self.path, load_external_data=False)
        ports = {port.name: port.type.tensor_type.shape.dim for port in model.graph.input}
        self.shapes = {name: [dim.dim_value for dim in dims] for name, dims in ports.items()}
        self.inputs = list(self.shapes)
        self.outputs = [port.name for port in model.graph.output]

    def __call__(self, feeds):
        arrays = self.path.with_suffix(".npz")
        np.savez(arrays, **{name: np.asarray(feeds[name]) for name in self.inputs})
        values = self.path.with_suffix(".out.npz")
        command = [self.apr, "run", self.path, "-i", arrays, "-o", values, "-f", "-q"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        with np.load(values) as found:
            return {name: found[name].astype(np.float32) for name in found.files}


class ScriptSession:
    """A method of a program, with the inputs and outputs of the ONNX file of the same part, which stand in the same order."""

    def __init__(self, program, method, path):
        self.method = getattr(program, method)
        graph = onnx.load(path, load_external_data=False).graph
        self.shapes = {port.name: [dim.dim_value for dim in port.type.tensor_type.shape.dim] for port in graph.input}
        self.inputs = list(self.shapes)
        self.outputs = [port.name for port in graph.output]

    def __call__(self, feeds):
        with torch.no_grad():
            results = self.method(*(torch.as_tensor(np.asarray(feeds[name])) for name in self.inputs))
        results = [results] if isinstance(results, torch.Tensor) else results
        return {name: result.numpy() for name, result in zip(self.outputs, results, strict=True)}


def program_of(apr, folder, past):
    """What apr writes of a model for torch."""
    with tempfile.TemporaryDirectory() as out:
        command = [apr, "export", str(folder), "-o", f"{out}/model.pt", "--format", "torchscript"]
        done = subprocess.run(command + ["--with-past"] * past, capture_output=True, text=True)
        if done.returncode != 0 or "no program" in done.stderr:
            raise RuntimeError(done.stderr.strip())
        return torch.jit.load(f"{out}/model.pt")


def methods(program, files):
    """All parts of a model as methods of one program."""
    if len(files) == 1:
        return {path.stem: ScriptSession(program, "forward", path) for path in files}
    return {path.stem: ScriptSession(program, path.stem, path) for path in files} | {"": program}


def sessions(apr, folder, past=True):
    """All parts of a folder's model, by name. `apr` is the program, or the folder of what it exported before."""
    if Path(apr).is_dir():
        if ENGINE == "torchscript":
            way = Path(apr) / ("past" if past else "plain")
            return methods(torch.jit.load(f"{way}.pt"), list(way.glob("*.onnx")))
        return {path.stem: Session(str(path)) for path in (Path(apr) / ("past" if past else "plain")).glob("*.onnx")}
    with tempfile.TemporaryDirectory() as out:
        command = [apr, "export", str(folder), "-o", f"{out}/model", "--format", "onnx"]
        done = subprocess.run(command + ["--with-past"] * past, capture_output=True, text=True)
        if "E003" in done.stderr:
            raise Refused(done.stderr.strip().splitlines()[0])
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        files = sorted(Path(out).rglob("*.onnx")) or [Path(out) / "model"]
        if ENGINE == "apr":
            return {path.stem: OwnSession(apr, path) for path in files}
        if ENGINE == "torchscript":
            return methods(program_of(apr, folder, past), files)
        return {path.stem: Session(str(path)) for path in files}


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


def decoder(model, apr, folder, worst):
    parts = sessions(apr, folder)
    plain = sessions(apr, folder, past=False)
    session, plain = parts["model"], plain["model"]
    output = session.outputs[0]
    for batch, length, pads in ((1, 9, [0]), (3, 11, [0, 4, 1])):
        tokens, mask = left_padded(model, batch, length, pads)
        # Models whose positions are slopes take none.
        positions = dict(position_ids=positions_of(mask)) if "position_ids" in session.inputs else {}
        reference = Reference(model, pads)
        feeds = dict(input_ids=tokens, attention_mask=mask) | positions
        theirs = reference(feeds)
        theirs.compare(worst, f"without past, batch {batch}", plain(feeds)[output], output)
        past = {
            name: np.zeros((batch, shape[1], 0, shape[3]), np.float32)
            for name, shape in session.shapes.items() if name.startswith("past_key_values")
        } | {
            name: np.zeros((batch, *shape[1:]), np.float32)
            for name, shape in session.shapes.items() if name.startswith(STATES)
        }
        ours = session(feeds | past)
        theirs.compare(worst, f"prefill, batch {batch}", ours[output], output)
        theirs.compare_cache(worst, f"prefill, batch {batch}", ours)
        for step in range(STEPS):
            token = some_tokens(model, batch, 1)
            mask = torch.cat([mask, torch.ones(batch, 1, dtype=torch.long)], 1)
            positions = {name: positions_of(mask)[:, -1:] for name in positions}
            past = {
                name.replace("present_", "past_").replace("present.", "past_key_values."): value
                for name, value in ours.items() if "present" in name
            }
            feeds = dict(input_ids=token, attention_mask=mask) | positions
            theirs = reference(feeds)
            ours = session(feeds | past)
            theirs.compare(worst, f"step {step}, batch {batch}", ours[output], output)


def uncached(model, apr, folder, worst):
    """A decoder that keeps nothing in transformers, which reads all of a text at each step.

    What is computed of padding, which nothing reads, is not compared: OpenAI's GPT lets it see what comes later.
    """
    session = sessions(apr, folder)["model"]
    plain = sessions(apr, folder, past=False)["model"]
    output = session.outputs[0]
    for batch, length, pads in ((1, 9, [0]), (3, 11, [0, 4, 1])):
        tokens, mask = left_padded(model, batch, length, pads)
        past = {
            name: np.zeros((batch, shape[1], 0, shape[3]), np.float32)
            for name, shape in session.shapes.items() if name.startswith("past_key_values")
        }
        fresh = tokens
        for step in range(STEPS):
            feeds = dict(input_ids=tokens, attention_mask=mask, position_ids=positions_of(mask))
            with torch.no_grad():
                theirs = model(**feeds)[output]
            counts = mask[:, :, None]
            worst.add(f"without past, step {step}, batch {batch}", plain(feeds)[output] * counts.numpy(), theirs * counts)
            count = fresh.shape[1]
            feeds |= dict(input_ids=fresh, position_ids=positions_of(mask)[:, -count:])
            ours = session(feeds | past)
            counts = counts[:, -count:]
            worst.add(f"step {step}, batch {batch}", ours[output] * counts.numpy(), theirs[:, -count:] * counts)
            past = {
                name.replace("present", "past_key_values"): value
                for name, value in ours.items() if "present" in name
            }
            fresh = some_tokens(model, batch, 1)
            tokens = torch.cat([tokens, fresh], 1)
            mask = torch.cat([mask, torch.ones(batch, 1, dtype=torch.long)], 1)


def classifier(model, apr, folder, worst):
    """Right-padded texts, each of which ends elsewhere."""
    parts = sessions(apr, folder, past=False)
    # Without padding there are no batches.
    for lengths in ([7], [5, 9, 2])[: 1 if model.config.pad_token_id is None else 2]:
        tokens, mask = right_padded(model, lengths)
        feeds = dict(input_ids=tokens, attention_mask=mask)
        with torch.no_grad():
            theirs = model(**feeds)
        compare_all(worst, f"batch {len(lengths)}", parts["model"](feeds), theirs)


def choices(model, apr, folder, worst):
    """Texts of several answers each."""
    session = sessions(apr, folder)["model"]
    for batch, count in ((1, 2), (2, 3)):
        tokens, mask = right_padded(model, [7, 9, 2, 5, 3, 8][: batch * count])
        feeds = {"input_ids": tokens, "attention_mask": mask}
        if "token_type_ids" in session.inputs:
            feeds["token_type_ids"] = torch.randint(0, model.config.type_vocab_size, tokens.shape)
        feeds = {name: value.reshape(batch, count, -1) for name, value in feeds.items()}
        with torch.no_grad():
            theirs = model(**feeds)
        compare_all(worst, f"batch {batch}", session(feeds), theirs)


def mel(model, apr, folder, worst):
    """A classifier of log-mel spectrograms."""
    session = sessions(apr, folder)["model"]
    for batch in (1, 3):
        features = torch.randn(batch, model.config.num_mel_bins, 2 * model.config.max_source_positions)
        with torch.no_grad():
            theirs = model(features)
        compare_all(worst, f"batch {batch}", session(dict(input_features=features)), theirs)


def compare_all(worst, where, ours, theirs):
    for name, value in ours.items():
        worst.add(f"{where} {name}", value, theirs[name])


def encoder(model, apr, folder, worst):
    parts = sessions(apr, folder)
    session = parts["model"]
    for lengths in ([7], [5, 9, 2]):
        tokens, mask = right_padded(model, lengths)
        feeds = dict(input_ids=tokens, attention_mask=mask)
        if "token_type_ids" in session.inputs:
            feeds["token_type_ids"] = torch.randint(0, model.config.type_vocab_size, tokens.shape)
        with torch.no_grad():
            theirs = model(**feeds)
        compare_all(worst, f"batch {len(lengths)}", session(feeds), theirs)


def ended(model, apr, folder, worst):
    """Texts that end with the token for that, which are classified there."""
    parts = sessions(apr, folder)
    for lengths in ([7], [5, 9, 2]):
        tokens, mask = right_padded(model, lengths, end=model.config.eos_token_id)
        feeds = dict(input_ids=tokens, attention_mask=mask)
        with torch.no_grad():
            theirs = model(**feeds)
        compare_all(worst, f"batch {len(lengths)}", parts["model"](feeds), theirs)


def text(model, apr, folder, worst):
    parts = sessions(apr, folder)
    session = parts["model"]
    for lengths in ([9], [5, 9, 2]):
        tokens, mask = right_padded(model, lengths, end=model.config.eos_token_id)
        feeds = dict(input_ids=tokens)
        if "attention_mask" in session.inputs:
            feeds["attention_mask"] = mask
        with torch.no_grad():
            theirs = model(**feeds)
        compare_all(worst, f"batch {len(lengths)}", session(feeds), theirs)


def vision(model, apr, folder, worst):
    parts = sessions(apr, folder)
    config = getattr(model.config, "vision_config", None) or model.config
    size = getattr(config, "image_size", 64)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    shapes = [(1, height, width), (3, height, width)]
    if config.model_type in ANY_SIZE:
        shapes += [(2, 61, 76), (1, 75, 50)]
    for batch, height, width in shapes:
        pixels = torch.randn(batch, config.num_channels, height, width)
        extra = {}
        if config.model_type == "vit_mae":
            # It would shuffle the patches.
            patches = model.embeddings.patch_embeddings.num_patches
            extra["noise"] = torch.arange(patches, dtype=torch.float32).expand(batch, patches)
        with torch.no_grad():
            theirs = model(pixels, **extra)
        compare_all(worst, f"{batch} of {height} x {width}", parts["model"](dict(pixel_values=pixels)), theirs)


def dual(model, apr, folder, worst):
    parts = sessions(apr, folder)
    session = parts["model"]
    for images, lengths in ((1, [9]), (2, [5, 9, 2])):
        tokens, mask = right_padded(model, lengths, end=model.config.text_config.eos_token_id)
        feeds = dict(input_ids=tokens, pixel_values=torch.randn(images, 3, 30, 30))
        if "attention_mask" in session.inputs:
            feeds["attention_mask"] = mask
        with torch.no_grad():
            theirs = model(**feeds)
        compare_all(worst, f"batch {images}", session(feeds), theirs)


def sound(model, apr, folder, worst):
    parts = sessions(apr, folder)
    for batch, samples in ((1, 400), (3, 333)):
        waves = torch.randn(batch, samples)
        with torch.no_grad():
            theirs = model(waves)
        compare_all(worst, f"batch {batch}", parts["model"](dict(input_values=waves)), theirs)


def spectrogram(model, apr, folder, worst):
    """A model that sees log-mel spectrograms."""
    session = sessions(apr, folder)["model"]
    for batch in (1, 3):
        values = torch.randn(batch, model.config.max_length, model.config.num_mel_bins)
        with torch.no_grad():
            theirs = model(values)
        compare_all(worst, f"batch {batch}", session(dict(input_values=values)), theirs)


class Branch:
    """The decoder that both are in one file, as one of the two: what the other one reads is empty."""

    def __init__(self, session, is_next):
        self.session, self.is_next = session, is_next
        wanted = [name for name in session.outputs if not (is_next and ".encoder." in name)]
        self.outputs = wanted

    def __call__(self, feeds):
        batch = len(feeds["input_ids"])
        empty = {
            name: np.zeros([batch] + [size if isinstance(size, int) else 0 for size in shape[1:]], np.float32)
            for name, shape in self.session.shapes.items() if name not in feeds and name != "use_cache_branch"
        }
        results = self.session(empty | feeds | dict(use_cache_branch=np.array([self.is_next])))
        for name in set(self.session.outputs) - set(self.outputs):
            assert results[name].size == 0, f"{name} is {results[name].shape}"
        return {name: results[name] for name in self.outputs}


def merged(apr, folder):
    """Encoder and decoder of two files instead of three."""
    if Path(apr).is_dir():
        found = {path.stem: Session(str(path)) for path in (Path(apr) / "merged").glob("*.onnx")}
    else:
        with tempfile.TemporaryDirectory() as out:
            subprocess.run([apr, "export", str(folder), "-o", out, "--format", "onnx", "--merged", "-q", "-f"], check=True)
            found = {path.stem: Session(str(path)) for path in Path(out).glob("*.onnx")}
    decoder = found["decoder_model_merged"]
    return dict(
        encoder_model=found["encoder_model"], decoder_model=Branch(decoder, False),
        decoder_with_past_model=Branch(decoder, True),
    )


def seq2seq(model, apr, folder, worst):
    seq2seq_in(sessions(apr, folder), model, worst)
    if ENGINE == "onnxruntime" and (not Path(apr).is_dir() or (Path(apr) / "merged").is_dir()):
        seq2seq_in(merged(apr, folder), model, worst)


def seq2seq_in(parts, model, worst):
    encoder, first, next_ = (parts[name] for name in ("encoder_model", "decoder_model", "decoder_with_past_model"))
    output = first.outputs[0]
    for lengths in ([7], [5, 9, 2]):
        batch = len(lengths)
        if "input_features" in encoder.inputs:
            feeds, mask = dict(input_features=torch.randn(batch, model.config.num_mel_bins, 2 * model.config.max_source_positions)), None
        else:
            tokens, mask = right_padded(model, lengths)
            feeds = dict(input_ids=tokens, attention_mask=mask)
        with torch.no_grad():
            states = model.get_encoder()(**feeds).last_hidden_state
        ours = encoder(feeds)["last_hidden_state"]
        worst.add(f"encoder, batch {batch}", ours, states)
        tokens = some_tokens(model, batch, 3)
        more = {} if mask is None else dict(attention_mask=mask)
        call = lambda tokens, past: model(  # noqa: E731
            encoder_outputs=(states,), decoder_input_ids=tokens, past_key_values=past, use_cache=True, **more
        )
        with torch.no_grad():
            theirs = call(tokens, None)
        fixed = {} if mask is None else dict(encoder_attention_mask=mask)
        ours = first(fixed | dict(input_ids=tokens, encoder_hidden_states=ours))
        if "" in parts:
            # The program's `forward` does both.
            with torch.no_grad():
                both = parts[""](*feeds.values(), tokens)
            worst.add(f"forward, batch {batch}", both[0].numpy(), theirs[output])
        worst.add(f"prefill, batch {batch}", ours[output], theirs[output])
        crossed = {name: value for name, value in ours.items() if ".encoder." in name}
        for name, value in crossed.items():
            layer = theirs.past_key_values.cross_attention_cache.layers[int(name.split(".")[1])]
            worst.add(f"batch {batch} {name}", value, layer.keys if name.endswith("key") else layer.values)
        for step in range(STEPS):
            token = some_tokens(model, batch, 1)
            with torch.no_grad():
                theirs = call(token, theirs.past_key_values)
            past = {name.replace("present", "past_key_values"): value for name, value in (ours | crossed).items()
                    if "present" in name}
            ours = next_(fixed | dict(input_ids=token) | past)
            worst.add(f"step {step}, batch {batch}", ours[output], theirs[output])
            for name, value in ours.items():
                if "present" in name:
                    layer = theirs.past_key_values.self_attention_cache.layers[int(name.split(".")[1])]
                    worst.add(f"step {step} {name}", value, layer.keys if name.endswith("key") else layer.values)


def recurrent(model, apr, folder, worst):
    """Left-padded texts, then token after token from the states that were kept."""
    parts = sessions(apr, folder)
    plain = sessions(apr, folder, past=False)
    session, plain = parts["model"], plain["model"]
    output = session.outputs[0]
    for batch, length, pads in ((1, 9, [0]), (3, 11, [0, 4, 1])):
        tokens, mask = left_padded(model, batch, length, pads)
        with torch.no_grad():
            theirs = model(tokens, attention_mask=mask, use_cache=True)
        feeds = dict(input_ids=tokens, attention_mask=mask)
        worst.add(f"without past, batch {batch}", plain(feeds)[output], theirs[output])
        past = {
            name: np.zeros((batch, *shape[1:]), np.float32)
            for name, shape in session.shapes.items() if name.startswith("past_")
        }
        ours = session(feeds | past)
        worst.add(f"prefill, batch {batch}", ours[output], theirs[output])
        for step in range(STEPS):
            add_states(worst, f"step {step}, batch {batch}", ours, theirs.cache_params)
            token = some_tokens(model, batch, 1)
            with torch.no_grad():
                theirs = model(token, cache_params=theirs.cache_params, use_cache=True)
            mask = torch.cat([mask, torch.ones(batch, 1, dtype=torch.long)], 1)
            past = {name.replace("present", "past"): value for name, value in ours.items() if "present" in name}
            ours = session(dict(input_ids=token, attention_mask=mask) | past)
            worst.add(f"step {step}, batch {batch}", ours[output], theirs[output])


def add_states(worst, where, results, cache):
    for number, layer in enumerate(cache.layers):
        ours = results[f"present_conv.{number}"]
        # The oldest input that transformers keeps is used no more.
        worst.add(f"{where} present_conv.{number}", ours, layer.conv_states[0][..., -ours.shape[2] :])
        worst.add(f"{where} present_ssm.{number}", results[f"present_ssm.{number}"], layer.recurrent_states[0])


TESTS = dict(
    decoder=decoder, classifier=classifier, encoder=encoder, ended=ended, text=text, vision=vision, dual=dual,
    sound=sound, seq2seq=seq2seq, recurrent=recurrent, choices=choices, mel=mel, uncached=uncached, spectrogram=spectrogram,
)


def compared(apr, case, make):
    """The largest error of a case; `None` where there is nothing to compare."""
    worst = Worst()
    with tempfile.TemporaryDirectory() as folder:
        model, test = make(Path(folder))
        if test is None:
            print(f"{case:24} has no graph, or no class in transformers", flush=True)
            return True
        TESTS[test](model, apr, Path(folder), worst)
    verdict = "ok" if worst.error <= TOLERANCE else "WRONG"
    print(f"{case:24} {verdict:6} {worst.error:.2e} ({worst.where})", flush=True)
    return verdict == "ok"


def exported(folder, out):
    """Whether what was exported from a folder computes what transformers computes."""
    config = json.loads((Path(folder) / "config.json").read_text())
    name = config["architectures"][0]
    torch.manual_seed(7)
    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    worst = Worst()
    TESTS[test_of(config["model_type"], name)](model.eval(), out, Path(folder), worst)
    print(f"{folder:24} {worst.error:.2e} ({worst.where})")
    return worst.error <= TOLERANCE


def main():
    if sys.argv[1] == "--exported":
        sys.exit(0 if exported(*sys.argv[2:]) else 1)
    apr, *wanted = sys.argv[1:]
    if wanted[:1] == ["--families"]:
        paths = sorted(Path(wanted[1]).glob("*.json"))
        paths = [path for path in paths if path.stem in wanted[2:] or not wanted[2:]]
        cases = {path.stem: (lambda folder, path=path: made_of_fixture(path, folder)) for path in paths}
    else:
        cases = {case: (lambda folder, case=case: made(case, folder)) for case in wanted or CASES}
    failed = []
    for case, make in cases.items():
        try:
            is_right = compared(apr, case, make)
        except Refused as error:
            # What is refused is in fixtures/peers/transformers, so that a graph can't be lost unseen.
            is_right = wanted[:1] == ["--families"]
            print(f"{case:24} refused: {error}", flush=True)
        except Exception as error:
            is_right = False
            print(f"{case:24} FAILED {type(error).__name__}: {error}"[:1500], flush=True)
            if len(cases) == 1:
                traceback.print_exc()
        if not is_right:
            failed.append(case)
    if failed:
        sys.exit(f"{len(failed)} of the cases: {', '.join(failed)}")


if __name__ == "__main__":
    main()
