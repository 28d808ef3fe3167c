//! What an adapter's configuration says: PEFT's and MLX's `adapter_config.json`, the keys of a GGUF
//! adapter.

use apr_core::json::{entries, from_python};
use apr_core::{CheckpointReader, Error, Escaped, Metadata, Result, Work};
use apr_source::adapter::ADAPTER_CONFIG;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::image_names::is_image_module;
use crate::patterns::{Pairs, Patterns};

/// Parameters that a configuration may target.
const MAX_PARAMETERS: usize = 1 << 12;

/// Steps that any adapter can use to evaluate its configuration for its modules.
const FREE: u64 = 1 << 32;

/// Steps that a tensor of an adapter justifies beside those.
const OF_TENSOR: u64 = 1 << 15;

/// Program that wrote the adapter. It determines the names and the orientation of the matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    Peft,
    Mlx,
    LlamaCpp,
    /// diffusers, kohya, LyCORIS or ComfyUI: adapters of image models in one file without a
    /// configuration.
    Images,
}

/// How the tensors of an adapter change weights, where their names do not say it all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Method {
    /// By the names of the tensors: LoRA, LoHa, LoKr, IA3, AdaLoRA, VeRA.
    Named,
    /// VB-LoRA: a row is a mixture of this many vectors of a bank.
    Bank { top: usize },
    /// HRA: reflections, whose vectors may be put at right angles first.
    Hra { is_orthogonal: bool },
    /// OFT: rotations, exact or by some terms of a series, of elements that may be bounded.
    Oft { terms: Option<u64>, bound: Option<f64> },
    /// MiSS: a matrix that is added over and over, or block by block.
    Miss,
    /// FourierFT: numbers of frequencies that a seed chose.
    Fourier { seed: u64 },
}

/// The configuration of an adapter.
pub(crate) struct Configuration {
    pub(crate) method: Method,
    pub(crate) writer: Writer,
    /// The model that it was trained on.
    pub(crate) base: Option<String>,
    /// The class of that model, where PEFT states it.
    pub(crate) class: Option<String>,
    /// `true` if an embedding and the output projection were trained as one.
    pub(crate) keeps_ties: bool,
    /// Numerator of the scale.
    alpha: Option<f64>,
    alphas: Patterns,
    rank: Option<f64>,
    ranks: Patterns,
    /// The scale divides by the root of the rank (rsLoRA, arXiv 2312.03732).
    is_root: bool,
    /// The scale as such, which MLX states.
    scale: Option<f64>,
    /// Models of a pipeline by the beginnings of their modules' names, with their alphas, and
    /// `true` if the scale divides by the root of the rank.
    models: Vec<(String, f64, bool)>,
    /// Layers whose weights are `[in, out]`.
    pub(crate) fan_in_fan_out: bool,
    /// Row numbers for the trained rows of an embedding, by module. An empty name stands for any
    /// module.
    pub(crate) token_rows: Vec<(String, Vec<u64>)>,
    /// Name ends of parameters that are changed directly, such as those of experts.
    pub(crate) parameters: Vec<String>,
    /// Budget for evaluating the configuration for modules.
    pub(crate) work: Work,
}

/// The patterns of a configuration, in the order of the file, of which the first that matches
/// counts.
#[derive(Deserialize)]
struct InOrder {
    alpha_pattern: Option<Pairs>,
    rank_pattern: Option<Pairs>,
}

/// Keys of PEFT whose values, unless empty, make of an adapter something that can't be added to
/// weights, or not by what stands in its files.
const REFUSED: [(&str, &str); 8] = [
    ("alora_invocation_tokens", "it applies from some tokens on only"),
    ("arrow_config", "it routes tokens to several adapters"),
    ("kasa_config", "it changes its base's weights before it is added"),
    ("layer_replication", "it repeats layers of its base"),
    ("monteclora_config", "it samples its weights"),
    ("use_bdlora", "its matrices are block-diagonal"),
    ("use_qalora", "it pools the inputs of its base"),
    ("trainable_parameters", "it trains other parameters"),
];

/// Key in the metadata of diffusers' files: PEFT's configurations of all models, in one object.
pub(crate) const DIFFUSERS: &str = "lora_adapter_metadata";

