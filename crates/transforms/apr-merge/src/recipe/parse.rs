//! mergekit's YAML.
//!
//! Every key is either understood or an error that names it: nothing is passed over.

use std::collections::BTreeMap;
use std::ops::Range;

use apr_core::json::{entries, text};
use apr_core::{DType, Error, Escaped, Result};
use serde_json::Value;

use super::yaml;
use super::{
    ChatTemplate, Choice, Parts, Recipe, Setting, Settings, Slice, Source, TokenChoice, TokenRow,
    Tokenizer,
};
use crate::method::Method;

/// Layers, models or values of a list: more are a mistake, or meant to cost time.
pub(crate) const MOST: usize = 10_000;

/// Reads a configuration of mergekit: one merge, or several documents of which later ones may name
/// earlier ones as models.
///
/// ```
/// let text = "merge_method: linear\nmodels:\n- {model: a, parameters: {weight: 0.7}}\n\
///             - {model: b}\nparameters: {weight: [0.2, 0.4]}\n";
/// let recipes = apr_merge::parse(text)?;
/// assert_eq!(recipes[0].models(), ["a", "b"]);
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 for what is not YAML or not understood, with the key; E008 for what is too large.
pub fn parse(text: &str) -> Result<Vec<Recipe>> {
    let documents = yaml::documents(text)?;
    if documents.is_empty() {
        return Err(Error::format("the configuration is empty"));
    }
    let several = documents.len() > 1;
    let mut recipes: Vec<Recipe> = Vec::new();
    for document in &documents {
        let mut recipe = recipe(document)?;
        text.clone_into(&mut recipe.text);
        let name = recipe.name.as_deref();
        if let Some(name) =
            name.filter(|name| recipes.iter().any(|r| r.name.as_deref() == Some(name)))
        {
            return Err(Error::format(format!("two merges have the name '{}'", short(name))));
        }
        recipes.push(recipe);
    }
    check_stages(&recipes)?;
    if several && recipes.iter().rev().skip(1).any(|recipe| recipe.name.is_none()) {
        return Err(Error::format("of several merges, all but the last need a 'name'"));
    }
    Ok(recipes)
}

/// Rejects descriptions whose nested merges would read too many models.
///
/// A merge is recomputed for each merge that reads it.
fn check_stages(recipes: &[Recipe]) -> Result<()> {
    let mut reads: BTreeMap<&str, u64> = BTreeMap::new();
    for recipe in recipes {
        let of = |model: &str| reads.get(model).copied().unwrap_or(1);
        let all = recipe.models().into_iter().map(of).fold(0, u64::saturating_add);
        if all > MOST as u64 {
            let name = short(recipe.name.as_deref().unwrap_or_default());
            return Err(Error::memory(format!(
                "the nested merges in '{name}' would read models {all} times: write the inner \
                 merges to files first"
            )));
        }
        if let Some(name) = &recipe.name {
            reads.insert(name, all);
        }
    }
    Ok(())
}

pub(crate) fn short(text: &str) -> String {
    Escaped::short(text).to_string()
}

/// Mapping whose keys are removed when they are read.
pub(crate) struct Keys {
    place: String,
    left: BTreeMap<String, Value>,
}

impl Keys {
    pub(crate) fn of(value: &Value, place: &str) -> Result<Self> {
        match value {
            Value::Object(object) => {
                // A key without a value is as good as absent.
                let left = object.iter().filter(|(_, value)| !value.is_null());
                let left = left.map(|(key, value)| (key.clone(), value.clone())).collect();
                Ok(Self { place: place.to_owned(), left })
            }
            _ => Err(Error::format(format!("{place} is not a mapping"))),
        }
    }

    pub(crate) fn take(&mut self, key: &str) -> Option<Value> {
        self.left.remove(key)
    }

    pub(crate) fn text(&mut self, key: &str) -> Result<Option<String>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Error::format(format!("'{key}' of {} is not text", self.place))),
        }
    }

    /// Checks that no unknown key is left.
    pub(crate) fn finish(self) -> Result<()> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(key) => {
                Err(Error::format(format!("'{}' of {} is not supported", short(key), self.place)))
            }
        }
    }
}

