//! Importance as it is measured: sums of squares, and how many rows went into them.

use std::collections::BTreeMap;

use apr_core::{
    CheckpointReader, CheckpointWriter, DType, Error, KeyValue, Metadata, Notes, Result, Shape,
    TensorInfo,
};
use apr_gguf::{WriteOptions, with_pairs};

use super::{COUNTS, Imatrix, SUMS, means, pairs};

/// Sums for each weight, by its GGUF name, as llama-imatrix adds them up.
///
/// Sums of several texts, or of parts of one, are [merged](Self::merge); quantizers take their
/// [means](Self::means).
///
/// ```
/// use apr_quantize::{ColumnSums, ImatrixSums};
///
/// let mut row = ColumnSums::new(1, 2);
/// row.add(0, &[1.0, 2.0])?;
/// row.add(0, &[3.0, 0.0])?;
/// let mut sums = ImatrixSums::new("a.txt", 2);
/// sums.entries.insert("blk.0.attn_q.weight".into(), row);
/// assert_eq!(sums.chunk_count(), 1);
/// assert_eq!(sums.means()?.entries["blk.0.attn_q.weight"], [5.0, 2.0]);
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct ImatrixSums {
    /// Sums by the GGUF name of the weight.
    pub entries: BTreeMap<String, ColumnSums>,
    /// The texts that they were measured on.
    pub datasets: Vec<String>,
    /// Tokens of a chunk.
    pub chunk_size: u32,
}

/// Sums of squares of the inputs that met the columns of a weight.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnSums {
    pub(super) columns: usize,
    /// One a column, for each expert in turn.
    pub(super) sums: Vec<f64>,
    /// Rows, for each expert.
    pub(super) counts: Vec<u64>,
}

impl ColumnSums {
    /// Creates zero sums for a weight with `columns` columns, or for a stack of `experts` such
    /// weights.
    #[must_use]
    pub fn new(experts: usize, columns: usize) -> Self {
        Self { columns, sums: vec![0.0; experts * columns], counts: vec![0; experts] }
    }

    /// Adds consecutive input rows of an expert. A plain weight has only expert 0.
    ///
    /// # Errors
    /// E001 for an expert that does not exist, for rows of another length, and for numbers that are
    /// not finite.
    pub fn add(&mut self, expert: usize, rows: &[f32]) -> Result<()> {
        if self.columns == 0 || !rows.len().is_multiple_of(self.columns) {
            let message =
                format!("inputs of {} numbers do not match {} columns", rows.len(), self.columns);
            return Err(Error::format(message));
        }
        let sums = self.sums.chunks_exact_mut(self.columns).nth(expert);
        let (Some(sums), Some(count)) = (sums, self.counts.get_mut(expert)) else {
            return Err(Error::format(format!("unknown expert {expert}")));
        };
        for row in rows.chunks_exact(self.columns) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += f64::from(*value) * f64::from(*value);
            }
            *count = count.saturating_add(1);
        }
        if sums.iter().any(|sum| !sum.is_finite()) {
            return Err(Error::format("an input of this weight is NaN or infinite"));
        }
        Ok(())
    }

    /// Rows that met the expert that met most.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.counts.iter().copied().max().unwrap_or_default()
    }

    /// Experts that no row met.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.counts.iter().filter(|count| **count == 0).count()
    }

    /// Experts; 1 for a plain weight.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.counts.len()
    }

    fn merge(&mut self, other: &Self) -> Result<()> {
        if (self.columns, self.counts.len()) != (other.columns, other.counts.len()) {
            return Err(Error::format(format!(
                "importance of {} x {} columns can't be added to importance of {} x {}",
                other.counts.len(),
                other.columns,
                self.counts.len(),
                self.columns
            )));
        }
        self.sums.iter_mut().zip(&other.sums).for_each(|(sum, more)| *sum += more);
        self.counts
            .iter_mut()
            .zip(&other.counts)
            .for_each(|(count, more)| *count = count.saturating_add(*more));
        Ok(())
    }

    /// Returns the sums in the form in which files store them.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "importance matrices are of single precision"
    )]
    fn stored(&self) -> (Vec<f32>, Vec<f32>) {
        let sums = self.sums.iter().map(|sum| *sum as f32).collect();
        (sums, self.counts.iter().map(|count| *count as f32).collect())
    }
}

impl ImatrixSums {
    /// Creates sums without entries, for chunks of `chunk_size` tokens.
    #[must_use]
    pub fn new(dataset: &str, chunk_size: u32) -> Self {
        Self { entries: BTreeMap::new(), datasets: vec![dataset.to_owned()], chunk_size }
    }

