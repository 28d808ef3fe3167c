//! Inputs that a graph asks for and nobody gave, where the others leave one sensible value.
//!
//! | input | value |
//! |---|---|
//! | masks of tokens, states of an encoder and samples | ones: all count |
//! | positions, `cache_position` | counted on from the tokens that the cache has |
//! | types of tokens | zeros: one text |
//! | keys and values of earlier tokens | empty: there were none |
//! | `use_cache_branch` | whether keys and values were given |
//!
//! These are the values that `transformers` takes where an argument is left out.

use apr_graph::{Body, Dim, Meaning, Value as GraphValue, ValueType};
use apr_infer::{Tensor, Value};
use apr_registry::Result;
use serde::Serialize;

/// An input that was not given, and its assumed value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AssumedInput {
    /// Name in the graph.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// `ones`, `zeros`, `positions from 0`, `empty`.
    pub value: String,
}

/// Returns values for missing inputs that follow from the given inputs.
///
/// # Errors
/// E008 for values that take too much memory.
pub fn assumed(
    body: &Body,
    given: &[(String, Value)],
    missing: &[&str],
) -> Result<Vec<(AssumedInput, Value)>> {
    let inputs = Inputs { body, given };
    let mut found = Vec::new();
    for name in missing {
        let Some(value) = inputs.value(name) else { continue };
        let Some((what, tensor)) = inputs.of(value)? else { continue };
        if !fits(value, tensor.shape()) {
            continue;
        }
        let tensor = tensor.cast(value.element().unwrap_or(tensor.element()))?;
        let shape = tensor.shape().to_vec();
        found.push((AssumedInput { name: (*name).to_owned(), shape, value: what }, tensor.into()));
    }
    Ok(found)
}

/// Returns `true` if an input can have this shape.
fn fits(value: &GraphValue, shape: &[usize]) -> bool {
    let Some(dims) = value.shape() else { return true };
    let agrees = |(dim, &size): (&Dim, &usize)| dim.size().is_none_or(|dim| dim == size as u64);
    dims.len() == shape.len() && dims.iter().zip(shape).all(agrees)
}

/// Inputs of a graph, with the given values.
struct Inputs<'a> {
    body: &'a Body,
    given: &'a [(String, Value)],
}