fn recipe(document: &Value) -> Result<Recipe> {
    let mut keys = Keys::of(document, "the configuration")?;
    let method = keys.text("merge_method")?;
    let method = method.ok_or_else(|| Error::format("'merge_method' is missing"))?;
    let method: Method = method.parse().map_err(|error| Error::format(format!("{error}")))?;
    let mut recipe = Recipe::new(method, Vec::new());
    recipe.name = keys.text("name")?;
    recipe.base = keys.take("base_model").map(|value| model(&value)).transpose()?;
    recipe.settings = settings(keys.take("parameters"), method)?;
    recipe.dtype = dtype(&mut keys, "dtype")?;
    recipe.out_dtype = dtype(&mut keys, "out_dtype")?;
    tokenizer(&mut keys, &mut recipe)?;
    recipe.chat_template = chat_template(&mut keys)?;
    recipe.parts = parts(&mut keys, method)?;
    keys.finish()?;
    Ok(recipe)
}

fn parts(keys: &mut Keys, method: Method) -> Result<Parts> {
    match (keys.take("models"), keys.take("slices")) {
        (Some(_), Some(_)) => Err(Error::format("'models' and 'slices' exclude each other")),
        (None, None) if keys.take("modules").is_some() => Err(Error::version(
            "'modules' is not supported: 'models' merges all parts of the models alike",
        )),
        (None, None) => Err(Error::format("'models' or 'slices' is missing")),
        (Some(models), None) => {
            let models = list(models, "models")?;
            let sources = models.iter().map(|value| {
                let mut keys = Keys::of(value, "an entry of 'models'")?;
                let source = source(&mut keys, method, Range::default())?;
                keys.finish()?;
                Ok(source)
            });
            Ok(Parts::Models(sources.collect::<Result<_>>()?))
        }
        (None, Some(slices)) => {
            let slices = list(slices, "slices")?;
            Ok(Parts::Slices(
                slices.iter().map(|value| slice(value, method)).collect::<Result<_>>()?,
            ))
        }
    }
}

fn slice(value: &Value, method: Method) -> Result<Slice> {
    let mut keys = Keys::of(value, "an entry of 'slices'")?;
    let sources = list(keys.take("sources").unwrap_or_default(), "sources")?;
    let sources = sources.iter().map(|value| {
        let mut keys = Keys::of(value, "an entry of 'sources'")?;
        let layers = layers(keys.take("layer_range"))?;
        let source = source(&mut keys, method, layers)?;
        keys.finish()?;
        Ok(source)
    });
    let slice = Slice {
        sources: sources.collect::<Result<_>>()?,
        base: keys.take("base_model").map(|value| model(&value)).transpose()?,
        settings: settings(keys.take("parameters"), method)?,
    };
    keys.finish()?;
    Ok(slice)
}

fn source(keys: &mut Keys, method: Method, layers: Range<u64>) -> Result<Source> {
    let value = keys.take("model");
    let value = value.ok_or_else(|| Error::format(format!("{}: missing 'model'", keys.place)))?;
    Ok(Source {
        model: model(&value)?,
        layers,
        settings: settings(keys.take("parameters"), method)?,
    })
}

pub(crate) fn list(value: Value, name: &str) -> Result<Vec<Value>> {
    match value {
        Value::Array(values) if values.is_empty() || values.len() > MOST => {
            Err(Error::format(format!("'{name}' has {} entries", values.len())))
        }
        Value::Array(values) => Ok(values),
        _ => Err(Error::format(format!("'{name}' is not a list"))),
    }
}

fn layers(value: Option<Value>) -> Result<Range<u64>> {
    let refused =
        || Error::format("'layer_range' is not two layers, the first and the one after the last");
    let Some(Value::Array(bounds)) = value else { return Err(refused()) };
    match &bounds[..] {
        [first, end] => match (first.as_u64(), end.as_u64()) {
            (Some(first), Some(end)) if first < end && end <= MOST as u64 => Ok(first..end),
            _ => Err(refused()),
        },
        _ => Err(refused()),
    }
}