/// Settings of these configurations that give modules scales of their own.
const PATTERNS: [&str; 2] = ["alpha_pattern", "rank_pattern"];

/// Keys in the metadata of kohya's files that name the model.
const KOHYA: [&str; 2] = ["ss_sd_model_name", "ss_base_model_version"];

/// Initializations that change the base's weights at load. The trained matrices apply to the
/// changed base.
const STARTS: [&str; 5] = ["corda", "loftq", "olora", "pissa", "lora_ga"];

impl Configuration {
    /// Reads the configuration file of an adapter, or its metadata.
    ///
    /// # Errors
    /// E001 with the kind of the adapter if it can't be merged; E007 and E008 when it can't be
    /// read.
    pub(crate) fn read(reader: &dyn CheckpointReader) -> Result<Self> {
        let tensors = reader.tensors().len() as u64;
        let work = Work::of_file(FREE.saturating_add(tensors.saturating_mul(OF_TENSOR)));
        let pairs = reader.metadata().key_values()?;
        if let Some(pairs) = pairs.filter(|pairs| pairs.text("general.type") == Some("adapter")) {
            if let Some(kind) = pairs.text("adapter.type").filter(|kind| *kind != "lora") {
                return Err(unsupported(kind));
            }
            let alpha = pairs.find("adapter.lora.alpha").and_then(|value| value.json().as_f64());
            return Ok(Self { alpha, ..Self::of(Writer::LlamaCpp, work) });
        }

        let position = reader.companions().iter().position(|file| file.name == ADAPTER_CONFIG);
        let Some(position) = position else {
            if reader.tensors().iter().any(|info| is_image_module(&info.name)) {
                return Self::images(reader.metadata(), work);
            }
            return Err(Error::format(format!("not an adapter: missing {ADAPTER_CONFIG}")));
        };
        let bytes = reader.read_companion(position)?;
        Self::parse(&bytes, work)
    }

    /// Reads the text of an `adapter_config.json`.
    pub(crate) fn parse(text: &[u8], work: Work) -> Result<Self> {
        let wrong =
            |error| Error::format(format!("{ADAPTER_CONFIG}: {}", apr_core::foreign(&error)));
        let config: Map<String, Value> = from_python(text).map_err(wrong)?;
        if config.contains_key("peft_type") {
            match config.get("peft_type").and_then(Value::as_str).filter(|kind| !is_scaled(kind)) {
                Some(kind) => Self::of_kind(kind, &config, work),
                None => Self::peft(&config, &from_python(text).map_err(wrong)?, work),
            }
        } else {
            Self::mlx(&config, work)
        }
    }

    fn of(writer: Writer, work: Work) -> Self {
        Self {
            method: Method::Named,
            writer,
            base: None,
            class: None,
            keeps_ties: false,
            alpha: None,
            alphas: Patterns::default(),
            rank: None,
            ranks: Patterns::default(),
            is_root: false,
            scale: None,
            models: Vec::new(),
            fan_in_fan_out: false,
            token_rows: Vec::new(),
            parameters: Vec::new(),
            work,
        }
    }

    fn peft(config: &Map<String, Value>, in_order: &InOrder, work: Work) -> Result<Self> {
        let kind = config.get("peft_type").and_then(Value::as_str).unwrap_or_default();
        let is_lora = kind.eq_ignore_ascii_case("lora");
        for (key, why) in REFUSED {
            if config.get(key).is_some_and(is_set) {
                return Err(Error::format(format!(
                    "{ADAPTER_CONFIG}: {key} is set, so that it can't be merged: {why}"
                )));
            }
        }
        if let Some(start) = config.get("init_lora_weights").and_then(Value::as_str)
            && STARTS.iter().any(|known| start.starts_with(known))
        {
            return Err(Error::format(format!(
                "{ADAPTER_CONFIG}: init_lora_weights is '{}', which changes the base's weights \
                 when it is loaded: save it as an ordinary LoRA (PEFT's \
                 path_initial_model_for_weight_conversion)",
                Escaped::short(start)
            )));
        }

        let alpha = if is_lora { "lora_alpha" } else { "alpha" };
        let flag = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
        let base = config.get("base_model_name_or_path").and_then(Value::as_str);
        let class = config.get("auto_mapping").and_then(|of| of.get("base_model_class")?.as_str());
        Ok(Self {
            base: base.filter(|name| !name.is_empty()).map(str::to_owned),
            class: class.map(str::to_owned),
            keeps_ties: flag("ensure_weight_tying"),
            alpha: Some(number(config, alpha)?),
            alphas: patterns("alpha_pattern", in_order.alpha_pattern.as_ref(), &work)?,
            rank: Some(number(config, "r")?),
            ranks: patterns("rank_pattern", in_order.rank_pattern.as_ref(), &work)?,
            is_root: flag("use_rslora"),
            fan_in_fan_out: flag("fan_in_fan_out"),
            token_rows: token_rows(config)?,
            parameters: parameters(config),
            ..Self::of(Writer::Peft, work)
        })
    }

