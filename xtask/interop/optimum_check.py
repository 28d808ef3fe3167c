"""Exports of apr beside Optimum's: the same files, inputs and outputs, and Optimum's own classes run them.

For each case a tiny model with random weights is saved, exported by `apr export --format onnx` and by Optimum, and then run
by Optimum's class for it from apr's files: generated tokens must be transformers', other outputs within 1e-4 of the
largest value. apr may name more outputs than Optimum (the pooler's), and fix what Optimum leaves open (channels, sizes of
pictures).

    python optimum_check.py APR [case ...]

Needs optimum-onnx, onnxruntime, torch, and a transformers that Optimum knows.
"""

import contextlib
import io
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import onnx
import optimum.onnxruntime
import torch
import transformers
from optimum.exporters.onnx import main_export

warnings.filterwarnings("ignore")
transformers.utils.logging.set_verbosity_error()

TOLERANCE = 1e-4
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = SIZES | {"vocab_size": 99}
GROUPED = TEXT | {"num_key_value_heads": 2}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99, "decoder_start_token_id": 0}
PICTURE = SIZES | {"image_size": 32, "patch_size": 8}
WHISPER = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
           "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 120, "max_target_positions": 40, "pad_token_id": 1,
           "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3, "suppress_tokens": [], "begin_suppress_tokens": []}
SOUND = SIZES | {"vocab_size": 32, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3),
                 "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
CLIP = {"text_config": TEXT | {"max_position_embeddings": 16, "eos_token_id": 98, "bos_token_id": 97},
        "vision_config": PICTURE, "projection_dim": 16}
DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 99}

# Class of transformers, its configuration, Optimum's task, and Optimum's class (without `ORTModelFor`).
CASES = {
    "bert": ("BertModel", TEXT, "feature-extraction", "FeatureExtraction"),
    "bert-fill-mask": ("BertForMaskedLM", TEXT, "fill-mask", "MaskedLM"),
    "bert-labels": ("BertForSequenceClassification", TEXT, "text-classification", "SequenceClassification"),
    "bert-tokens": ("BertForTokenClassification", TEXT, "token-classification", "TokenClassification"),
    "bert-answers": ("BertForQuestionAnswering", TEXT, "question-answering", "QuestionAnswering"),
    "roberta": ("RobertaModel", TEXT, "feature-extraction", "FeatureExtraction"),
    "distilbert": ("DistilBertModel", DISTIL, "feature-extraction", "FeatureExtraction"),
    "llama": ("LlamaForCausalLM", GROUPED, "text-generation", "CausalLM"),
    "llama-past": ("LlamaForCausalLM", GROUPED, "text-generation-with-past", "CausalLM"),
    "mistral-past": ("MistralForCausalLM", GROUPED, "text-generation-with-past", "CausalLM"),
    "qwen2-past": ("Qwen2ForCausalLM", GROUPED, "text-generation-with-past", "CausalLM"),
    "qwen3-past": ("Qwen3ForCausalLM", GROUPED | {"head_dim": 8}, "text-generation-with-past", "CausalLM"),
    "llama-classifier": ("LlamaForSequenceClassification", TEXT | {"pad_token_id": 0}, "text-classification", "SequenceClassification"),
    "gpt2-classifier": ("GPT2ForSequenceClassification", GPT2 | {"pad_token_id": 0}, "text-classification", "SequenceClassification"),
    "phi-past": ("PhiForCausalLM", TEXT, "text-generation-with-past", "CausalLM"),
    # Without groups: Optimum's class gives Phi-3 as many heads of keys as of queries.
    "phi3-past": ("Phi3ForCausalLM", TEXT | {"pad_token_id": 0}, "text-generation-with-past", "CausalLM"),
    "gemma-past": ("GemmaForCausalLM", GROUPED | {"head_dim": 8}, "text-generation-with-past", "CausalLM"),
    "gpt2": ("GPT2LMHeadModel", GPT2, "text-generation", "CausalLM"),
    "gpt2-past": ("GPT2LMHeadModel", GPT2, "text-generation-with-past", "CausalLM"),
    "neox-past": ("GPTNeoXForCausalLM", TEXT, "text-generation-with-past", "CausalLM"),
    "t5": ("T5ForConditionalGeneration", T5, "text2text-generation", "Seq2SeqLM"),
    "t5-past": ("T5ForConditionalGeneration", T5, "text2text-generation-with-past", "Seq2SeqLM"),
    "whisper": ("WhisperForConditionalGeneration", WHISPER, "automatic-speech-recognition", "SpeechSeq2Seq"),
    "whisper-past": ("WhisperForConditionalGeneration", WHISPER, "automatic-speech-recognition-with-past", "SpeechSeq2Seq"),
    "t5-merged": ("T5ForConditionalGeneration", T5, "text2text-generation-with-past", "Seq2SeqLM"),
    "whisper-merged": (
        "WhisperForConditionalGeneration", WHISPER, "automatic-speech-recognition-with-past", "SpeechSeq2Seq"),
    "wav2vec2": ("Wav2Vec2ForCTC", SOUND, "automatic-speech-recognition", "CTC"),
    "vit": ("ViTForImageClassification", PICTURE, "image-classification", "ImageClassification"),
    "clip": ("CLIPModel", CLIP, "zero-shot-image-classification", "ZeroShotImageClassification"),
}
# Gemma's positions are an input as with all families: a batch padded on the left needs them.
MORE_INPUTS = {"gemma-past": {"position_ids"}}
MORE_OUTPUTS = {"bert": {"pooler_output"}, "roberta": {"pooler_output"}}