/// A model's name: text, or the mapping that mergekit writes in its place.
pub(crate) fn model(value: &Value) -> Result<String> {
    let name = match value {
        Value::String(name) => name.clone(),
        Value::Object(_) => {
            let mut keys = Keys::of(value, "a model")?;
            let path = match keys.take("model").or_else(|| keys.take("path")) {
                Some(Value::String(path)) => path,
                Some(inner) => {
                    let mut inner = Keys::of(&inner, "a model")?;
                    let path = inner.text("path")?;
                    let revision = inner.text("revision")?;
                    inner.finish()?;
                    let path = path.ok_or_else(|| Error::format("missing 'path' of a model"))?;
                    revision.map_or(path.clone(), |revision| format!("{path}@{revision}"))
                }
                None => return Err(Error::format("missing 'path' of a model")),
            };
            let adapter = keys.take("lora").filter(|lora| !lora.is_null());
            keys.finish()?;
            match adapter {
                Some(adapter) => format!("{path}+{}", model(&adapter)?),
                None => path,
            }
        }
        Value::Number(number) => number.to_string(),
        _ => return Err(Error::format("a model's name is not text")),
    };
    if name.is_empty() {
        return Err(Error::format("a model's name is empty"));
    }
    if name.split('+').any(str::is_empty) {
        return Err(Error::format(format!("'{}' lacks a model or its adapter", short(&name))));
    }
    Ok(name)
}

pub(crate) fn dtype(keys: &mut Keys, key: &str) -> Result<Option<DType>> {
    let Some(name) = keys.text(key)? else { return Ok(None) };
    match name.strip_prefix("torch.").unwrap_or(&name) {
        "float32" | "float" | "fp32" | "f32" => Ok(Some(DType::F32)),
        "float16" | "half" | "fp16" | "f16" => Ok(Some(DType::F16)),
        "bfloat16" | "bf16" => Ok(Some(DType::BF16)),
        "float64" | "double" | "f64" => Ok(Some(DType::F64)),
        "auto" => Ok(None),
        other => Err(Error::format(format!(
            "'{key}' is '{}': float64, float32, float16 and bfloat16 are supported",
            short(other)
        ))),
    }
}

/// ChatML, which mergekit has a name for.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + \
                      message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if \
                      add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

fn chat_template(keys: &mut Keys) -> Result<Option<ChatTemplate>> {
    let Some(text) = keys.text("chat_template")? else { return Ok(None) };
    match text.as_str() {
        "auto" => Ok(Some(ChatTemplate::Auto)),
        "chatml" => Ok(Some(ChatTemplate::Text(CHATML.to_owned()))),
        text if text.contains("{{") || text.contains("{%") => {
            Ok(Some(ChatTemplate::Text(text.to_owned())))
        }
        other => Err(Error::format(format!(
            "'chat_template' is '{}': auto, chatml and Jinja templates are supported",
            short(other)
        ))),
    }
}

fn tokenizer(keys: &mut Keys, recipe: &mut Recipe) -> Result<()> {
    let of = |value: &Value| match value {
        Value::String(text) if text == "base" => Ok(Tokenizer::Base),
        Value::String(text) if text == "union" => Ok(Tokenizer::Union),
        Value::String(text) => {
            let name = text.strip_prefix("model:").unwrap_or(text);
            model(&Value::from(name)).map(Tokenizer::Model)
        }
        other => model(other).map(Tokenizer::Model),
    };
    match (keys.take("tokenizer_source"), keys.take("tokenizer")) {
        (Some(_), Some(_)) => {
            Err(Error::format("'tokenizer_source' and 'tokenizer' exclude each other"))
        }
        (Some(source), None) => {
            recipe.tokenizer = Some(of(&source)?);
            Ok(())
        }
        (None, Some(tokenizer)) => {
            let mut keys = Keys::of(&tokenizer, "'tokenizer'")?;
            let source = keys.take("source").map_or(Ok(Tokenizer::Union), |value| of(&value))?;
            recipe.tokenizer = Some(source);
            recipe.token_choices = token_choices(keys.take("tokens"))?;
            recipe.pad_rows = match keys.take("pad_to_multiple_of") {
                None | Some(Value::Null) => None,
                Some(value) => {
                    Some(value.as_u64().filter(|rows| (1..=1 << 16).contains(rows)).ok_or_else(
                        || Error::format("'pad_to_multiple_of' is not a number of rows"),
                    )?)
                }
            };
            keys.finish()
        }
        (None, None) => Ok(()),
    }
}

