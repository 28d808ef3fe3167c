//! What a cache takes before there is one.

use apr_core::Result;
use apr_graph::{Body, Graph, Meaning, Sizes, Value};

use super::{CacheType, check_cache_type, heads_and_size, keeps_others};

/// Size of the keys, values and states that a graph keeps of earlier tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptSize {
    /// Bytes of keys and values that grow with the tokens, in the cache type.
    pub grown_bytes: u64,
    /// Bytes of values that keep the form in which the graph makes them: states, and keys and
    /// values of an encoder.
    pub fixed_bytes: u64,
    /// Number of inputs of unknown size. Their bytes are not counted.
    pub unknown: usize,
}

impl KeptSize {
    /// Returns the number of all bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.grown_bytes.saturating_add(self.fixed_bytes)
    }
}

/// Returns the size of the keys, values and states that a graph takes, for inputs of these sizes.
/// `all_grow` asks that all of them can be kept as the cache type, as a graph that continues texts
/// alone has to.
///
/// # Errors
/// E003 where they can't be kept as the cache type.
pub fn kept_size(
    graph: &Graph,
    cache_type: CacheType,
    all_grow: bool,
    sizes: Sizes<'_>,
) -> Result<KeptSize> {
    let kept = kept(&graph.body);
    if kept.is_empty() {
        return Ok(KeptSize::default());
    }
    check_cache_type(graph, cache_type)?;
    let mut size = KeptSize::default();
    for id in kept {
        let value = graph.body.value(id);
        match heads_and_size(graph, id) {
            Some((heads, row)) => {
                let row = cache_type.row_bytes(row).unwrap_or_default() as u64;
                let rows = [0, 2].map(|dim| value.shape().and_then(|dims| dims[dim].value(sizes)));
                match rows {
                    [Some(texts), Some(tokens)] => {
                        let heads = texts.saturating_mul(heads as u64);
                        let bytes = heads.saturating_mul(tokens).saturating_mul(row);
                        size.grown_bytes = size.grown_bytes.saturating_add(bytes);
                    }
                    _ => size.unknown += 1,
                }
            }
            None if all_grow && cache_type != CacheType::F32 => {
                return Err(keeps_others(cache_type));
            }
            None => match bytes(value, sizes) {
                Some(bytes) => size.fixed_bytes = size.fixed_bytes.saturating_add(bytes),
                None => size.unknown += 1,
            },
        }
    }
    Ok(size)
}

/// The inputs that take what was kept.
fn kept(body: &Body) -> Vec<apr_graph::ValueId> {
    let past = [Meaning::PastKey, Meaning::PastValue, Meaning::PastState];
    body.inputs.iter().copied().filter(|id| past.contains(&body.value(*id).meaning)).collect()
}

fn bytes(value: &Value, sizes: Sizes<'_>) -> Option<u64> {
    let mut dims = value.shape()?.iter();
    let elements = dims.try_fold(1_u64, |all, dim| Some(all.saturating_mul(dim.value(sizes)?)));
    value.element()?.stored_len(elements?)
}
