//! What sentence-transformers makes of a text, or of two: `modules.json` and the files that it
//! names.
//!
//! This is the only reader of them. Whoever runs a model, writes it as ONNX or GGUF, or describes
//! it asks [`Sentence::of`].

mod late;
mod module;

use std::collections::BTreeMap;

use apr_core::json::from_python;
use apr_core::{CheckpointReader, Error, Escaped, Limits, Result};
use apr_view::{check_decodable, values};
use serde_json::{Map, Value};

pub use self::late::{Expansion, Late};
use self::module::module;

/// The modules of a sentence-transformers model, one after the other, and its settings.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Sentence {
    /// Modules in the order of computation.
    pub modules: Vec<Module>,
    /// Texts that are put before the encoded text, by name.
    pub prompts: BTreeMap<String, String>,
    /// Name of the prompt that is put before every text by default.
    pub default_prompt: Option<String>,
    /// Function that compares two vectors: `cosine`, `dot`, `euclidean`, `manhattan`.
    pub similarity: Option<String>,
    /// Number of elements that are kept of each vector, the first ones (Matryoshka models).
    pub dimensions: Option<u64>,
    /// Number of elements that are kept of each sparse vector, the largest ones; the others are 0.
    pub max_active: Option<u64>,
    /// Maximum number of tokens of a text; the rest is cut off.
    pub max_tokens: Option<u64>,
    /// `true` if texts are lowercased, regardless of the tokenizer.
    pub lowercases: bool,
    /// Class of the model, if it is not the class of sentence embeddings: `SparseEncoder`,
    /// `CrossEncoder`, `MultiVectorEncoder`.
    pub other_class: Option<String>,
    /// The torch class of the activation of a `CrossEncoder`'s scores.
    pub score_activation: Option<String>,
    /// Settings for comparing vectors of tokens (late interaction).
    pub late: Late,
    /// `Some(true)` if texts are formatted with the model's chat template; `None` if it is not
    /// stated.
    pub takes_messages: Option<bool>,
    /// `true` if the template begins an answer.
    pub begins_answer: bool,
}

/// A module.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Module {
    /// The model itself, without a head: vectors of tokens.
    Transformer,
    /// A table of vectors, whose mean over the tokens is the vector of the text.
    StaticEmbedding,
    /// Vectors of tokens become one.
    Pooling {
        /// Modes that each make a vector; the vectors are joined in this order.
        modes: Vec<PoolingMode>,
        /// `true` if the tokens of a prompt count.
        include_prompt: bool,
    },
    /// A product with a matrix, and an activation.
    Dense {
        /// Name of the folder with its weights; empty if the model's own file has them.
        folder: String,
        /// Input.
        from: Slot,
        /// Output.
        to: Slot,
        /// The name of the activation in configurations of transformers; `None` for none.
        activation: Option<&'static str>,
        /// `true` if the input is added to the result, through a matrix of its own if the widths
        /// differ.
        residual: bool,
    },
    /// Length 1.
    Normalize {
        /// Input.
        from: Slot,
        /// Output.
        to: Slot,
    },
    /// Layer normalization.
    LayerNorm {
        /// Name of the folder with its weights.
        folder: String,
    },
    /// The score of a pair, by the logits of the token behind it (a causal model as a reranker).
    LogitScore {
        /// The token of a match.
        yes: u64,
        /// The token of no match, whose logit is subtracted.
        no: Option<u64>,
    },
    /// Scores of all words of the vocabulary for each token become one vector, most of whose
    /// numbers are 0. Scores above 0 are mapped by `log(1 + x)` (SPLADE).
    Splade {
        /// `true` if the numbers of tokens are added; otherwise the largest is taken.
        sums: bool,
        /// `true` if the logarithm is applied twice.
        twice: bool,
    },
    /// Selection of the tokens whose vectors are compared (late interaction).
    TokenMask {
        /// Tokens without a vector.
        skipped: Vec<String>,
        /// Tasks in which the tokens are skipped: `query`, `document`.
        tasks: Vec<String>,
    },
    /// A module that has no effect when a model is used.
    Dropout,
    /// A module that is not known, or a setting of one.
    Unsupported(
        /// Description for messages.
        String,
    ),
}