fn token_choices(value: Option<Value>) -> Result<BTreeMap<String, TokenChoice>> {
    let tokens = match value {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(Value::Object(tokens)) => tokens,
        Some(_) => return Err(Error::format("'tokens' is not a mapping")),
    };
    if tokens.len() > MOST {
        return Err(Error::format(format!("'tokens' has {} entries", tokens.len())));
    }
    tokens.into_iter().map(|(token, value)| Ok((token, token_choice(&value)?))).collect()
}

fn token_choice(value: &Value) -> Result<TokenChoice> {
    let mut keys = Keys::of(value, "an entry of 'tokens'")?;
    let force = match keys.take("force") {
        None | Some(Value::Null) => false,
        Some(value) => number(&value, "force")? != 0.0,
    };
    let source = keys.take("source");
    let source = source.ok_or_else(|| Error::format("missing 'source' in an entry of 'tokens'"))?;
    keys.finish()?;
    let Value::Object(object) = &source else {
        return Ok(TokenChoice { source: TokenRow::Model(model(&source)?), force });
    };
    let kind = object.get("kind").and_then(Value::as_str).map(str::to_owned);
    let source = match kind.as_deref() {
        Some("zero") => TokenRow::Zero,
        Some("model_token") => {
            let mut keys = Keys::of(&source, "a token's source")?;
            keys.take("kind");
            let name = keys.take("model");
            let name = name.ok_or_else(|| Error::format("missing 'model' in a token's source"))?;
            let name = model(&name)?;
            let (token, id) = (keys.text("token")?, keys.take("token_id"));
            keys.finish()?;
            match (token, id.as_ref().and_then(Value::as_u64)) {
                (Some(token), None) => TokenRow::Token(name, token),
                (None, Some(id)) => TokenRow::Id(name, id),
                _ => {
                    let message = "a token's source has one of 'token' and 'token_id'";
                    return Err(Error::format(message));
                }
            }
        }
        Some(other) => {
            return Err(Error::format(format!(
                "a token's source is of the kind '{}', not zero or model_token",
                short(other)
            )));
        }
        None => TokenRow::Model(model(&source)?),
    };
    Ok(TokenChoice { source, force })
}

/// Parameters, each of which some method has.
fn settings(value: Option<Value>, method: Method) -> Result<Settings> {
    let Some(value) = value else { return Ok(Settings::new()) };
    let Value::Object(object) = value else {
        return Err(Error::format("'parameters' is not a mapping"));
    };
    let mut settings = Settings::new();
    for (name, value) in entries(&object) {
        if !Method::is_parameter(name) {
            return Err(Error::format(format!("unknown parameter '{}' of {method}", short(name))));
        }
        settings.insert(name.clone(), setting(value, name)?);
    }
    Ok(settings)
}

fn setting(value: &Value, name: &str) -> Result<Setting> {
    let is_choice = |value: &Value| value.is_object();
    let choices = match value {
        Value::Array(values) if values.iter().any(is_choice) => {
            values.iter().map(|value| choice(value, name)).collect::<Result<_>>()?
        }
        Value::Object(_) => vec![choice(value, name)?],
        value => vec![Choice { filter: None, values: numbers(value, name)? }],
    };
    Ok(Setting(choices))
}

fn choice(value: &Value, name: &str) -> Result<Choice> {
    let mut keys = Keys::of(value, &format!("an entry of '{name}'"))?;
    let values = keys.take("value");
    let values =
        values.ok_or_else(|| Error::format(format!("missing 'value' in an entry of '{name}'")))?;
    let choice = Choice { filter: keys.text("filter")?, values: numbers(&values, name)? };
    keys.finish()?;
    Ok(choice)
}

