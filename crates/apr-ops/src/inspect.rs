//! What a checkpoint is, from its header alone.

use std::collections::BTreeMap;

use apr_arch::{Description, FamilyModel};
use apr_core::{Companion, FileInfo};
use apr_registry::{CheckpointReader, DType, Format, Metadata, keys};
use serde::{Serialize, Serializer};
use serde_json::Value;

use apr_quantize::{file_type_name, recorded_scheme};
use apr_source::adapter::{Adapter, adapter_of};

use crate::graph::{Computed, PartSummary, summaries};
use crate::import::vocabulary_misfit;
use crate::left_out::LeftOut;
use crate::tensors::codec_name;

/// The report of `apr inspect`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct InspectReport {
    /// What was opened.
    pub path: String,
    /// Its format.
    pub format: &'static Format,
    /// Model family, where the file or its configuration names one.
    pub model_type: Option<String>,
    /// What it is where it holds no model, but an adapter for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// Container version, where the format has one.
    pub version: Option<String>,
    /// What the file is besides a checkpoint, where its format tells: a trainer's checkpoint, an
    /// exported program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Bytes of all files.
    pub bytes: u64,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Tokens in the vocabulary.
    pub vocab_size: Option<u64>,
    /// Number of tensors.
    pub tensor_count: usize,
    /// Bytes of all tensors, decoded.
    pub tensor_bytes: u64,
    /// Stored bits per element over all tensors.
    pub bits_per_weight: Option<f64>,
    /// Share of each dtype, largest first.
    pub dtypes: Vec<DTypeShare>,
    /// How tensors are quantized, where they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<QuantizationSummary>,
    /// How tensors are compressed, where some are; the codec with the most tensors first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub compression: Vec<CodecShare>,
    /// Fingerprints of the keys that the model says it is signed with; nobody has verified it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signed_by: Vec<String>,
    /// Header fields of the format.
    pub header: Value,
    /// Files the checkpoint consists of.
    pub files: Vec<FileInfo>,
    /// Files that travel with the weights.
    pub companions: Vec<Companion>,
    /// What is no tensor of the checkpoint.
    #[serde(flatten)]
    pub left_out: LeftOut,
    /// What the family says about the model, where that is known.
    pub family: Option<Description>,
    /// What it computes, where that is known: its graphs in short.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub computes: Vec<PartSummary>,
    /// Metadata without the text of companions and the list of tokens.
    #[serde(serialize_with = "brief")]
    pub metadata: Metadata,
    /// What is odd.
    pub warnings: Vec<String>,
}

/// What one dtype takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DTypeShare {
    /// The dtype; of weights in codes and scales, that of their values.
    pub dtype: DType,
    /// What weights in codes and scales are stored as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored: Option<String>,
    /// Tensors of it.
    pub tensor_count: usize,
    /// Their elements.
    pub elements: u64,
    /// Their bytes; of codes and scales, where they are stored so.
    pub bytes: u64,
    /// Bits per element, scales included.
    pub bits_per_weight: Option<f64>,
}

/// What one codec did.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CodecShare {
    /// `lz4`, `zstd` or `entropy`, with `planes+` where bytes were sorted by place first, and `csr`
    /// or `bsr` of a sparse layout.
    pub codec: String,
    /// Tensors that went through it.
    pub tensor_count: usize,
    /// Their bytes, decoded.
    pub bytes: u64,
    /// Their bytes, stored.
    pub stored: u64,
}

impl DTypeShare {
    /// Returns the dtype, with what it is decoded from.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.stored {
            Some(stored) => format!("{} from {stored}", self.dtype),
            None => self.dtype.to_string(),
        }
    }
}

impl InspectReport {
    /// The same with what the model computes.
    #[must_use]
    pub fn with_graphs(self, graphs: &Computed) -> Self {
        Self { computes: summaries(graphs), ..self }
    }
}

