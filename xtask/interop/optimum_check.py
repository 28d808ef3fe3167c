"""Exports of apr beside Optimum's: the same files, inputs and outputs, and Optimum's own classes run them.

For each case a tiny model with random weights is saved, exported by `apr export --format onnx` and by Optimum, and then run
by Optimum's class for it from apr's files: generated tokens must be transformers', other outputs within 1e-4 of the
largest value. Optimum's files in turn are imported, and have the weights of the model. apr may name more outputs than Optimum (the pooler's), and fix what Optimum leaves open (channels, sizes of
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
DEEPSEEK = TEXT | {"num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 4, "n_shared_experts": 1,
                   "num_experts_per_tok": 2, "first_k_dense_replace": 1, "kv_lora_rank": 12, "q_lora_rank": 20,
                   "qk_rope_head_dim": 4, "qk_nope_head_dim": 12, "v_head_dim": 8, "n_group": 2, "topk_group": 1}
BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 99, "max_position_embeddings": 40}
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
    "deepseek-v3-past": ("DeepseekV3ForCausalLM", DEEPSEEK, "text-generation-with-past", "CausalLM"),
    "smollm3-past": ("SmolLM3ForCausalLM", GROUPED | {"pad_token_id": 0}, "text-generation-with-past", "CausalLM"),
    "stablelm-past": ("StableLmForCausalLM", GROUPED, "text-generation-with-past", "CausalLM"),
    "granite-past": ("GraniteForCausalLM", GROUPED, "text-generation-with-past", "CausalLM"),
    "cohere-past": ("CohereForCausalLM", GROUPED, "text-generation-with-past", "CausalLM"),
    "olmo2-past": ("Olmo2ForCausalLM", TEXT, "text-generation-with-past", "CausalLM"),
    "gemma2-past": ("Gemma2ForCausalLM", TEXT | {"num_key_value_heads": 4, "head_dim": 8}, "text-generation-with-past", "CausalLM"),
    "gemma3-past": ("Gemma3ForCausalLM", GROUPED | {"head_dim": 8}, "text-generation-with-past", "CausalLM"),
    "gpt-oss-past": ("GptOssForCausalLM", GROUPED | {"head_dim": 8, "num_local_experts": 4}, "text-generation-with-past", "CausalLM"),
    "falcon-past": ("FalconForCausalLM", TEXT | {"alibi": False}, "text-generation-with-past", "CausalLM"),
    "bloom-past": ("BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99}, "text-generation-with-past", "CausalLM"),
    "opt-past": ("OPTForCausalLM", TEXT | {"ffn_dim": 64, "word_embed_proj_dim": 32}, "text-generation-with-past", "CausalLM"),
    "gptj-past": ("GPTJForCausalLM", GPT2 | {"rotary_dim": 4}, "text-generation-with-past", "CausalLM"),
    "qwen3-moe-past": ("Qwen3MoeForCausalLM", GROUPED | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}, "text-generation-with-past", "CausalLM"),
    "gpt2": ("GPT2LMHeadModel", GPT2, "text-generation", "CausalLM"),
    "gpt2-past": ("GPT2LMHeadModel", GPT2, "text-generation-with-past", "CausalLM"),
    "neox-past": ("GPTNeoXForCausalLM", TEXT, "text-generation-with-past", "CausalLM"),
    "t5": ("T5ForConditionalGeneration", T5, "text2text-generation", "Seq2SeqLM"),
    "t5-past": ("T5ForConditionalGeneration", T5, "text2text-generation-with-past", "Seq2SeqLM"),
    "whisper": ("WhisperForConditionalGeneration", WHISPER, "automatic-speech-recognition", "SpeechSeq2Seq"),
    "whisper-past": ("WhisperForConditionalGeneration", WHISPER, "automatic-speech-recognition-with-past", "SpeechSeq2Seq"),
    "bart-past": ("BartForConditionalGeneration", BART, "text2text-generation-with-past", "Seq2SeqLM"),
    "mbart-past": ("MBartForConditionalGeneration", BART, "text2text-generation-with-past", "Seq2SeqLM"),
    "marian-past": ("MarianMTModel", BART | {"pad_token_id": 98, "decoder_start_token_id": 98}, "text2text-generation-with-past", "Seq2SeqLM"),
    "electra-labels": ("ElectraForSequenceClassification", TEXT, "text-classification", "SequenceClassification"),
    "albert-fill-mask": ("AlbertForMaskedLM", TEXT | {"embedding_size": 16}, "fill-mask", "MaskedLM"),
    "mpnet": ("MPNetModel", TEXT, "feature-extraction", "FeatureExtraction"),
    "deberta-v2-tokens": ("DebertaV2ForTokenClassification", TEXT, "token-classification", "TokenClassification"),
    "modernbert": ("ModernBertModel", TEXT | {"pad_token_id": 0, "reference_compile": False}, "feature-extraction", "FeatureExtraction"),
    "bert-choices": ("BertForMultipleChoice", TEXT, "multiple-choice", "MultipleChoice"),
    "hubert": ("HubertForCTC", SOUND, "automatic-speech-recognition", "CTC"),
    "wav2vec2-classes": ("Wav2Vec2ForSequenceClassification", SOUND, "audio-classification", "AudioClassification"),
    "swin": ("SwinForImageClassification", {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}, "image-classification", "ImageClassification"),
    "convnext": ("ConvNextForImageClassification", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, "image-classification", "ImageClassification"),
    "resnet": ("ResNetForImageClassification", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}, "image-classification", "ImageClassification"),
    "t5-merged": ("T5ForConditionalGeneration", T5, "text2text-generation-with-past", "Seq2SeqLM"),
    "whisper-merged": (
        "WhisperForConditionalGeneration", WHISPER, "automatic-speech-recognition-with-past", "SpeechSeq2Seq"),
    "wav2vec2": ("Wav2Vec2ForCTC", SOUND, "automatic-speech-recognition", "CTC"),
    "vit": ("ViTForImageClassification", PICTURE, "image-classification", "ImageClassification"),
    "clip": ("CLIPModel", CLIP, "zero-shot-image-classification", "ZeroShotImageClassification"),
}
# Options of apr's that make what Optimum makes by default.
OPTIONS = {"deepseek-v3-past": ["--latent-cache", "heads"], "t5-merged": ["--merged"], "whisper-merged": ["--merged"]}
# Positions are an input as with all families: a batch padded on the left needs them.
MORE_INPUTS = {case: {"position_ids"} for case in ("gemma-past", "gemma2-past", "gemma3-past", "gpt-oss-past")}
MORE_OUTPUTS = {case: {"pooler_output"} for case in ("bert", "roberta", "mpnet")}

# What Optimum writes and apr refuses to take for the model's weights: norms that hold 1 + weight, biases of experts and
# tables of positions under no name, norms that were folded into convolutions, two graphs in one.
REFUSED = {"gemma-past", "gemma2-past", "gemma3-past", "gpt-oss-past", "resnet", "swin"}

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
    choices = {"input_ids": IDS[None], "attention_mask": torch.ones_like(IDS)[None]}
    inputs = {"ImageClassification": pictures, "MultipleChoice": choices, "CTC": {"input_values": torch.randn(2, 400)},
              "AudioClassification": {"input_values": torch.randn(2, 400)},
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


def imported(apr, case, theirs, saved):
    """What differs when apr reads Optimum's files, as sentences: each is imported, and one that is the whole model has the
    same weights."""
    paths = sorted(path for path in theirs.glob("*.onnx") if path.name != "decoder_model_merged.onnx")
    for path in paths:
        run = subprocess.run([apr, "import", "-q", path, "-o", theirs / "imported.apr", "-f"], capture_output=True, text=True)
        is_refused = case in REFUSED
        if (run.returncode == 5) != is_refused or run.returncode not in (0, 5):
            yield f"import of {path.name} ends with {run.returncode}: {run.stderr[:300]}"
        if not is_refused and len(paths) == 1:
            run = subprocess.run([apr, "diff", path, saved, "--tolerance", "1e-6"], capture_output=True, text=True)
            if "SAME: " not in run.stdout:
                yield f"diff of {path.name}: {run.stdout[-300:]}"


def perturb(model):
    """No two tensors alike, as in trained models: Optimum writes such once. Tables that are computed stay as they are."""
    for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
        parameter.data.add_(0.05 * torch.randn_like(parameter))


def check(apr, case, folder):
    name, settings, task, kind = CASES[case]
    torch.manual_seed(1)
    model = getattr(transformers, name)
    model = model(model.config_class(**settings)).eval()
    perturb(model)
    saved, ours, theirs = folder / "saved", folder / "ours", folder / "theirs"
    model.save_pretrained(saved)
    options = ["-q", "--task", task, *OPTIONS.get(case, [])]
    subprocess.run([apr, "export", saved, "--format", "onnx", "-o", ours, *options], check=True)
    is_merged = case.endswith("-merged")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main_export(str(saved), output=theirs, task=task, no_post_process=not is_merged, do_validation=False)
    return [*compare_names(case, ours, theirs), *run(case, kind, model, ours), *imported(apr, case, theirs, saved)]


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