    /// Reads the GGUF form; the legacy one has means alone.
    ///
    /// # Errors
    /// Those of [`Imatrix::from_checkpoint`].
    pub fn from_checkpoint(reader: &dyn CheckpointReader) -> Result<Self> {
        let described = Imatrix::described(reader.metadata())?;
        let mut entries = BTreeMap::new();
        for (name, (sums, counts)) in pairs(reader)? {
            // Refuses what has no mean.
            means(&sums, &counts).map_err(|error| error.for_tensor(&name))?;
            let is_sum = |sum: &f32| sum.is_finite() && *sum >= 0.0;
            if !sums.iter().all(is_sum) {
                let message = "the importance matrix has sums that are not sums of squares";
                return Err(Error::format(message).for_tensor(&name));
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "counts of rows; below zero counts as none, as for means"
            )]
            let counts: Vec<u64> = counts.iter().map(|count| count.round() as u64).collect();
            let columns = sums.len() / counts.len();
            let sums = sums.into_iter().map(f64::from).collect();
            entries.insert(name, ColumnSums { columns, sums, counts });
        }
        Ok(Self { entries, datasets: described.datasets, chunk_size: described.chunk_size })
    }

    /// Adds what was measured elsewhere, on the same model.
    ///
    /// # Errors
    /// E001 for an entry of another shape, naming the weight, and for other chunks, whose number
    /// would mean nothing.
    pub fn merge(&mut self, other: Self) -> Result<()> {
        if self.chunk_size != other.chunk_size {
            return Err(Error::format(format!(
                "it was measured in chunks of {} tokens, not of {}",
                other.chunk_size, self.chunk_size
            )));
        }
        for (name, more) in other.entries {
            match self.entries.get_mut(&name) {
                Some(own) => own.merge(&more).map_err(|error| error.for_tensor(&name))?,
                None => {
                    self.entries.insert(name, more);
                }
            }
        }
        for dataset in other.datasets {
            if !self.datasets.contains(&dataset) {
                self.datasets.push(dataset);
            }
        }
        Ok(())
    }

    /// Chunks that the entry with most rows makes up.
    #[must_use]
    pub fn chunk_count(&self) -> u32 {
        let most = self.entries.values().map(ColumnSums::most).max().unwrap_or_default();
        let chunks = most.checked_div(u64::from(self.chunk_size)).unwrap_or_default();
        u32::try_from(chunks).unwrap_or(u32::MAX)
    }

    /// Mean squares, as quantizers take them.
    ///
    /// # Errors
    /// E001 for values that no mean square can be, naming the weight.
    pub fn means(&self) -> Result<Imatrix> {
        let mut matrix = Imatrix {
            datasets: self.datasets.clone(),
            chunk_count: self.chunk_count(),
            chunk_size: self.chunk_size,
            ..Imatrix::default()
        };
        for (name, entry) in &self.entries {
            let (sums, counts) = entry.stored();
            let values = means(&sums, &counts).map_err(|error| error.for_tensor(name))?;
            matrix.add(name, values)?;
        }
        Ok(matrix)
    }

    /// A GGUF file as llama-imatrix writes it.
    ///
    /// # Errors
    /// E001 for names that GGUF can't hold, E008 where it is too large.
    pub fn to_gguf(&self) -> Result<Vec<u8>> {
        let mut tensors = Vec::new();
        let mut data = Vec::new();
        for (name, entry) in &self.entries {
            let (sums, counts) = entry.stored();
            let experts = entry.counts.len() as u64;
            for (end, values, columns) in [(SUMS, sums, entry.columns as u64), (COUNTS, counts, 1)]
            {
                tensors.push(TensorInfo {
                    name: format!("{name}{end}"),
                    dtype: DType::F32,
                    // ggml has no dimensions of 1 at the end, which is the front here.
                    shape: match experts {
                        1 => Shape::from([columns]),
                        _ => Shape::from([experts, columns]),
                    },
                });
                data.push(values);
            }
        }

        let pairs = [
            KeyValue::new("general.type", "imatrix"),
            KeyValue::new("imatrix.datasets", self.datasets.clone()),
            KeyValue::new("imatrix.chunk_count", self.chunk_count()),
            KeyValue::new("imatrix.chunk_size", self.chunk_size),
        ];
        let metadata = with_pairs(&Metadata::new(), pairs.iter().collect());
        let mut writer = apr_gguf::plan(&tensors, &metadata, &WriteOptions::default())?;
        let mut file = Vec::new();
        writer.begin(&mut file)?;
        for values in data {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            writer.write_chunk(&mut file, &bytes, None)?;
        }
        writer.finish(&mut file, &Notes::default())?;
        Ok(file)
    }

    /// The legacy form, whose values are means times the number of chunks.
    #[must_use]
    pub fn to_legacy(&self) -> Vec<u8> {
        let size = |len: usize| i32::try_from(len).unwrap_or(i32::MAX).to_le_bytes();
        let text = |text: &str| [&size(text.len())[..], text.as_bytes()].concat();
        let met = || self.entries.iter().filter(|(_, entry)| entry.most() > 0);
        let mut file = size(met().count()).to_vec();
        for (name, entry) in met() {
            let (sums, counts) = entry.stored();
            let calls = entry.most().div_ceil(u64::from(self.chunk_size.max(1)));
            let calls = i32::try_from(calls).unwrap_or(i32::MAX);
            file.extend(text(name));
            file.extend(calls.to_le_bytes());
            file.extend(size(sums.len()));
            for (sums, count) in sums.chunks_exact(entry.columns.max(1)).zip(counts) {
                for sum in sums {
                    // An expert that was never asked has 1, as for means.
                    let mean = if count > 0.0 { sum / count } else { 1.0 };
                    #[expect(clippy::cast_precision_loss, reason = "the field's own arithmetic")]
                    file.extend((mean * calls as f32).to_le_bytes());
                }
            }
        }
        file.extend(i32::try_from(self.chunk_count()).unwrap_or(i32::MAX).to_le_bytes());
        file.extend(text(self.datasets.first().map_or("", String::as_str)));
        file
    }
}

