//! A model of fastText: arguments, a dictionary, two matrices.

use apr_core::{ByteSource, Error, Metadata, Result, StoredRange};
use serde_json::json;

use super::cursor::Cursor;

/// First four bytes of the file, as a number.
pub(crate) const MAGIC: i32 = 793_712_314;

/// Versions whose layout is known.
const VERSIONS: std::ops::RangeInclusive<i32> = 11..=12;

/// Losses and kinds of models, by their numbers less one.
const LOSSES: [&str; 4] = ["hs", "ns", "softmax", "ova"];
const MODELS: [&str; 3] = ["cbow", "skipgram", "supervised"];

/// An opened model.
pub(crate) struct Model {
    pub(crate) metadata: Metadata,
    pub(crate) input: Matrix,
    pub(crate) output: Matrix,
    pub(crate) dictionary: Dictionary,
    /// Bytes after the model.
    pub(crate) rest: u64,
}

/// A matrix by rows.
pub(crate) struct Matrix {
    pub(crate) dims: [u64; 2],
    pub(crate) place: StoredRange,
}

/// Position of the entries, and their length as text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dictionary {
    start: u64,
    entries: u64,
    /// Bytes of words and of labels, a line for each.
    pub(crate) text_len: [u64; 2],
}

impl Model {
    /// Reads all but the matrices.
    pub(crate) fn open(source: &dyn ByteSource) -> Result<Self> {
        let mut cursor = Cursor::new(source, 4);
        let version = cursor.i32()?;
        if !VERSIONS.contains(&version) {
            let message = format!("version {version} of fastText's models; 11 and 12 are read");
            return Err(Error::version(message).at(4));
        }
        let mut metadata = arguments(&mut cursor, version)?;
        let (dictionary, words) = Dictionary::open(&mut cursor, &mut metadata)?;
        let input = matrix(&mut cursor)?;
        if input.dims[0] < words {
            let message = format!("{words} words have {} vectors", input.dims[0]);
            return Err(Error::corrupt(message).at(input.place.offset));
        }
        let output = matrix(&mut cursor)?;
        Ok(Self { metadata, input, output, dictionary, rest: cursor.left() })
    }
}

fn arguments(cursor: &mut Cursor<'_>, version: i32) -> Result<Metadata> {
    let mut numbers = [0; 12];
    for number in &mut numbers {
        *number = cursor.i32()?;
    }
    let [dim, ws, epoch, min_count, neg, word_ngrams, loss, model, bucket, minn, maxn, rate] =
        numbers;
    let threshold = f64::from_le_bytes(cursor.array()?);
    let named = |names: &[&str], number: i32| {
        let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        let name = at.and_then(|at| names.get(at));
        name.map_or_else(|| json!(number), |name| json!(name))
    };
    let arguments = json!({
        "version": version,
        "dim": dim,
        "ws": ws,
        "epoch": epoch,
        "minCount": min_count,
        "neg": neg,
        "wordNgrams": word_ngrams,
        "loss": named(&LOSSES, loss),
        "model": named(&MODELS, model),
        "bucket": bucket,
        "minn": minn,
        "maxn": maxn,
        "lrUpdateRate": rate,
        "t": threshold,
    });
    let mut metadata = Metadata::new();
    metadata.set("fasttext", arguments);
    Ok(metadata)
}

impl Dictionary {
    /// Skips the dictionary, and also returns the number of words.
    fn open(cursor: &mut Cursor<'_>, metadata: &mut Metadata) -> Result<(Self, u64)> {
        let at = cursor.at;
        let [entries, words, labels] = [cursor.i32()?, cursor.i32()?, cursor.i32()?];
        let (tokens, pruned) = (cursor.i64()?, cursor.i64()?);
        let mut found = Self { start: cursor.at, entries: 0, text_len: [0; 2] };
        let adds_up = words >= 0 && labels >= 0 && words.checked_add(labels) == Some(entries);
        found.entries = u64::try_from(entries).ok().filter(|_| adds_up).ok_or_else(|| {
            let message = format!("{entries} entries are {words} words and {labels} labels");
            Error::corrupt(message).at(at)
        })?;
        let mut counts = [0_u64; 2];
        for _ in 0..found.entries {
            let (len, is_label) = Self::entry(cursor, None)?;
            counts[usize::from(is_label)] += 1;
            found.text_len[usize::from(is_label)] += len + 1;
        }
        let words = u64::try_from(words).unwrap_or_default();
        if counts[0] != words {
            let message = format!("{words} words are declared, and {} are there", counts[0]);
            return Err(Error::corrupt(message).at(at));
        }
        // Pairs of numbers: which n-grams a pruned model keeps.
        let pruned = u64::try_from(pruned).unwrap_or_default();
        cursor.skip(pruned.saturating_mul(8))?;
        if let Some(mut arguments) = metadata.object("fasttext").cloned() {
            arguments.insert("words".into(), words.into());
            arguments.insert("labels".into(), labels.into());
            arguments.insert("tokens".into(), tokens.into());
            metadata.set("fasttext", arguments);
        }
        Ok((found, words))
    }

    /// Skips an entry. Returns the length of its name in bytes, and whether it is a label.
    fn entry(cursor: &mut Cursor<'_>, text: Option<&mut Vec<u8>>) -> Result<(u64, bool)> {
        let len = cursor.word(0, text)?;
        cursor.skip(8)?;
        let at = cursor.at;
        match cursor.byte()? {
            0 => Ok((len, false)),
            1 => Ok((len, true)),
            kind => Err(Error::corrupt(format!("an entry of kind {kind}; 0 is a word")).at(at)),
        }
    }

    /// The words, or the labels, a line for each.
    pub(crate) fn read(&self, source: &dyn ByteSource, labels: bool) -> Result<Vec<u8>> {
        let mut cursor = Cursor::new(source, self.start);
        let (mut text, mut name) = (Vec::new(), Vec::new());
        for _ in 0..self.entries {
            name.clear();
            let (_, is_label) = Self::entry(&mut cursor, Some(&mut name))?;
            if is_label == labels {
                text.extend(&name);
                text.push(b'\n');
            }
        }
        Ok(text)
    }
}

fn matrix(cursor: &mut Cursor<'_>) -> Result<Matrix> {
    let at = cursor.at;
    if cursor.byte()? != 0 {
        return Err(Error::version(
            "quantized fastText models (.ftz) are not supported: use the .bin file that it was \
             made from",
        )
        .at(at));
    }
    let (rows, columns) = (cursor.i64()?, cursor.i64()?);
    let dims = u64::try_from(rows).ok().zip(u64::try_from(columns).ok());
    let len = dims.and_then(|(rows, columns)| rows.checked_mul(columns)?.checked_mul(4));
    let (dims, len) = dims.zip(len).filter(|(_, len)| *len <= cursor.left()).ok_or_else(|| {
        let message = format!(
            "a matrix of {rows} x {columns} is expected here, but {} bytes are left",
            cursor.left()
        );
        Error::corrupt(message).at(at)
    })?;
    let place = StoredRange { file: 0, offset: cursor.at, len };
    cursor.skip(len)?;
    Ok(Matrix { dims: [dims.0, dims.1], place })
}
