//! What a checkpoint's configuration, model card and sentence-transformers modules say, under the
//! keys of a GGUF file.

use std::cell::RefCell;

use apr_arch::{FamilyModel, GgufValue};
use apr_gguf::{KeyValue, Pair, Value as Typed, has_own_scores};
use apr_registry::{CheckpointReader, Error, Result, keys};
use apr_source::Source;
use apr_source::sentence::Sentence;
use serde_json::{Map, Value, json};

use super::reranker::{Answers, RANK};
use super::rope;
use super::sentence::pooling_type;

/// llama.cpp's number of the quantization formats in use.
const QUANTIZATION_VERSION: u32 = 2;

/// Ends of keys whose numbers have to be above 0: with others, every value that the network
/// computes is not a number.
const POSITIVE: [&str; 6] = [
    "_epsilon",
    ".freq_base",
    ".freq_base_swa",
    ".scaling.factor",
    ".scaling.attn_factor",
    ".yarn_attn_factor",
];

/// Name of windowed attention in `transformers`.
const SLIDING: &str = "sliding_attention";

/// Maximum number of classes for which names are generated.
const MAX_CLASSES: u64 = 1 << 16;

/// Facts about a checkpoint besides its tensors.
pub(super) struct Facts {
    /// Entries of `config.json`, overridden by the entries of `text_config`, with one name for each
    /// rotary setting.
    pub(super) config: Map<String, Value>,
    generation: Map<String, Value>,
    card: Map<String, Value>,
    license: Option<String>,
    /// How images become pixels, as [`apr_source`] learns it from the companions.
    images: Map<String, Value>,
    /// Name of the checkpoint given by the code that opened it.
    name: Option<String>,
    /// Pooling of token vectors to the vector of a text.
    pub(super) sentence: Option<Sentence>,
    /// Rows of a language model's head that make up a classifier.
    pub(super) answers: Option<Answers>,
}

/// Facts about the tensors that will be written.
#[derive(Default)]
pub(super) struct Written {
    pub(super) file_type: u32,
    pub(super) size_label: String,
    /// Rows of a classifier's last matrix.
    pub(super) classes: Option<u64>,
}

