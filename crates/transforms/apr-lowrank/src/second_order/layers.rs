//! Which matrices are rewritten, and in which order.

use std::collections::BTreeMap;

use apr_arch::FamilyModel;
use apr_core::CheckpointReader;
use apr_quantize::measured_names;

/// A matrix that is rewritten by its inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    /// Position of the tensor in the checkpoint.
    pub tensor: usize,
    /// Name of the tensor in measurements.
    pub measured: String,
    /// Number of outputs.
    pub rows: usize,
    /// Number of inputs.
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

/// Matrices by layer, in execution order.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    /// Matrices whose inputs are measured together, since none of them depends on another.
    pub layers: Vec<Vec<Matrix>>,
    /// Tensors that can't be rewritten, by position, and why.
    pub left: Vec<(usize, &'static str)>,
}

impl Layers {
    /// Groups tensors, given by position, into layers that a measurement can see.
    ///
    /// `measured` contains the measured names in execution order.
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
                _ => "it is not a matrix",
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
        self.layers.iter().map(|layer| memory_of(layer)).max().unwrap_or_default()
    }

    /// Divides layers that need more than `most` bytes, if possible, such as layers of many
    /// experts.
    ///
    /// The model runs once more for each additional piece.
    #[must_use]
    pub fn within(self, most: u64) -> Self {
        let mut layers: Vec<Vec<Matrix>> = Vec::new();
        for layer in self.layers {
            let mut piece = Vec::new();
            for matrix in layer {
                piece.push(matrix);
                if piece.len() > 1 && memory_of(&piece) > most {
                    let last = piece.pop();
                    layers.push(std::mem::replace(&mut piece, last.into_iter().collect()));
                }
            }
            layers.push(piece);
        }
        Self { layers, ..self }
    }
}

/// Bytes that a layer takes: the products of the inputs of all its matrices, and the work on one.
fn memory_of(layer: &[Matrix]) -> u64 {
    let grams = layer.iter().map(Matrix::gram_bytes).fold(0, u64::saturating_add);
    let work = layer.iter().map(Matrix::work_bytes).max().unwrap_or_default();
    grams.saturating_add(work)
}

/// Returns the name prefix of a tensor's layer, up to the layer's number, or the whole name.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_divided_where_they_take_too_much_memory() {
        let matrix =
            |tensor: usize| Matrix { tensor, measured: tensor.to_string(), rows: 2, columns: 8 };
        let layers = Layers {
            layers: vec![(0..5).map(matrix).collect(), vec![matrix(5)]],
            left: Vec::new(),
        };
        // 256 bytes of products each, and 256 + 128 for the work.
        assert_eq!(layers.memory(), 5 * 256 + 384);
        let tensors = |layers: &Layers| -> Vec<Vec<usize>> {
            let of_layer = |layer: &Vec<Matrix>| layer.iter().map(|one| one.tensor).collect();
            layers.layers.iter().map(of_layer).collect()
        };
        let divided = layers.clone().within(2 * 256 + 384);
        assert_eq!(tensors(&divided), [vec![0, 1], vec![2, 3], vec![4], vec![5]]);
        assert_eq!(divided.memory(), 2 * 256 + 384);
        // One matrix is not divided.
        assert_eq!(tensors(&layers.clone().within(1)).len(), 6);
        assert_eq!(layers.clone().within(u64::MAX).layers, layers.layers);
    }
}
