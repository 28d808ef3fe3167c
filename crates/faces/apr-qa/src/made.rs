//! Files that points are judged on: small, sound, and then broken in one place.

use std::fs;
use std::path::Path;

use apr_arch::Families;
use apr_core::{CheckpointReader, Code, DType, Result, Serial};
use apr_ops::diff::{DiffOptions, DiffReport};
use apr_ops::inspect::InspectReport;
use apr_ops::lint::LintReport;
use apr_ops::session::Session;
use apr_ops::validate::{Finding, ValidateOptions, ValidateReport};
use apr_registry::{OpenOptions, open};
use apr_source::Source;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use serde_json::{Value, json};

use crate::judgement::{Fault, ensure};

/// Rows of the made model's embedding.
pub(crate) const VOCABULARY: usize = 64;
/// Width of its states.
pub(crate) const HIDDEN: usize = 32;
/// Width of its feed-forward layer.
const INTERMEDIATE: usize = 64;
/// Context length of the test model, enough to detect dead neurons.
pub(crate) const CONTEXT: usize = 128;

/// The token of the [model that repeats one](Made::repeating).
pub(crate) const REPEATED: usize = 7;
/// A GPT-2's table of positions.
pub(crate) const POSITIONS: &str = "wpe.weight";
/// A GPT-2's projection to queries, keys and values.
pub(crate) const FUSED: &str = "h.0.attn.c_attn.weight";

/// A sound APR2 file with three tensors of different alignment and dtype.
pub(crate) fn sound() -> Apr2Builder {
    Apr2Builder::new()
        .entry(floats("b.weight", &[2, 3], &[0.5, -0.25, 1.0, 2.0, -1.5, 0.125]))
        .entry(floats("a.bias", &[2], &[1.0, -1.0]))
        .entry(Apr2Entry::new("c.scale", DType::BF16, &[4], &[0x80, 0x3f].repeat(4)))
}

/// A tensor of f32.
pub(crate) fn floats(name: &str, dims: &[u64], values: &[f32]) -> Apr2Entry {
    Apr2Entry::new(name, DType::F32, dims, &bytes_of(values))
}

/// Little-endian bytes.
pub(crate) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The sound file with its first entry, `b.weight`, changed.
pub(crate) fn changed(change: impl FnOnce(&mut Apr2Entry)) -> Vec<u8> {
    let mut builder = sound();
    change(&mut builder.entries[0]);
    builder.build()
}

/// Opens a file in memory.
pub(crate) fn opened(file: Vec<u8>) -> Result<Box<dyn CheckpointReader>> {
    open(file, "test.apr", OpenOptions::default())
}

/// Validates a file in memory.
pub(crate) fn validated(file: Vec<u8>) -> Result<ValidateReport> {
    let reader = opened(file)?;
    session(&*reader, &Families::default()).validate(ValidateOptions::default(), &Serial, &())
}

/// Inspects a test file, without a family.
pub(crate) fn inspected(reader: &dyn CheckpointReader) -> Result<InspectReport> {
    session(reader, &Families::default()).inspect()
}

/// Lints a test file.
pub(crate) fn linted(reader: &dyn CheckpointReader) -> Result<LintReport> {
    session(reader, &Families::default()).lint()
}

fn session<'a>(reader: &'a dyn CheckpointReader, families: &'a Families) -> Session<'a> {
    Session::of(Source::new(reader, families).named("test.apr"))
}

/// Compares two test files.
pub(crate) fn compared(
    [left, right]: [&dyn CheckpointReader; 2],
    options: &DiffOptions,
) -> Result<DiffReport> {
    let families = Families::default();
    session(left, &families).beside(&session(right, &families)).diff(options, &Serial, &())
}

/// Checks that a file does not open, by this code; returns the code and the message.
pub(crate) fn refused(file: Vec<u8>, code: Code) -> std::result::Result<String, Fault> {
    match opened(file) {
        Ok(_) => Err(Fault::new("the broken file was opened")),
        Err(error) if error.code() == code => Ok(error.to_string()),
        Err(error) => Err(Fault(format!("expected {}, found: {error}", code.id()))),
    }
}

/// Checks that only the broken file has such a finding, and returns its message.
pub(crate) fn found(
    sound: Vec<u8>,
    broken: Vec<u8>,
    wanted: impl Fn(&Finding) -> bool,
) -> std::result::Result<String, Fault> {
    let before = validated(sound)?;
    ensure(!before.findings.iter().any(&wanted), "the undamaged file has a finding")?;
    let after = validated(broken)?;
    let finding = after.findings.into_iter().find(wanted);
    Ok(finding.ok_or_else(|| Fault::new("the broken file has no finding"))?.message)
}

