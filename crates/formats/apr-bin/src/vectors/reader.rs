//! A file as a checkpoint.

use std::fmt;

use apr_core::{
    ByteSource, CheckpointReader, Companion, ContainerFacts, DType, Error, FileInfo, Format,
    HEAD_LEN, Limits, Metadata, Result, Shape, Stored, StoredRange, TensorInfo, check_range,
    counted, has_own, read_vec,
};
use serde_json::{Value, json};

use super::fasttext::{Dictionary, Model};
use super::word2vec::Rows;
use super::{FASTTEXT, WORD2VEC};

/// Names of the companions.
const WORDS: &str = "words.txt";
const LABELS: &str = "labels.txt";

/// Word vectors opened for reading; [`open`] makes it.
pub struct VectorsReader {
    source: Box<dyn ByteSource>,
    format: &'static Format,
    files: Vec<FileInfo>,
    tensors: Vec<TensorInfo>,
    /// Range of each tensor in the file; for word2vec, the whole file.
    places: Vec<StoredRange>,
    text: Text,
    metadata: Metadata,
    companions: Vec<Companion>,
    left_out: Vec<String>,
    warnings: Vec<String>,
}

/// Position of the words.
#[derive(Debug)]
enum Text {
    /// The words are before each vector.
    Rows(Rows),
    Dictionary(Dictionary),
}

/// Opens a file of word2vec or fastText. No vectors are read, besides the first.
///
/// # Errors
/// E001 for what is neither, E002 for a damaged file, E003 for a quantized model or another
/// version, E007 when reading fails.
pub fn open<S: ByteSource + 'static>(
    source: S,
    name: &str,
    limits: &Limits,
) -> Result<VectorsReader> {
    open_boxed(Box::new(source), name, limits).map_err(|error| error.in_file(name))
}

fn open_boxed(source: Box<dyn ByteSource>, name: &str, limits: &Limits) -> Result<VectorsReader> {
    let head = read_vec(&*source, 0, source.len().min(HEAD_LEN))?;
    let files = vec![FileInfo { name: name.to_owned(), len: source.len() }];
    let tensor = |name: &str, dims: [u64; 2]| TensorInfo {
        name: name.to_owned(),
        dtype: DType::F32,
        shape: Shape::from(dims.to_vec()),
    };
    let mut reader = if (FASTTEXT.recognises)(&head) {
        let Model { metadata, input, output, dictionary, rest } = Model::open(&*source)?;
        let after = match rest {
            0 => Vec::new(),
            more => vec![format!("{} after the model are not read", counted(more, "byte"))],
        };
        VectorsReader {
            source,
            format: &FASTTEXT,
            files,
            tensors: vec![tensor("input", input.dims), tensor("output", output.dims)],
            places: vec![input.place, output.place],
            text: Text::Dictionary(dictionary),
            metadata,
            companions: Vec::new(),
            left_out: Vec::new(),
            warnings: after,
        }
    } else {
        let (rows, dims) = Rows::open(&*source, &head)?;
        let whole = StoredRange { file: 0, offset: 0, len: source.len() };
        VectorsReader {
            source,
            format: &WORD2VEC,
            files,
            tensors: vec![tensor("embedding", dims)],
            places: vec![whole],
            text: Text::Rows(rows),
            metadata: Metadata::new(),
            companions: Vec::new(),
            left_out: Vec::new(),
            warnings: Vec::new(),
        }
    };
    reader.list_words(limits)?;
    Ok(reader)
}

impl VectorsReader {
    fn list_words(&mut self, limits: &Limits) -> Result<()> {
        let lens = match &self.text {
            Text::Rows(rows) => {
                let len = rows.words_len();
                let short = || Error::corrupt("the file is too short for the vectors declared");
                [len.ok_or_else(short)?, 0]
            }
            Text::Dictionary(dictionary) => dictionary.text_len,
        };
        for (name, len) in [WORDS, LABELS].into_iter().zip(lens) {
            if len > limits.max_companion {
                self.left_out.push(format!("{name} ({})", counted(len, "byte")));
            } else if len > 0 {
                self.companions.push(Companion { name: name.to_owned(), len });
            }
        }
        Ok(())
    }

    fn locate(&self, tensor: usize, error: Error) -> Error {
        error.for_tensor(&self.tensors[tensor].name).in_file(&self.files[0].name)
    }

    fn read(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        match &self.text {
            Text::Rows(rows) => rows.read(&*self.source, offset, buf),
            Text::Dictionary(_) => self.source.read_at(self.places[tensor].offset + offset, buf),
        }
    }
}

impl ContainerFacts for VectorsReader {
    fn header_fields(&self) -> Value {
        json!({ "container": self.format.id })
    }
}

impl CheckpointReader for VectorsReader {
    has_own!(metadata, tensors, container, files, left_out, warnings);

    fn format(&self) -> &'static Format {
        self.format
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        match self.text {
            Text::Rows(_) => Stored::derived(self.places[tensor]),
            Text::Dictionary(_) => Stored::plain(self.places[tensor]),
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let available = self.tensors[tensor].byte_len()?;
        check_range(offset, buf.len(), available)
            .and_then(|()| self.read(tensor, offset, buf))
            .map_err(|error| self.locate(tensor, error))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let place = self.places.get(tensor)?;
        match self.text {
            Text::Rows(_) => None,
            Text::Dictionary(_) => self.source.slice_at(place.offset, place.len),
        }
    }

    fn companions(&self) -> &[Companion] {
        &self.companions
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        let found = self.companions.get(companion).ok_or_else(|| Companion::absent(companion))?;
        let text = match &self.text {
            Text::Rows(rows) => rows.read_words(&*self.source),
            Text::Dictionary(dictionary) => dictionary.read(&*self.source, found.name == LABELS),
        };
        text.map_err(|error| error.in_file(&self.files[0].name))
    }
}

impl fmt::Debug for VectorsReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VectorsReader")
            .field("files", &self.files)
            .field("tensors", &self.tensors)
            .finish_non_exhaustive()
    }
}
