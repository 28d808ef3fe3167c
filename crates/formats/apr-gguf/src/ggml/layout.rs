//! The families of models whose files are known: what comes between magic and tensors, and how
//! tensors are named.
//!
//! Facts from the programs that wrote the files: llama.cpp (`convert_llama_ggml_to_gguf.py`),
//! whisper.cpp (`convert-pt-to-ggml.py`, `convert-silero-vad-to-ggml.py`), ggml's examples gpt-2,
//! gpt-j, gpt-neox, mpt and falcon, bert.cpp, and rwkv.cpp's description of its format.

/// A hyperparameter, stored in four bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    /// Name in the program that wrote it.
    pub(super) name: &'static str,
    /// Key in a Hugging Face configuration; empty if it has none.
    pub(super) config: &'static str,
    /// `true` for an f32, `false` for an i32.
    pub(super) float: bool,
}

const fn int(name: &'static str, config: &'static str) -> Field {
    Field { name, config, float: false }
}

const fn float(name: &'static str, config: &'static str) -> Field {
    Field { name, config, float: true }
}

/// Storage of the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tokens {
    /// No tokens.
    Absent,
    /// Tokens after their number.
    Counted,
    /// Tokens without their number, which `n_vocab` states.
    Given,
}

/// File layout of a family.
#[derive(Debug)]
pub(super) struct GgmlLayout {
    /// Name as `--arch` takes it.
    pub(super) name: &'static str,
    /// Other accepted names.
    pub(super) aliases: &'static [&'static str],
    /// Hugging Face's `model_type`.
    pub(super) model_type: &'static str,
    /// Hyperparameters after the magic; `ftype` is the last. Empty for silero-vad, whose number of
    /// hyperparameters varies.
    pub(super) fields: &'static [Field],
    /// `true` if a mel filterbank follows.
    pub(super) mel_filterbank: bool,
    /// The vocabulary.
    pub(super) tokens: Tokens,
    /// Prefix of the names of a layer's tensors, with `{}` for the layer, and the field that counts
    /// the layers.
    pub(super) layers: &'static [(&'static str, &'static str)],
    /// A name, or the start of one, that no other family with the same fields has.
    pub(super) marker: &'static str,
    /// `true` if the family is detected without being named.
    pub(super) detected: bool,
    /// `true` if the family's program could quantize before blocks stored their scales next to the
    /// nibbles.
    pub(super) early_quantization: bool,
}

const GPT2_FIELDS: &[Field] = &[
    int("n_vocab", "vocab_size"),
    int("n_ctx", "n_positions"),
    int("n_embd", "n_embd"),
    int("n_head", "n_head"),
    int("n_layer", "n_layer"),
    int("ftype", ""),
];

const GPT2: GgmlLayout = GgmlLayout {
    name: "gpt2",
    aliases: &["gpt-2"],
    model_type: "gpt2",
    fields: GPT2_FIELDS,
    mel_filterbank: false,
    tokens: Tokens::Counted,
    layers: &[("model/h{}/", "n_layer")],
    marker: "model/w",
    detected: true,
    early_quantization: true,
};

const GPT_NEOX: GgmlLayout = GgmlLayout {
    name: "gptneox",
    aliases: &["gpt_neox", "gpt-neox", "dolly-v2", "stablelm"],
    model_type: "gpt_neox",
    fields: &[
        int("n_vocab", "vocab_size"),
        int("n_ctx", "max_position_embeddings"),
        int("n_embd", "hidden_size"),
        int("n_head", "num_attention_heads"),
        int("n_layer", "num_hidden_layers"),
        int("n_rot", ""),
        int("par_res", ""),
        int("ftype", ""),
    ],
    mel_filterbank: false,
    tokens: Tokens::Given,
    layers: &[("gpt_neox.layers.{}.", "n_layer")],
    marker: "gpt_neox.",
    detected: true,
    early_quantization: false,
};

