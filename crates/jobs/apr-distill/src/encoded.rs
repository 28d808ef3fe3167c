//! What a decoder is given beside its own tokens: the states that the encoder makes of each row.

use apr_core::{Error, Result};
use apr_graph::{Body, Meaning, ValueOrigin};
use apr_infer::{Tensor, Value};
use apr_lowrank::FactorStore;
use sha2::{Digest, Sha256};

/// The encoder's states of all rows, kept in a store. Teacher and student have the same encoder, so
/// it runs once.
pub struct Encoded {
    store: Box<dyn FactorStore>,
    /// Start of each row's states, and the number of its positions.
    rows: Vec<(u64, usize)>,
    /// Numbers of each place.
    width: usize,
    hasher: Sha256,
}

impl Encoded {
    /// No rows so far.
    #[must_use]
    pub fn new(store: Box<dyn FactorStore>) -> Self {
        Self { store, rows: Vec::new(), width: 0, hasher: Sha256::new() }
    }

    /// Appends the states of the next row, `[1, places, width]`.
    ///
    /// # Errors
    /// E001 for another shape, and for states that are not finite; what the store ends with.
    pub fn push(&mut self, states: &Tensor) -> Result<()> {
        let &[1, places, width] = states.shape() else {
            return Err(Error::format("the encoder's states have another shape than [1, n, n]"));
        };
        if !self.rows.is_empty() && width != self.width {
            return Err(Error::format("the encoder's states have another width than before"));
        }
        let values = states.floats()?;
        if values.iter().any(|value| !value.is_finite()) {
            return Err(Error::format("the encoder's states are not finite"));
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.hasher.update(&bytes);
        self.rows.push((self.store.append(&bytes)?, places));
        self.width = width;
        Ok(())
    }

    /// The digest of all states.
    pub(crate) fn digest(&self) -> [u8; 32] {
        self.hasher.clone().finalize().into()
    }

    /// Places of a row.
    pub(crate) fn len(&self, position: usize) -> usize {
        self.rows[position].1
    }

    /// Returns the encoder states of some rows, padded with zeros, and their mask, for a decoder's
    /// graph.
    ///
    /// # Errors
    /// Returns the errors of the store.
    pub(crate) fn inputs(&self, body: &Body, positions: &[usize]) -> Result<Vec<(String, Value)>> {
        let longest = positions.iter().map(|at| self.len(*at)).max().unwrap_or(0);
        let mut inputs = Vec::new();
        let open = body.inputs.iter().map(|id| body.value(*id));
        for value in open.filter(|value| value.origin == ValueOrigin::Input) {
            let tensor = match value.meaning {
                Meaning::EncoderStates => {
                    let shape = vec![positions.len(), longest, self.width];
                    Tensor::new(shape, self.states(positions, longest)?)?
                }
                Meaning::AttentionMask => {
                    let is_there = |at: &usize| {
                        let here = self.len(*at);
                        (0..longest).map(move |place| i64::from(place < here))
                    };
                    let mask = positions.iter().flat_map(is_there).collect::<Vec<_>>();
                    Tensor::new(vec![positions.len(), longest], mask)?
                }
                _ => continue,
            };
            let tensor = tensor.cast(value.element().unwrap_or(tensor.element()))?;
            inputs.push((value.name.clone(), tensor.into()));
        }
        Ok(inputs)
    }

    fn states(&self, positions: &[usize], longest: usize) -> Result<Vec<f32>> {
        let mut all = vec![0.0; positions.len() * longest * self.width];
        for (at, position) in positions.iter().enumerate() {
            let (offset, places) = self.rows[*position];
            let mut bytes = vec![0; places * self.width * size_of::<f32>()];
            self.store.read_at(offset, &mut bytes)?;
            let (words, _) = bytes.as_chunks::<4>();
            let to = &mut all[at * longest * self.width..][..words.len()];
            to.iter_mut().zip(words).for_each(|(to, word)| *to = f32::from_le_bytes(*word));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use apr_graph::{ElementType, GraphBuilder};
    use apr_lowrank::InMemory;

    use super::*;

    #[test]
    fn states_of_short_rows_are_followed_by_zeros() {
        let mut encoded = Encoded::new(Box::new(InMemory::default()));
        let states = |numbers: &[f32]| {
            Tensor::new(vec![1, numbers.len() / 2, 2], numbers.to_vec()).expect("a tensor")
        };
        encoded.push(&states(&[1.0, 2.0, 3.0, 4.0])).expect("two places");
        encoded.push(&states(&[5.0, 6.0])).expect("one place");
        assert!(encoded.push(&states(&[f32::NAN, 0.0])).is_err());
        let odd = Tensor::new(vec![1, 1, 3], vec![0.0_f32; 3]).expect("a tensor");
        assert!(encoded.push(&odd).is_err());

        let mut graph = GraphBuilder::new(17);
        let body = graph.body();
        body.input("states", ElementType::F32, vec![], Meaning::EncoderStates);
        body.input("mask", ElementType::I64, vec![], Meaning::AttentionMask);
        let graph = graph.finish();
        let inputs = encoded.inputs(&graph.body, &[1, 0]).expect("inputs");
        let states = inputs[0].1.tensor().expect("a tensor");
        assert_eq!(states.shape(), [2, 2, 2]);
        assert_eq!(
            states.values::<f32>().expect("floats"),
            [5.0, 6.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0]
        );
        let mask = inputs[1].1.tensor().expect("a tensor");
        assert_eq!(mask.values::<i64>().expect("integers"), [1, 0, 1, 1]);
    }
}