fn numbers(value: &Value, name: &str) -> Result<Vec<f64>> {
    match value {
        Value::Array(values) if values.is_empty() || values.len() > MOST => {
            Err(Error::format(format!("'{name}' has {} values", values.len())))
        }
        Value::Array(values) => values.iter().map(|value| number(value, name)).collect(),
        value => Ok(vec![number(value, name)?]),
    }
}

pub(crate) fn number(value: &Value, name: &str) -> Result<f64> {
    let number = match value {
        Value::Bool(flag) => Some(if *flag { 1.0 } else { 0.0 }),
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match text.as_str() {
            "yes" | "on" => Some(1.0),
            "no" | "off" => Some(0.0),
            text => text.parse().ok(),
        },
        _ => None,
    };
    number
        .filter(|number| number.is_finite())
        .ok_or_else(|| Error::format(format!("'{name}' is {}, not a number", short(&text(value)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_of_slices_is_understood_whole() {
        let text = "
merge_method: slerp
base_model: {model: {path: org/a, revision: main}}
slices:
- sources:
  - {model: a, layer_range: [0, 2]}
  - model: b
    layer_range: [0, 2]
    parameters: {t: 0.3}
  parameters:
    t: [{filter: self_attn, value: [0, 0.5]}, {value: 0.5}]
parameters: {t: 1}
dtype: bfloat16
out_dtype: float16
tokenizer_source: union
";
        let recipes = parse(text).unwrap();
        let [recipe] = &recipes[..] else { panic!("one merge") };
        assert_eq!(recipe.method, Method::Slerp);
        assert_eq!(recipe.base.as_deref(), Some("org/a@main"));
        assert_eq!((recipe.dtype, recipe.out_dtype), (Some(DType::BF16), Some(DType::F16)));
        assert_eq!(recipe.tokenizer, Some(Tokenizer::Union));
        assert_eq!(recipe.models(), ["a", "b", "org/a@main"]);
        let Parts::Slices(slices) = &recipe.parts else { panic!("slices") };
        assert_eq!(slices[0].sources[1].layers, 0..2);
        assert_eq!(slices[0].settings["t"].0[0].values, [0.0, 0.5]);
    }

    #[test]
    fn merges_of_merges_that_multiply_are_refused() {
        let mut text = String::new();
        for stage in 0..40 {
            let (a, b) = (format!("m{}", stage - 1), format!("m{}", stage - 2));
            text += &format!(
                "---\nmerge_method: linear\nname: m{stage}\nmodels: [{{model: {a}}}, {{model: \
                 {b}}}]\n"
            );
        }
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains("times"), "{error}");
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let head = "merge_method: linear\n";
        let models = "models: [{model: a}]\n";
        for (text, expected) in [
            ("", "empty"),
            ("- a", "not a mapping"),
            ("models: []", "'merge_method' is missing"),
            ("merge_method: xyz\nmodels: [{model: a}]", "; one of: average, linear, "),
            ("merge_method: linaer\nmodels: [{model: a}]", "did you mean linear"),
            (head, "'models' or 'slices' is missing"),
            (&format!("{head}modules: {{}}"), "'modules' is not supported"),
            (&format!("{head}models: []"), "0 entries"),
            (&format!("{head}models: [{{weight: 1}}]"), "missing 'model'"),
            (&format!("{head}{models}chat_template: alpaca"), "'alpaca'"),
            (&format!("{head}{models}modules: {{}}"), "'modules'"),
            (&format!("{head}{models}parameters: {{wieght: 1}}"), "'wieght'"),
            (&format!("{head}{models}parameters: {{weight: heavy}}"), "not a number"),
            (&format!("{head}{models}parameters: {{weight: .nan}}"), "not a number"),
            (&format!("{head}{models}dtype: int8"), "'int8'"),
            (&format!("{head}models: [{{model: a+}}]"), "its adapter"),
            (
                &format!("{head}slices: [{{sources: [{{model: a, layer_range: [2, 1]}}]}}]"),
                "layer_range",
            ),
            (&format!("{head}slices: [{{sources: [{{model: a}}]}}]"), "layer_range"),
            (&format!("{head}{models}tokenizer: {{tokens: {{x: {{}}}}}}"), "missing 'source'"),
            (&format!("{head}{models}---\n{head}{models}"), "need a 'name'"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
