//! Factors of rotary positions, which GGUF has in tensors, as a configuration has them.

use apr_arch::FamilyModel;
use apr_registry::{CheckpointReader, DType, Error, Loss, Result};
use serde_json::{Map, Value, json};

use super::gguf_keys::GgufKeys;
use super::rope;

/// Key of the factors in configurations.
const SCALING: &str = "rope_scaling";

/// Adds factors that the file stores as tensors to the configuration. Factors that it can't store
/// are reported as a loss.
///
/// # Errors
/// E001 if such a tensor contains no factors, E002 and E007 if it can't be read.
pub(super) fn add_factors(
    reader: &dyn CheckpointReader,
    model: &FamilyModel<'_>,
    described: &GgufKeys<'_>,
    config: &mut Map<String, Value>,
) -> Result<Option<Loss>> {
    let factors = |name: &str| -> Result<Option<Vec<f32>>> {
        let is_it = |position: &usize| model.canonical(*position) == Some(name);
        let Some(position) = (0..reader.tensors().len()).find(is_it) else { return Ok(None) };
        read_factors(reader, position).map(Some)
    };

    let both = (factors("rope_factors_long.weight")?, factors("rope_factors_short.weight")?);
    if let (Some(long), Some(short)) = both {
        config.insert(SCALING.to_owned(), longrope(&long, &short, described, config));
    }

    let Some(factors) = factors("rope_freqs.weight")? else { return Ok(None) };
    // Of Gemma 4, whose table has the other settings.
    let whole = config.get_mut("rope_parameters").and_then(|rope| rope.get_mut("full_attention"));
    if let (Some(share), Some(Value::Object(whole))) = (rope::turned_share(&factors), whole) {
        whole.insert("partial_rotary_factor".to_owned(), share.into());
        return Ok(None);
    }
    match of_frequencies(&factors, described, config) {
        Some(settings) => {
            config.insert(SCALING.to_owned(), settings);
            Ok(None)
        }
        None => Ok(Some(Loss {
            name: "rope_freqs.weight".to_owned(),
            what: "left out".to_owned(),
            why: "config.json can't store factors together with positions that are scaled by YaRN"
                .to_owned(),
        })),
    }
}

/// Returns settings that result in one factor for each frequency. They are LLaMA 3's if the factors
/// match, and otherwise LongRoPE's with the same factors for long and short texts.
fn of_frequencies(
    factors: &[f32],
    described: &GgufKeys<'_>,
    config: &Map<String, Value>,
) -> Option<Value> {
    let stated = config.get(SCALING).and_then(Value::as_object);
    let kind = stated.and_then(|stated| stated.get("rope_type")?.as_str());
    let stretch = match kind {
        None => 1.0,
        Some("linear") => stated?.get("factor")?.as_f64()?,
        Some(_) => return None,
    };

    let theta = config.get("rope_theta").and_then(Value::as_f64).unwrap_or(10_000.0);
    let attention = described.entry("rope.scaling.attn_factor").and_then(|factor| factor.as_f64());
    let attention = attention.unwrap_or(1.0);
    if stretch == 1.0
        && attention == 1.0
        && let Some(settings) = rope::llama3_settings(factors, theta)
    {
        return Some(settings);
    }

    let all: Vec<f64> = shortest(factors).into_iter().map(|factor| factor * stretch).collect();
    Some(json!({
        "rope_type": "longrope",
        "factor": 1.0,
        "attention_factor": attention,
        "original_max_position_embeddings": config.get("max_position_embeddings")?,
        "long_factor": all,
        "short_factor": all,
    }))
}

/// Phi-3's class in transformers 4 takes the lists and the type alone, and no `rope_type`. A factor
/// for attention is stated where it is another than the two lengths of texts lead to.
fn longrope(
    long: &[f32],
    short: &[f32],
    described: &GgufKeys<'_>,
    config: &Map<String, Value>,
) -> Value {
    let mut settings = json!({
        "type": "longrope", "long_factor": shortest(long), "short_factor": shortest(short),
    });
    let number = |key: &str| config.get(key).and_then(Value::as_f64);
    let lengths = number("max_position_embeddings").zip(number("original_max_position_embeddings"));
    let computed = lengths.map(|(longest, original)| rope::longrope_factor(longest, original));
    let stated = described.entry("rope.scaling.attn_factor").and_then(|factor| factor.as_f64());
    if let (Some(stated), Some(settings)) = (stated, settings.as_object_mut())
        && computed.is_none_or(|computed| (computed - stated).abs() > 1e-6 * stated.abs())
    {
        settings.insert("attention_factor".to_owned(), stated.into());
    }
    settings
}

/// Singles as the shortest decimals that lead back to them.
fn shortest(factors: &[f32]) -> Vec<f64> {
    factors
        .iter()
        .map(|factor| factor.to_string().parse().unwrap_or_else(|_| f64::from(*factor)))
        .collect()
}

/// Reads a vector of single precision.
fn read_factors(reader: &dyn CheckpointReader, position: usize) -> Result<Vec<f32>> {
    /// Longer ones belong to no head.
    const LONGEST: u64 = 1 << 16;
    let info = &reader.tensors()[position];

    // The length is the file's word, and that much memory is taken.
    let len = usize::try_from(info.byte_len()?).ok().filter(|&len| len as u64 <= 4 * LONGEST);
    let (DType::F32, Some(len)) = (info.dtype, len) else {
        return Err(Error::format("it should hold a factor for each rotary frequency")
            .for_tensor(&info.name));
    };
    let mut bytes = vec![0; len];
    reader.read_tensor(position, 0, &mut bytes)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|factor| f32::from_le_bytes(*factor)).collect())
}
