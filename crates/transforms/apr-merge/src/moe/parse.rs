//! mergekit-moe's YAML.

use apr_core::json;
use apr_core::{Error, Result};
use serde_json::Value;

use super::{Expert, GateMode, Recipe};
use crate::recipe::parse::{Keys, dtype, list, model, number, short};
use crate::recipe::yaml;

/// Maximum number of experts; published models have up to 512.
const MOST: usize = 512;

/// Reads a configuration of mergekit-moe. Returns `None` for a plain mergekit configuration.
///
/// ```
/// let text = "base_model: a\ngate_mode: random\nexperts:\n- source_model: b\n- source_model: c\n";
/// let recipe = apr_merge::moe::parse(text)?.expect("a mixture of experts");
/// assert_eq!(recipe.models(), ["a", "b", "c"]);
/// assert!(apr_merge::moe::parse("merge_method: linear\nmodels: [{model: a}]\n")?.is_none());
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 with the key for a text that is not YAML or is not understood; E008 for a text that is too
/// large.
pub fn parse(text: &str) -> Result<Option<Recipe>> {
    let documents = yaml::documents(text)?;
    let is_moe = |document: &Value| {
        document.get("experts").is_some() && document.get("merge_method").is_none()
    };
    match &documents[..] {
        [document] if is_moe(document) => Ok(Some(recipe(document, text)?)),
        _ => Ok(None),
    }
}

fn recipe(document: &Value, text: &str) -> Result<Recipe> {
    let mut keys = Keys::of(document, "the configuration")?;
    let base = keys.take("base_model");
    let base = base.ok_or_else(|| Error::format("'base_model' is missing"))?;
    let experts = list(keys.take("experts").unwrap_or_default(), "experts")?;
    let shared = keys.take("shared_experts").map(|value| match value {
        Value::Array(values) if values.is_empty() => Ok(Vec::new()),
        value => list(value, "shared_experts"),
    });
    let shared = shared.transpose()?.unwrap_or_default();
    if experts.len() > MOST || shared.len() > 1 {
        let (name, count, most) = match experts.len() > MOST {
            true => ("experts", experts.len(), MOST),
            false => ("shared_experts", shared.len(), 1),
        };
        return Err(Error::format(format!(
            "'{name}' has {count} entries, {most} at most are made"
        )));
    }
    let per_token = keys.take("experts_per_token");
    let per_token = per_token.map(|value| {
        let fits = |count: &u64| (1..=experts.len() as u64).contains(count);
        value.as_u64().filter(fits).ok_or_else(|| {
            let found = short(&json::text(&value));
            let count = experts.len();
            Error::format(format!("'experts_per_token' is {found}, not from 1 to {count}"))
        })
    });
    let recipe = Recipe {
        base: model(&base)?,
        experts: experts.iter().map(expert).collect::<Result<_>>()?,
        shared: shared.first().map(expert).transpose()?,
        gate: gate_mode(keys.text("gate_mode")?.as_deref())?,
        dtype: dtype(&mut keys, "dtype")?,
        per_token: per_token.transpose()?,
        architecture: keys.text("architecture")?,
        seed: 0,
        text: text.to_owned(),
    };
    keys.finish()?;
    check(&recipe)?;
    Ok(recipe)
}

fn expert(value: &Value) -> Result<Expert> {
    let mut keys = Keys::of(value, "an expert")?;
    let source = keys.take("source_model");
    let source = source.ok_or_else(|| Error::format("missing 'source_model' of an expert"))?;
    let mut factor = |key: &str| keys.take(key).map(|value| number(&value, key)).transpose();
    let (noise, residual) = (factor("noise_scale")?, factor("residual_scale")?);
    let expert = Expert {
        model: model(&source)?,
        positive: prompts(&mut keys, "positive_prompts")?,
        negative: prompts(&mut keys, "negative_prompts")?,
        noise,
        residual,
    };
    keys.finish()?;
    Ok(expert)
}

fn prompts(keys: &mut Keys, key: &str) -> Result<Vec<String>> {
    let Some(value) = keys.take(key) else { return Ok(Vec::new()) };
    if value.as_array().is_some_and(Vec::is_empty) {
        return Ok(Vec::new());
    }
    let text = |value: Value| match value {
        Value::String(text) => Ok(text),
        other => {
            let other = short(&other.to_string());
            Err(Error::format(format!("'{key}' has {other}, which is not text")))
        }
    };
    list(value, key)?.into_iter().map(text).collect()
}

fn gate_mode(name: Option<&str>) -> Result<GateMode> {
    let all = [
        GateMode::Hidden,
        GateMode::HiddenAvg,
        GateMode::CheapEmbed,
        GateMode::Random,
        GateMode::UniformRandom,
    ];
    match name {
        // What mergekit calls the same by another name.
        None | Some("hidden_last") => Ok(GateMode::Hidden),
        Some(name) => all.into_iter().find(|mode| mode.name() == name).ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|mode| mode.name()).collect();
            let known = known.join(", ");
            Error::format(format!("'gate_mode' is '{}': {known} are supported", short(name)))
        }),
    }
}

/// Checks that the required prompts exist and differ.
fn check(recipe: &Recipe) -> Result<()> {
    let [first, rest @ ..] = &recipe.experts[..] else {
        return Err(Error::format("'experts' has 0 entries"));
    };
    if recipe.gate.is_random() {
        return Ok(());
    }
    if let Some(at) = recipe.experts.iter().position(|expert| expert.positive.is_empty()) {
        return Err(Error::format(format!(
            "expert {at} ('{}'): missing positive_prompts, which describe its purpose",
            short(&recipe.experts[at].model)
        )));
    }
    let is_same =
        |other: &Expert| other.positive == first.positive && other.negative == first.negative;
    if !rest.is_empty() && rest.iter().all(is_same) {
        let message = "all experts have the same prompts, so that no router could choose";
        return Err(Error::format(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use apr_core::DType;

    use super::*;

    const TWO: &str = "experts:\n- {source_model: b, positive_prompts: [x]}\n\
                       - {source_model: c, positive_prompts: [y], negative_prompts: [z], \
                       residual_scale: 0.5}\n";

    #[test]
    fn configurations_are_understood_whole() {
        let text = format!("base_model: a\ngate_mode: cheap_embed\ndtype: bfloat16\n{TWO}");
        let recipe = parse(&text).expect("valid").expect("a mixture");
        assert_eq!(recipe.gate, GateMode::CheapEmbed);
        assert_eq!(recipe.dtype, Some(DType::BF16));
        let [_, second] = &recipe.experts[..] else { panic!("two experts") };
        assert_eq!(second.negative, ["z"]);
        assert_eq!((second.residual, second.noise), (Some(0.5), None));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let head = format!("base_model: a\n{TWO}");
        let same = TWO.replace("[y], negative_prompts: [z]", "[x]");
        for (text, expected) in [
            (TWO, "'base_model' is missing"),
            ("base_model: a\nexperts: []", "0 entries"),
            ("base_model: a\nexperts: [{}]", "missing 'source_model'"),
            ("base_model: a\nexperts: [{source_model: b}]", "missing positive_prompts"),
            (&format!("base_model: a\n{same}"), "the same prompts"),
            (&format!("{head}gate_mode: best"), "'best'"),
            (&format!("{head}experts_per_token: 3"), "not from 1 to 2"),
            (&format!("{head}router_weight: 1"), "'router_weight'"),
            (&format!("{head}shared_experts: [{{source_model: a}}, {{source_model: b}}]"), "1 at"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
