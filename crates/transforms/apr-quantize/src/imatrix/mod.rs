//! llama.cpp's importance matrices: how much an error in each column of a weight costs, measured on
//! sample texts.
//!
//! For each weight they hold the mean square of every input that meets it, one number a column; for
//! a stack of experts one row of such numbers an expert. Two file formats exist:
//!
//! ```text
//! GGUF     tensors NAME.in_sum2 [experts, columns] and NAME.counts [experts, 1], f32;
//!          keys imatrix.datasets, imatrix.chunk_count, imatrix.chunk_size
//! legacy   entries i32, then for each: length of the name i32, name, calls i32, values i32,
//!          values f32; then, both optional: chunks i32, length of the data set's name i32, name.
//!          Little-endian.
//! ```
//!
//! The values that come out are those that llama-quantize computes from them, to the bit.

mod statistics;
mod sums;

use std::collections::BTreeMap;

use apr_core::{Array, CheckpointReader, DType, Error, Metadata, Result, Shape, Value};
use apr_gguf::KeyValue;

pub use statistics::{LayerStatistics, WeightStatistics, layer_statistics};
pub use sums::{ColumnSums, ImatrixSums};

use super::category::{Category, matrices};

/// Ends of the names of a weight's two tensors.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// Largest importance: sums of weighted squares over a row must not leave single precision.
const MOST: f32 = 1e12;

/// Number of bytes per read, so that reading does not allocate more memory than the file's size.
const READ_LEN: usize = 1 << 20;

/// An importance matrix.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Imatrix {
    /// Importance by the GGUF name of the weight: one number a column, for each expert in turn.
    pub entries: BTreeMap<String, Vec<f32>>,
    /// The texts that it was measured on.
    pub datasets: Vec<String>,
    /// Number of text chunks that were measured; 0 if the file does not state it.
    pub chunk_count: u32,
    /// Number of tokens per chunk; 0 if the file does not state it.
    pub chunk_size: u32,
}

/// The importance of one tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Importance<'a> {
    values: &'a [f32],
    row_len: usize,
    /// Rows that share a row of importance.
    rows: u64,
}

impl<'a> Importance<'a> {
    /// The weights of a row's columns; rows are counted through all experts.
    #[must_use]
    pub fn row(&self, row: u64) -> &'a [f32] {
        let matrices = self.values.chunks_exact(self.row_len);
        let last = matrices.len().saturating_sub(1);
        let matrix =
            usize::try_from(row / self.rows.max(1)).map_or(last, |matrix| matrix.min(last));
        self.values.chunks_exact(self.row_len).nth(matrix).unwrap_or_default()
    }

    /// The weights of each expert's columns; one slice for a plain matrix.
    pub fn matrices(&self) -> impl Iterator<Item = &'a [f32]> + use<'a> {
        self.values.chunks_exact(self.row_len)
    }
}

impl Imatrix {
    /// Reads the GGUF form.
    ///
    /// # Errors
    /// E001 for a file that is not an importance matrix, sums without counts, or numbers that are
    /// not finite, naming the weight; E002 and E007 when the bytes can't be read.
    pub fn from_checkpoint(reader: &dyn CheckpointReader) -> Result<Self> {
        let mut matrix = Self::described(reader.metadata())?;
        for (name, (sums, counts)) in pairs(reader)? {
            let values = means(&sums, &counts);
            matrix.add(&name, values.map_err(|error| error.for_tensor(&name))?)?;
        }
        Ok(matrix)
    }

    /// Reads the description from the metadata keys.
    ///
    /// All three keys must be present: without them, llama-quantize does not treat the file as an
    /// importance matrix.
    fn described(metadata: &Metadata) -> Result<Self> {
        let pairs = metadata.key_values()?.unwrap_or_default();
        let find = |key: &str| {
            pairs
                .get(key)
                .ok_or_else(|| Error::format(format!("not an importance matrix: missing {key}")))
        };
        let number = |key| {
            find(key).map(|value| value.as_u64().and_then(|it| u32::try_from(it).ok()).unwrap_or(0))
        };
        let datasets = match find("imatrix.datasets")? {
            Value::Array(Array::String(datasets)) => datasets,
            _ => Vec::new(),
        };
        Ok(Self {
            datasets,
            chunk_count: number("imatrix.chunk_count")?,
            chunk_size: number("imatrix.chunk_size")?,
            entries: BTreeMap::new(),
        })
    }

