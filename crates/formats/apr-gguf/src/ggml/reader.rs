//! Opening a file, and its bytes.

use std::sync::Arc;

use apr_core::{
    ByteSource, CheckpointReader, DType, Limits, Result, SharedSource, StoredRange, Table,
    TensorBytes, TensorDecoder, TensorInfo, keys, pass_on,
};

use super::block::{MAX_DECODED, OldBlock};
use super::tensor::{Encoding, Tensor};
use super::vocabulary::Vocabulary;
use super::walk::Reading;
use super::{detect, metadata};

/// Blocks that are decoded from one read.
const BLOCKS_AT_ONCE: usize = 1024;

/// Opens a file. Reads headers and vocabulary, but not the tensors' data.
///
/// `name` appears in errors and in [`CheckpointReader::files`], and may be empty. `arch` is one of
/// [`architectures`](super::architectures). Without it the family is detected by the contents, see
/// the [module](super).
///
/// ```
/// use apr_core::{CheckpointReader, Limits};
///
/// // GPT-2's fields: n_vocab, n_ctx, n_embd, n_head, n_layer, ftype; then the tokens: one, "a".
/// let mut file = b"lmgg".to_vec();
/// file.extend([1, 8, 2, 1, 1, 0, 1, 1].map(i32::to_le_bytes).concat());
/// file.push(b'a');
/// // A tensor of one dimension: its name has 9 bytes, its type is 0, its length 2.
/// file.extend([1, 9, 0, 2].map(i32::to_le_bytes).concat());
/// file.extend(b"model/wte");
/// file.extend([0; 8]);
///
/// let reader = apr_gguf::ggml::open(file, "ggml-model.bin", &Limits::default(), None)?;
/// assert_eq!(reader.architecture(), "gpt2");
/// assert_eq!(reader.tensors()[0].name, "model/wte");
/// assert!(reader.vocabulary_tokens().eq([b"a"]));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 for another format, a model that is not known or is ambiguous, and headers that break the
/// format; E002 if the file is truncated; E003 for a version, or quantized blocks, that are not
/// known; E007 when reading fails; E008 for a vocabulary or more tensors than the limits allow.
pub fn open<S: ByteSource + 'static>(
    source: S,
    name: &str,
    limits: &Limits,
    arch: Option<&str>,
) -> Result<GgmlReader> {
    let reading = detect::read(&source, limits, arch).map_err(|error| error.in_file(name))?;
    GgmlReader::new(Arc::new(source), name, reading)
}

/// A legacy GGML file opened for reading.
///
/// Shapes are outermost dimension first, the other way round than in the file. Whisper's mel
/// filterbank is the tensor [`keys::MEL_FILTERBANK_TENSOR`]. Tensor positions given to its methods
/// must be below the number of [`tensors`](CheckpointReader::tensors).
#[derive(Debug)]
pub struct GgmlReader {
    table: Table,
    architecture: &'static str,
    vocabulary: Vocabulary,
}

impl GgmlReader {
    fn new(source: SharedSource, name: &str, reading: Reading) -> Result<Self> {
        let mut table = Table::of_file(&super::FORMAT, name, source);
        table.metadata = metadata::metadata(&reading);
        table.warnings = warnings(&reading);
        table.show("magic", reading.container.magic);
        table.show("version", reading.container.version);
        table.show("architecture", reading.layout.name);
        table.show("header_size", reading.header_len);
        table.show("tokens", reading.vocabulary.len());

        let filterbank = reading.filterbank.map(|filterbank| Tensor {
            info: TensorInfo {
                name: keys::MEL_FILTERBANK_TENSOR.to_owned(),
                dtype: DType::F32,
                shape: [filterbank.mels, filterbank.freqs].map(u64::from).into(),
            },
            offset: filterbank.offset,
            stored_len: filterbank.len(),
            encoding: Encoding::Plain(DType::F32),
        });
        for Tensor { info, offset, stored_len: len, encoding } in
            filterbank.into_iter().chain(reading.tensors)
        {
            let range = StoredRange { file: 0, offset, len };
            let bytes = match encoding {
                Encoding::Plain(_) => TensorBytes::Plain(range),
                Encoding::Old(block) => TensorBytes::decoded(OldBlocks { block, range }),
            };
            table.add(info, bytes)?;
        }
        Ok(Self { table, architecture: reading.layout.name, vocabulary: reading.vocabulary })
    }

