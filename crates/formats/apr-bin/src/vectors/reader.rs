//! A file as a checkpoint.

use std::sync::Arc;

use apr_core::{
    ByteSource, Companion, DType, Error, HEAD_LEN, Limits, Result, Shape, SharedSource,
    StoredRange, Table, TensorBytes, TensorDecoder, TensorInfo, counted, read_vec,
};

use super::fasttext::Model;
use super::word2vec::Rows;
use super::{FASTTEXT, WORD2VEC};

/// Names of the companions.
const WORDS: &str = "words.txt";
const LABELS: &str = "labels.txt";

/// Opens a file of word2vec or fastText. No vectors are read, besides the first.
///
/// # Errors
/// E001 for what is neither, E002 for a damaged file, E003 for a quantized model or another
/// version, E007 when reading fails.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    open_shared(Arc::new(source), name, limits).map_err(|error| error.in_file(name))
}

fn open_shared(source: SharedSource, name: &str, limits: &Limits) -> Result<Table> {
    let head = read_vec(&*source, 0, source.len().min(HEAD_LEN))?;
    if (FASTTEXT.recognises)(&head) {
        return open_fasttext(source, name, limits);
    }
    let (rows, dims) = Rows::open(&*source, &head)?;
    let range = StoredRange { file: 0, offset: 0, len: source.len() };
    let short = || Error::corrupt("the file is too short for the vectors declared");
    let words = rows.words_len().ok_or_else(short)?;
    let rows = Arc::new(rows);
    let mut table = Table::of_file(&WORD2VEC, name, source);
    table.show("container", WORD2VEC.id);
    let vectors = Vectors { rows: Arc::clone(&rows), range };
    table.add(matrix("embedding", dims), TensorBytes::decoded(vectors))?;
    offer(&mut table, (WORDS, words), limits, move |source| rows.read_words(source));
    Ok(table)
}

fn open_fasttext(source: SharedSource, name: &str, limits: &Limits) -> Result<Table> {
    let Model { metadata, input, output, dictionary, rest } = Model::open(&*source)?;
    let mut table = Table::of_file(&FASTTEXT, name, source);
    table.metadata = metadata;
    table.show("container", FASTTEXT.id);
    table.add(matrix("input", input.dims), input.place)?;
    table.add(matrix("output", output.dims), output.place)?;
    if rest > 0 {
        table.warnings.push(format!("{} after the model are not read", counted(rest, "byte")));
    }
    let [words, labels] = dictionary.text_len;
    offer(&mut table, (WORDS, words), limits, move |source| dictionary.read(source, false));
    offer(&mut table, (LABELS, labels), limits, move |source| dictionary.read(source, true));
    Ok(table)
}

fn matrix(name: &str, dims: [u64; 2]) -> TensorInfo {
    TensorInfo { name: name.to_owned(), dtype: DType::F32, shape: Shape::from(dims) }
}

/// Offers a text of `len` bytes as a companion, unless it is too long for one.
fn offer(
    table: &mut Table,
    (name, len): (&str, u64),
    limits: &Limits,
    read: impl Fn(&dyn ByteSource) -> Result<Vec<u8>> + Send + Sync + 'static,
) {
    if len > limits.max_companion {
        table.left_out.push(format!("{name} ({})", counted(len, "byte")));
    } else if len > 0 {
        let companion = Companion { name: name.to_owned(), len };
        table.offer(companion, move |sources| read(&*sources[0]));
    }
}

/// Vectors with a word before each.
struct Vectors {
    rows: Arc<Rows>,
    /// The whole file.
    range: StoredRange,
}

impl TensorDecoder for Vectors {
    fn range(&self) -> StoredRange {
        self.range
    }

    fn read(&self, sources: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        self.rows.read(&*sources[0], offset, buf)
    }
}
