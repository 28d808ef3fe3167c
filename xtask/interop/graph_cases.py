"""The models that graphs.py makes: configurations of every family, of odd sizes."""

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
YOLOS = VIT | dict(image_size=[30, 42], num_detection_tokens=7)
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
STAGES = dict(num_channels=3, hidden_sizes=[24, 40, 56], depths=[2, 1, 3])
RESNET = STAGES | dict(embedding_size=18)
CONVNEXT = STAGES | dict(num_stages=3, patch_size=4, image_size=64)
DINOV2 = dict(
    hidden_size=320, mlp_ratio=3, num_hidden_layers=3, num_attention_heads=5, image_size=30, patch_size=6, num_channels=3,
)
SWIN = dict(
    image_size=38, patch_size=2, num_channels=3, embed_dim=24, depths=[2, 3, 1], num_heads=[2, 3, 4], window_size=5,
    mlp_ratio=2.5,
)
HUBERT = dict(WAV2VEC2)
MAMBA = dict(
    vocab_size=1003, hidden_size=200, state_size=9, num_hidden_layers=3, expand=2, conv_kernel=4, pad_token_id=0,
    bos_token_id=1, eos_token_id=2,
)
BART = dict(
    d_model=320, vocab_size=1003, max_position_embeddings=40, encoder_layers=3, decoder_layers=2, encoder_ffn_dim=448,
    decoder_ffn_dim=416, encoder_attention_heads=5, decoder_attention_heads=4, pad_token_id=1, bos_token_id=0,
    eos_token_id=2, decoder_start_token_id=2,
)
MARIAN = BART | dict(pad_token_id=0, eos_token_id=2, decoder_start_token_id=0, scale_embedding=True, activation_function="swish")
SMALL_EMBEDDINGS = ENCODER | dict(embedding_size=72)
ALBERT = SMALL_EMBEDDINGS | dict(num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2)
DEBERTA = ENCODER | dict(
    relative_attention=True, position_buckets=8, max_relative_positions=30, norm_rel_ebd="layer_norm",
    pos_att_type=["p2c", "c2p"], share_att_key=True, position_biased_input=False, type_vocab_size=0,
)
DEBERTA_2 = DEBERTA | dict(
    position_buckets=-1, max_relative_positions=6, share_att_key=False, position_biased_input=True, type_vocab_size=3,
    conv_kernel_size=3, conv_act="gelu", conv_groups=2,
)
MPNET = {name: value for name, value in ENCODER.items() if name != "type_vocab_size"} | dict(pad_token_id=1)
DELTA = DECODER | dict(
    num_hidden_layers=4, head_dim=48, linear_num_key_heads=3, linear_num_value_heads=6, linear_key_head_dim=24,
    linear_value_head_dim=20, layer_types=["linear_attention", "full_attention"] * 2,
)
DELTA_MOE = DELTA | dict(
    num_experts=6, num_experts_per_tok=2, moe_intermediate_size=96, shared_expert_intermediate_size=160,
)
HEAD_SPACE = dict(mamba_n_heads=8, mamba_d_head=80, mamba_d_state=12, mamba_n_groups=2)
MAMBA_2 = dict(
    vocab_size=1003, hidden_size=200, num_heads=10, head_dim=40, state_size=9, num_hidden_layers=3, n_groups=2, pad_token_id=0,
    bos_token_id=1, eos_token_id=2,
)
NEMOTRON_H = DECODER | dict(
    head_dim=48, layers_block_type=["linear_attention", "moe", "full_attention", "mlp"], mamba_num_heads=6, mamba_head_dim=20,
    ssm_state_size=12, n_groups=2, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=96,
    moe_shared_expert_intermediate_size=160,
)
JAMBA = DECODER | dict(
    attn_layer_period=3, attn_layer_offset=1, num_experts=6, num_experts_per_tok=2, mamba_d_state=9, num_hidden_layers=4,
)
GEMMA3N = DECODER | dict(
    head_dim=48, num_attention_heads=4, num_hidden_layers=6, num_kv_shared_layers=2, sliding_window=5,
    layer_types=["sliding_attention", "full_attention"] * 3, vocab_size_per_layer_input=900, hidden_size_per_layer_input=24,
    laurel_rank=12, activation_sparsity_pattern=[0.95, 0.5, 0.0, 0.0, 0.0, 0.0],
)
GEMMA4 = DECODER | dict(
    head_dim=48, global_head_dim=96, num_attention_heads=4, num_hidden_layers=6, sliding_window=5,
    layer_types=["sliding_attention", "full_attention"] * 3, hidden_size_per_layer_input=0, vocab_size_per_layer_input=1003,
)
LATENT = DECODER | dict(
    num_key_value_heads=5, kv_lora_rank=40, q_lora_rank=56, qk_rope_head_dim=16, qk_nope_head_dim=48, v_head_dim=32,
)
AFMOE = DECODER | dict(
    num_hidden_layers=4, num_dense_layers=1, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=96, head_dim=48,
    sliding_window=5, layer_types=["sliding_attention", "full_attention"] * 2,
)
HUNYUAN_MOE = DECODER | dict(head_dim=48, num_experts=6, moe_topk=2)
OPT = dict(
    hidden_size=320, ffn_dim=448, vocab_size=1003, num_hidden_layers=3, num_attention_heads=5, max_position_embeddings=64,
    pad_token_id=1, bos_token_id=2, eos_token_id=2,
)
BLOOM = dict(hidden_size=320, n_layer=3, n_head=5, vocab_size=1003, bos_token_id=1, eos_token_id=2, pad_token_id=3)
GPTJ = GPT2 | dict(rotary_dim=24)
OLMOE = DECODER | dict(num_experts=6, num_experts_per_tok=2)
GPT_BIGCODE = dict(GPT2)
GPT_NEO = dict(
    hidden_size=320, num_layers=4, num_heads=5, vocab_size=1003, max_position_embeddings=64, window_size=5,
    attention_types=[[["global", "local"], 2]], bos_token_id=1, eos_token_id=2,
)
BIOGPT = UNGROUPED | dict(pad_token_id=1, bos_token_id=0)
PEGASUS = BART | dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
PRELAYERNORM = ROBERTA | dict(type_vocab_size=2)
GLM4_MOE_LITE = {name: value for name, value in DEEPSEEK.items() if name not in ("first_k_dense_replace", "n_group", "topk_group")}
ERNIE4_5_MOE = DECODER | dict(
    num_hidden_layers=5, head_dim=48, moe_intermediate_size=96, moe_num_experts=6, moe_k=2, moe_num_shared_experts=2,
)
EXAONE_MOE = DECODER | dict(
    num_hidden_layers=5, head_dim=48, sliding_window=5, moe_intermediate_size=96, num_experts=6, num_experts_per_tok=2,
)
EXAONE4 = DECODER | dict(num_hidden_layers=5, sliding_window=5, sliding_window_pattern=4)
M2M_100 = {name: value for name, value in BART.items() if name != "forced_eos_token_id"}
XGLM = dict(
    d_model=320, ffn_dim=448, vocab_size=1003, num_layers=3, attention_heads=5, max_position_embeddings=64, pad_token_id=1,
    bos_token_id=0, eos_token_id=2,
)
GRANITE_MOE = DECODER | dict(
    num_local_experts=5, num_experts_per_tok=2, embedding_multiplier=3.0, logits_scaling=4.0, residual_multiplier=0.5,
    attention_multiplier=0.2,
)
PHIMOE = DECODER | dict(num_local_experts=6, router_jitter_noise=0.3)
WAVLM = WAV2VEC2 | dict(num_buckets=14, max_bucket_distance=20)
AST = dict(
    hidden_size=320, intermediate_size=448, num_hidden_layers=3, num_attention_heads=5, patch_size=6, frequency_stride=4,
    time_stride=5, max_length=37, num_mel_bins=17,
)
# Two kinds of layers, with rotary settings of their own.
KINDS = dict(sliding_window=5, layer_types=["sliding_attention", "full_attention", "sliding_attention"])
KINDS_OF_ROPE = dict(rope_parameters=dict(
    full_attention=dict(rope_type="default", rope_theta=50000.0), sliding_attention=dict(rope_type="default", rope_theta=1000.0)))