    /// Returns the family that the file was read as, one of
    /// [`architectures`](super::architectures).
    #[must_use]
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// Returns the tokens as stored in the file, by id. Their bytes need not be UTF-8.
    pub fn vocabulary_tokens(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.vocabulary.tokens()
    }

    /// Returns the scores of the tokens, by id, or `None` if the format has no scores.
    #[must_use]
    pub fn vocabulary_scores(&self) -> Option<&[f32]> {
        Some(self.vocabulary.scores()).filter(|scores| !scores.is_empty())
    }
}

/// Returns warnings about vocabulary-only files, missing layers and blocks that are decoded.
fn warnings(reading: &Reading) -> Vec<String> {
    let mut warnings = Vec::new();
    if reading.tensors.is_empty() {
        warnings.push(
            "the file does not contain tensors: it is vocabulary-only, or truncated after the \
             vocabulary"
                .to_owned(),
        );
    } else {
        for &(pattern, count) in reading.layout.layers {
            let last = reading.hyperparameter(count) - 1;
            let start = pattern.replace("{}", &last.to_string());
            if last >= 0
                && !reading.tensors.iter().any(|tensor| tensor.info.name.starts_with(&start))
            {
                let message =
                    format!("{count} is {}, but no tensor starts with '{start}'", last + 1);
                warnings.push(message + ": the file is cut, or one of several parts");
            }
        }
    }

    let mut decoded: Vec<(&str, usize)> = Vec::new();
    for tensor in &reading.tensors {
        let Encoding::Old(block) = tensor.encoding else { continue };
        if block.dtype() != DType::F32 {
            continue;
        }
        match decoded.iter_mut().find(|(name, _)| *name == block.name()) {
            Some((_, count)) => *count += 1,
            None => decoded.push((block.name(), 1)),
        }
    }

    for (name, count) in decoded {
        let origin = reading.container.origin();
        warnings.push(format!(
            "{count} tensors have the {name} layout of {origin}, which is not supported today; \
             they are read as f32, with equal values"
        ));
    }

    warnings
}

impl CheckpointReader for GgmlReader {
    pass_on!(table);
}

/// A tensor of blocks that are decoded.
struct OldBlocks {
    block: OldBlock,
    range: StoredRange,
}

impl TensorDecoder for OldBlocks {
    fn range(&self) -> StoredRange {
        self.range
    }

    /// Decodes the blocks that hold the wanted bytes, a piece at a time.
    fn read(&self, sources: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        let (stored_len, decoded_len) = (self.block.stored_bytes(), self.block.decoded_bytes());
        let mut at = self.range.offset + offset / decoded_len as u64 * stored_len as u64;

        // Below the length of a block.
        let mut skip = usize::try_from(offset % decoded_len as u64).unwrap_or_default();
        let blocks = (skip + buf.len()).div_ceil(decoded_len);
        let mut stored = vec![0; blocks.min(BLOCKS_AT_ONCE) * stored_len];
        let (mut rest, mut left) = (buf, blocks);
        while left > 0 {
            let piece = &mut stored[..left.min(BLOCKS_AT_ONCE) * stored_len];
            sources[0].read_at(at, piece)?;
            at += piece.len() as u64;
            left -= piece.len() / stored_len;
            for bytes in piece.chunks_exact(stored_len) {
                let mut decoded = [0; MAX_DECODED];
                self.block.decode(bytes, &mut decoded[..decoded_len]);
                let wanted = rest.len().min(decoded_len - skip);
                let (now, later) = rest.split_at_mut(wanted);
                now.copy_from_slice(&decoded[skip..skip + wanted]);
                (rest, skip) = (later, 0);
            }
        }

        Ok(())
    }
}
