//! VB-LoRA (arXiv 2405.15179): the matrices of LoRA in pieces, each of which is a mixture of some
//! vectors of a bank that all modules share.

use apr_core::{CheckpointReader, Error, Result, TensorInfo};

use crate::adapter::{Part, Parts};
use crate::matrix::{Matrix, read};

/// Mixtures of the pieces of a matrix.
#[derive(Debug, Clone, Copy)]
enum Mixtures {
    /// A logit for each vector of the bank, of which the largest count.
    Logits(usize),
    /// Numbers of the vectors, and weights of all but the last.
    Chosen { indices: usize, weights: usize },
}

/// The tensors of a module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tensors {
    pub(crate) bank: usize,
    first: Mixtures,
    second: Mixtures,
    top: usize,
}

impl Mixtures {
    fn of(parts: &Parts, logits: Part, indices: Part, weights: Part) -> Option<Self> {
        let part = |part: Part| parts.get(&part).copied();
        match part(logits) {
            Some(logits) => Some(Self::Logits(logits)),
            None => Some(Self::Chosen { indices: part(indices)?, weights: part(weights)? }),
        }
    }

    fn all(self) -> Vec<usize> {
        match self {
            Self::Logits(logits) => vec![logits],
            Self::Chosen { indices, weights } => vec![indices, weights],
        }
    }

    /// The tensor that shows the number of pieces in each direction.
    fn shown(self) -> usize {
        match self {
            Self::Logits(logits) => logits,
            Self::Chosen { indices, .. } => indices,
        }
    }

    /// Reads the pieces, one after the other.
    fn load(
        self,
        reader: &dyn CheckpointReader,
        bank: &Matrix,
        top: usize,
    ) -> Result<Vec<Vec<f32>>> {
        let values = |tensor: usize| {
            let elements = reader.tensors()[tensor].shape.elements().unwrap_or_default();
            let values = read(reader, tensor, 0..elements)?;
            let width = reader.tensors()[tensor].shape.row_len().max(1);
            Ok::<_, Error>((values, usize::try_from(width).unwrap_or(usize::MAX)))
        };
        let mixed = |vectors: &[(usize, f32)]| {
            let mut piece = vec![0.0; bank.columns];
            for (vector, weight) in vectors {
                let at = vector.checked_mul(bank.columns)?;
                let vector = bank.values.get(at..at + bank.columns)?;
                piece.iter_mut().zip(vector).for_each(|(sum, value)| *sum += weight * value);
            }
            piece.iter().all(|value| value.is_finite()).then_some(piece)
        };
        let name = &reader.tensors()[self.shown()].name;
        let wrong = || Error::corrupt("no mixtures of vectors of the bank").for_tensor(name);
        match self {
            Self::Logits(logits) => {
                let (logits, width) = values(logits)?;
                let of_piece = |logits: &[f32]| {
                    let mut order: Vec<usize> = (0..logits.len()).collect();
                    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
                    order.truncate(top);
                    let most = order.first().map_or(0.0, |at| logits[*at]);
                    let parts: Vec<f32> =
                        order.iter().map(|at| (logits[*at] - most).exp()).collect();
                    let sum: f32 = parts.iter().sum();
                    let weights = parts.iter().map(|part| part / sum);
                    let vectors: Vec<(usize, f32)> = order.iter().copied().zip(weights).collect();
                    mixed(&vectors).ok_or_else(wrong)
                };
                logits.chunks_exact(width).map(of_piece).collect()
            }
            Self::Chosen { indices, weights } => {
                let ((indices, count), (weights, _)) = (values(indices)?, values(weights)?);
                // Of one vector, no weight is stored.
                let others = count - 1;
                let pieces = indices.chunks_exact(count).enumerate();
                if weights.len() != pieces.len() * others {
                    return Err(wrong());
                }
                let of_piece = |(number, indices): (usize, &[f32])| {
                    let weights = &weights[number * others..][..others];
                    let last = 1.0 - weights.iter().sum::<f32>();
                    let weights = weights.iter().copied().chain([last]);
                    #[expect(clippy::cast_possible_truncation, reason = "the bank is in memory")]
                    #[expect(clippy::cast_sign_loss, reason = "below 0, it is the first")]
                    let numbers = indices.iter().map(|index| *index as usize);
                    let vectors: Vec<(usize, f32)> = numbers.zip(weights).collect();
                    mixed(&vectors).ok_or_else(wrong)
                };
                pieces.map(of_piece).collect()
            }
        }
    }
}

impl Tensors {
    pub(crate) fn of(parts: &Parts, top: usize) -> Option<Self> {
        Some(Self {
            bank: *parts.get(&Part::VectorBank)?,
            first: Mixtures::of(parts, Part::LogitsA, Part::IndicesA, Part::WeightsA)?,
            second: Mixtures::of(parts, Part::LogitsB, Part::IndicesB, Part::WeightsB)?,
            top,
        })
    }

    pub(crate) fn all(&self) -> Vec<usize> {
        [vec![self.bank], self.first.all(), self.second.all()].concat()
    }

    /// Returns the rank for a weight with these inputs and outputs.
    ///
    /// # Errors
    /// The tensor that does not fit.
    pub(crate) fn rank(
        &self,
        infos: &[TensorInfo],
        [inputs, outputs]: [u64; 2],
    ) -> std::result::Result<u64, usize> {
        let [first, second] = [self.first.shown(), self.second.shown()];
        let length = infos[self.bank].shape.row_len();
        let (&[rank, along, _], &[tiles, also, _]) =
            (infos[first].shape.dims(), infos[second].shape.dims())
        else {
            return Err(first);
        };
        // A larger rank than the weight has would be more than its elements.
        let has_rank = (1..=inputs.max(outputs)).contains(&rank);
        if along.checked_mul(length) != Some(inputs) || !has_rank {
            return Err(first);
        }
        if tiles.checked_mul(length) != Some(outputs) || also != rank {
            return Err(second);
        }
        Ok(rank)
    }

    /// Reads the matrices: `[rank, inputs]` and `[outputs, rank]`.
    pub(crate) fn load(&self, reader: &dyn CheckpointReader) -> Result<[Matrix; 2]> {
        let bank = Matrix::read(reader, self.bank)?;
        let sizes = |tensor: usize| {
            let dims = reader.tensors()[tensor].shape.dims();
            dims.iter().map(|dim| usize::try_from(*dim).unwrap_or(usize::MAX)).collect::<Vec<_>>()
        };
        let pieces = self.first.load(reader, &bank, self.top)?;
        let rank = sizes(self.first.shown())[0];
        let values = pieces.concat();
        let columns = values.len() / rank.max(1);
        let first = Matrix { rows: rank, columns, values };
        // A piece is a column of some outputs.
        let pieces = self.second.load(reader, &bank, self.top)?;
        let mut second = Matrix { rows: 0, columns: rank, values: Vec::new() };
        for pieces in pieces.chunks_exact(rank.max(1)) {
            for output in 0..bank.columns {
                second.values.extend(pieces.iter().map(|piece| piece[output]));
            }
            second.rows += bank.columns;
        }
        Ok([first, second])
    }
}