/// Data that modules read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// Vectors of tokens, `[batch, tokens, width]`.
    Tokens,
    /// Vectors of texts, `[batch, width]`.
    Sentence,
}

/// Method of pooling the vectors of tokens into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolingMode {
    /// The mean of all.
    Mean,
    /// The vector of the first token, which some models train for this purpose.
    First,
    /// The largest number of each dimension.
    Max,
    /// The vector of the last token.
    Last,
    /// The sum, divided by the square root of the number of tokens.
    MeanSqrt,
    /// The mean, in which the second token counts twice as much as the first, and so on.
    WeightedMean,
}

impl PoolingMode {
    /// Returns the name that users type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::First => "cls",
            Self::Max => "max",
            Self::Last => "last",
            Self::MeanSqrt => "mean_sqrt",
            Self::WeightedMean => "weighted_mean",
        }
    }

    /// Returns the mode with this name in `pooling_mode`.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "mean" => Self::Mean,
            "cls" => Self::First,
            "max" => Self::Max,
            "lasttoken" => Self::Last,
            "mean_sqrt_len_tokens" => Self::MeanSqrt,
            "weightedmean" => Self::WeightedMean,
            _ => return None,
        })
    }

    /// Returns the mode with llama.cpp's number (`enum llama_pooling_type`). 0 means no pooling,
    /// and 4 is for rerankers.
    #[must_use]
    pub const fn of_gguf(number: i64) -> Option<Self> {
        match number {
            1 => Some(Self::Mean),
            2 => Some(Self::First),
            3 => Some(Self::Last),
            _ => None,
        }
    }

    /// Returns llama.cpp's number of the mode, or `None` if llama.cpp does not have the mode.
    #[must_use]
    pub const fn gguf(self) -> Option<u32> {
        match self {
            Self::Mean => Some(1),
            Self::First => Some(2),
            Self::Last => Some(3),
            _ => None,
        }
    }
}

/// The class that scores pairs of texts.
const CROSS_ENCODER: &str = "CrossEncoder";

/// The classes of late interaction: sentence-transformers' and PyLate's.
const LATE: &str = "MultiVectorEncoder";
const PYLATE: &str = "ColBERT";

/// Settings of the first module, by the names that sentence-transformers has had for the file.
const TRANSFORMER: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// The list of modules.
pub const MODULES: &str = "modules.json";

/// File with the prompts and the similarity function.
pub const SETTINGS: &str = "config_sentence_transformers.json";

/// Template that formats `{query}` and `{document}` for Qwen3-Reranker, as it was trained. Its
/// first folders have no template for pairs.
pub const QWEN3_RERANKER: &str = concat!(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and ",
    "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n",
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that ",
    "answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n",
    "<|im_start|>assistant\n<think>\n\n</think>\n\n",
);

/// Name of the matrix of a dense module.
pub const DENSE_WEIGHT: &str = "linear.weight";

/// A tensor that a module is made of.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModuleTensor {
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Elements of the tensor.
    pub values: Vec<f32>,
}