impl Facts {
    /// # Errors
    /// E007 and E008 when a companion can't be read, E001 where those of sentence-transformers are
    /// malformed.
    pub(super) fn of(source: &Source<'_>) -> Result<Self> {
        let (reader, learnt) = (source.reader(), source.learnt()?);
        let learnt = |key: &str| {
            learnt.metadata.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone())
        };
        let found = |key: &str| reader.metadata().get(key).cloned().or_else(|| learnt(key));
        let object = |name: &str| Ok::<_, apr_registry::Error>(object(companion(reader, name)?));
        let mut config = reader.metadata().object(keys::ARCHITECTURE).cloned().unwrap_or_default();
        config.extend(object("config.json")?.unwrap_or_default());
        Ok(Self {
            config: normalised(config),
            generation: object("generation_config.json")?.unwrap_or_default(),
            card: found("model_card")
                .and_then(|card| card.as_object().cloned())
                .unwrap_or_default(),
            license: found("license").and_then(|license| license.as_str().map(str::to_owned)),
            images: found("image_config")
                .and_then(|images| images.as_object().cloned())
                .unwrap_or_default(),
            name: found("model_name").and_then(|name| name.as_str().map(str::to_owned)),
            sentence: Sentence::of(reader)?,
            answers: None,
        })
    }

    /// Returns `true` if the name of the model in lower case contains `part`.
    pub(super) fn is_called(&self, part: &str) -> bool {
        let told = self.config.get("_name_or_path").and_then(Value::as_str);
        let card = ["name", "model_name"].iter().filter_map(|key| self.card.get(*key)?.as_str());
        let names = card.chain(told).chain(self.name.as_deref());
        names.into_iter().any(|name| name.to_lowercase().contains(part))
    }

    /// The value that a table names by a dotted path.
    fn entry(&self, path: &str, written: &Written) -> Option<Value> {
        match path {
            "file_type" => return Some(written.file_type.into()),
            "pooling_type" if written.classes.is_some() => return Some(RANK.into()),
            "pooling_type" => {
                return self.sentence.as_ref().and_then(pooling_type).map(Value::from);
            }
            "output_labels" => return self.labels(written.classes).map(|labels| json!(labels)),
            "problem_type" => return self.problem_type(written.classes),
            "mrope_sections" => return mrope_sections(&self.config),
            "sliding_layers" => return sliding_layers(&self.config),
            "rope_attention_factor" => {
                return rope::attention_factor(&self.config).map(Value::from);
            }
            _ => {}
        }

        let (config, path) = match path.strip_prefix("image_config.") {
            Some(rest) => (&self.images, rest),
            None => (&self.config, path),
        };
        let mut parts = path.split('.');
        let mut value = config.get(parts.next()?)?;
        for part in parts {
            value = value.get(part)?;
        }

        (!value.is_null()).then(|| value.clone())
    }

    /// Returns the `problem_type` of a classifier whose scores do not depend on each other. The key
    /// is apr's own: llama.cpp returns logits.
    fn problem_type(&self, classes: Option<u64>) -> Option<Value> {
        let stated = self.config.get("problem_type").filter(|stated| has_own_scores(stated))?;
        classes.is_some().then(|| stated.clone())
    }

    /// Returns the labels by their number. llama.cpp requires one for each class of a classifier.
    /// Without a classifier, the two default labels of `transformers` are not used.
    fn labels(&self, classes: Option<u64>) -> Option<Vec<String>> {
        if self.answers.is_some() {
            return Some(vec!["yes".to_owned(), "no".to_owned()]);
        }
        let told = self
            .told_labels()
            .filter(|labels| classes.is_none_or(|classes| classes == labels.len() as u64));
        match (told, classes) {
            (Some(labels), Some(_)) => Some(labels),
            (None, Some(classes)) if classes <= MAX_CLASSES => {
                Some((0..classes).map(|class| format!("LABEL_{class}")).collect())
            }
            (Some(labels), None) => {
                let made_up = labels.len() == 2 && labels[0] == "LABEL_0";
                (!labels.is_empty() && !made_up).then_some(labels)
            }
            _ => None,
        }
    }

    fn told_labels(&self) -> Option<Vec<String>> {
        let mut labels: Vec<(u64, &str)> = Vec::new();
        for (number, label) in self.config.get("id2label")?.as_object()? {
            labels.push((number.parse().ok()?, label.as_str()?));
        }
        labels.sort_unstable();
        Some(labels.into_iter().map(|(_, label)| label.to_owned()).collect())
    }

    /// All keys but the tokenizer's, in llama.cpp's order.
    ///
    /// # Errors
    /// E001 when a hyperparameter that llama.cpp needs is not there, or is a number that it can't
    /// compute with.
    pub(super) fn keys(&self, model: &FamilyModel<'_>, written: &Written) -> Result<Vec<KeyValue>> {
        // `export` refuses a family that llama.cpp has no models of before it asks for keys.
        let architecture = model.gguf_architecture().unwrap_or_default();
        let kind = if model.family().is_for_images() { "mmproj" } else { "model" };
        let mut all = vec![
            KeyValue::new("general.architecture", architecture),
            KeyValue::new("general.type", kind),
        ];
        all.extend(self.sampling());
        all.extend(self.general(model.family().title(), &written.size_label));

        // Numbers are kept with their path, so that an error can name the entry that led to them.
        let asked = RefCell::new(Vec::new());
        let hyperparameters = model.gguf_keys(&|path| {
            let value = self.entry(path, written)?;
            if value.is_number() || value.is_object() {
                asked.borrow_mut().push((path.to_owned(), value.clone()));
            }
            Some(value)
        })?;
        let asked = asked.into_inner();

        // Expressions take an object for an entry that is absent, which would hide the mistake.
        if let Some((path, object)) = asked.iter().find(|(_, value)| value.is_object()) {
            return Err(Error::format(format!(
                "config.json's '{path}' is {object}, but has to be a number or a text"
            )));
        }

        all.extend(
            hyperparameters.into_iter().map(|(key, value)| KeyValue::new(key, typed(value))),
        );
        all.iter().try_for_each(|pair| check_number(pair, &asked))?;
        all.push(KeyValue::new("general.quantization_version", QUANTIZATION_VERSION));
        Ok(all)
    }

    fn sampling(&self) -> Vec<KeyValue> {
        let number =
            |keys: &[&str]| keys.iter().find_map(|key| self.generation.get(*key)?.as_f64());
        let real = |key: &str, names: &[&str]| {
            Some(KeyValue::new(format!("general.sampling.{key}"), single(number(names)?)))
        };
        let top_k = self
            .generation
            .get("top_k")
            .and_then(Value::as_i64)
            .and_then(|k| i32::try_from(k).ok());
        let top_k = top_k.map(|k| KeyValue::new("general.sampling.top_k", k));
        top_k
            .into_iter()
            .chain(real("top_p", &["top_p"]))
            .chain(real("min_p", &["min_p"]))
            .chain(real("temp", &["temperature"]))
            // `transformers` calls it `repetition_penalty`; llama.cpp's converter looks for its own
            // name.
            .chain(real("penalty_repeat", &["penalty_repeat", "repetition_penalty"]))
            .collect()
    }

    /// Returns the keys from the model card, which always include a name.
    fn general(&self, title: &str, size_label: &str) -> Vec<KeyValue> {
        let text = |key: &str| self.card.get(key).and_then(Value::as_str).map(str::to_owned);
        let told = self.config.get("_name_or_path").and_then(Value::as_str);

        // Whoever trained it last may have loaded it from a folder of their own.
        let told = told.filter(|name| {
            !name.is_empty() && name.matches('/').count() <= 1 && !name.starts_with('.')
        });
        let told = told.map(|name| in_title_case(name.rsplit('/').next().unwrap_or(name)));
        let name = text("name").or_else(|| text("model_name")).or(told);
        let called = self.name.as_deref().map(in_title_case);
        let name = name.or(called).unwrap_or_else(|| title.to_owned());
        let license = listed(&self.card, "license")
            .map(|licenses| licenses.join(","))
            .or_else(|| self.license.clone());
        let several = |keys: [&str; 2]| -> Option<Vec<String>> {
            let all: Vec<String> =
                keys.iter().filter_map(|key| listed(&self.card, key)).flatten().collect();
            (!all.is_empty()).then_some(all)
        };
        let mut all = vec![
            KeyValue::new("general.name", name),
            KeyValue::new("general.size_label", size_label),
        ];
        all.extend(license.map(|license| KeyValue::new("general.license", license)));
        all.extend(text("license_name").map(|name| KeyValue::new("general.license.name", name)));
        all.extend(text("license_link").map(|link| KeyValue::new("general.license.link", link)));
        all.extend(
            several(["tags", "pipeline_tag"]).map(|tags| KeyValue::new("general.tags", tags)),
        );
        all.extend(
            several(["languages", "language"])
                .map(|languages| KeyValue::new("general.languages", languages)),
        );
        all
    }
}