    /// Reads the configuration of PEFT's other kinds, whose scale does not depend on the module.
    fn of_kind(kind: &str, config: &Map<String, Value>, work: Work) -> Result<Self> {
        let flag = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
        let count = |key: &str| {
            let found = config.get(key).and_then(Value::as_u64);
            let wrong = || format!("{ADAPTER_CONFIG}: {key} must be a whole number");
            found.ok_or_else(|| Error::format(wrong()))
        };
        let (mut scale, mut method) = (1.0, Method::Named);
        match kind.to_ascii_uppercase().as_str() {
            "IA3" | "LN_TUNING" => {}
            "ADALORA" => {
                let (alpha, rank) = (number(config, "lora_alpha")?, number(config, "init_r")?);
                scale = if alpha > 0.0 { alpha } else { rank } / (rank + 1e-5);
            }
            "VERA" if config.get("save_projection") == Some(&Value::Bool(false)) => {
                return Err(Error::format(format!(
                    "{ADAPTER_CONFIG}: save_projection is false: its random matrices are made by \
                     PEFT alone"
                )));
            }
            "VERA" => {}
            "VBLORA" => {
                let top = usize::try_from(count("topk")?).unwrap_or(usize::MAX);
                method = Method::Bank { top };
            }
            "HRA" => method = Method::Hra { is_orthogonal: flag("apply_GS") },
            "OFT" => {
                let terms = match flag("use_cayley_neumann") {
                    true => Some(count("num_cayley_neumann_terms")?),
                    false => None,
                };
                let bound = flag("coft").then(|| number(config, "eps")).transpose()?;
                method = Method::Oft { terms, bound };
            }
            "MISS" => method = Method::Miss,
            "FOURIERFT" => {
                scale = number(config, "scaling")?;
                method = Method::Fourier { seed: count("random_loc_seed")? };
            }
            _ => return Err(unsupported(kind)),
        }
        let base = config.get("base_model_name_or_path").and_then(Value::as_str);
        let class = config.get("auto_mapping").and_then(|of| of.get("base_model_class")?.as_str());
        Ok(Self {
            method,
            base: base.filter(|name| !name.is_empty()).map(str::to_owned),
            class: class.map(str::to_owned),
            scale: Some(scale),
            fan_in_fan_out: flag("fan_in_fan_out"),
            ..Self::of(Writer::Peft, work)
        })
    }

    fn mlx(config: &Map<String, Value>, work: Work) -> Result<Self> {
        let kind = config.get("fine_tune_type").and_then(Value::as_str).unwrap_or("lora");
        if !["lora", "dora"].contains(&kind) {
            return Err(unsupported(kind));
        }
        let Some(parameters) = config.get("lora_parameters").and_then(Value::as_object) else {
            return Err(Error::format(format!(
                "{ADAPTER_CONFIG} has neither a peft_type nor lora_parameters"
            )));
        };
        let base = config.get("model").and_then(Value::as_str);
        Ok(Self {
            base: base.map(str::to_owned),
            scale: Some(number(parameters, "scale")?),
            ..Self::of(Writer::Mlx, work)
        })
    }