/// A tensor of the made model.
pub(crate) struct Weights {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) values: Vec<f32>,
}

/// A model of one layer with random weights, as a folder of Hugging Face has it.
pub(crate) struct Made {
    pub(crate) config: Value,
    pub(crate) tensors: Vec<Weights>,
    /// Files beside the weights.
    pub(crate) files: Vec<(String, Vec<u8>)>,
}

/// A generator of random numbers: SplitMix64.
pub(crate) fn scrambled(at: u64) -> u64 {
    let mut x = at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Numbers from -0.05 to 0.05.
#[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
pub(crate) fn spread(seed: u64, count: usize) -> Vec<f32> {
    let number = |at: u64| (scrambled(seed << 32 | at) >> 40) as f32 / (1_u32 << 24) as f32;
    (0..count as u64).map(|at| (number(at) - 0.5) / 10.0).collect()
}

impl Made {
    /// Returns a valid LLaMA model.
    pub(crate) fn llama() -> Self {
        let config = json!({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"],
            "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": HIDDEN / 2, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false,
            "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
        });
        let shapes: [(&str, &[usize]); 12] = [
            ("model.embed_tokens.weight", &[VOCABULARY, HIDDEN]),
            ("model.layers.0.input_layernorm.weight", &[HIDDEN]),
            ("model.layers.0.self_attn.q_proj.weight", &[HIDDEN, HIDDEN]),
            ("model.layers.0.self_attn.k_proj.weight", &[HIDDEN / 2, HIDDEN]),
            ("model.layers.0.self_attn.v_proj.weight", &[HIDDEN / 2, HIDDEN]),
            ("model.layers.0.self_attn.o_proj.weight", &[HIDDEN, HIDDEN]),
            ("model.layers.0.post_attention_layernorm.weight", &[HIDDEN]),
            ("model.layers.0.mlp.gate_proj.weight", &[INTERMEDIATE, HIDDEN]),
            ("model.layers.0.mlp.up_proj.weight", &[INTERMEDIATE, HIDDEN]),
            ("model.layers.0.mlp.down_proj.weight", &[HIDDEN, INTERMEDIATE]),
            ("model.norm.weight", &[HIDDEN]),
            ("lm_head.weight", &[VOCABULARY, HIDDEN]),
        ];
        Self::of(config, &shapes)
    }

    /// A valid LLaMA model of two layers.
    pub(crate) fn two_layers() -> Self {
        let mut made = Self::llama();
        made.config["num_hidden_layers"] = 2.into();
        let first = made.tensors.iter().filter(|weights| weights.name.contains(".layers.0."));
        let second: Vec<Weights> = first
            .map(|Weights { name, shape, values }| Weights {
                name: name.replace(".layers.0.", ".layers.1."),
                shape: shape.clone(),
                // The same numbers in another order and of another size.
                values: values.iter().rev().map(|value| value * 0.75).collect(),
            })
            .collect();
        made.tensors.extend(second);
        made
    }

    /// A valid Gemma, which has the names of a LLaMA, and whose norms are stored as their distance
    /// from one.
    pub(crate) fn gemma() -> Self {
        let mut made = Self::llama();
        for (key, value) in [
            ("model_type", json!("gemma")),
            ("architectures", json!(["GemmaForCausalLM"])),
            ("hidden_act", json!("gelu_pytorch_tanh")),
            ("tie_word_embeddings", json!(true)),
        ] {
            made.config[key] = value;
        }
        made.tensors.retain(|weights| weights.name != "lm_head.weight");
        let norms = made.tensors.iter_mut().filter(|weights| weights.name.ends_with("norm.weight"));
        norms.flat_map(|weights| &mut weights.values).for_each(|value| *value -= 1.0);
        made
    }

    /// A valid GPT-2, which has a table of positions, and matrices that GGUF files have turned.
    pub(crate) fn gpt2() -> Self {
        let config = json!({
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
            "vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_inner": INTERMEDIATE, "n_layer": 1,
            "n_head": 2, "n_positions": CONTEXT, "n_ctx": CONTEXT, "layer_norm_epsilon": 1e-5,
            "activation_function": "gelu_new", "bos_token_id": 1, "eos_token_id": 2,
        });
        let shapes: [(&str, &[usize]); 16] = [
            ("wte.weight", &[VOCABULARY, HIDDEN]),
            (POSITIONS, &[CONTEXT, HIDDEN]),
            ("h.0.ln_1.weight", &[HIDDEN]),
            ("h.0.ln_1.bias", &[HIDDEN]),
            (FUSED, &[HIDDEN, 3 * HIDDEN]),
            ("h.0.attn.c_attn.bias", &[3 * HIDDEN]),
            ("h.0.attn.c_proj.weight", &[HIDDEN, HIDDEN]),
            ("h.0.attn.c_proj.bias", &[HIDDEN]),
            ("h.0.ln_2.weight", &[HIDDEN]),
            ("h.0.ln_2.bias", &[HIDDEN]),
            ("h.0.mlp.c_fc.weight", &[HIDDEN, INTERMEDIATE]),
            ("h.0.mlp.c_fc.bias", &[INTERMEDIATE]),
            ("h.0.mlp.c_proj.weight", &[INTERMEDIATE, HIDDEN]),
            ("h.0.mlp.c_proj.bias", &[HIDDEN]),
            ("ln_f.weight", &[HIDDEN]),
            ("ln_f.bias", &[HIDDEN]),
        ];
        Self::of(config, &shapes)
    }

    /// A model that answers everything with the token 7: all its states are one vector, which only
    /// this token's row of the head is like.
    pub(crate) fn repeating() -> Self {
        let mut made = Self::llama();
        for Weights { name, values, .. } in &mut made.tensors {
            match name.as_str() {
                "model.embed_tokens.weight" => values.fill(0.1),
                "lm_head.weight" => {
                    values.fill(0.0);
                    values[REPEATED * HIDDEN..(REPEATED + 1) * HIDDEN].fill(1.0);
                }
                name if name.ends_with("norm.weight") => values.fill(1.0),
                _ => values.fill(0.0),
            }
        }
        made
    }

    /// Creates random weights of these shapes. Weights of norms are around 1.
    fn of(config: Value, shapes: &[(&str, &[usize])]) -> Self {
        let tensors = (0..).zip(shapes).map(|(seed, (name, shape))| {
            let mut values = spread(seed, shape.iter().product());
            if name.ends_with("norm.weight") || name.contains("ln_") && name.ends_with("weight") {
                values.iter_mut().for_each(|value| *value += 1.0);
            }
            let shape = shape.iter().map(|&size| size as u64).collect();
            Weights { name: (*name).to_owned(), shape, values }
        });
        let card = b"---\nlicense: mit\n---\n# A test model\n".to_vec();
        Self { config, tensors: tensors.collect(), files: vec![("README.md".to_owned(), card)] }
    }

    /// The weights of a name.
    pub(crate) fn weights(&mut self, name: &str) -> Option<&mut Weights> {
        self.tensors.iter_mut().find(|weights| weights.name == name)
    }

    /// The model with the weights of a name changed.
    pub(crate) fn with(mut self, name: &str, change: impl FnOnce(&mut Weights)) -> Self {
        if let Some(weights) = self.weights(name) {
            change(weights);
        }
        self
    }

    /// Adds a tokenizer of `size` tokens, the first three of which are special.
    pub(crate) fn with_tokenizer(mut self, size: usize) -> Self {
        let special = ["<unk>", "<s>", "</s>"];
        let text = |id: usize| {
            special.get(id).map_or_else(|| format!("token{id}"), |&text| text.to_owned())
        };
        let vocabulary: serde_json::Map<String, Value> =
            (0..size).map(|id| (text(id), id.into())).collect();
        let added: Vec<Value> = (0..)
            .zip(special)
            .map(|(id, text)| json!({ "id": id, "content": text, "special": true }))
            .collect();
        let model =
            json!({ "type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>" });
        let tokenizer = json!({ "version": "1.0", "model": model, "added_tokens": added });
        let config = json!({ "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>" });
        self.files.push(("tokenizer.json".to_owned(), tokenizer.to_string().into_bytes()));
        self.files.push(("tokenizer_config.json".to_owned(), config.to_string().into_bytes()));
        self
    }

    /// Writes the folder's files.
    pub(crate) fn write(&self, folder: &Path) -> std::result::Result<(), Fault> {
        fs::write(folder.join("config.json"), self.config.to_string())?;
        for (name, bytes) in &self.files {
            fs::write(folder.join(name), bytes)?;
        }
        let path = folder.join("model.safetensors");
        let mut writer = apr::write(&path).replace();
        for Weights { name, shape, values } in &self.tensors {
            writer = writer.tensor(name.as_str(), shape.clone(), &values[..]);
        }
        writer.finish()?;
        Ok(())
    }
}