impl<'a> Inputs<'a> {
    fn value(&self, name: &str) -> Option<&'a GraphValue> {
        self.body.inputs.iter().map(|id| self.body.value(*id)).find(|value| value.name == name)
    }

    /// Shapes of the given arrays that mean one of these.
    fn shapes<'s>(&'s self, of: &'s [Meaning]) -> impl Iterator<Item = (&'s str, &'s [usize])> {
        self.given.iter().filter_map(move |(name, value)| {
            let meaning = self.value(name)?.meaning;
            let tensor = value.tensor().ok().filter(|_| of.contains(&meaning))?;
            Some((name.as_str(), tensor.shape()))
        })
    }

    /// Returns the batch and the length of the tokens that an input belongs to. Inputs named
    /// `decoder_...` belong to the decoder's tokens.
    fn rows(&self, name: &str, of: &[Meaning]) -> Option<[usize; 2]> {
        let of_decoder = name.starts_with("decoder_");
        let mut shapes: Vec<_> = self.shapes(of).filter(|(_, shape)| shape.len() >= 2).collect();
        shapes.sort_by_key(|(name, _)| name.starts_with("decoder_") != of_decoder);
        shapes.first().map(|(_, shape)| [shape[0], shape[1]])
    }

    fn tokens(&self, name: &str) -> Option<[usize; 2]> {
        self.rows(name, &[Meaning::TokenIds, Meaning::Embeddings])
    }

    /// Earlier tokens whose keys were given.
    fn past(&self) -> usize {
        let of_text = |name: &str| !name.contains(".encoder.");
        let mut keys = self.shapes(&[Meaning::PastKey]).filter(|(name, _)| of_text(name));
        keys.next().and_then(|(_, shape)| shape.get(2).copied()).unwrap_or(0)
    }

    /// Returns the description and the elements of an assumed value.
    fn of(&self, value: &GraphValue) -> Result<Option<(String, Tensor)>> {
        let name = value.name.as_str();
        let filled = |what: &str, [batch, len]: [usize; 2], element: i64| {
            let count = batch.saturating_mul(len);
            Tensor::new(vec![batch, len], vec![element; count]).map(|it| (what.to_owned(), it))
        };
        Ok(match (value.meaning, name) {
            (Meaning::AttentionMask, "encoder_attention_mask") => self
                .rows(name, &[Meaning::EncoderStates])
                .map(|rows| filled("ones", rows, 1))
                .transpose()?,
            (Meaning::AttentionMask, _) => {
                let past = self.past();
                let tokens = self.tokens(name).map(|[batch, len]| [batch, past + len]);
                let rows = tokens.or_else(|| self.rows(name, &[Meaning::Waveform]));
                rows.map(|rows| filled("ones", rows, 1)).transpose()?
            }
            (Meaning::TokenTypes, _) => {
                self.tokens(name).map(|rows| filled("zeros", rows, 0)).transpose()?
            }
            (Meaning::PositionIds, _) => {
                let positions = |[batch, len]: [usize; 2]| self.positions(vec![batch, len]);
                self.tokens(name).map(positions).transpose()?
            }
            (_, "cache_position") => {
                self.tokens(name).map(|[_, len]| self.positions(vec![len])).transpose()?
            }
            (_, "use_cache_branch") => {
                let uses = self.shapes(&[Meaning::PastKey]).next().is_some();
                let value = Tensor::truths(vec![1], vec![u8::from(uses)])?;
                Some((uses.to_string(), value))
            }
            (Meaning::PastKey | Meaning::PastValue, _) => self.empty(value)?,
            _ => None,
        })
    }

    /// Returns the positions of tokens after the tokens in the cache, along the last dimension.
    fn positions(&self, shape: Vec<usize>) -> Result<(String, Tensor)> {
        let (past, len) = (self.past(), shape.last().copied().unwrap_or(0));
        let rows = shape.iter().rev().skip(1).product();
        let row = (past..past + len).map(|at| at as i64);
        let all = std::iter::repeat_n(row, rows).flatten().collect();
        Ok((format!("positions from {past}"), Tensor::new::<i64>(shape, all)?))
    }

    /// Returns keys or values of zero tokens. The first dimension is the batch, and only one other
    /// dimension may be open.
    fn empty(&self, value: &GraphValue) -> Result<Option<(String, Tensor)>> {
        // Some given and others not is a mistake, and no beginning.
        let is_begun = self.shapes(&[Meaning::PastKey, Meaning::PastValue]).next().is_some();
        let (ValueType::Tensor(_), Some(dims)) = (&value.kind, value.shape()) else {
            return Ok(None);
        };
        let open = dims.iter().skip(1).filter(|dim| dim.size().is_none()).count();
        let batch = self.tokens("decoder_").map(|[batch, _]| batch);
        let Some(batch) = batch.filter(|_| open == 1 && !is_begun) else { return Ok(None) };

        let size = |(at, dim): (usize, &Dim)| match dim.size() {
            Some(size) => usize::try_from(size).unwrap_or(usize::MAX),
            None if at == 0 => batch,
            None => 0,
        };
        let shape = dims.iter().enumerate().map(size).collect();
        Ok(Some(("empty".to_owned(), Tensor::new::<f32>(shape, Vec::new())?)))
    }
}

#[cfg(test)]
mod tests {
    use apr_graph::{ElementType, ValueOrigin};

    use super::*;