/// Returns a list with `true` for each layer whose attention is limited to a window.
fn sliding_layers(config: &Map<String, Value>) -> Option<Value> {
    let kinds = config.get("layer_types")?.as_array()?;
    Some(kinds.iter().map(|kind| Value::from(kind.as_str() == Some(SLIDING))).collect())
}

/// Returns the number of pairs of a head's dimensions that are rotated by each part of a position:
/// time, height and width, and a fourth for which llama.cpp has a place.
fn mrope_sections(config: &Map<String, Value>) -> Option<Value> {
    let mut sections = config.get("rope_scaling")?.get("mrope_section")?.as_array()?.clone();
    sections.resize(4, Value::from(0));
    Some(sections.into())
}

/// The opposite of [`sliding_layers`]: the kind of each layer's attention, as `transformers` calls
/// it.
pub(super) fn layer_types(sliding: &Value) -> Option<Value> {
    let layers = sliding.as_array()?.iter();
    layers
        .map(|layer| Some(Value::from(if layer.as_bool()? { SLIDING } else { "full_attention" })))
        .collect()
}

/// Rejects an invalid number. `asked` are the numbers in the configuration from which keys were
/// made, by their path.
fn check_number(pair: &KeyValue, asked: &[(String, Value)]) -> Result<()> {
    let Typed::F32(number) = pair.value else { return Ok(()) };
    let is_positive = POSITIVE.iter().any(|end| pair.key.ends_with(end));
    if number.is_finite() && (number > 0.0 || !is_positive) {
        return Ok(());
    }

    let is_source = |value: &Value| {
        value.as_f64().is_some_and(|told| single(told).to_bits() == number.to_bits())
    };
    let source = asked.iter().find(|(_, value)| is_source(value));
    let source = source.map(|(path, value)| format!("config.json's '{path}' is {value}, so "));
    let needed = if is_positive { "a finite number above 0" } else { "a finite number" };
    let (source, key) = (source.unwrap_or_default(), &pair.key);
    Err(Error::format(format!(
        "{source}{key} would be {number} in single precision: llama.cpp needs {needed}"
    )))
}

