//! Which matrices are rewritten, and in which order.

use std::collections::BTreeMap;

use apr_arch::FamilyModel;
use apr_core::CheckpointReader;
use apr_quantize::measured_names;

/// A matrix that is rewritten by its inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    /// Its position in the checkpoint.
    pub tensor: usize,
    /// What a measurement calls it.
    pub measured: String,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
}

impl Matrix {
    /// Bytes of its products of inputs.
    #[must_use]
    pub fn gram_bytes(&self) -> u64 {
        square(self.columns)
    }

    /// Bytes that rewriting it takes beside those: its weights, and a second matrix of products.
    #[must_use]
    pub fn work_bytes(&self) -> u64 {
        let weights = (self.rows as u64).saturating_mul(self.columns as u64).saturating_mul(4);
        // Weights twice, as bytes and as numbers.
        square(self.columns).saturating_add(weights.saturating_mul(2))
    }
}

fn square(columns: usize) -> u64 {
    (columns as u64).saturating_mul(columns as u64).saturating_mul(4)
}

/// Matrices by layers, in the order in which a run meets them.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    /// Matrices whose inputs are measured together, since none of them depends on another.
    pub layers: Vec<Vec<Matrix>>,
    /// Tensors that can't be rewritten, by position, and why.
    pub left: Vec<(usize, &'static str)>,
}

impl Layers {
    /// Sorts tensors, by position, by what a measurement can see: `measured` are names in the order
    /// in which a run meets them.
    #[must_use]
    pub fn new(
        positions: impl IntoIterator<Item = usize>,
        reader: &dyn CheckpointReader,
        model: Option<&FamilyModel<'_>>,
        measured: &[String],
    ) -> Self {
        let names = measured_names(reader, model);
        let order: BTreeMap<&str, usize> =
            measured.iter().enumerate().rev().map(|(at, name)| (name.as_str(), at)).collect();
        let mut left = Vec::new();
        let mut layers: BTreeMap<(usize, String), Vec<Matrix>> = BTreeMap::new();
        let mut first: BTreeMap<String, usize> = BTreeMap::new();
        let mut kept = Vec::new();
        for tensor in positions {
            let info = &reader.tensors()[tensor];
            let measured = &names[tensor];
            let why = match (&info.shape.dims(), order.get(measured.as_str())) {
                _ if model.is_some_and(|model| model.has_inputs_first(tensor)) => {
                    "its rows are inputs, not outputs"
                }
                ([rows, columns], Some(&at)) => {
                    match (usize::try_from(*rows), usize::try_from(*columns)) {
                        (Ok(rows), Ok(columns)) => {
                            let layer = layer_of(&info.name);
                            let known = first.entry(layer.clone()).or_insert(at);
                            *known = (*known).min(at);
                            let measured = measured.clone();
                            kept.push((layer, Matrix { tensor, measured, rows, columns }));
                            continue;
                        }
                        _ => "it does not fit in memory",
                    }
                }
                ([_, _], None) => "its inputs were not measured",
                _ => "it is no matrix",
            };
            left.push((tensor, why));
        }
        for (layer, matrix) in kept {
            let at = first.get(&layer).copied().unwrap_or_default();
            layers.entry((at, layer)).or_default().push(matrix);
        }
        Self { layers: layers.into_values().collect(), left }
    }

    /// Bytes that the largest layer takes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let of_layer = |layer: &Vec<Matrix>| {
            let grams = layer.iter().map(Matrix::gram_bytes).fold(0, u64::saturating_add);
            let work = layer.iter().map(Matrix::work_bytes).max().unwrap_or_default();
            grams.saturating_add(work)
        };
        self.layers.iter().map(of_layer).max().unwrap_or_default()
    }
}

/// What tensors of a layer have in front of their names: up to its number, or else all.
fn layer_of(name: &str) -> String {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len() + 1;
        if end > part.len() + 1 && !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            return name[..end - 1].to_owned();
        }
    }
    name.to_owned()
}