impl Sentence {
    /// Reads `modules.json` and the files that it names. Returns `None` if the model has no
    /// modules.
    ///
    /// An unknown module becomes [`Module::Unsupported`]; computations that use it fail with
    /// [`check`](Self::check).
    ///
    /// # Errors
    /// E001 if a file is not JSON or a list is malformed, E007 and E008 when one can't be read.
    pub fn of(reader: &dyn CheckpointReader) -> Result<Option<Self>> {
        let Some(modules) = json(reader, MODULES)? else { return Self::of_stanford(reader) };
        let malformed = |why: &str| Error::format(why).in_file(MODULES);
        let listed = modules.as_array().ok_or_else(|| malformed("it is not a list of modules"))?;
        let settings = object(reader, SETTINGS)?.unwrap_or_default();
        let text = |key: &str| settings.get(key).and_then(Value::as_str).map(str::to_owned);
        let mut sentence = Self {
            other_class: text("model_type").filter(|class| class != "SentenceTransformer"),
            ..Self::default()
        };
        let from = if sentence.keeps_tokens() { Slot::Tokens } else { Slot::Sentence };
        for entry in listed {
            let text = |key: &str| entry.get(key).and_then(Value::as_str);
            let class = text("type").ok_or_else(|| malformed("missing 'type' of a module"))?;
            let folder = text("path").unwrap_or_default().trim_end_matches('/');
            sentence.modules.push(module(reader, class, folder, from)?);
        }

        let size = |key: &str| settings.get(key)?.as_u64().filter(|size| *size > 0);
        (sentence.dimensions, sentence.max_active) = match sentence.is_sparse() {
            true => (None, size("max_active_dims")),
            false => (size("truncate_dim"), None),
        };
        sentence.similarity = text("similarity_fn_name");
        sentence.default_prompt = text("default_prompt_name");
        sentence.score_activation = text("activation_fn");
        if let Some(Value::Object(prompts)) = settings.get("prompts") {
            // Null stands for a prompt that training did not set.
            let prompt =
                |(name, text): (&String, &Value)| Some((name.clone(), text.as_str()?.to_owned()));
            sentence.prompts = prompts.iter().filter_map(prompt).collect();
        }
        if sentence.keeps_tokens() {
            sentence.read_late(&settings);
        }
        if let Some(name) = &sentence.default_prompt
            && !sentence.prompts.contains_key(name)
        {
            let message = format!("missing '{}', the default prompt, in 'prompts'", Escaped(name));
            return Err(Error::format(message).in_file(SETTINGS));
        }
        if !sentence.is_table() {
            sentence.read_transformer(reader)?;
        }
        Ok(Some(sentence))
    }

    /// Returns the modules of a GGUF file with this pooling type. llama.cpp normalizes vectors to
    /// length 1 if embeddings are requested.
    #[must_use]
    pub fn of_gguf(pooling: i64) -> Option<Self> {
        let mode = PoolingMode::of_gguf(pooling)?;
        let pooling = Module::Pooling { modes: vec![mode], include_prompt: true };
        let normalize = Module::Normalize { from: Slot::Sentence, to: Slot::Sentence };
        let modules = vec![Module::Transformer, pooling, normalize];
        Some(Self { modules, ..Self::default() })
    }

    /// Returns the modules of a model that does not state them, for vectors pooled in this way.
    #[must_use]
    pub fn pooled_by(mode: PoolingMode) -> Self {
        let pooling = Module::Pooling { modes: vec![mode], include_prompt: true };
        Self { modules: vec![Module::Transformer, pooling], ..Self::default() }
    }

    /// Sets the pooling mode.
    #[must_use]
    pub fn with_pooling(mut self, mode: PoolingMode) -> Self {
        for module in &mut self.modules {
            if let Module::Pooling { modes, .. } = module {
                *modes = vec![mode];
            }
        }
        self
    }

    fn read_transformer(&mut self, reader: &dyn CheckpointReader) -> Result<()> {
        let found = TRANSFORMER.iter().map(|name| object(reader, name));
        let settings = found.collect::<Result<Vec<_>>>()?.into_iter().flatten().next();
        let settings = settings.unwrap_or_default();
        self.lowercases = settings.get("do_lower_case").and_then(Value::as_bool).unwrap_or(false);
        let modalities = settings.get("modality_config").and_then(Value::as_object);
        self.takes_messages = modalities.map(|modalities| modalities.contains_key("message"));
        let kwargs = |kind: &str| settings.get("processing_kwargs").and_then(|all| all.get(kind));
        let begins = kwargs("chat_template").and_then(|kwargs| kwargs.get("add_generation_prompt"));
        self.begins_answer = begins.and_then(Value::as_bool).unwrap_or(false);
        let size = |value: Option<&Value>| value.and_then(Value::as_u64).filter(|size| *size > 0);
        if self.keeps_tokens() {
            self.read_late(&settings);
        }
        let own = kwargs("text").and_then(|text| size(text.get("max_length")));
        self.max_tokens = own.or_else(|| size(settings.get("max_seq_length")));
        if self.max_tokens.is_none() {
            // Version 6 leaves it to the tokenizer. One without a limit has a huge number there.
            let tokenizer = object(reader, "tokenizer_config.json")?.unwrap_or_default();
            let most = size(tokenizer.get("model_max_length"));
            self.max_tokens = most.filter(|most| *most < 1 << 32);
        }
        Ok(())
    }