#[expect(clippy::cast_possible_truncation, reason = "GGUF has single precision here")]
pub(super) fn single(number: f64) -> f32 {
    number as f32
}

fn typed(value: GgufValue) -> Typed {
    match value {
        GgufValue::U32(number) => number.into(),
        GgufValue::F32(number) => number.into(),
        GgufValue::Bool(truth) => truth.into(),
        GgufValue::String(text) => text.into(),
        GgufValue::Strings(texts) => texts.into(),
        GgufValue::Bools(truths) => truths.into(),
        GgufValue::I32s(numbers) => numbers.into(),
        GgufValue::F32s(numbers) => numbers.into(),
        _ => unreachable!("all types are known to this version"),
    }
}

/// One text or several.
fn listed(card: &Map<String, Value>, key: &str) -> Option<Vec<String>> {
    match card.get(key)? {
        Value::String(one) => Some(vec![one.clone()]),
        Value::Array(several) => {
            Some(several.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect())
        }
        _ => None,
    }
}

fn companion(reader: &dyn CheckpointReader, name: &str) -> Result<Option<Vec<u8>>> {
    let position = reader.companions().iter().position(|companion| companion.name == name);
    position.map(|position| reader.read_companion(position)).transpose()
}

fn object(bytes: Option<Vec<u8>>) -> Option<Map<String, Value>> {
    apr_core::json::from_python(&bytes?).ok()
}