    /// Reads the legacy form, `.dat`.
    ///
    /// ```
    /// use apr_quantize::Imatrix;
    ///
    /// // One entry "w" of two values, called four times.
    /// let mut file = [1_i32, 1].map(i32::to_le_bytes).concat();
    /// file.push(b'w');
    /// file.extend([4_i32, 2].map(i32::to_le_bytes).concat());
    /// file.extend([8_f32, 2.0].map(f32::to_le_bytes).concat());
    /// assert_eq!(Imatrix::from_legacy(&file)?.entries["w"], [2.0, 0.5]);
    /// # Ok::<(), apr_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// E001 for what is not one, E002 where it ends early; both with the offset.
    pub fn from_legacy(bytes: &[u8]) -> Result<Self> {
        let mut file = Legacy { bytes, offset: 0 };
        let mut matrix = Self::default();
        let entries = file.number("the number of entries")?;
        if entries < 1 {
            return Err(Error::format("not an importance matrix: no entries").at(0));
        }

        // Every entry takes bytes, so a large number of them ends with the file.
        for _ in 0..entries {
            let name = file.text("a name")?;
            let calls = file.number("a count")?;
            let values = file.number("the number of values")?;
            if values < 1 {
                return Err(Error::format("the importance matrix has an entry without values")
                    .for_tensor(name));
            }

            let mut values = file.floats(values)?;
            if calls > 0 {
                // The field's own arithmetic: a division of floats.
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "llama-quantize rounds the count like this"
                )]
                values.iter_mut().for_each(|value| *value /= calls as f32);
            }

            matrix.add(&name, values)?;
        }

        // What follows is only for the reader's eyes, and older files lack it or a part of it.
        if let Ok(chunks) = file.number("the number of chunks") {
            matrix.chunk_count = u32::try_from(chunks).unwrap_or(0);
            matrix.datasets.extend(file.text("the data set").ok().filter(|name| !name.is_empty()));
        }

        Ok(matrix)
    }

    fn add(&mut self, name: &str, values: Vec<f32>) -> Result<()> {
        let wrong = |what: String| {
            Err(Error::format(format!("the importance matrix {what}")).for_tensor(name))
        };
        if values.iter().any(|value| !value.is_finite()) {
            return wrong("has values that are not finite".to_owned());
        }

        if values.iter().any(|&value| !(0.0..=MOST).contains(&value)) {
            return wrong(format!(
                "has values that are not mean squares: negative, or over {MOST:e}"
            ));
        }

        if !values.is_empty() && values.iter().all(|&value| value == 0.0) {
            return wrong("has only zeros".to_owned());
        }

        self.entries.insert(name.to_owned(), values);
        Ok(())
    }

    /// The importance of the weight with this GGUF name, if it was measured.
    ///
    /// # Errors
    /// E001 where it was measured on a weight of another shape, so probably on another model. Token
    /// embeddings are exempt, as in llama.cpp: they then have none.
    pub fn for_tensor(&self, name: &str, shape: &Shape) -> Result<Option<Importance<'_>>> {
        let Some(values) = self.entries.get(name) else { return Ok(None) };
        let row_len = usize::try_from(shape.row_len()).unwrap_or(usize::MAX);
        let expected = shape.row_len().checked_mul(matrices(shape));
        if row_len == 0 || expected != Some(values.len() as u64) {
            if Category::of(name) == Category::TokenEmbedding {
                return Ok(None);
            }
            let message = format!(
                "the importance matrix has {} values for it, which does not match shape {shape}",
                values.len()
            );
            return Err(Error::format(message).for_tensor(name));
        }

        let rows = shape.dims().iter().rev().nth(1).copied().unwrap_or(1);
        Ok(Some(Importance { values, row_len, rows }))
    }

    /// The importance of the columns of one expert's matrix in the stack with this GGUF name.
    #[must_use]
    pub fn for_expert(&self, stack: &str, expert: u64, shape: &Shape) -> Option<&[f32]> {
        let values = self.entries.get(stack)?;
        let columns = usize::try_from(shape.row_len()).ok().filter(|columns| *columns > 0)?;
        let start = usize::try_from(expert).ok()?.checked_mul(columns)?;
        let is_of_stack = values.len().is_multiple_of(columns);
        values.get(start..start.checked_add(columns)?).filter(|_| is_of_stack)
    }

    /// Returns the keys with which llama-quantize records the importance matrix in a GGUF file.
    #[must_use]
    pub fn gguf_keys(&self, file: &str) -> Vec<KeyValue> {
        let mut pairs = vec![KeyValue::new("quantize.imatrix.file", file)];
        pairs.extend(
            self.datasets
                .first()
                .map(|name| KeyValue::new("quantize.imatrix.dataset", name.as_str())),
        );
        let entries = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        pairs.push(KeyValue::new("quantize.imatrix.entries_count", entries));
        if self.chunk_count > 0 {
            pairs.push(KeyValue::new("quantize.imatrix.chunks_count", self.chunk_count));
        }
        pairs
    }
}