    /// Returns `true` if the vectors have a number for each word of the vocabulary, most of them 0.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        self.modules.iter().any(|module| matches!(module, Module::Splade { .. }))
    }

    /// Returns `true` if a text keeps the vectors of its tokens, which are compared one by one
    /// (late interaction).
    #[must_use]
    pub fn keeps_tokens(&self) -> bool {
        matches!(self.other_class.as_deref(), Some(LATE | PYLATE))
    }

    /// Returns `true` if the modules make embeddings from the output of the first module.
    #[must_use]
    pub fn makes_embeddings(&self) -> bool {
        let pools = |module: &Module| matches!(module, Module::Pooling { .. });
        if self.is_sparse() || self.keeps_tokens() {
            return self.modules.first() == Some(&Module::Transformer);
        }
        self.other_class.is_none()
            && match self.modules.as_slice() {
                [Module::Transformer, rest @ ..] => rest.iter().any(pools),
                [Module::StaticEmbedding, ..] => true,
                _ => false,
            }
    }

    /// Returns `true` if the model scores pairs of texts.
    #[must_use]
    pub fn scores_pairs(&self) -> bool {
        self.other_class.as_deref() == Some(CROSS_ENCODER)
    }

    /// Returns the end of the transformers class of the first module: empty if it has no head,
    /// `None` if the class is the one in the configuration.
    #[must_use]
    pub fn task(&self) -> Option<&'static str> {
        let pools = |module: &Module| matches!(module, Module::Pooling { .. });
        if self.is_sparse() {
            return Some("MaskedLM");
        }
        let is_headless =
            self.makes_embeddings() || self.scores_pairs() && self.modules.iter().any(pools);
        is_headless.then_some("")
    }

    /// Returns a description of a model that is only a table of vectors, which no family is; `None`
    /// for other models and if the modules can't be read.
    #[must_use]
    pub fn table_of(reader: &dyn CheckpointReader) -> Option<&'static str> {
        let is_table = Self::of(reader).is_ok_and(|found| found.is_some_and(|it| it.is_table()));
        is_table.then_some("a table of token vectors (StaticEmbedding of sentence-transformers)")
    }

    /// Returns `true` if the vectors of tokens are read from a table and not computed by a model.
    #[must_use]
    pub fn is_table(&self) -> bool {
        self.modules.first() == Some(&Module::StaticEmbedding)
    }

    /// Checks that all modules are known.
    ///
    /// # Errors
    /// E003, with the name of the first that is not.
    pub fn check(&self) -> Result<()> {
        let unknown = self.modules.iter().find_map(|module| match module {
            Module::Unsupported(what) => Some(what),
            _ => None,
        });
        match unknown {
            Some(what) => Err(Error::version(what.clone()).in_file(MODULES)),
            None => Ok(()),
        }
    }

    /// Returns the pooling modes, joined by `+`, as reports show them, or `None` without pooling.
    #[must_use]
    pub fn pooling_name(&self) -> Option<String> {
        self.modules.iter().find_map(|module| match module {
            Module::Pooling { modes, .. } => {
                Some(modes.iter().map(|mode| mode.name()).collect::<Vec<_>>().join("+"))
            }
            Module::StaticEmbedding => Some(PoolingMode::Mean.name().to_owned()),
            Module::Splade { sums, .. } => Some(if *sums { "sum" } else { "max" }.to_owned()),
            _ => None,
        })
    }

    /// Returns `true` if the vectors have length 1.
    #[must_use]
    pub fn normalizes(&self) -> bool {
        let last = self.modules.iter().rev().find(|module| **module != Module::Dropout);
        matches!(last, Some(Module::Normalize { to: Slot::Sentence, .. }))
    }

    /// Returns `true` if the tokens of a prompt count in the vector of a text.
    #[must_use]
    pub fn includes_prompt(&self) -> bool {
        let leaves_out =
            |module: &Module| matches!(module, Module::Pooling { include_prompt: false, .. });
        !self.modules.iter().any(leaves_out)
    }

    /// Returns the prompt of this name, or the default one; empty if there is none.
    ///
    /// # Errors
    /// The names of all prompts, if none has this name.
    pub fn prompt(&self, name: Option<&str>) -> std::result::Result<&str, Vec<&str>> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else { return Ok("") };
        let found = self.prompts.get(name).map(String::as_str);
        found.ok_or_else(|| self.prompts.keys().map(String::as_str).collect())
    }
}