/// Describes a checkpoint without reading tensor bytes.
#[must_use]
pub(crate) fn inspect(
    reader: &dyn CheckpointReader,
    file: &str,
    model: Option<&FamilyModel<'_>>,
) -> InspectReport {
    let dtypes = dtype_shares(reader);
    let elements = dtypes.iter().fold(0_u64, |sum, share| sum.saturating_add(share.elements));
    let bytes = dtypes.iter().fold(0_u64, |sum, share| sum.saturating_add(share.bytes));
    let header = reader.container().header_fields();
    let metadata = reader.metadata();
    let mut warnings = reader.warnings().to_vec();
    let signed_by = signers(reader).unwrap_or_else(|error| {
        warnings.push(format!("the signatures can't be read: {error}"));
        Vec::new()
    });
    let adapter = adapter_of(reader).unwrap_or_else(|error| {
        warnings.push(format!("the adapter's configuration can't be read: {error}"));
        None
    });
    // Files of a tokenizer are not read for it: what an import wrote down is.
    let rows = model.and_then(|model| model.dimension("vocab"));
    let misfit = rows.and_then(|rows| vocabulary_misfit(rows, |key| metadata.get(key)));
    warnings.extend(misfit.map(|misfit| misfit.message));
    InspectReport {
        adapter,
        path: file.to_owned(),
        format: reader.format(),
        model_type: metadata.text(keys::MODEL_TYPE).map(str::to_owned),
        version: header.get("version").and_then(Value::as_str).map(str::to_owned),
        kind: header.get("kind").and_then(Value::as_str).map(str::to_owned),
        bytes: reader.files().iter().map(|file| file.len).sum(),
        parameters: elements,
        vocab_size: vocab_size(metadata),
        tensor_count: reader.tensors().len(),
        tensor_bytes: bytes,
        bits_per_weight: bits_per_weight(bytes, elements),
        quantization: quantization(metadata, &dtypes),
        dtypes,
        compression: codec_shares(reader),
        signed_by,
        header,
        files: reader
            .files()
            .iter()
            .map(|info| FileInfo { name: plain_name(file, &info.name), len: info.len })
            .collect(),
        companions: reader.companions().to_vec(),
        left_out: LeftOut::known(reader),
        family: model.map(FamilyModel::description),
        computes: Vec::new(),
        metadata: without_texts(metadata),
        warnings,
    }
}

/// The name of a file of a checkpoint, from the folder in which `opened` lies: a reader calls a
/// file as its errors do, by the path with which it was opened.
pub(crate) fn plain_name(opened: &str, name: &str) -> String {
    let folder = &opened[..opened.rfind(['/', '\\']).map_or(0, |separator| separator + 1)];
    name.strip_prefix(folder).unwrap_or(name).to_owned()
}

#[cfg(feature = "signing")]
fn signers(reader: &dyn CheckpointReader) -> apr_registry::Result<Vec<String>> {
    use apr_registry::crypto::{PublicKey, SignBlock};
    let block = reader.container().signed()?.and_then(|signed| signed.signatures);
    let block = block.map(|block| SignBlock::decode(&block)).transpose()?.unwrap_or_default();
    Ok(block
        .signatures()
        .iter()
        .map(|signature| PublicKey::Verifying(signature.public).fingerprint())
        .collect())
}

#[cfg(not(feature = "signing"))]
#[allow(clippy::unnecessary_wraps, reason = "as with the feature")]
fn signers(_reader: &dyn CheckpointReader) -> apr_registry::Result<Vec<String>> {
    Ok(Vec::new())
}

fn codec_shares(reader: &dyn CheckpointReader) -> Vec<CodecShare> {
    let mut shares: BTreeMap<String, CodecShare> = BTreeMap::new();
    for (tensor, info) in reader.tensors().iter().enumerate() {
        let Some(form) = reader.stored(tensor).form() else { continue };
        let codec = codec_name(form);
        let share = shares.entry(codec.clone()).or_insert(CodecShare {
            codec,
            tensor_count: 0,
            bytes: 0,
            stored: 0,
        });
        share.tensor_count += 1;
        share.bytes = share.bytes.saturating_add(info.byte_len().unwrap_or_default());
        share.stored = share.stored.saturating_add(form.len);
    }

    let mut shares: Vec<_> = shares.into_values().collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.tensor_count));
    shares
}