MOE = DECODER | dict(head_dim=48, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=96)
SHARED_MOE = MOE | KINDS | dict(shared_expert_intermediate_size=160)
KOLIBRI = {name: value for name, value in SHARED_MOE.items() if name != "intermediate_size"}
MIMO_V2 = DECODER | KINDS | dict(
    num_attention_heads=4, num_key_value_heads=1, head_dim=48, v_head_dim=40, n_routed_experts=6, num_experts_per_tok=2,
    moe_intermediate_size=96,
)
SARVAM_MOE = DECODER | dict(
    model_type="sarvam_moe", head_dim=48, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=96, n_shared_experts=2,
)
SARVAM_MLA = DEEPSEEK | dict(model_type="sarvam_mla", q_lora_rank=None)
AXK1 = {name: value for name, value in DEEPSEEK.items() if name != "first_k_dense_replace"}
CODEGEN = GPT2 | dict(n_head=4, n_ctx=64, rotary_dim=24)
LFM3 = DECODER | dict(
    head_dim=48, sliding_window=5, num_hidden_layers=4, layer_types=["conv", "sliding_attention", "conv", "full_attention"],
)
# transformers has no class for these: another one computes the same, and its configuration is changed.
RENAMED = {
    "internlm3": dict(architectures=["InternLM3ForCausalLM"], model_type="internlm3"),
    "iquestcoder": dict(architectures=["IQuestCoderForCausalLM"], model_type="iquestcoder"),
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
    "llama_tokens": ("classifier", "LlamaForTokenClassification", DECODER | dict(num_labels=5)),
    "llama_qa": ("classifier", "LlamaForQuestionAnswering", DECODER),
    "llama_all": ("classifier", "LlamaForTokenClassification", DECODER | dict(num_labels=5, is_causal=False)),
    "mistral": ("decoder", "MistralForCausalLM", DECODER | dict(sliding_window=5)),
    "qwen2": ("decoder", "Qwen2ForCausalLM", DECODER),
    "qwen2_window": ("decoder", "Qwen2ForCausalLM", DECODER | dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "qwen2_tokens": ("classifier", "Qwen2ForTokenClassification", DECODER | dict(num_labels=5)),
    "qwen2_all": ("classifier", "Qwen2ForTokenClassification", DECODER | dict(
        num_labels=5, is_causal=False, use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "mistral_qa": ("classifier", "MistralForQuestionAnswering", DECODER | dict(sliding_window=5)),
    "qwen3_qa": ("classifier", "Qwen3ForQuestionAnswering", DECODER | dict(head_dim=48)),
    "gemma2_tokens": ("classifier", "Gemma2ForTokenClassification", DECODER | dict(head_dim=48, sliding_window=5, num_labels=5)),
    "phi_classifier": ("classifier", "PhiForSequenceClassification", DECODER | dict(num_labels=5)),
    "phi_tokens": ("classifier", "PhiForTokenClassification", DECODER | dict(num_labels=5)),
    "phi3_tokens": ("classifier", "Phi3ForTokenClassification", DECODER | dict(num_labels=5)),
    "gpt2_tokens": ("classifier", "GPT2ForTokenClassification", GPT2 | dict(num_labels=5, pad_token_id=0)),
    "gpt2_qa": ("classifier", "GPT2ForQuestionAnswering", GPT2 | dict(pad_token_id=0)),
    "gpt_neox_tokens": ("classifier", "GPTNeoXForTokenClassification", UNGROUPED | dict(num_labels=5)),
    "gpt_neox_qa": ("classifier", "GPTNeoXForQuestionAnswering", UNGROUPED),
    "falcon_tokens": ("classifier", "FalconForTokenClassification", FALCON | dict(num_labels=5, pad_token_id=0)),
    "falcon_qa": ("classifier", "FalconForQuestionAnswering", FALCON | dict(pad_token_id=0)),
    "mixtral_qa": ("classifier", "MixtralForQuestionAnswering", DECODER | dict(num_local_experts=5)),
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
    "glm": ("decoder", "GlmForCausalLM", DECODER | dict(head_dim=64)),
    "glm4": ("decoder", "Glm4ForCausalLM", DECODER | dict(head_dim=48)),
    "granite_swa": ("decoder", "GraniteSWAForCausalLM", DECODER | dict(num_hidden_layers=5, sliding_window=5, attention_multiplier=0.2)),
    "granite_swa_angles": ("decoder", "GraniteSWAForCausalLM", DECODER | dict(
        sliding_window=5, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        layer_rope_theta=[1000.0, 0.0, 50.0])),
    "starcoder2": ("decoder", "Starcoder2ForCausalLM", DECODER | dict(sliding_window=5)),
    "falcon": ("decoder", "FalconForCausalLM", FALCON),
    "falcon_grouped": ("decoder", "FalconForCausalLM", FALCON | dict(new_decoder_architecture=True, num_kv_heads=1)),
    "falcon_groups": ("decoder", "FalconForCausalLM", FALCON | dict(new_decoder_architecture=True, num_attention_heads=4, num_kv_heads=2, num_ln_in_parallel_attn=1)),
    "falcon_serial": ("decoder", "FalconForCausalLM", FALCON | dict(multi_query=False, parallel_attn=False, bias=True)),
    "deepseek_v2": ("decoder", "DeepseekV2ForCausalLM", DEEPSEEK | dict(topk_method="group_limited_greedy", routed_scaling_factor=1.5)),
    "deepseek_v2_bias": ("decoder", "DeepseekV2ForCausalLM", DEEPSEEK | dict(topk_method="greedy", attention_bias=True)),
    "deepseek_v2_lite": ("decoder", "DeepseekV2ForCausalLM", DEEPSEEK | dict(q_lora_rank=None) | rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=0.7, beta_fast=32, beta_slow=1)),
    "deepseek_v3_bias": ("decoder", "DeepseekV3ForCausalLM", DEEPSEEK | dict(attention_bias=True)),
    "deepseek_v3": ("decoder", "DeepseekV3ForCausalLM", DEEPSEEK | rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0, beta_fast=32, beta_slow=1)),
    "gpt_oss": ("decoder", "GptOssForCausalLM", DECODER | dict(num_local_experts=6, num_experts_per_tok=2, sliding_window=5, head_dim=64) | rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0, truncate=False)),
    "bert": ("encoder", "BertModel", ENCODER),
    "bert_mlm": ("encoder", "BertForMaskedLM", ENCODER | dict(hidden_act="relu")),
    "bert_classifier": ("encoder", "BertForSequenceClassification", ENCODER | dict(num_labels=5)),
    "bert_tokens": ("encoder", "BertForTokenClassification", ENCODER | dict(num_labels=5)),
    "bert_qa": ("encoder", "BertForQuestionAnswering", ENCODER),
    "bert_choices": ("choices", "BertForMultipleChoice", ENCODER),
    "bert_next": ("encoder", "BertForNextSentencePrediction", ENCODER),
    "roberta_choices": ("choices", "RobertaForMultipleChoice", ROBERTA),
    "distilbert_choices": ("choices", "DistilBertForMultipleChoice", DISTILBERT),
    "modernbert_choices": ("choices", "ModernBertForMultipleChoice", MODERNBERT),
    "modernbert_qa": ("encoder", "ModernBertForQuestionAnswering", MODERNBERT | dict(norm_bias=True)),
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
    "vit_wide": ("vision", "ViTModel", VIT | dict(image_size=(30, 42), patch_size=(6, 7))),
    "whisper_classifier": ("mel", "WhisperForAudioClassification", WHISPER | dict(num_labels=5)),
    "whisper_layers": ("mel", "WhisperForAudioClassification", WHISPER | dict(num_labels=5, use_weighted_layer_sum=True)),
    "wav2vec2_classifier": ("sound", "Wav2Vec2ForSequenceClassification", WAV2VEC2 | dict(num_labels=5)),
    "wav2vec2_layers": ("sound", "Wav2Vec2ForSequenceClassification", WAV2VEC2 | dict(num_labels=5, use_weighted_layer_sum=True)),
    "wav2vec2_layers_before": ("sound", "Wav2Vec2ForSequenceClassification", WAV2VEC2 | dict(
        num_labels=5, use_weighted_layer_sum=True, feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True)),
    "wav2vec2_frames": ("sound", "Wav2Vec2ForAudioFrameClassification", WAV2VEC2 | dict(num_labels=5, use_weighted_layer_sum=True)),
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
    "chinese_clip": ("dual", "ChineseCLIPModel", dict(
        text_config={name: value for name, value in ENCODER.items() if name != "eos_token_id"}, vision_config=CLIP_VISION, projection_dim=36)),
    "wav2vec2": ("sound", "Wav2Vec2Model", WAV2VEC2),
    "wav2vec2_ctc": ("sound", "Wav2Vec2ForCTC", WAV2VEC2),
    "wav2vec2_layer": ("sound", "Wav2Vec2ForCTC", WAV2VEC2 | dict(feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True, num_conv_pos_embeddings=7)),
    "resnet": ("vision", "ResNetModel", RESNET),
    "resnet_classifier": ("vision", "ResNetForImageClassification", RESNET | dict(num_labels=5, downsample_in_bottleneck=True)),
    "resnet_basic": ("vision", "ResNetForImageClassification", RESNET | dict(num_labels=5, layer_type="basic", downsample_in_first_stage=True, hidden_act="gelu")),
    "resnet_gray": ("vision", "ResNetModel", RESNET | dict(num_channels=1, embedding_size=24)),
    "convnext": ("vision", "ConvNextModel", CONVNEXT),
    "convnext_classifier": ("vision", "ConvNextForImageClassification", CONVNEXT | dict(num_labels=5, layer_norm_eps=0.1, layer_scale_init_value=0.5, hidden_act="relu")),
    "convnext_unscaled": ("vision", "ConvNextForImageClassification", CONVNEXT | dict(num_labels=5, layer_scale_init_value=0.0)),
    "dinov2": ("vision", "Dinov2Model", DINOV2),
    "dinov2_classifier": ("vision", "Dinov2ForImageClassification", DINOV2 | dict(num_labels=5)),
    "dinov2_gated": ("vision", "Dinov2ForImageClassification", DINOV2 | dict(num_labels=5, use_swiglu_ffn=True, qkv_bias=False, use_mask_token=False, layer_norm_eps=0.01)),
    "mamba": ("recurrent", "MambaForCausalLM", MAMBA),
    "mamba2": ("recurrent", "Mamba2ForCausalLM", MAMBA_2),
    "mamba2_model": ("recurrent", "Mamba2Model", MAMBA_2 | dict(use_bias=True, use_conv_bias=False, n_groups=1)),
    "mamba2_tied": ("recurrent", "Mamba2ForCausalLM", MAMBA_2 | dict(n_groups=5, conv_kernel=2, tie_word_embeddings=True)),
    "falcon_mamba": ("recurrent", "FalconMambaForCausalLM", MAMBA | dict(mixer_rms_eps=1e-5)),
    "bamba": ("decoder", "BambaForCausalLM", DECODER | HEAD_SPACE | dict(attn_layer_indices=[1], attention_bias=True, mlp_bias=True)),
    "bamba_model": ("decoder", "BambaModel", DECODER | HEAD_SPACE | dict(attn_layer_indices=[0], mamba_proj_bias=True, mamba_conv_bias=False)),
    "falcon_h1": ("decoder", "FalconH1ForCausalLM", DECODER | HEAD_SPACE | dict(
        mamba_d_ssm=120, mamba_n_heads=6, mamba_d_head=20, ssm_multipliers=[0.5, 0.6, 0.7, 0.8, 0.9], ssm_in_multiplier=1.25,
        ssm_out_multiplier=0.8, attention_in_multiplier=0.9, attention_out_multiplier=1.2, key_multiplier=0.7,
        mlp_multipliers=[0.9, 0.6], lm_head_multiplier=0.5, embedding_multiplier=3.0)),
    "falcon_h1_norm": ("decoder", "FalconH1ForCausalLM", DECODER | HEAD_SPACE | dict(
        mamba_d_ssm=120, mamba_n_heads=6, mamba_d_head=20, mamba_rms_norm=True, mamba_norm_before_gate=False,
        projectors_bias=True, attention_bias=True)),
    "falcon_h1_norm_first": ("decoder", "FalconH1Model", DECODER | HEAD_SPACE | dict(
        mamba_d_ssm=None, mamba_rms_norm=True, mamba_proj_bias=True)),
    "granitemoehybrid": ("decoder", "GraniteMoeHybridForCausalLM", DECODER | HEAD_SPACE | dict(
        layer_types=["linear_attention", "full_attention", "linear_attention"], num_local_experts=6, shared_intermediate_size=160,
        embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.7, attention_multiplier=0.3)),
    "granitemoehybrid_dense": ("decoder", "GraniteMoeHybridForCausalLM", DECODER | HEAD_SPACE | dict(
        layer_types=["full_attention", "linear_attention", "full_attention"], num_local_experts=0, shared_intermediate_size=160,
        position_embedding_type="rope", tie_word_embeddings=True)),
    "nemotron_h": ("decoder", "NemotronHForCausalLM", NEMOTRON_H),
    "nemotron_h_latent": ("decoder", "NemotronHForCausalLM", NEMOTRON_H | dict(
        moe_latent_size=24, n_group=3, topk_group=2, norm_topk_prob=False, routed_scaling_factor=2.5, use_bias=True,
        attention_bias=True, mlp_bias=True)),
    "jamba": ("decoder", "JambaForCausalLM", JAMBA),
    "jamba_dense": ("decoder", "JambaModel", JAMBA | dict(num_experts=1, mamba_proj_bias=True, mamba_dt_rank=7)),
    "mamba_model": ("recurrent", "MambaModel", MAMBA | dict(conv_kernel=2, state_size=16, expand=1)),
    "mamba_bias": ("recurrent", "MambaForCausalLM", MAMBA | dict(use_bias=True, use_conv_bias=False, time_step_rank=5, tie_word_embeddings=False, hidden_act="gelu")),
    # Sides of 19, 10 and 5 places: windows with zeros at the end, a merge of an odd map, and windows as large as it.
    "swin": ("vision", "SwinModel", SWIN),
    "swin_classifier": ("vision", "SwinForImageClassification", SWIN | dict(num_labels=5, use_absolute_embeddings=True, qkv_bias=False, window_size=4, layer_norm_eps=0.1)),
    "swin_padded": ("vision", "SwinModel", SWIN | dict(image_size=43, patch_size=3, hidden_act="relu", window_size=3)),
    "swin_wide": ("vision", "SwinModel", SWIN | dict(image_size=[24, 38], window_size=3)),
    "convnextv2": ("vision", "ConvNextV2Model", CONVNEXT),
    "convnextv2_classifier": ("vision", "ConvNextV2ForImageClassification", CONVNEXT | dict(num_labels=5, layer_norm_eps=0.1, hidden_act="relu", num_channels=1)),
    "regnet": ("vision", "RegNetModel", RESNET | dict(groups_width=8)),
    "regnet_classifier": ("vision", "RegNetForImageClassification", RESNET | dict(num_labels=5, groups_width=8, downsample_in_first_stage=False, hidden_act="gelu")),
    "regnet_x": ("vision", "RegNetForImageClassification", RESNET | dict(num_labels=5, groups_width=8, layer_type="x")),
    "regnet_ungrouped": ("vision", "RegNetModel", RESNET | dict(num_channels=1)),
    "beit": ("vision", "BeitModel", VIT | dict(use_relative_position_bias=True)),
    "beit_classifier": ("vision", "BeitForImageClassification", VIT | dict(num_labels=5, use_relative_position_bias=True)),
    "beit_shared": ("vision", "BeitForImageClassification", VIT | dict(num_labels=5, use_shared_relative_position_bias=True, layer_norm_eps=0.01)),
    "beit_positions": ("vision", "BeitForImageClassification", VIT | dict(
        num_labels=5, use_absolute_position_embeddings=True, use_mean_pooling=False, layer_scale_init_value=0.0)),
    "beit_first": ("vision", "BeitModel", VIT | dict(use_relative_position_bias=True, use_mean_pooling=False, hidden_act="relu")),
    "data2vec_vision": ("vision", "Data2VecVisionModel", VIT | dict(use_relative_position_bias=True)),
    "data2vec_vision_classifier": ("vision", "Data2VecVisionForImageClassification", VIT | dict(num_labels=5, use_shared_relative_position_bias=True)),
    "deit": ("vision", "DeiTModel", VIT),
    "deit_classifier": ("vision", "DeiTForImageClassification", VIT | dict(num_labels=5, qkv_bias=False)),
    "deit_teacher": ("vision", "DeiTForImageClassificationWithTeacher", VIT | dict(num_labels=5, image_size=(30, 42), patch_size=(6, 7))),
    "dinov2_registers": ("vision", "Dinov2WithRegistersModel", DINOV2),
    "dinov2_registers_classifier": ("vision", "Dinov2WithRegistersForImageClassification", DINOV2 | dict(num_labels=5, num_register_tokens=3)),
    "dinov2_registers_gated": ("vision", "Dinov2WithRegistersForImageClassification", DINOV2 | dict(
        num_labels=5, use_swiglu_ffn=True, qkv_bias=False, layer_norm_eps=0.01, image_size=78)),
    "vit_msn": ("vision", "ViTMSNModel", VIT | dict(qkv_bias=False, hidden_act="relu")),
    "vit_msn_classifier": ("vision", "ViTMSNForImageClassification", VIT | dict(num_labels=5)),
    "ijepa": ("vision", "IJepaModel", VIT | dict(image_size=(30, 42), patch_size=(6, 7))),
    "ijepa_classifier": ("vision", "IJepaForImageClassification", VIT | dict(num_labels=5, qkv_bias=False)),
    "vit_mae": ("vision", "ViTMAEModel", VIT | dict(mask_ratio=0.0)),
    "hubert": ("sound", "HubertModel", HUBERT),
    "hubert_ctc": ("sound", "HubertForCTC", HUBERT),
    "hubert_batch": ("sound", "HubertForCTC", HUBERT | dict(feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True, conv_pos_batch_norm=True, feat_proj_layer_norm=False)),
    "unispeech_sat": ("sound", "UniSpeechSatModel", WAV2VEC2),
    "unispeech_sat_ctc": ("sound", "UniSpeechSatForCTC", WAV2VEC2 | dict(feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True)),
    "unispeech_sat_layers": ("sound", "UniSpeechSatForSequenceClassification", WAV2VEC2 | dict(num_labels=5, use_weighted_layer_sum=True)),
    "unispeech_sat_frames": ("sound", "UniSpeechSatForAudioFrameClassification", WAV2VEC2 | dict(num_labels=5)),
    "data2vec_audio": ("sound", "Data2VecAudioModel", WAV2VEC2 | dict(num_conv_pos_embeddings=3, conv_pos_kernel_size=7)),
    "data2vec_audio_ctc": ("sound", "Data2VecAudioForCTC", WAV2VEC2 | dict(num_conv_pos_embeddings=2, conv_pos_kernel_size=6, conv_bias=True)),
    "data2vec_audio_layers": ("sound", "Data2VecAudioForSequenceClassification", WAV2VEC2 | dict(num_labels=5, num_conv_pos_embeddings=1, use_weighted_layer_sum=True)),
    "bart": ("seq2seq", "BartForConditionalGeneration", BART),
    "bart_model": ("seq2seq", "BartModel", BART | dict(activation_function="relu")),
    "bart_untied": ("seq2seq", "BartForConditionalGeneration", BART | dict(tie_word_embeddings=False, scale_embedding=True)),
    "bart_classifier": ("ended", "BartForSequenceClassification", BART | dict(num_labels=5)),
    "bart_qa": ("ended", "BartForQuestionAnswering", BART),
    "mbart": ("seq2seq", "MBartForConditionalGeneration", BART | dict(scale_embedding=True)),
    "mbart_classifier": ("ended", "MBartForSequenceClassification", BART | dict(num_labels=5)),
    "marian": ("seq2seq", "MarianMTModel", MARIAN),
    "marian_model": ("seq2seq", "MarianModel", MARIAN | dict(scale_embedding=False)),
    "marian_apart": ("seq2seq", "MarianMTModel", MARIAN | dict(share_encoder_decoder_embeddings=False, decoder_vocab_size=1031)),
    "electra": ("encoder", "ElectraModel", SMALL_EMBEDDINGS),
    "electra_same": ("encoder", "ElectraModel", ENCODER | dict(embedding_size=320)),
    "electra_mlm": ("encoder", "ElectraForMaskedLM", SMALL_EMBEDDINGS | dict(hidden_act="relu")),
    "electra_discriminator": ("encoder", "ElectraForPreTraining", SMALL_EMBEDDINGS | dict(hidden_act="relu")),
    "electra_classifier": ("encoder", "ElectraForSequenceClassification", SMALL_EMBEDDINGS | dict(num_labels=5)),
    "electra_tokens": ("encoder", "ElectraForTokenClassification", SMALL_EMBEDDINGS | dict(num_labels=5)),
    "electra_qa": ("encoder", "ElectraForQuestionAnswering", SMALL_EMBEDDINGS),
    "albert": ("encoder", "AlbertModel", ALBERT),
    "albert_one_group": ("encoder", "AlbertModel", SMALL_EMBEDDINGS | dict(hidden_act="gelu", layer_norm_eps=1e-5)),
    "albert_mlm": ("encoder", "AlbertForMaskedLM", ALBERT),
    "albert_classifier": ("encoder", "AlbertForSequenceClassification", ALBERT | dict(num_labels=5)),
    "albert_tokens": ("encoder", "AlbertForTokenClassification", ALBERT | dict(num_labels=5)),
    "albert_qa": ("encoder", "AlbertForQuestionAnswering", ALBERT),
    "opt": ("decoder", "OPTForCausalLM", OPT),
    "opt_after": ("decoder", "OPTForCausalLM", OPT | dict(do_layer_norm_before=False, word_embed_proj_dim=72)),
    "opt_narrow": ("decoder", "OPTForCausalLM", OPT | dict(word_embed_proj_dim=72, tie_word_embeddings=False, activation_function="gelu")),
    "opt_plain": ("decoder", "OPTModel", OPT | dict(enable_bias=False, _remove_final_layer_norm=True)),
    "opt_classifier": ("classifier", "OPTForSequenceClassification", OPT | dict(num_labels=5, word_embed_proj_dim=72)),
    "opt_qa": ("classifier", "OPTForQuestionAnswering", OPT),
    "bloom": ("decoder", "BloomForCausalLM", BLOOM),
    "bloom_normed": ("decoder", "BloomForCausalLM", BLOOM | dict(apply_residual_connection_post_layernorm=True, n_head=4, tie_word_embeddings=False)),
    "bloom_model": ("decoder", "BloomModel", BLOOM | dict(n_head=20)),
    "bloom_classifier": ("classifier", "BloomForSequenceClassification", BLOOM | dict(num_labels=5)),
    "bloom_tokens": ("classifier", "BloomForTokenClassification", BLOOM | dict(num_labels=5)),
    "bloom_qa": ("classifier", "BloomForQuestionAnswering", BLOOM),
    "gptj": ("decoder", "GPTJForCausalLM", GPTJ),
    "gptj_wide": ("decoder", "GPTJForCausalLM", GPTJ | dict(rotary_dim=64, n_inner=444, activation_function="relu")),
    "gptj_model": ("decoder", "GPTJModel", GPTJ),
    "gptj_classifier": ("classifier", "GPTJForSequenceClassification", GPTJ | dict(num_labels=5, pad_token_id=0)),
    "gptj_qa": ("classifier", "GPTJForQuestionAnswering", GPTJ | dict(pad_token_id=0)),
    "deberta_v3": ("encoder", "DebertaV2Model", DEBERTA),
    "deberta_v2": ("encoder", "DebertaV2Model", DEBERTA_2),
    "deberta_v2_c2p": ("encoder", "DebertaV2Model", DEBERTA | dict(pos_att_type="c2p", norm_rel_ebd="none", position_buckets=4)),
    "deberta_v2_p2c": ("encoder", "DebertaV2Model", DEBERTA_2 | dict(pos_att_type=["p2c"], max_relative_positions=-1)),
    "deberta_v2_plain": ("encoder", "DebertaV2Model", ENCODER),
    "deberta_v2_mlm": ("encoder", "DebertaV2ForMaskedLM", DEBERTA | dict(hidden_act="relu")),
    "deberta_v2_mlm_new": ("encoder", "DebertaV2ForMaskedLM", DEBERTA | dict(legacy=False)),
    "deberta_v2_classifier": ("encoder", "DebertaV2ForSequenceClassification", DEBERTA | dict(num_labels=5, pooler_hidden_act="relu")),
    "deberta_v2_tokens": ("encoder", "DebertaV2ForTokenClassification", DEBERTA | dict(num_labels=5)),
    "deberta_v2_qa": ("encoder", "DebertaV2ForQuestionAnswering", DEBERTA_2),
    "mpnet": ("encoder", "MPNetModel", MPNET),
    "mpnet_mlm": ("encoder", "MPNetForMaskedLM", MPNET | dict(hidden_act="relu")),
    "mpnet_classifier": ("encoder", "MPNetForSequenceClassification", MPNET | dict(num_labels=5)),
    "mpnet_tokens": ("encoder", "MPNetForTokenClassification", MPNET | dict(num_labels=5)),
    "mpnet_qa": ("encoder", "MPNetForQuestionAnswering", MPNET),
    "olmoe": ("decoder", "OlmoeForCausalLM", OLMOE | dict(clip_qkv=0.7, norm_topk_prob=True)),
    "olmoe_plain": ("decoder", "OlmoeForCausalLM", OLMOE | dict(num_key_value_heads=5)),
    "nomic_bert": ("encoder", "NomicBertModel", ENCODER),
    "nomic_bert_mlm": ("encoder", "NomicBertForMaskedLM", ENCODER | dict(hidden_act="gelu")),
    "nomic_bert_classifier": ("encoder", "NomicBertForSequenceClassification", ENCODER | dict(num_labels=5)),
    "nomic_bert_tokens": ("encoder", "NomicBertForTokenClassification", ENCODER | dict(num_labels=5)),
    "ministral": ("decoder", "MinistralForCausalLM", DECODER | dict(
        head_dim=48, sliding_window=5, layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    "cwm": ("decoder", "CwmForCausalLM", DECODER | dict(sliding_window=5, num_hidden_layers=5)),
    "hyperclovax": ("decoder", "HyperCLOVAXForCausalLM", DECODER | dict(
        embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.7, attention_multiplier=0.3)),
    "hyperclovax_plain": ("decoder", "HyperCLOVAXForCausalLM", DECODER | dict(use_post_norm=False, attention_bias=True, mlp_bias=True)),
    "jais2": ("decoder", "Jais2ForCausalLM", DECODER),
    "jais2_plain": ("decoder", "Jais2Model", DECODER | dict(attention_bias=False, mlp_bias=False)),
    "flex_olmo": ("decoder", "FlexOlmoForCausalLM", DECODER | dict(num_experts=6, num_experts_per_tok=2)),
    "hunyuan_v1_moe": ("decoder", "HunYuanMoEV1ForCausalLM", HUNYUAN_MOE),
    "hunyuan_v1_moe_bias": ("decoder", "HunYuanMoEV1Model", HUNYUAN_MOE | dict(attention_bias=True, moe_topk=[1, 2, 3])),
    "solar_open": ("decoder", "SolarOpenForCausalLM", DECODER | dict(
        head_dim=48, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=96, n_shared_experts=2, n_group=3,
        topk_group=2, routed_scaling_factor=2.5)),
    "sarvam_moe": ("decoder", "Glm4MoeForCausalLM", SARVAM_MOE | dict(n_group=3, topk_group=2)),
    "sarvam_moe_plain": ("decoder", "Glm4MoeModel", SARVAM_MOE | dict(
        attention_bias=True, use_qk_norm=False, norm_topk_prob=False, first_k_dense_replace=0)),
    "sarvam_mla": ("decoder", "DeepseekV3ForCausalLM", SARVAM_MLA),
    "sarvam_mla_yarn": ("decoder", "DeepseekV3ForCausalLM", SARVAM_MLA | rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=0.7)),
    "hy_v3": ("decoder", "HYV3ForCausalLM", MOE | dict(num_shared_experts=2)),
    "hy_v3_bias": ("decoder", "HYV3Model", MOE | dict(attention_bias=True, mlp_layer_types=["sparse", "dense", "sparse"])),
    "mellum": ("decoder", "MellumForCausalLM", MOE | KINDS | KINDS_OF_ROPE | dict(mlp_layer_types=["dense", "sparse", "sparse"])),
    "mellum_full": ("decoder", "MellumModel", MOE | dict(norm_topk_prob=False, attention_bias=True)),
    "mellum_yarn": ("decoder", "MellumForCausalLM", MOE | KINDS | dict(rope_parameters=dict(
        full_attention=dict(rope_type="yarn", rope_theta=50000.0, factor=4.0, original_max_position_embeddings=16),
        sliding_attention=dict(rope_type="default", rope_theta=1000.0)))),
    "kolibri1": ("decoder", "Kolibri1ForCausalLM", KOLIBRI),
    "kolibri1_normal": ("decoder", "Kolibri1Model", KOLIBRI | dict(norm_topk_prob=True)),
    "flint": ("decoder", "FlintForCausalLM", SHARED_MOE | dict(mlp_only_layers=[0])),
    "flint_bias": ("decoder", "FlintModel", SHARED_MOE | dict(
        mlp_only_layers=[1], norm_topk_prob=False, attention_bias=True, tie_word_embeddings=True)),
    "axk1": ("decoder", "AXK1ForCausalLM", AXK1),
    "axk1_halves": ("decoder", "AXK1Model", AXK1 | dict(rope_interleave=False, mlp_layer_types=["sparse", "dense", "sparse"])),
    "granitemoe_swa": ("decoder", "GraniteMoeSWAForCausalLM", GRANITE_MOE | KINDS | dict(
        layer_rope_theta=[1000.0, 0.0, 50.0], shared_intermediate_size=160)),
    "granitemoe_swa_alone": ("decoder", "GraniteMoeSWAModel", GRANITE_MOE | dict(sliding_window=5, attention_bias=True)),
    "laguna": ("decoder", "LagunaForCausalLM", SHARED_MOE | dict(
        num_attention_heads_per_layer=[5, 3, 4], moe_routed_scaling_factor=2.5)),
    "laguna_each": ("decoder", "LagunaForCausalLM", SHARED_MOE | KINDS_OF_ROPE | dict(
        gating="per-element", mlp_layer_types=["sparse", "dense", "sparse"], attention_bias=True)),
    "laguna_yarn": ("decoder", "LagunaModel", SHARED_MOE | dict(rope_parameters=dict(
        full_attention=dict(
            rope_type="yarn", rope_theta=50000.0, factor=4.0, original_max_position_embeddings=16, partial_rotary_factor=0.5,
            beta_fast=64.0, attention_factor=1.0),
        sliding_attention=dict(rope_type="default", rope_theta=1000.0, partial_rotary_factor=1.0)))),
    "cohere2_moe": ("decoder", "Cohere2MoeForCausalLM", DECODER | KINDS | dict(head_dim=48, num_experts=6)),
    "cohere2_moe_shared": ("decoder", "Cohere2MoeForCausalLM", DECODER | dict(
        head_dim=48, num_experts=6, num_shared_experts=2, num_hidden_layers=5, sliding_window=5, first_k_dense_replace=1,
        prefix_dense_intermediate_size=200, expert_selection_fn="sigmoid", rms_norm_eps=1e-4, logit_scale=0.3)),
    "cohere2_moe_sum": ("decoder", "Cohere2MoeModel", DECODER | KINDS | dict(
        head_dim=48, num_experts=6, num_shared_experts=1, shared_expert_combination_strategy="sum",
        expert_selection_fn="sigmoid", norm_topk_prob=False, mlp_layer_types=["dense", "dense", "sparse"],
        prefix_dense_sliding_window_pattern=2, prefix_dense_intermediate_size=200)),
    "mimo_v2_flash": ("decoder", "MiMoV2FlashForCausalLM", MIMO_V2 | dict(n_group=3, topk_group=2)),
    "mimo_v2_flash_bias": ("decoder", "MiMoV2FlashModel", MIMO_V2 | KINDS_OF_ROPE | dict(
        attention_bias=True, attention_value_scale=None, norm_topk_prob=False, routed_scaling_factor=1.5)),
    "codegen": ("decoder", "CodeGenForCausalLM", CODEGEN),
    "nanochat": ("decoder", "NanoChatForCausalLM", DECODER),
    "nanochat_bias": ("decoder", "NanoChatForCausalLM", DECODER | dict(attention_bias=True, final_logit_softcapping=2.0)),
    "lfm3": ("decoder", "Lfm3ForCausalLM", LFM3),
    "lfm3_plain": ("decoder", "Lfm3Model", LFM3 | dict(use_sandwich_norm=False, use_attention_gate=False, conv_bias=True)),
    "youtu": ("decoder", "YoutuForCausalLM", LATENT),
    "youtu_plain": ("decoder", "YoutuModel", LATENT | dict(q_lora_rank=None, rope_interleave=False)),
    "minicpm3": ("decoder", "MiniCPM3ForCausalLM", LATENT),
    "afmoe": ("decoder", "AfmoeForCausalLM", AFMOE | dict(route_scale=2.5, mup_enabled=True)),
    "afmoe_tied": ("decoder", "AfmoeModel", AFMOE | dict(num_shared_experts=2, attention_bias=True)),
    "qwen3_vl_moe": ("decoder", "Qwen3VLMoeTextModel", DECODER | dict(
        head_dim=48, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=96,
        rope_parameters=dict(rope_type="default", mrope_section=[8, 8, 8], rope_theta=10000.0))),
    "gemma4": ("decoder", "Gemma4ForCausalLM", GEMMA4 | dict(
        hidden_size_per_layer_input=24, num_kv_shared_layers=2, use_double_wide_mlp=True, final_logit_softcapping=30.0)),
    "gemma4_moe": ("decoder", "Gemma4ForCausalLM", GEMMA4 | dict(
        attention_k_eq_v=True, num_global_key_value_heads=1, num_key_value_heads=2, enable_moe_block=True, num_experts=6, top_k_experts=2,
        moe_intermediate_size=96, use_bidirectional_attention="vision")),
    "gemma3n": ("decoder", "Gemma3nForCausalLM", GEMMA3N),
    "gemma3n_model": ("decoder", "Gemma3nTextModel", GEMMA3N | dict(
        altup_num_inputs=3, altup_active_idx=1, altup_correct_scale=False, num_kv_shared_layers=0, attention_bias=True)),
    "internlm3": ("decoder", "LlamaForCausalLM", DECODER | dict(head_dim=48, attention_bias=True, mlp_bias=True)),
    "iquestcoder": ("decoder", "LlamaForCausalLM", DECODER | dict(head_dim=48)),
    "qwen3_next": ("decoder", "Qwen3NextForCausalLM", DELTA_MOE),
    "qwen3_next_dense": ("decoder", "Qwen3NextForCausalLM", DELTA_MOE | dict(
        decoder_sparse_step=2, attention_bias=True, linear_num_value_heads=3, linear_conv_kernel_dim=3,
        tie_word_embeddings=True,
    )),
    "qwen3_5": ("decoder", "Qwen3_5ForCausalLM", DELTA),
    "qwen3_5_model": ("decoder", "Qwen3_5TextModel", DELTA | dict(attention_bias=True, linear_num_value_heads=3, layer_types=None)),
    "qwen3_5_moe": ("decoder", "Qwen3_5MoeForCausalLM", DELTA_MOE),
    "lfm2": ("decoder", "Lfm2ForCausalLM", DECODER | dict(full_attn_idxs=[1], conv_bias=True, block_multiple_of=24)),
    "lfm2_moe": ("decoder", "Lfm2MoeForCausalLM", DECODER | dict(
        num_hidden_layers=3, layer_types=["full_attention", "conv", "conv"], num_dense_layers=1, num_experts=6,
        num_experts_per_tok=2, moe_intermediate_size=20, conv_L_cache=4)),
    "exaone4": ("decoder", "Exaone4ForCausalLM", EXAONE4),
    "exaone4_full": ("decoder", "Exaone4ForCausalLM", DECODER | dict(
        num_attention_heads=4, num_key_value_heads=2, head_dim=48, sliding_window=None, layer_types=["full_attention"] * 5,
        num_hidden_layers=5, tie_word_embeddings=True)),
    "exaone4_classifier": ("classifier", "Exaone4ForSequenceClassification", EXAONE4 | dict(num_labels=5)),
    "data2vec_text": ("encoder", "Data2VecTextModel", ROBERTA),
    "data2vec_text_mlm": ("encoder", "Data2VecTextForMaskedLM", ROBERTA | dict(type_vocab_size=2)),
    "data2vec_text_classifier": ("encoder", "Data2VecTextForSequenceClassification", ROBERTA | dict(num_labels=5)),
    "ernie": ("encoder", "ErnieModel", ENCODER),
    "ernie_mlm": ("encoder", "ErnieForMaskedLM", ENCODER | dict(hidden_act="relu")),
    "ernie_classifier": ("encoder", "ErnieForSequenceClassification", ENCODER | dict(num_labels=5)),
    "ernie_qa": ("encoder", "ErnieForQuestionAnswering", ENCODER),
    "xlm_roberta_xl": ("encoder", "XLMRobertaXLModel", ROBERTA),
    "xlm_roberta_xl_mlm": ("encoder", "XLMRobertaXLForMaskedLM", ROBERTA | dict(tie_word_embeddings=False)),
    "xlm_roberta_xl_classifier": ("encoder", "XLMRobertaXLForSequenceClassification", ROBERTA | dict(num_labels=5)),
    "xlm_roberta_xl_qa": ("encoder", "XLMRobertaXLForQuestionAnswering", ROBERTA),
    "roberta_prelayernorm": ("encoder", "RobertaPreLayerNormModel", PRELAYERNORM),
    "roberta_prelayernorm_mlm": ("encoder", "RobertaPreLayerNormForMaskedLM", PRELAYERNORM),
    "roberta_prelayernorm_tokens": ("encoder", "RobertaPreLayerNormForTokenClassification", PRELAYERNORM | dict(num_labels=5)),
    "roberta_prelayernorm_choices": ("choices", "RobertaPreLayerNormForMultipleChoice", PRELAYERNORM),
    "eurobert": ("encoder", "EuroBertModel", DECODER),
    "eurobert_mlm": ("encoder", "EuroBertForMaskedLM", DECODER | dict(mlp_bias=True, attention_bias=True, head_dim=48)),
    "eurobert_tied": ("encoder", "EuroBertForMaskedLM", DECODER | dict(tie_word_embeddings=True)),
    "eurobert_mean": ("encoder", "EuroBertForSequenceClassification", DECODER | dict(num_labels=5, classifier_pooling="mean")),
    "eurobert_first": ("encoder", "EuroBertForSequenceClassification", DECODER | dict(num_labels=5, classifier_pooling="bos")),
    "eurobert_tokens": ("encoder", "EuroBertForTokenClassification", DECODER | dict(num_labels=5)),
    "pegasus": ("seq2seq", "PegasusForConditionalGeneration", PEGASUS | dict(scale_embedding=True, activation_function="relu")),
    "pegasus_untied": ("seq2seq", "PegasusForConditionalGeneration", PEGASUS | dict(tie_word_embeddings=False)),
    "pegasus_model": ("seq2seq", "PegasusModel", PEGASUS),
    "blenderbot": ("seq2seq", "BlenderbotForConditionalGeneration", BART | dict(scale_embedding=True)),
    "blenderbot_untied": ("seq2seq", "BlenderbotForConditionalGeneration", BART | dict(tie_word_embeddings=False)),
    "blenderbot_model": ("seq2seq", "BlenderbotModel", BART),
    "vaultgemma": ("decoder", "VaultGemmaForCausalLM", DECODER | dict(
        head_dim=48, sliding_window=5, query_pre_attn_scalar=100, attn_logit_softcapping=3.0, final_logit_softcapping=2.0)),
    "vaultgemma_plain": ("decoder", "VaultGemmaForCausalLM", DECODER | dict(
        head_dim=64, num_key_value_heads=5, attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=True,
        tie_word_embeddings=False, layer_types=["full_attention", "sliding_attention", "full_attention"], sliding_window=4)),
    "glm4_moe_lite": ("decoder", "Glm4MoeLiteForCausalLM", GLM4_MOE_LITE),
    "glm4_moe_lite_groups": ("decoder", "Glm4MoeLiteForCausalLM", GLM4_MOE_LITE | dict(
        n_group=3, topk_group=2, attention_bias=True, q_lora_rank=None, rope_interleave=False, norm_topk_prob=False,
        mlp_layer_types=["dense", "dense", "sparse"], tie_word_embeddings=True)),
    "ernie4_5_moe": ("decoder", "Ernie4_5_MoeForCausalLM", ERNIE4_5_MOE),
    "ernie4_5_moe_bias": ("decoder", "Ernie4_5_MoeForCausalLM", ERNIE4_5_MOE | dict(
        use_bias=True, tie_word_embeddings=False, moe_layer_start_index=0, moe_layer_end_index=2, moe_layer_interval=2,
        moe_num_shared_experts=0)),
    "exaone_moe": ("decoder", "ExaoneMoeForCausalLM", EXAONE_MOE),
    "exaone_moe_groups": ("decoder", "ExaoneMoeForCausalLM", EXAONE_MOE | dict(
        n_group=3, topk_group=2, num_shared_experts=2, norm_topk_prob=False, num_key_value_heads=5,
        layer_types=["full_attention", "sliding_attention", "full_attention", "full_attention", "sliding_attention"],
        mlp_layer_types=["dense", "dense", "sparse", "sparse", "sparse"])),
    "gpt_bigcode": ("decoder", "GPTBigCodeForCausalLM", GPT_BIGCODE),
    "gpt_bigcode_heads": ("decoder", "GPTBigCodeForCausalLM", GPT_BIGCODE | dict(
        multi_query=False, n_inner=444, scale_attn_weights=False, activation_function="gelu", tie_word_embeddings=False)),
    "gpt_bigcode_tokens": ("classifier", "GPTBigCodeForTokenClassification", GPT_BIGCODE | dict(num_labels=5, pad_token_id=0)),
    "gpt_neo": ("decoder", "GPTNeoForCausalLM", GPT_NEO),
    "gpt_neo_untied": ("decoder", "GPTNeoForCausalLM", GPT_NEO | dict(
        attention_types=[[["global"], 1], [["local"], 3]], intermediate_size=444, tie_word_embeddings=False, activation_function="relu")),
    "gpt_neo_classifier": ("classifier", "GPTNeoForSequenceClassification", GPT_NEO | dict(num_labels=5, pad_token_id=0)),
    "openai_gpt": ("uncached", "OpenAIGPTLMHeadModel", GPT2),
    "openai_gpt_untied": ("uncached", "OpenAIGPTLMHeadModel", GPT2 | dict(tie_word_embeddings=False, afn="silu")),
    "openai_gpt_model": ("uncached", "OpenAIGPTModel", GPT2 | dict(afn="relu")),
    "openai_gpt_classifier": ("classifier", "OpenAIGPTForSequenceClassification", GPT2 | dict(num_labels=5, pad_token_id=0)),
    "persimmon": ("decoder", "PersimmonForCausalLM", UNGROUPED),
    "persimmon_plain": ("decoder", "PersimmonForCausalLM", UNGROUPED | dict(
        qk_layernorm=False, hidden_act="gelu", tie_word_embeddings=True, num_attention_heads=4)
        | rope("default", partial_rotary_factor=0.25)),
    "persimmon_tokens": ("classifier", "PersimmonForTokenClassification", UNGROUPED | dict(num_labels=5)),
    "biogpt": ("decoder", "BioGptForCausalLM", BIOGPT),
    "biogpt_untied": ("decoder", "BioGptForCausalLM", BIOGPT | dict(
        tie_word_embeddings=False, scale_embedding=False, hidden_act="relu", layer_norm_eps=0.01)),
    "biogpt_classifier": ("classifier", "BioGptForSequenceClassification", BIOGPT | dict(num_labels=5)),
    "biogpt_tokens": ("classifier", "BioGptForTokenClassification", BIOGPT | dict(num_labels=5)),
    "m2m_100": ("seq2seq", "M2M100ForConditionalGeneration", M2M_100),
    "m2m_100_padding": ("seq2seq", "M2M100ForConditionalGeneration", M2M_100 | dict(
        pad_token_id=5, scale_embedding=False, activation_function="gelu", tie_word_embeddings=False)),
    "m2m_100_model": ("seq2seq", "M2M100Model", M2M_100),
    "xglm": ("decoder", "XGLMForCausalLM", XGLM),
    "xglm_untied": ("decoder", "XGLMForCausalLM", XGLM | dict(
        tie_word_embeddings=False, scale_embedding=False, pad_token_id=7, activation_function="relu")),
    "xglm_model": ("decoder", "XGLMModel", XGLM),
    "granitemoe": ("decoder", "GraniteMoeForCausalLM", GRANITE_MOE),
    "granitemoe_tied": ("decoder", "GraniteMoeForCausalLM", GRANITE_MOE | dict(
        attention_bias=True, tie_word_embeddings=True, num_experts_per_tok=3)),
    "granitemoeshared": ("decoder", "GraniteMoeSharedForCausalLM", GRANITE_MOE | dict(shared_intermediate_size=96)),
    "granitemoeshared_none": ("decoder", "GraniteMoeSharedForCausalLM", GRANITE_MOE | dict(shared_intermediate_size=0)),
    "phimoe": ("decoder", "PhimoeForCausalLM", PHIMOE),
    "phimoe_bias": ("decoder", "PhimoeForCausalLM", PHIMOE | dict(
        attention_bias=True, lm_head_bias=True, sliding_window=5, router_jitter_noise=0.01)),
    "phimoe_longrope": ("decoder", "PhimoeForCausalLM", PHIMOE | rope(
        "longrope", factor=4.0, original_max_position_embeddings=64, short_mscale=1.25, long_mscale=1.25,
        short_factor=[1.0 + at / 32 for at in range(32)], long_factor=[2.0 + at / 8 for at in range(32)])),
    "phimoe_classifier": ("classifier", "PhimoeForSequenceClassification", PHIMOE | dict(num_labels=5)),
    "wavlm": ("sound", "WavLMModel", WAVLM),
    "wavlm_ctc": ("sound", "WavLMForCTC", WAVLM | dict(
        feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True, num_conv_pos_embeddings=7)),
    "wavlm_layers": ("sound", "WavLMForSequenceClassification", WAVLM | dict(num_labels=5, use_weighted_layer_sum=True)),
    "wavlm_frames": ("sound", "WavLMForAudioFrameClassification", WAVLM | dict(num_labels=5)),
    "sew": ("sound", "SEWModel", WAV2VEC2),
    "sew_ctc": ("sound", "SEWForCTC", WAV2VEC2 | dict(
        squeeze_factor=3, num_conv_pos_embeddings=7, conv_dim=(24, 20, 320), feat_extract_norm="layer", conv_bias=True)),
    "sew_classifier": ("sound", "SEWForSequenceClassification", WAV2VEC2 | dict(num_labels=5)),
    "sew_layers": ("sound", "SEWForSequenceClassification", WAV2VEC2 | dict(num_labels=5, use_weighted_layer_sum=True)),
    "ast": ("spectrogram", "ASTModel", AST),
    "ast_classifier": ("spectrogram", "ASTForAudioClassification", AST | dict(num_labels=5, qkv_bias=False)),
    "swinv2": ("vision", "Swinv2Model", SWIN | dict(image_size=40)),
    "swinv2_classifier": ("vision", "Swinv2ForImageClassification", SWIN | dict(
        image_size=48, num_labels=5, qkv_bias=False, window_size=8, layer_norm_eps=0.1,
        pretrained_window_sizes=[6, 6, 3])),
    "swinv2_padded": ("vision", "Swinv2Model", SWIN | dict(image_size=43, patch_size=3, hidden_act="relu", window_size=3)),
    "yolos": ("vision", "YolosModel", YOLOS),
    "yolos_detector": ("vision", "YolosForObjectDetection", YOLOS | dict(num_labels=5)),
    "yolos_tiny": ("vision", "YolosForObjectDetection", YOLOS | dict(
        num_labels=5, use_mid_position_embeddings=False, qkv_bias=False, image_size=[36, 24])),
    "modernbert_decoder": ("decoder", "ModernBertDecoderForCausalLM", MODERNBERT | dict(local_attention=10)),
    "modernbert_decoder_bias": ("decoder", "ModernBertDecoderForCausalLM", MODERNBERT | dict(
        norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True, decoder_bias=False, classifier_activation="relu",
        tie_word_embeddings=False, layer_types=["sliding_attention", "full_attention"] * 2)),
    "modernbert_decoder_model": ("decoder", "ModernBertDecoderModel", MODERNBERT),
    # Of config.json only what stands here is left: the rest is as the classes have it.
    "resnet_defaults": ("vision", "ResNetModel", dict(depths=[1, 1, 2, 1])),
    "resnet_default_depths": ("vision", "ResNetModel", dict(hidden_sizes=[24, 40, 56, 64])),
    "convnext_defaults": ("vision", "ConvNextForImageClassification", dict(depths=[1, 1, 2, 1], image_size=64)),
    "dinov2_defaults": ("vision", "Dinov2Model", dict(num_hidden_layers=1, image_size=56)),
    "dinov2_default_depth": ("vision", "Dinov2ForImageClassification", dict(hidden_size=24)),
    "swin_defaults": ("vision", "SwinModel", dict(depths=[2, 1, 1, 1])),
    "swin_default_depths": ("vision", "SwinForImageClassification", dict(embed_dim=24)),
    "convnextv2_defaults": ("vision", "ConvNextV2ForImageClassification", dict(depths=[1, 1, 2, 1], image_size=64)),
    "regnet_defaults": ("vision", "RegNetModel", dict(depths=[1, 1, 2, 1])),
    "dinov2_registers_defaults": ("vision", "Dinov2WithRegistersModel", dict(num_hidden_layers=1, image_size=64)),
    "mamba_defaults": ("recurrent", "MambaForCausalLM", dict(num_hidden_layers=1)),
    "mamba_default_depth": ("recurrent", "MambaForCausalLM", dict(hidden_size=40, vocab_size=1003, initializer_range=0.02)),
    "bart_defaults": ("seq2seq", "BartForConditionalGeneration", dict(d_model=320, vocab_size=1003, encoder_layers=1, decoder_layers=1)),
    "mbart_defaults": ("seq2seq", "MBartForConditionalGeneration", dict(d_model=320, vocab_size=1003, encoder_layers=1, decoder_layers=1)),
    "electra_defaults": ("encoder", "ElectraModel", dict(vocab_size=1003, num_hidden_layers=2)),
    "albert_defaults": ("encoder", "AlbertForMaskedLM", dict(vocab_size=1003, hidden_size=320, intermediate_size=448, num_hidden_layers=3)),
    "opt_defaults": ("decoder", "OPTForCausalLM", dict(vocab_size=1003, num_hidden_layers=2)),
    "bloom_defaults": ("decoder", "BloomForCausalLM", dict(vocab_size=1003)),
    "gptj_defaults": ("decoder", "GPTJForCausalLM", dict(vocab_size=1003, n_embd=1024, n_layer=1, n_positions=64)),
    "deberta_v2_defaults": ("encoder", "DebertaV2ForMaskedLM", dict(vocab_size=1003, hidden_size=312, intermediate_size=448, num_hidden_layers=2)),
    "mpnet_defaults": ("encoder", "MPNetForMaskedLM", dict(vocab_size=1003, num_hidden_layers=1)),
    "nomic_bert_defaults": ("encoder", "NomicBertForMaskedLM", dict(vocab_size=1003, num_hidden_layers=1)),
    "exaone4_defaults": ("decoder", "Exaone4ForCausalLM", dict(vocab_size=1003, hidden_size=640, intermediate_size=448, num_hidden_layers=5)),
    "olmoe_defaults": ("decoder", "OlmoeForCausalLM", dict(vocab_size=1003, hidden_size=320, intermediate_size=48, num_hidden_layers=1)),
}