/// All layouts; a family that changed its fields has several.
pub(super) const LAYOUTS: &[GgmlLayout] = &[
    GgmlLayout {
        name: "llama",
        aliases: &[],
        model_type: "llama",
        fields: &[
            int("n_vocab", "vocab_size"),
            int("n_embd", "hidden_size"),
            int("n_mult", ""),
            int("n_head", "num_attention_heads"),
            int("n_layer", "num_hidden_layers"),
            int("n_rot", "head_dim"),
            int("ftype", ""),
        ],
        mel_filterbank: false,
        tokens: Tokens::Given,
        layers: &[("layers.{}.", "n_layer")],
        marker: "tok_embeddings.weight",
        detected: true,
        early_quantization: false,
    },
    GgmlLayout {
        name: "whisper",
        aliases: &[],
        model_type: "whisper",
        fields: &[
            int("n_vocab", "vocab_size"),
            int("n_audio_ctx", "max_source_positions"),
            int("n_audio_state", "d_model"),
            int("n_audio_head", "encoder_attention_heads"),
            int("n_audio_layer", "encoder_layers"),
            int("n_text_ctx", "max_target_positions"),
            int("n_text_state", ""),
            int("n_text_head", "decoder_attention_heads"),
            int("n_text_layer", "decoder_layers"),
            int("n_mels", "num_mel_bins"),
            int("ftype", ""),
        ],
        mel_filterbank: true,
        tokens: Tokens::Counted,
        layers: &[("encoder.blocks.{}.", "n_audio_layer"), ("decoder.blocks.{}.", "n_text_layer")],
        marker: "encoder.",
        detected: true,
        early_quantization: false,
    },
    GgmlLayout {
        name: "silero-vad",
        aliases: &["silero", "silero_vad"],
        model_type: "silero_vad",
        fields: &[],
        mel_filterbank: false,
        tokens: Tokens::Absent,
        layers: &[("_model.encoder.{}.", "n_encoder_layers")],
        marker: "_model.",
        detected: true,
        early_quantization: false,
    },
    GPT2,
    // The same with keys and values repeated for each head, so that GPT-2's program can run it;
    // only its maker knows.
    GgmlLayout {
        name: "starcoder",
        aliases: &["gpt_bigcode"],
        model_type: "gpt_bigcode",
        detected: false,
        ..GPT2
    },
    GgmlLayout {
        name: "gptj",
        aliases: &["gpt-j"],
        model_type: "gptj",
        fields: &[
            int("n_vocab", "vocab_size"),
            int("n_ctx", "n_positions"),
            int("n_embd", "n_embd"),
            int("n_head", "n_head"),
            int("n_layer", "n_layer"),
            int("n_rot", "rotary_dim"),
            int("ftype", ""),
        ],
        mel_filterbank: false,
        tokens: Tokens::Counted,
        layers: &[("transformer.h.{}.", "n_layer")],
        marker: "transformer.wte.",
        detected: true,
        early_quantization: true,
    },
    GPT_NEOX,
    // The example stablelm, which ggml had before gpt-neox.
    GgmlLayout {
        fields: &[
            int("n_vocab", "vocab_size"),
            int("n_ctx", "max_position_embeddings"),
            int("n_embd", "hidden_size"),
            int("n_head", "num_attention_heads"),
            int("n_layer", "num_hidden_layers"),
            int("n_rot", ""),
            int("ftype", ""),
        ],
        ..GPT_NEOX
    },
    GgmlLayout {
        name: "mpt",
        aliases: &[],
        model_type: "mpt",
        fields: &[
            int("d_model", "d_model"),
            int("max_seq_len", "max_seq_len"),
            int("n_heads", "n_heads"),
            int("n_layers", "n_layers"),
            int("n_vocab", "vocab_size"),
            float("alibi_bias_max", ""),
            float("clip_qkv", ""),
            int("ftype", ""),
        ],
        mel_filterbank: false,
        tokens: Tokens::Given,
        layers: &[("transformer.blocks.{}.", "n_layers")],
        marker: "transformer.blocks.",
        detected: true,
        early_quantization: false,
    },
    GgmlLayout {
        name: "falcon",
        aliases: &[],
        model_type: "falcon",
        fields: &[
            int("n_vocab", "vocab_size"),
            int("n_embd", "hidden_size"),
            int("n_head", "num_attention_heads"),
            int("n_layer", "num_hidden_layers"),
            int("ftype", ""),
        ],
        mel_filterbank: false,
        tokens: Tokens::Given,
        layers: &[("transformer.h.{}.", "n_layer")],
        marker: "transformer.word_embeddings.",
        detected: true,
        early_quantization: false,
    },
    GgmlLayout {
        name: "bert",
        aliases: &[],
        model_type: "bert",
        fields: &[
            int("n_vocab", "vocab_size"),
            int("n_max_tokens", "max_position_embeddings"),
            int("n_embd", "hidden_size"),
            int("n_intermediate", "intermediate_size"),
            int("n_head", "num_attention_heads"),
            int("n_layer", "num_hidden_layers"),
            int("ftype", ""),
        ],
        mel_filterbank: false,
        tokens: Tokens::Given,
        layers: &[("encoder.layer.{}.", "n_layer")],
        marker: "embeddings.",
        detected: true,
        early_quantization: false,
    },
    GgmlLayout {
        name: "rwkv",
        aliases: &[],
        model_type: "rwkv",
        fields: &[
            int("n_vocab", "vocab_size"),
            int("n_embed", "hidden_size"),
            int("n_layer", "num_hidden_layers"),
            int("ftype", ""),
        ],
        mel_filterbank: false,
        tokens: Tokens::Absent,
        layers: &[("blocks.{}.", "n_layer")],
        marker: "emb.weight",
        detected: true,
        early_quantization: false,
    },
];

impl GgmlLayout {
    /// Returns `true` if `name` means this family, in any letter case.
    pub(super) fn answers_to(&self, name: &str) -> bool {
        let names = [self.name, self.model_type].into_iter().chain(self.aliases.iter().copied());
        names.into_iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Returns `true` if the family's tensors have names like this one.
    pub(super) fn has_tensor(&self, name: &str) -> bool {
        let of_layers = self.layers.iter().filter_map(|(pattern, _)| pattern.split('{').next());
        of_layers.chain([self.marker]).any(|start| name.starts_with(start))
    }
}

/// Returns the names that [`open`](super::open) accepts for an architecture. It also accepts
/// further spellings (`gpt-j`, `stablelm`).
///
/// ```
/// assert!(apr_gguf::ggml::architectures().any(|name| name == "whisper"));
/// ```
pub fn architectures() -> impl Iterator<Item = &'static str> {
    let named = |at: usize| LAYOUTS[..at].iter().any(|before| before.name == LAYOUTS[at].name);
    (0..LAYOUTS.len()).filter(move |&at| !named(at)).map(|at| LAYOUTS[at].name)
}