/// Sums, and counts of rows.
type Pair = (Vec<f32>, Vec<f32>);

/// Sums and counts by the weight's name.
fn pairs(reader: &dyn CheckpointReader) -> Result<BTreeMap<String, Pair>> {
    let mut pairs: BTreeMap<&str, [Option<usize>; 2]> = BTreeMap::new();
    for (i, info) in reader.tensors().iter().enumerate() {
        for (place, end) in [SUMS, COUNTS].into_iter().enumerate() {
            if let Some(name) = info.name.strip_suffix(end) {
                pairs.entry(name).or_default()[place] = Some(i);
            }
        }
    }
    if pairs.is_empty() {
        return Err(Error::format("not an importance matrix: no tensor '….in_sum2'"));
    }

    let read = |(name, pair): (&str, [Option<usize>; 2])| {
        let [Some(sums), Some(counts)] = pair else {
            let message = "the importance matrix has sums without counts, or the reverse";
            return Err(Error::format(message).for_tensor(name));
        };
        Ok((name.to_owned(), (read_f32(reader, sums)?, read_f32(reader, counts)?)))
    };
    pairs.into_iter().map(read).collect()
}

/// Divides the sums by the counts of their experts. Experts that were never used get 1.
fn means(sums: &[f32], counts: &[f32]) -> Result<Vec<f32>> {
    if counts.is_empty() || sums.is_empty() || !sums.len().is_multiple_of(counts.len()) {
        let message =
            format!("the importance matrix has {} sums for {} counts", sums.len(), counts.len());
        return Err(Error::format(message));
    }
    if counts.iter().any(|count| !count.is_finite()) {
        return Err(Error::format("the importance matrix has counts that are not finite"));
    }
    let expert = |(sums, count): (&[f32], &f32)| {
        let count = count.round();
        sums.iter().map(|sum| if count > 0.0 { sum / count } else { 1.0 }).collect::<Vec<_>>()
    };
    Ok(sums.chunks_exact(sums.len() / counts.len()).zip(counts).flat_map(expert).collect())
}

fn read_f32(reader: &dyn CheckpointReader, tensor: usize) -> Result<Vec<f32>> {
    let info = &reader.tensors()[tensor];
    if info.dtype != DType::F32 {
        return Err(Error::format(format!("importance is stored as f32, not {}", info.dtype))
            .for_tensor(&info.name));
    }

    let len = info.byte_len()?;
    let mut values = Vec::new();
    let mut piece = vec![0; usize::try_from(len).map_or(READ_LEN, |len| len.min(READ_LEN))];
    let mut offset = 0;
    while offset < len {
        let take = usize::try_from(len - offset).map_or(piece.len(), |left| left.min(piece.len()));
        reader.read_tensor(tensor, offset, &mut piece[..take])?;
        values.extend(piece[..take].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        offset += take as u64;
    }

    Ok(values)
}

/// The bytes of a legacy file from `offset` on.
struct Legacy<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Legacy<'a> {
    fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8]> {
        let end = self.offset.checked_add(len).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else {
            let message = format!("the importance matrix ends within {what}");
            return Err(Error::corrupt(message).at(self.offset as u64));
        };
        let taken = &self.bytes[self.offset..end];
        self.offset = end;
        Ok(taken)
    }

    fn number(&mut self, what: &str) -> Result<i32> {
        let bytes = self.take(4, what)?;
        Ok(bytes.first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes)))
    }

    /// A length and as many bytes, up to the first NUL as in C.
    fn text(&mut self, what: &str) -> Result<String> {
        let offset = self.offset as u64;
        let len = usize::try_from(self.number(what)?).map_err(|_| {
            Error::format(format!("{what} in the importance matrix has a negative length"))
                .at(offset)
        })?;
        let bytes = self.take(len, what)?;
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn floats(&mut self, count: i32) -> Result<Vec<f32>> {
        // No file is as long as that, so `take` refuses it.
        let len = usize::try_from(count)
            .ok()
            .and_then(|count| count.checked_mul(4))
            .unwrap_or(usize::MAX);
        let bytes = self.take(len, "the values")?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}

#[cfg(test)]
mod tests;