/// A configuration with the language model's entries at the top, and each rotary setting under one
/// name, whatever the version of `transformers` that wrote it: `rope_theta`,
/// `rope_local_base_freq`, `partial_rotary_factor`, and `rope_scaling` with `rope_type`. A
/// `rope_scaling` that is not an object stays.
pub(super) fn normalised(mut config: Map<String, Value>) -> Map<String, Value> {
    if let Some(Value::Object(text)) = config.remove("text_config") {
        config.extend(text);
    }

    // Null stays: a class may have another default for what is missing. Of rotary settings it is
    // the same.
    let is_rotary = |key: &str| key.contains("rope_") || key.contains("rotary_");
    config.retain(|key, value| !value.is_null() || !is_rotary(key));
    let malformed = ["rope_parameters", "rope_scaling"].iter().find_map(|key| config.get(*key));
    let malformed = malformed.filter(|value| !value.is_object()).cloned();
    let object = |key: &str| {
        config.get(key).and_then(Value::as_object).cloned().filter(|object| !object.is_empty())
    };
    let mut rope = object("rope_scaling").or_else(|| object("rope_parameters")).unwrap_or_default();
    let local = rope.get("sliding_attention").and_then(|local| local.get("rope_theta")).cloned();
    // Version 5 of `transformers` keeps settings apart for each kind of attention.
    if let Some(Value::Object(global)) = rope.remove("full_attention") {
        rope = global;
    }

    let entry = |key: &str| config.get(key).filter(|value| !value.is_null());
    let first = |keys: &[&str]| keys.iter().find_map(|key| entry(key)).cloned();

    // The names that llama.cpp's converter looks for.
    let theta = rope.get("rope_theta").cloned().or_else(|| {
        first(&[
            "global_rope_theta",
            "rope_global_theta",
            "rope_theta_global",
            "rope_theta",
            "rotary_emb_base",
        ])
    });

    let local = local.or_else(|| {
        first(&["local_rope_theta", "rope_local_theta", "swa_rope_theta", "rope_local_base_freq"])
    });
    let partial =
        rope.get("partial_rotary_factor").cloned().or_else(|| first(&["partial_rotary_factor"]));
    let original = first(&["original_max_position_embeddings"]);
    // Older versions of `transformers` write `type`.
    if let (None, Some(kind)) = (rope.get("rope_type"), rope.get("type").cloned()) {
        rope.insert("rope_type".to_owned(), kind);
    }
    // Phi-3 has this length beside its `rope_scaling`, not within.
    if let (None, Some(original)) = (rope.get("original_max_position_embeddings"), original) {
        rope.insert("original_max_position_embeddings".to_owned(), original);
    }

    rope.retain(|_, value| !value.is_null());
    let settings = [
        ("rope_theta", theta),
        ("rope_local_base_freq", local),
        ("partial_rotary_factor", partial),
    ];
    for (key, value) in settings {
        config.extend(value.map(|value| (key.to_owned(), value)));
    }

    config.insert("rope_scaling".to_owned(), malformed.unwrap_or_else(|| rope.into()));
    config
}

/// Returns `tiny-llama` in title case: `Tiny Llama`. Words with capitals and versions are
/// unchanged.
fn in_title_case(name: &str) -> String {
    let is_version = |word: &str| {
        let rest = word.strip_prefix('v').unwrap_or(word);
        word.starts_with(|first: char| first.is_ascii_digit())
            || (rest.len() < word.len()
                && rest
                    .split('.')
                    .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())))
    };

    let title = |word: &str| {
        let is_lower =
            word.chars().any(char::is_lowercase) && !word.chars().any(char::is_uppercase);
        if !is_lower || is_version(word) {
            return word.to_owned();
        }

        // As Python's `str.title`, by which the converter does it: a capital after what is no
        // letter.
        let mut after_letter = false;
        let mut titled = String::with_capacity(word.len());
        for character in word.chars() {
            if after_letter {
                titled.push(character);
            } else {
                titled.extend(character.to_uppercase());
            }
            after_letter = character.is_alphabetic();
        }
        titled
    };

    name.replace('-', " ").split_whitespace().map(title).collect::<Vec<_>>().join(" ")
}

/// Returns the number of parameters in two digits: `7.2B`, or `8x7.0B` for models with experts.
pub(super) fn size_label<'t>(tensors: impl Iterator<Item = (&'t str, &'t [u64])>) -> String {
    let (mut shared, mut expert, mut experts, mut stacks) = (0_u64, 0_u64, 0_u64, 0_u64);
    for (name, dims) in tensors {
        let size = dims.iter().fold(1_u64, |product, &dim| product.saturating_mul(dim));
        match dims {
            [count, _, _, ..] if name.contains("_exps.") && *count > 0 => {
                expert = expert.saturating_add(size / count);
                experts += count;
                stacks += 1;
            }
            _ => shared = shared.saturating_add(size),
        }
    }

    // In `8x7.0B`, 7.0B counts what all experts share and a single one of them.
    let size = rounded(shared.saturating_add(expert));
    match experts.checked_div(stacks) {
        Some(count) if count > 0 => format!("{count}x{size}"),
        _ => size,
    }
}