/// Returns what each dtype takes, the one with most bytes first.
#[must_use]
pub fn dtype_shares(reader: &dyn CheckpointReader) -> Vec<DTypeShare> {
    type Key = (DType, Option<String>);
    let mut shares: BTreeMap<Key, (usize, u64, u64)> = BTreeMap::new();
    for (tensor, info) in reader.tensors().iter().enumerate() {
        let coding = reader.stored(tensor).coding();
        let described = coding.map(|coding| coding.description.to_owned());
        let len = coding.map_or_else(|| info.byte_len(), |coding| coding.byte_len());
        let (tensors, elements, bytes) = shares.entry((info.dtype, described)).or_default();
        *tensors += 1;
        *elements = elements.saturating_add(info.shape.elements().unwrap_or_default());
        *bytes = bytes.saturating_add(len.unwrap_or_default());
    }

    let share = |((dtype, stored), (tensors, elements, bytes)): (Key, _)| DTypeShare {
        dtype,
        stored,
        tensor_count: tensors,
        elements,
        bytes,
        bits_per_weight: bits_per_weight(bytes, elements),
    };

    let mut shares: Vec<_> = shares.into_iter().map(share).collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    shares
}

fn bits_per_weight(bytes: u64, elements: u64) -> Option<f64> {
    (elements > 0).then(|| bytes as f64 * 8.0 / elements as f64)
}

/// Vocabulary size by the names that configurations and our metadata use.
fn vocab_size(metadata: &Metadata) -> Option<u64> {
    let architecture = metadata.object(keys::ARCHITECTURE);
    let named = ["vocab_size", "n_vocab"].iter().find_map(|key| architecture?.get(*key)?.as_u64());
    named.or_else(|| metadata.get("tokenizer.vocab_size").and_then(Value::as_u64)).or_else(|| {
        metadata.get("vocab").and_then(Value::as_array).map(|tokens| tokens.len() as u64)
    })
}

/// Items of an array under GGUF's keys that a report shows; longer ones are counted.
pub const LONGEST_ARRAY: u64 = 16;

fn without_texts(metadata: &Metadata) -> Metadata {
    let mut kept = metadata.clone();
    kept.retain(|key| ![keys::FILES, "tokenizer.vocabulary"].contains(&key));
    kept
}

fn brief<S: Serializer>(metadata: &Metadata, serializer: S) -> Result<S::Ok, S::Error> {
    metadata.brief(LONGEST_ARRAY).serialize(serializer)
}

/// How the tensors of a model are quantized.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct QuantizationSummary {
    /// The scheme, where the file names one: `q4_k_m`.
    pub scheme: Option<String>,
    /// What the tensors were before, where the file says so.
    pub original: Option<String>,
    /// What weighed errors, where the file says so.
    pub calibration: Option<String>,
    /// Bits an element of the quantized tensors takes, where the file says so.
    pub bits_per_weight: Option<f64>,
    /// Relative error of all quantized tensors, where the file says that it is above 5 %.
    pub degradation: Option<f64>,
    /// The quantized dtypes, the one with most bytes first.
    pub types: Vec<QuantizedType>,
}

/// A quantized dtype of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct QuantizedType {
    /// The dtype.
    pub dtype: DType,
    /// Elements that share a scale; those of a row where a row has one.
    pub block_size: Option<u64>,
    /// Bits per element, scales included.
    pub bits_per_weight: Option<f64>,
    /// Tensors of it.
    pub tensor_count: usize,
    /// Their elements.
    pub elements: u64,
}

fn quantization(metadata: &Metadata, dtypes: &[DTypeShare]) -> Option<QuantizationSummary> {
    let types: Vec<QuantizedType> = dtypes
        .iter()
        .filter(|share| share.dtype.is_quantized())
        .map(|share| QuantizedType {
            dtype: share.dtype,
            block_size: (share.dtype != DType::I8_ROW).then(|| share.dtype.block_len()),
            bits_per_weight: share.bits_per_weight,
            tensor_count: share.tensor_count,
            elements: share.elements,
        })
        .collect();
    if types.is_empty() {
        return None;
    }

    let record = metadata.object(keys::QUANTIZATION);
    let text = |key: &str| record.and_then(|record| record.get(key)?.as_str()).map(str::to_owned);
    let pairs = apr_gguf::key_values(metadata).ok().flatten().unwrap_or_default();
    let imatrix = pairs.get("quantize.imatrix.file").map(|file| format!("imatrix {file}"));
    Some(QuantizationSummary {
        scheme: recorded_scheme(metadata).or_else(|| file_type_name(&pairs).map(str::to_owned)),
        original: text("original_dtype"),
        calibration: text("calibration_method").or(imatrix),
        bits_per_weight: record.and_then(|record| record.get("bits_per_weight")?.as_f64()),
        degradation: record
            .and_then(|record| record.get(keys::DEGRADATION)?.get("relative_error")?.as_f64()),
        types,
    })
}