#[cfg(test)]
mod tests {
    use apr_core::Limits;

    use super::*;

    fn sums() -> ImatrixSums {
        let mut sums = ImatrixSums::new("a.txt", 2);
        let mut plain = ColumnSums::new(1, 3);
        plain.add(0, &[1.0, 2.0, 3.0, 0.5, 0.0, 1.0, 1.0, 1.0, 1.0]).expect("three rows");
        let mut experts = ColumnSums::new(2, 2);
        experts.add(1, &[2.0, 4.0]).expect("a row");
        sums.entries.insert("blk.0.attn_q.weight".into(), plain);
        sums.entries.insert("blk.0.ffn_up_exps.weight".into(), experts);
        sums
    }

    #[test]
    fn the_gguf_form_is_read_back() {
        let sums = sums();
        let file = sums.to_gguf().expect("a file");
        let reader = apr_gguf::open(file, "i.gguf", &Limits::default()).expect("GGUF");
        assert_eq!(ImatrixSums::from_checkpoint(&reader).expect("sums"), sums);
        let means = Imatrix::from_checkpoint(&reader).expect("means");
        assert_eq!(means, sums.means().expect("means"));
        assert_eq!(means.entries["blk.0.ffn_up_exps.weight"], [1.0, 1.0, 4.0, 16.0]);
        assert_eq!((means.chunk_count, means.chunk_size), (1, 2));
    }

    #[test]
    fn the_legacy_form_has_the_same_means() {
        let sums = sums();
        let means = Imatrix::from_legacy(&sums.to_legacy()).expect("means");
        assert_eq!(means.entries, sums.means().expect("means").entries);
        assert_eq!((means.chunk_count, means.datasets), (1, vec!["a.txt".to_owned()]));
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        let mut twice = sums();
        twice.merge(sums()).expect("alike");
        assert_eq!(twice.chunk_count(), 3);
        assert_eq!(twice.means().expect("means").entries, sums().means().expect("means").entries);
        assert_eq!(twice.datasets, ["a.txt"]);
        let mut other = sums();
        other.entries.insert("blk.0.attn_q.weight".into(), ColumnSums::new(1, 2));
        let error = twice.merge(other).expect_err("another model");
        assert_eq!(error.tensor(), Some("blk.0.attn_q.weight"));
    }

    #[test]
    fn numbers_that_are_not_finite_are_refused() {
        let mut entry = ColumnSums::new(1, 2);
        for rows in [&[f32::NAN, 0.0][..], &[0.0, f32::INFINITY], &[1.0]] {
            assert!(entry.clone().add(0, rows).is_err(), "{rows:?}");
        }
        assert!(entry.add(1, &[1.0, 1.0]).is_err());
    }
}