    /// Reads the metadata of a file of image models' adapters: diffusers writes the configurations
    /// of PEFT there, kohya the name of the model.
    fn images(metadata: &Metadata, work: Work) -> Result<Self> {
        let mut models = Vec::new();
        if let Some(text) = metadata.header_text(DIFFUSERS) {
            let wrong =
                |error| Error::format(format!("{DIFFUSERS}: {}", apr_core::foreign(&error)));
            let keys: Map<String, Value> = from_python(text.as_bytes()).map_err(wrong)?;
            for (key, alpha) in entries(&keys) {
                let Some(model) = key.strip_suffix(".lora_alpha") else { continue };
                let of_model = |key: &str| keys.get(&format!("{model}.{key}"));
                let is_set = |key: &str| of_model(key).is_some_and(is_set);
                if let Some(key) = PATTERNS.into_iter().find(|key| is_set(key)) {
                    let model = Escaped::short(model);
                    return Err(Error::format(format!(
                        "{DIFFUSERS}: '{model}.{key}' is not supported"
                    )));
                }
                if let Some(alpha) = alpha.as_f64() {
                    models.push((format!("{model}."), alpha, is_set("use_rslora")));
                }
            }
        }
        let base = KOHYA.into_iter().find_map(|key| metadata.header_text(key));
        let base = base.map(str::to_owned);
        Ok(Self { base, models, ..Self::of(Writer::Images, work) })
    }

    /// Returns the scale of a module of an image model: of the number that its file has for it, or
    /// else of the metadata. Without both, the matrices are added as they are.
    pub(crate) fn scale_of_image(
        &self,
        module: &str,
        alpha: Option<f64>,
        rank: Option<u64>,
    ) -> f64 {
        let told = self.models.iter().find(|(model, ..)| module.starts_with(model.as_str()));
        let (alpha, is_root) = match (alpha, told) {
            (Some(alpha), _) => (alpha, false),
            (None, Some((_, alpha, is_root))) => (*alpha, *is_root),
            (None, None) => return 1.0,
        };
        let Some(rank) = rank.filter(|rank| *rank > 0) else { return 1.0 };
        let rank = rank as f64;
        alpha / if is_root { libm::sqrt(rank) } else { rank }
    }

    /// Returns the scale for a module's matrices of this rank, or of the configuration's rank
    /// without one.
    ///
    /// # Errors
    /// E001 if the configuration states another rank; E008 if the evaluation exceeds the budget.
    pub(crate) fn scale(&self, module: &str, rank: Option<u64>) -> Result<f64> {
        let told = self.ranks.find(module, &self.work)?.or(self.rank);
        let rank = rank.map(|rank| rank as f64);
        if let (Some(told), Some(rank)) = (told, rank)
            && told != rank
        {
            let message = format!("rank {rank}, but {ADAPTER_CONFIG} states {told}");
            return Err(Error::format(message));
        }
        if let Some(scale) = self.scale {
            return Ok(scale);
        }
        let alpha = self.alphas.find(module, &self.work)?.or(self.alpha);
        // llama.cpp takes an adapter without alpha as it is.
        let is_none = |alpha: &f64| *alpha == 0.0 && self.writer == Writer::LlamaCpp;
        let Some(alpha) = alpha.filter(|alpha| !is_none(alpha)) else { return Ok(1.0) };
        let rank = rank.or(told).unwrap_or(1.0).max(1.0);
        Ok(alpha / if self.is_root { libm::sqrt(rank) } else { rank })
    }
}

/// Returns `true` unless a setting is null, false or empty.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(values) => !values.is_empty(),
        Value::Object(values) => !values.is_empty(),
        _ => true,
    }
}

/// Returns `true` if the scale of a kind follows from ranks and alphas, of which patterns state
/// some.
fn is_scaled(kind: &str) -> bool {
    ["LORA", "LOHA", "LOKR"].iter().any(|known| kind.eq_ignore_ascii_case(known))
}

fn parameters(config: &Map<String, Value>) -> Vec<String> {
    let names = config.get("target_parameters").and_then(Value::as_array).into_iter().flatten();
    names.filter_map(Value::as_str).take(MAX_PARAMETERS).map(str::to_owned).collect()
}

fn unsupported(kind: &str) -> Error {
    let kind = Escaped::short(kind);
    Error::format(format!(
        "adapters of the kind '{kind}' can't be merged, only LoRA, LoHa, LoKr, IA3, AdaLoRA, VeRA, \
         VB-LoRA, HRA, OFT, MiSS, FourierFT and LN-tuning"
    ))
}