IDS = torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]])


def signature(path):
    """Types of the inputs and outputs, and which of their dimensions are fixed."""
    graph = onnx.load(path, load_external_data=False).graph
    of = lambda value: (value.type.tensor_type.elem_type, [dim.dim_value or None for dim in value.type.tensor_type.shape.dim])
    return [{value.name: of(value) for value in values} for values in (graph.input, graph.output)]


def compare_names(case, ours, theirs):
    """What is named otherwise, as sentences."""
    files = [{path.name for path in folder.glob("*.onnx")} for folder in (ours, theirs)]
    if case.endswith("-merged"):
        # Optimum leaves the two files there that it merged.
        files[1] -= {"decoder_model.onnx", "decoder_with_past_model.onnx"}
    if files[0] != files[1]:
        yield f"files {sorted(files[0])}, Optimum's are {sorted(files[1])}"
    for name in sorted(files[0] & files[1]):
        more = [MORE_INPUTS.get(case, set()), MORE_OUTPUTS.get(case, set())]
        for mine, other, more in zip(signature(ours / name), signature(theirs / name), more):
            if set(mine) - more != set(other):
                yield f"{name}: {sorted(mine)}, Optimum's are {sorted(other)}"
            for value in set(mine) & set(other):
                (element, shape), (other_element, other_shape) = mine[value], other[value]
                fixed = all(theirs is None or own in (theirs, None) for own, theirs in zip(shape, other_shape))
                if element != other_element or len(shape) != len(other_shape) or not fixed:
                    yield f"{name}: {value} is {mine[value]}, Optimum's is {other[value]}"


def generated(case, kind, model, ours):
    """Tokens of Optimum's class and of transformers."""
    mask = {"attention_mask": torch.ones_like(IDS), "pad_token_id": 0, "eos_token_id": None} if kind == "CausalLM" else {}
    inputs = torch.randn(1, 80, 3000) if kind == "SpeechSeq2Seq" else IDS
    settings = mask | {"max_new_tokens": 12, "do_sample": False, "use_cache": case.endswith(("-past", "-merged"))}
    return [one.generate(inputs, **settings) for one in (ours, model)]


def run(case, kind, model, folder):
    """What differs when Optimum's class runs the files in a folder, as sentences."""
    options = {"use_cache": case.endswith(("-past", "-merged"))} if kind in ("CausalLM", "Seq2SeqLM", "SpeechSeq2Seq") else {}
    if case.endswith("-merged"):
        options["use_merged"] = True
    ours = getattr(optimum.onnxruntime, f"ORTModelFor{kind}").from_pretrained(folder, use_io_binding=False, **options)
    if options:
        mine, theirs = generated(case, kind, model, ours)
        if not torch.equal(mine, theirs):
            yield f"tokens {mine.tolist()}, transformers' are {theirs.tolist()}"
        return
    text, pictures = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, {"pixel_values": torch.randn(2, 3, 32, 32)}
    inputs = {"ImageClassification": pictures, "CTC": {"input_values": torch.randn(2, 400)},
              "ZeroShotImageClassification": text | pictures}.get(kind, text)
    with torch.no_grad():
        theirs = model(**inputs)
    mine = ours(**inputs)
    for name in mine.keys():
        if not isinstance(mine[name], torch.Tensor):
            continue
        error = float((mine[name] - theirs[name]).abs().max() / theirs[name].abs().max())
        if not error <= TOLERANCE:
            yield f"{name} differs by {error:.1e}"


def check(apr, case, folder):
    name, settings, task, kind = CASES[case]
    torch.manual_seed(1)
    model = getattr(transformers, name)
    model = model(model.config_class(**settings)).eval()
    saved, ours, theirs = folder / "saved", folder / "ours", folder / "theirs"
    model.save_pretrained(saved)
    is_merged = case.endswith("-merged")
    merged = ["--merged"] if is_merged else []
    subprocess.run([apr, "export", saved, "--format", "onnx", "-o", ours, "-q", "--task", task, *merged], check=True)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main_export(str(saved), output=theirs, task=task, no_post_process=not is_merged, do_validation=False)
    return [*compare_names(case, ours, theirs), *run(case, kind, model, ours)]


def main():
    apr, *cases = sys.argv[1:]
    failed = 0
    for case in cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            differences = check(apr, case, Path(folder))
        failed += bool(differences)
        print(f"{case}: {'; '.join(differences) or 'as Optimum has it'}", flush=True)
    raise SystemExit(f"{failed} cases differ" if failed else 0)


if __name__ == "__main__":
    main()