    fn body(inputs: &[(&str, Meaning, ValueType)]) -> Body {
        let mut body = Body::default();
        for (name, meaning, kind) in inputs {
            let id = body.add_value((*name).to_owned(), kind.clone(), ValueOrigin::Input);
            body.value_mut(id).meaning = *meaning;
            body.inputs.push(id);
        }
        body
    }

    fn ids() -> Value {
        Tensor::new(vec![2, 3], vec![5_i64; 6]).unwrap().into()
    }

    fn array(element: ElementType, dims: &[&str]) -> ValueType {
        ValueType::tensor(element, dims.iter().map(|dim| Dim::parse(dim)))
    }

    #[test]
    fn only_values_that_follow_from_the_tokens_are_assumed() {
        let row = array(ElementType::I64, &["batch", "len"]);
        let keys = array(ElementType::F32, &["batch", "4", "past", "8"]);
        let states = array(ElementType::F32, &["batch", "frames", "16"]);
        let body = body(&[
            ("input_ids", Meaning::TokenIds, row.clone()),
            ("attention_mask", Meaning::AttentionMask, row.clone()),
            ("position_ids", Meaning::PositionIds, row.clone()),
            ("token_type_ids", Meaning::TokenTypes, row),
            ("past_key_values.0.key", Meaning::PastKey, keys),
            ("encoder_hidden_states", Meaning::EncoderStates, states),
        ]);
        let missing: Vec<&str> =
            body.inputs.iter().skip(1).map(|id| body.value(*id).name.as_str()).collect();
        let found = assumed(&body, &[("input_ids".to_owned(), ids())], &missing).unwrap();
        let said: Vec<_> = found
            .iter()
            .map(|(input, _)| (input.name.as_str(), input.value.as_str(), &input.shape[..]))
            .collect();
        let expected: [(&str, &str, &[usize]); 4] = [
            ("attention_mask", "ones", &[2, 3]),
            ("position_ids", "positions from 0", &[2, 3]),
            ("token_type_ids", "zeros", &[2, 3]),
            ("past_key_values.0.key", "empty", &[2, 4, 0, 8]),
        ];
        assert_eq!(said, expected);
        let positions = found[1].1.tensor().unwrap().values::<i64>().unwrap();
        assert_eq!(positions, [0, 1, 2, 0, 1, 2]);
        assert!(assumed(&body, &[], &missing).unwrap().is_empty(), "nothing to go by");
    }

    #[test]
    fn masks_and_positions_go_on_after_a_cache_that_is_given() {
        let row = array(ElementType::I64, &["batch", "len"]);
        let keys = array(ElementType::F32, &["batch", "4", "past", "8"]);
        let body = body(&[
            ("input_ids", Meaning::TokenIds, row.clone()),
            ("attention_mask", Meaning::AttentionMask, row),
            ("past_key_values.0.key", Meaning::PastKey, keys.clone()),
            ("past_key_values.0.value", Meaning::PastValue, keys),
            ("cache_position", Meaning::Unknown, array(ElementType::I64, &["len"])),
            ("use_cache_branch", Meaning::Unknown, array(ElementType::Bool, &["1"])),
        ]);
        let past = Tensor::new(vec![2, 4, 5, 8], vec![0.0_f32; 320]).unwrap();
        let given =
            [("input_ids".to_owned(), ids()), ("past_key_values.0.key".to_owned(), past.into())];
        let missing =
            ["attention_mask", "past_key_values.0.value", "cache_position", "use_cache_branch"];
        let found = assumed(&body, &given, &missing).unwrap();
        let said: Vec<_> = found
            .iter()
            .map(|(input, _)| (input.name.as_str(), input.value.as_str(), &input.shape[..]))
            .collect();
        let expected: [(&str, &str, &[usize]); 3] = [
            ("attention_mask", "ones", &[2, 8]),
            ("cache_position", "positions from 5", &[3]),
            ("use_cache_branch", "true", &[1]),
        ];
        assert_eq!(said, expected, "half a cache is completed by nobody");
    }
}