/// A number that a configuration must have.
fn number(config: &Map<String, Value>, key: &str) -> Result<f64> {
    let found = config.get(key).and_then(Value::as_f64);
    found.ok_or_else(|| Error::format(format!("{ADAPTER_CONFIG}: {key} must be a number")))
}

/// The patterns under a key.
fn patterns(key: &str, pairs: Option<&Pairs>, work: &Work) -> Result<Patterns> {
    let pairs = pairs.map(|pairs| pairs.0.as_slice()).unwrap_or_default();
    Patterns::new(pairs, work).map_err(|error| {
        Error::new(error.code(), format!("{ADAPTER_CONFIG}: {key}: {}", error.message()))
    })
}

/// The rows of embeddings that were trained: a list for all, or one for each module.
fn token_rows(config: &Map<String, Value>) -> Result<Vec<(String, Vec<u64>)>> {
    let wrong = || {
        Error::format(format!("{ADAPTER_CONFIG}: trainable_token_indices must be whole numbers"))
    };
    let list = |value: &Value| {
        let values = value.as_array().ok_or_else(wrong)?;
        values.iter().map(|value| value.as_u64().ok_or_else(wrong)).collect::<Result<Vec<u64>>>()
    };
    match config.get("trainable_token_indices") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Object(modules)) => {
            entries(modules).map(|(name, rows)| Ok((name.clone(), list(rows)?))).collect()
        }
        Some(rows) => Ok(vec![(String::new(), list(rows)?)]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn peft(config: &Value) -> Result<Configuration> {
        Configuration::parse(config.to_string().as_bytes(), Work::new(FREE))
    }

    #[test]
    fn scales_follow_rank_alpha_and_patterns() {
        let config = peft(&json!({
            "peft_type": "LORA", "r": 4, "lora_alpha": 8, "rank_pattern": {"2.k_proj": 2},
            "alpha_pattern": {"q_proj": 16, "layers\\.[12]\\.k_proj": 4},
        }))
        .expect("valid");
        let scale = |module: &str, rank| config.scale(module, rank).expect("the rank is stated");
        assert_eq!(scale("model.layers.0.self_attn.v_proj", Some(4)), 2.0);
        assert_eq!(scale("model.layers.0.self_attn.q_proj", Some(4)), 4.0);
        assert_eq!(scale("x.xq_proj", None), 2.0);
        assert_eq!(scale("model.layers.2.k_proj", Some(2)), 2.0);
        config.scale("model.layers.0.k_proj", Some(2)).expect_err("another rank");
        let config = json!({"peft_type": "LORA", "r": 16, "lora_alpha": 8, "use_rslora": true});
        assert_eq!(peft(&config).expect("valid").scale("q", None).expect("any"), 2.0);
    }

    #[test]
    fn unsupported_kinds_are_rejected_by_name() {
        for (key, value) in [
            ("init_lora_weights", json!("pissa_niter_16")),
            ("alora_invocation_tokens", json!([1])),
            ("layer_replication", json!([[0, 2]])),
            ("use_qalora", json!(true)),
            ("peft_type", json!("BOFT")),
        ] {
            let mut config = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8});
            config[key] = value;
            let error = peft(&config).err().expect("refused").to_string();
            assert!(error.contains(key) || error.contains("BOFT"), "{error}");
        }
    }

    #[test]
    fn patterns_are_tried_in_the_order_of_the_file() {
        let config = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8,
            "alpha_pattern": {"v_proj": 4, "[qv]_proj": 16}, "rank_pattern": null}"#;
        let config = Configuration::parse(config.as_bytes(), Work::new(FREE)).expect("valid");
        for (module, expected) in [("0.v_proj", 1.0), ("0.q_proj", 4.0), ("0.o_proj", 2.0)] {
            assert_eq!(config.scale(module, Some(4)).expect("the rank is stated"), expected);
        }
    }

    #[test]
    fn invalid_patterns_are_rejected_by_name() {
        for (pattern, expected) in [
            (json!({"(?:(?:a{1000}){1000}){1000}": 1}), "alpha_pattern: '(?:(?:a"),
            (json!({"(": 1}), "alpha_pattern: '('"),
            (json!({"q": "much"}), "expected f64"),
            (json!(["q"]), "expected an object"),
        ] {
            let mut config = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8});
            config["alpha_pattern"] = pattern;
            let error = peft(&config).err().expect("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
