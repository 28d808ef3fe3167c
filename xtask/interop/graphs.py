"""Compares the graphs of model families with transformers' own models.

For each case a tiny model with random weights is made, saved and computed twice: by transformers (eager attention,
single precision) and by onnxruntime, from the graph that apr builds of the saved folder. Sizes are odd on purpose:
hidden 320, 5 heads of 64, 1 key head where the family groups them, vocabulary 1003.

    python graphs.py PROGRAM [case ...]

PROGRAM is the example `graph_json` of apr-blocks. Needs torch, transformers 5.23, onnx and onnxruntime.
"""

import json
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

GPT2 = dict(n_embd=320, n_layer=3, n_head=5, n_positions=64, vocab_size=1003, bos_token_id=1, eos_token_id=2)
QWEN_MOE = DECODER | dict(
    num_experts=6, num_experts_per_tok=2, moe_intermediate_size=96, shared_expert_intermediate_size=160,
)
DEEPSEEK = DECODER | dict(
    num_key_value_heads=5, moe_intermediate_size=96, n_routed_experts=6, n_shared_experts=2, num_experts_per_tok=2,
    first_k_dense_replace=1, kv_lora_rank=40, q_lora_rank=56, qk_rope_head_dim=16, qk_nope_head_dim=48, v_head_dim=32,
    n_group=3, topk_group=2,
)
FALCON = dict(
    hidden_size=320, num_hidden_layers=3, num_attention_heads=5, vocab_size=1003, ffn_hidden_size=448,
    bos_token_id=1, eos_token_id=2, alibi=False, bias=False,
)
ENCODER = dict(
    hidden_size=320, intermediate_size=448, vocab_size=1003, num_hidden_layers=3, num_attention_heads=5,
    max_position_embeddings=64, type_vocab_size=3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
ROBERTA = ENCODER | dict(type_vocab_size=1, pad_token_id=1, bos_token_id=0)
DISTILBERT = dict(dim=320, hidden_dim=448, n_layers=3, n_heads=5, vocab_size=1003, max_position_embeddings=64)
MODERNBERT = ENCODER | dict(local_attention=6, num_hidden_layers=4, cls_token_id=1, sep_token_id=2, reference_compile=False)
MODERNBERT.pop("type_vocab_size")
T5 = dict(
    d_model=320, d_kv=64, d_ff=448, num_layers=3, num_decoder_layers=2, num_heads=5, vocab_size=1003,
    relative_attention_num_buckets=14, relative_attention_max_distance=20, decoder_start_token_id=0,
)
WHISPER = dict(
    d_model=320, num_mel_bins=10, vocab_size=1003, max_source_positions=36, max_target_positions=40, encoder_layers=3,
    decoder_layers=2, encoder_ffn_dim=448, decoder_ffn_dim=416, encoder_attention_heads=5, decoder_attention_heads=4,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, suppress_tokens=None,
    begin_suppress_tokens=None,
)
VIT = dict(
    hidden_size=320, intermediate_size=448, num_hidden_layers=3, num_attention_heads=5, image_size=30, patch_size=6,
    num_channels=3,
)
CLIP_TEXT = dict(
    hidden_size=320, intermediate_size=448, num_hidden_layers=2, num_attention_heads=5, vocab_size=1003,
    max_position_embeddings=40, projection_dim=36, pad_token_id=0, bos_token_id=1, eos_token_id=1002,
)
CLIP_VISION = VIT | dict(hidden_size=256, num_attention_heads=4, projection_dim=36)
SIGLIP_TEXT = dict(
    bos_token_id=1, eos_token_id=1002, pad_token_id=0,
    hidden_size=320, intermediate_size=448, num_hidden_layers=2, num_attention_heads=5, vocab_size=1003,
    max_position_embeddings=9, projection_size=320,
)
SIGLIP_VISION = VIT
WAV2VEC2 = dict(
    hidden_size=320, intermediate_size=448, num_hidden_layers=3, num_attention_heads=5, vocab_size=103,
    conv_dim=(24, 20, 16), conv_kernel=(10, 3, 2), conv_stride=(5, 2, 2), num_conv_pos_embeddings=6,
    num_conv_pos_embedding_groups=4,
)
# transformers has no class for these: another one computes the same, and its configuration is changed.
RENAMED = {
    "minicpm": dict(
        model_type="minicpm", architectures=["MiniCPMForCausalLM"], scale_emb=3.0, scale_depth=1.25, dim_model_base=80,
    ),
}


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
    "llama_classifier": ("classifier", "LlamaForSequenceClassification", DECODER | dict(num_labels=5)),
    "mistral": ("decoder", "MistralForCausalLM", DECODER | dict(sliding_window=5)),
    "qwen2": ("decoder", "Qwen2ForCausalLM", DECODER),
    "qwen2_window": ("decoder", "Qwen2ForCausalLM", DECODER | dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "qwen3": ("decoder", "Qwen3ForCausalLM", DECODER | dict(head_dim=48, tie_word_embeddings=True)),
    "gemma": ("decoder", "GemmaForCausalLM", DECODER | dict(head_dim=48)),
    "gemma2": ("decoder", "Gemma2ForCausalLM", DECODER | dict(head_dim=48, sliding_window=5, query_pre_attn_scalar=100, attn_logit_softcapping=3.0, final_logit_softcapping=2.0)),
    "gemma3": ("decoder", "Gemma3ForCausalLM", DECODER | dict(head_dim=48, sliding_window=5, query_pre_attn_scalar=100, sliding_window_pattern=2)),
    "phi": ("decoder", "PhiForCausalLM", DECODER | dict(partial_rotary_factor=0.375)),
    "phi_qk": ("decoder", "PhiForCausalLM", DECODER | dict(qk_layernorm=True, num_key_value_heads=5)),
    "phi3": ("decoder", "Phi3ForCausalLM", DECODER | dict(sliding_window=5)),
    "phi3_longrope": ("decoder", "Phi3ForCausalLM", DECODER | dict(original_max_position_embeddings=14) | rope(
        "longrope", short_factor=[1.0 + 0.05 * at for at in range(24)],
        long_factor=[2.0 + 0.1 * at for at in range(24)], partial_rotary_factor=0.75)),
    "gpt2": ("decoder", "GPT2LMHeadModel", GPT2),
    "gpt2_scaled": ("decoder", "GPT2LMHeadModel", GPT2 | dict(scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False, n_inner=444, activation_function="relu")),
    "gpt2_model": ("decoder", "GPT2Model", GPT2),
    "gpt2_classifier": ("classifier", "GPT2ForSequenceClassification", GPT2 | dict(num_labels=5, pad_token_id=0)),
    "gpt_neox": ("decoder", "GPTNeoXForCausalLM", UNGROUPED),
    "gpt_neox_serial": ("decoder", "GPTNeoXForCausalLM", UNGROUPED | dict(use_parallel_residual=False, rotary_pct=1.0, attention_bias=False)),
    "mixtral": ("decoder", "MixtralForCausalLM", DECODER | dict(num_local_experts=5, num_experts_per_tok=2)),
    "qwen2_moe": ("decoder", "Qwen2MoeForCausalLM", QWEN_MOE | dict(mlp_only_layers=[1], norm_topk_prob=True)),
    "qwen3_moe": ("decoder", "Qwen3MoeForCausalLM", QWEN_MOE | dict(decoder_sparse_step=2, head_dim=48)),
    "granite": ("decoder", "GraniteForCausalLM", DECODER | dict(embedding_multiplier=3.0, logits_scaling=4.0, residual_multiplier=0.5, attention_multiplier=0.2)),
    "minicpm": ("decoder", "GraniteForCausalLM", DECODER | dict(embedding_multiplier=3.0, logits_scaling=4.0, residual_multiplier=1.25 / 3 ** 0.5, attention_multiplier=0.125)),
    "smollm3": ("decoder", "SmolLM3ForCausalLM", DECODER | dict(no_rope_layer_interval=2)),
    "cohere": ("decoder", "CohereForCausalLM", DECODER),
    "cohere_qk": ("decoder", "CohereForCausalLM", DECODER | dict(use_qk_norm=True, attention_bias=True)),
    "cohere2": ("decoder", "Cohere2ForCausalLM", DECODER | dict(sliding_window=5, num_hidden_layers=4)),
    "olmo2": ("decoder", "Olmo2ForCausalLM", DECODER),
    "olmo3": ("decoder", "Olmo3ForCausalLM", DECODER | dict(sliding_window=5, num_hidden_layers=4)),
    "stablelm": ("decoder", "StableLmForCausalLM", DECODER | dict(use_qkv_bias=True)),
    "stablelm_qk": ("decoder", "StableLmForCausalLM", DECODER | dict(qk_layernorm=True, use_parallel_residual=True)),
    "glm4": ("decoder", "Glm4ForCausalLM", DECODER | dict(head_dim=48)),
    "starcoder2": ("decoder", "Starcoder2ForCausalLM", DECODER | dict(sliding_window=5)),
    "falcon": ("decoder", "FalconForCausalLM", FALCON),
    "falcon_grouped": ("decoder", "FalconForCausalLM", FALCON | dict(new_decoder_architecture=True, num_kv_heads=1)),
    "falcon_groups": ("decoder", "FalconForCausalLM", FALCON | dict(new_decoder_architecture=True, num_attention_heads=4, num_kv_heads=2, num_ln_in_parallel_attn=1)),
    "falcon_serial": ("decoder", "FalconForCausalLM", FALCON | dict(multi_query=False, parallel_attn=False, bias=True)),
    "deepseek_v2": ("decoder", "DeepseekV2ForCausalLM", DEEPSEEK | dict(topk_method="group_limited_greedy", routed_scaling_factor=1.5)),
    "deepseek_v2_lite": ("decoder", "DeepseekV2ForCausalLM", DEEPSEEK | dict(q_lora_rank=None) | rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=0.7, beta_fast=32, beta_slow=1)),
    "deepseek_v3": ("decoder", "DeepseekV3ForCausalLM", DEEPSEEK | rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0, beta_fast=32, beta_slow=1)),
    "gpt_oss": ("decoder", "GptOssForCausalLM", DECODER | dict(num_local_experts=6, num_experts_per_tok=2, sliding_window=5, head_dim=64) | rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0, truncate=False)),
    "bert": ("encoder", "BertModel", ENCODER),
    "bert_mlm": ("encoder", "BertForMaskedLM", ENCODER | dict(hidden_act="relu")),
    "bert_classifier": ("encoder", "BertForSequenceClassification", ENCODER | dict(num_labels=5)),
    "bert_tokens": ("encoder", "BertForTokenClassification", ENCODER | dict(num_labels=5)),
    "bert_qa": ("encoder", "BertForQuestionAnswering", ENCODER),
    "roberta": ("encoder", "RobertaModel", ROBERTA),
    "roberta_mlm": ("encoder", "RobertaForMaskedLM", ROBERTA),
    "roberta_classifier": ("encoder", "RobertaForSequenceClassification", ROBERTA | dict(num_labels=5)),
    "roberta_tokens": ("encoder", "RobertaForTokenClassification", ROBERTA | dict(num_labels=5)),
    "distilbert": ("encoder", "DistilBertModel", DISTILBERT),
    "distilbert_mlm": ("encoder", "DistilBertForMaskedLM", DISTILBERT),
    "distilbert_classifier": ("encoder", "DistilBertForSequenceClassification", DISTILBERT | dict(num_labels=5)),
    "distilbert_qa": ("encoder", "DistilBertForQuestionAnswering", DISTILBERT),
    "modernbert": ("encoder", "ModernBertModel", MODERNBERT),
    "modernbert_mlm": ("encoder", "ModernBertForMaskedLM", MODERNBERT),
    "modernbert_classifier": ("encoder", "ModernBertForSequenceClassification", MODERNBERT | dict(num_labels=5)),
    "modernbert_tokens": ("encoder", "ModernBertForTokenClassification", MODERNBERT | dict(num_labels=5, norm_bias=True, attention_bias=True, mlp_bias=True)),
    "t5": ("seq2seq", "T5ForConditionalGeneration", T5),
    "t5_gated": ("seq2seq", "T5ForConditionalGeneration", T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "t5_encoder": ("encoder", "T5EncoderModel", T5),
    "mt5": ("seq2seq", "MT5ForConditionalGeneration", T5 | dict(feed_forward_proj="gated-gelu")),
    "umt5": ("seq2seq", "UMT5ForConditionalGeneration", T5 | dict(feed_forward_proj="gated-gelu")),
    "whisper": ("seq2seq", "WhisperForConditionalGeneration", WHISPER),
    "whisper_model": ("seq2seq", "WhisperModel", WHISPER),
    "vit": ("vision", "ViTModel", VIT),
    "vit_classifier": ("vision", "ViTForImageClassification", VIT | dict(num_labels=5)),
    "clip": ("dual", "CLIPModel", dict(text_config=CLIP_TEXT, vision_config=CLIP_VISION, projection_dim=36)),
    "clip_old": ("dual", "CLIPModel", dict(text_config=CLIP_TEXT | dict(eos_token_id=2), vision_config=CLIP_VISION, projection_dim=36)),
    "clip_text": ("text", "CLIPTextModel", CLIP_TEXT),
    "clip_text_projection": ("text", "CLIPTextModelWithProjection", CLIP_TEXT),
    "clip_vision": ("vision", "CLIPVisionModel", CLIP_VISION),
    "clip_vision_projection": ("vision", "CLIPVisionModelWithProjection", CLIP_VISION),
    "clip_classifier": ("vision", "CLIPForImageClassification", dict(text_config=CLIP_TEXT, vision_config=CLIP_VISION, projection_dim=36, num_labels=5)),
    "siglip": ("dual", "SiglipModel", dict(text_config=SIGLIP_TEXT, vision_config=SIGLIP_VISION)),
    "siglip_text": ("text", "SiglipTextModel", SIGLIP_TEXT),
    "siglip_vision": ("vision", "SiglipVisionModel", SIGLIP_VISION),
    "siglip_classifier": ("vision", "SiglipForImageClassification", dict(text_config=SIGLIP_TEXT, vision_config=SIGLIP_VISION, num_labels=5)),
    "wav2vec2": ("sound", "Wav2Vec2Model", WAV2VEC2),
    "wav2vec2_ctc": ("sound", "Wav2Vec2ForCTC", WAV2VEC2),
    "wav2vec2_layer": ("sound", "Wav2Vec2ForCTC", WAV2VEC2 | dict(feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True, num_conv_pos_embeddings=7)),
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
    if case in RENAMED:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | RENAMED[case]))
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
            # transformers forgets what is outside of a window, and repeats Falcon's shared heads.
            theirs = theirs[:, :: theirs.shape[1] // ours.shape[1]]
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


def classifier(model, program, folder, worst):
    """Right-padded texts, each of which ends elsewhere."""
    parts, unused = graph_runner.sessions(program, folder, past=False)
    for batch, lengths in ((1, [7]), (3, [5, 9, 2])):
        tokens, mask = torch.zeros(batch, max(lengths), dtype=torch.long), torch.zeros(batch, max(lengths), dtype=torch.long)
        for row, length in enumerate(lengths):
            tokens[row, :length] = torch.randint(3, 1003, (length,))
            mask[row, :length] = 1
        feeds = dict(input_ids=tokens, attention_mask=mask, position_ids=positions_of(mask))
        with torch.no_grad():
            theirs = model(**feeds)
        worst.add(f"batch {batch}", parts["model"](feeds)["logits"], theirs.logits)
    return unused


def right_padded(lengths, end=None, padding=0):
    tokens = torch.full((len(lengths), max(lengths)), padding)
    mask = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        tokens[row, :length] = torch.randint(3, 1002, (length,))
        if end is not None:
            tokens[row, length - 1] = end
        mask[row, :length] = 1
    return tokens, mask


def compare_all(worst, where, ours, theirs):
    for name, value in ours.items():
        worst.add(f"{where} {name}", value, theirs[name])


def encoder(model, program, folder, worst):
    parts, unused = graph_runner.sessions(program, folder)
    session = parts["model"]
    for lengths in ([7], [5, 9, 2]):
        tokens, mask = right_padded(lengths, padding=model.config.pad_token_id or 0)
        feeds = dict(input_ids=tokens, attention_mask=mask)
        if "token_type_ids" in session.inputs:
            feeds["token_type_ids"] = torch.randint(0, 3, tokens.shape)
        with torch.no_grad():
            theirs = model(**feeds)
        compare_all(worst, f"batch {len(lengths)}", session(feeds), theirs)
    return unused


def text(model, program, folder, worst):
    parts, unused = graph_runner.sessions(program, folder)
    session = parts["model"]
    for lengths in ([9], [5, 9, 2]):
        tokens, mask = right_padded(lengths, end=model.config.eos_token_id)
        feeds = dict(input_ids=tokens)
        if "attention_mask" in session.inputs:
            feeds["attention_mask"] = mask
        with torch.no_grad():
            theirs = model(**feeds)
        compare_all(worst, f"batch {len(lengths)}", session(feeds), theirs)
    return unused


def vision(model, program, folder, worst):
    parts, unused = graph_runner.sessions(program, folder)
    for batch in (1, 3):
        pixels = torch.randn(batch, 3, 30, 30)
        with torch.no_grad():
            theirs = model(pixels)
        compare_all(worst, f"batch {batch}", parts["model"](dict(pixel_values=pixels)), theirs)
    return unused


def dual(model, program, folder, worst):
    parts, unused = graph_runner.sessions(program, folder)
    session = parts["model"]
    for images, lengths in ((1, [9]), (2, [5, 9, 2])):
        tokens, mask = right_padded(lengths, end=1002)
        feeds = dict(input_ids=tokens, pixel_values=torch.randn(images, 3, 30, 30))
        if "attention_mask" in session.inputs:
            feeds["attention_mask"] = mask
        with torch.no_grad():
            theirs = model(**feeds)
        compare_all(worst, f"batch {images}", session(feeds), theirs)
    return unused


def sound(model, program, folder, worst):
    parts, unused = graph_runner.sessions(program, folder)
    for batch, samples in ((1, 400), (3, 333)):
        waves = torch.randn(batch, samples)
        with torch.no_grad():
            theirs = model(waves)
        compare_all(worst, f"batch {batch}", parts["model"](dict(input_values=waves)), theirs)
    return unused


def seq2seq(model, program, folder, worst):
    parts, unused = graph_runner.sessions(program, folder)
    encoder, first, next_ = (parts[name] for name in ("encoder_model", "decoder_model", "decoder_with_past_model"))
    output = first.outputs[0]
    for lengths in ([7], [5, 9, 2]):
        batch = len(lengths)
        if "input_features" in encoder.inputs:
            feeds, mask = dict(input_features=torch.randn(batch, 10, 72)), None
        else:
            tokens, mask = right_padded(lengths)
            feeds = dict(input_ids=tokens, attention_mask=mask)
        with torch.no_grad():
            states = model.get_encoder()(**feeds).last_hidden_state
        ours = encoder(feeds)["last_hidden_state"]
        worst.add(f"encoder, batch {batch}", ours, states)
        tokens = torch.randint(3, 1003, (batch, 3))
        more = {} if mask is None else dict(attention_mask=mask)
        call = lambda tokens, past: model(  # noqa: E731
            encoder_outputs=(states,), decoder_input_ids=tokens, past_key_values=past, use_cache=True, **more
        )
        with torch.no_grad():
            theirs = call(tokens, None)
        fixed = {} if mask is None else dict(encoder_attention_mask=mask)
        ours = first(fixed | dict(input_ids=tokens, encoder_hidden_states=ours))
        worst.add(f"prefill, batch {batch}", ours[output], theirs[output])
        crossed = {name: value for name, value in ours.items() if ".encoder." in name}
        for name, value in crossed.items():
            layer = theirs.past_key_values.cross_attention_cache.layers[int(name.split(".")[1])]
            worst.add(f"batch {batch} {name}", value, layer.keys if name.endswith("key") else layer.values)
        for step in range(STEPS):
            token = torch.randint(3, 1003, (batch, 1))
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
    return unused


TESTS = dict(
    decoder=decoder, classifier=classifier, encoder=encoder, text=text, vision=vision, dual=dual, sound=sound,
    seq2seq=seq2seq,
)


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
