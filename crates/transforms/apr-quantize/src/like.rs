//! The scheme that a checkpoint is quantized to already.

use std::collections::BTreeMap;

use apr_core::Coding;
use apr_registry::{CheckpointReader, DType, Result, TensorInfo};
use apr_view::{MXFP4_EXPERTS, NVFP4_BLOCKS};

use super::record::{file_type_name, recorded_scheme};
use super::scheme::Scheme;

/// Quantization of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantizedLike {
    /// No quantization: all weights are floats.
    Nothing,
    /// Quantization of this scheme, with the storage description of codes and scales, if there is
    /// one.
    ///
    /// The group sizes can differ from those of the scheme.
    Scheme(Scheme, Option<String>),
    /// Quantization that no scheme writes, such as `AWQ, 4 bits, groups of 128`.
    Other(String),
}

impl QuantizedLike {
    /// Finds the scheme of most elements that are quantized, in codes and scales or in blocks; of
    /// blocks, the one that the metadata record.
    ///
    /// # Errors
    /// E001 when the metadata hold malformed pairs.
    pub fn of(reader: &dyn CheckpointReader) -> Result<Self> {
        let mut found: BTreeMap<String, (u64, Option<Scheme>, Option<String>)> = BTreeMap::new();
        for (position, info) in reader.tensors().iter().enumerate() {
            let coding = reader.stored(position).coding();
            let stored = coding.as_ref().map(|coding| coding.description.to_owned());
            let (name, scheme) = match coding {
                Some(coding) => match scheme_of(&coding, info) {
                    Some(scheme) => (scheme.name().to_owned(), Some(scheme)),
                    None => (coding.description.to_owned(), None),
                },
                None if info.dtype.is_quantized() => {
                    let name = info.dtype.name().to_owned();
                    (name, Scheme::parse(info.dtype.name()).ok())
                }
                None => continue,
            };
            let elements = info.shape.elements().unwrap_or_default();
            found.entry(name).or_insert((0, scheme, stored)).0 += elements;
        }
        let most = found.into_iter().max_by_key(|(_, (elements, ..))| *elements);
        let Some((name, (_, scheme, stored))) = most else { return Ok(Self::Nothing) };
        let recorded = if stored.is_some() { None } else { recorded(reader)? };
        Ok(match recorded.or(scheme) {
            Some(scheme) => Self::Scheme(scheme, stored),
            None => Self::Other(name),
        })
    }
}

/// The scheme that the metadata record.
fn recorded(reader: &dyn CheckpointReader) -> Result<Option<Scheme>> {
    let pairs = apr_gguf::key_values(reader.metadata())?;
    let of_file = pairs.as_deref().and_then(file_type_name).map(str::to_owned);
    let name = recorded_scheme(reader.metadata()).or(of_file);
    Ok(name.and_then(|name| Scheme::parse(&name).ok()))
}

/// The scheme whose layout has the weights of a kind.
fn scheme_of(coding: &Coding<'_>, info: &TensorInfo) -> Option<Scheme> {
    let part = |at: usize| {
        let part = coding.parts.get(at)?;
        Some(&coding.base.tensors()[part.tensor])
    };
    let bits = part(0)?.byte_len().ok()?.checked_mul(8)?.checked_div(info.shape.elements()?)?;
    let has = |end: &str| coding.names().any(|name| name.ends_with(end));
    match (coding.kind, bits) {
        ("fp8", _) => Some(Scheme::Fp8),
        ("int8", _) => Some(Scheme::W8A8),
        ("packed", 4) if has(".weight_zero_point") => Some(Scheme::W4A16Asym),
        ("packed", 4) => Some(Scheme::W4A16),
        ("gptq", 4) => Some(Scheme::Gptq4),
        ("fp4", 4) if part(1)?.dtype == DType::F8_E4M3 => Some(Scheme::NVFP4),
        ("fp4", 4) => Some(Scheme::MXFP4),
        ("mlx", 4) if has(".biases") => Some(Scheme::Mlx4),
        ("mlx", 6) => Some(Scheme::Mlx6),
        ("mlx", 8) if has(".biases") => Some(Scheme::Mlx8),
        (NVFP4_BLOCKS, _) => Some(Scheme::NVFP4),
        (MXFP4_EXPERTS, _) => Some(Scheme::MXFP4_MOE),
        _ => None,
    }
}