/// Returns the torch class of the activation of a reranker's scores, as `CrossEncoder` determines
/// it.
///
/// It is read from the modules' settings, or from the newest of the keys that `config.json` has had
/// for it. `None` means that it is not stated: a single label then goes through the sigmoid, and
/// several labels stay unchanged.
#[must_use]
pub fn score_activation(modules: Option<&Sentence>, config: &Map<String, Value>) -> Option<String> {
    let of_modules = modules.and_then(|modules| modules.score_activation.as_deref());
    let newer = config.get("sentence_transformers").and_then(|own| own.get("activation_fn"));
    let older = config.get("sbert_ce_default_activation_function");
    let of_config = || newer.or(older).and_then(Value::as_str);
    of_modules.or_else(of_config).map(str::to_owned)
}

/// Reads a tensor of a module's own file, which is a companion of the model.
///
/// # Errors
/// E001 if the file or the tensor is missing, and the errors of reading them.
pub fn module_tensor(
    reader: &dyn CheckpointReader,
    folder: &str,
    names: &[&str],
    limits: &Limits,
) -> Result<ModuleTensor> {
    find_module_tensor(reader, folder, names, limits)?.ok_or_else(|| {
        let message = format!("the weights of the module lack '{}'", names.join("' and '"));
        Error::format(message).in_file(folder)
    })
}

/// Reads a tensor like [`module_tensor`], or returns `None` if the module does not have it.
///
/// # Errors
/// E001 if the file is missing, and the errors of reading it.
pub fn find_module_tensor(
    reader: &dyn CheckpointReader,
    folder: &str,
    names: &[&str],
    limits: &Limits,
) -> Result<Option<ModuleTensor>> {
    const FILES: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];
    if folder.is_empty() {
        return read_module_tensor(reader, names);
    }
    for file in FILES {
        let path = format!("{folder}/{file}");
        let Some(bytes) = companion(reader, &path)? else { continue };
        let weights = apr_registry::open(bytes, &path, limits)?;
        return read_module_tensor(&*weights, names).map_err(|error| error.in_file(&path));
    }
    let message = format!("the module has no weights: no {}", FILES.join(" and no "));
    Err(Error::format(message).in_file(folder))
}

fn read_module_tensor(
    weights: &dyn CheckpointReader,
    names: &[&str],
) -> Result<Option<ModuleTensor>> {
    check_decodable(weights)?;
    let position = weights.tensors().iter().position(|info| names.contains(&info.name.as_str()));
    let Some(position) = position else { return Ok(None) };
    let info = &weights.tensors()[position];
    let mut bytes = vec![0; usize::try_from(info.byte_len()?).unwrap_or(usize::MAX)];
    weights.read_tensor(position, 0, &mut bytes)?;
    let shape = info.shape.dims().to_vec();
    let row = shape.last().and_then(|row| usize::try_from(*row).ok()).unwrap_or(1);
    let mut numbers = Vec::new();
    values::decode(info.dtype, &bytes, row, &mut numbers);
    Ok(Some(ModuleTensor { shape, values: numbers }))
}

fn companion(reader: &dyn CheckpointReader, name: &str) -> Result<Option<Vec<u8>>> {
    let position = reader.companions().iter().position(|companion| companion.name == name);
    position.map(|position| reader.read_companion(position)).transpose()
}

fn json(reader: &dyn CheckpointReader, name: &str) -> Result<Option<Value>> {
    let Some(bytes) = companion(reader, name)? else { return Ok(None) };
    match from_python(&bytes) {
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            Err(Error::format(format!("not valid JSON: {}", apr_core::foreign(&error)))
                .in_file(name))
        }
    }
}

fn object(reader: &dyn CheckpointReader, name: &str) -> Result<Option<Map<String, Value>>> {
    match json(reader, name)? {
        None => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object)),
        Some(_) => Err(Error::format("it is JSON, but not an object").in_file(name)),
    }
}