fn rounded(parameters: u64) -> String {
    let parameters = parameters as f64;
    let (scaled, unit) = match parameters {
        p if p > 1e12 => (p * 1e-12, 'T'),
        p if p > 1e9 => (p * 1e-9, 'B'),
        p if p > 1e6 => (p * 1e-6, 'M'),
        p => (p * 1e-3, 'K'),
    };

    // Python's `round`, which the converter uses, takes halves to the even number;
    // a zero in front is no digit.
    let whole = scaled.round_ties_even();
    let digits = if whole < 1.0 { 0 } else { format!("{whole}").len() };
    format!("{scaled:.*}{unit}", 2_usize.saturating_sub(digits))
}

/// The shortest decimal that is this single: 0.00001, not 0.000009999999747378752.
fn shortest(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, |number| json!(number))
}

/// A value of a GGUF file as configurations have it: a single is the shortest decimal that leads
/// back to it.
pub(super) fn config_value(pair: &Pair<'_>) -> Value {
    match pair.items() {
        None => match pair.value() {
            apr_gguf::Value::F32(single) if single.is_finite() => shortest(single),
            _ => pair.json(),
        },
        Some(_) => pair.json(),
    }
}

#[cfg(test)]
mod tests {
    use apr_gguf::KeyValues;

    use super::*;

    /// Values from `gguf.size_label` and `gguf.Metadata.id_to_title`.
    #[test]
    fn sizes_and_names_read_as_llama_cpp_writes_them() {
        let label =
            |parameters: u64| size_label([("token_embd.weight", &[parameters][..])].into_iter());
        let cases = [
            (25_123, "25K"),
            (8_030_261_248, "8.0B"),
            (494_032_768, "494M"),
            (999, "1.0K"),
            (400, "0.40K"),
        ];
        for (parameters, expected) in cases {
            assert_eq!(label(parameters), expected);
        }
        let experts =
            [("blk.0.ffn_up_exps.weight", &[8, 100, 70][..]), ("output.weight", &[1000][..])];
        assert_eq!(size_label(experts.into_iter()), "8x8.0K");
        for (name, title) in [
            ("tiny-llama", "Tiny Llama"),
            ("Llama-2-7b-hf", "Llama 2 7b Hf"),
            ("a_b-v1.5", "A_B v1.5"),
        ] {
            assert_eq!(in_title_case(name), title);
        }
    }

    #[test]
    fn rotary_settings_have_one_name_each() {
        let old = json!({
            "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}, "x": null,
            "rope_parameters": null,
        });
        let new =
            json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}});
        for config in [old, new] {
            let config = normalised(config.as_object().cloned().unwrap_or_default());
            assert_eq!(config["rope_theta"], json!(5e5));
            assert_eq!(config["rope_scaling"]["rope_type"], "linear");
            assert!(config.get("x").is_none_or(Value::is_null));
        }
        let seeing = json!({"text_config": {"hidden_size": 3}, "hidden_size": 1});
        assert_eq!(normalised(seeing.as_object().cloned().unwrap_or_default())["hidden_size"], 3);
    }

    #[test]
    fn values_are_as_configurations_have_them() {
        let keys: KeyValues = [
            KeyValue::new("a.eps", 1e-5_f32),
            KeyValue::new("a.tokens", vec!["x".to_owned(), "y".to_owned()]),
            KeyValue::new("a.causal", false),
        ]
        .into_iter()
        .collect();
        let values: Vec<(&str, Value)> =
            keys.iter().map(|pair| (pair.key, config_value(&pair))).collect();
        // Not the double next to the single.
        assert_eq!(
            values,
            [("a.eps", json!(1e-5)), ("a.tokens", json!(["x", "y"])), ("a.causal", json!(false))]
        );
    }
}
