//! What a checkpoint is, from its header alone.

use std::collections::BTreeMap;

use apr_arch::{Description, FamilyModel};
use apr_core::{Companion, FileInfo};
use apr_registry::{CheckpointReader, DType, Format, Metadata, is_rest_of_file, keys};
use serde::{Serialize, Serializer};
use serde_json::Value;

use apr_quantize::{file_type_name, recorded_scheme};
use apr_source::adapter::{Adapter, adapter_of};

use crate::graph::{Computed, PartSummary, summaries};
use crate::import::tokenizer_misfit;
use crate::left_out::LeftOut;
use crate::tensors::codec_name;

/// The report of `apr inspect`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct InspectReport {
    /// Path or location of the opened model.
    pub path: String,
    /// Format of the model.
    pub format: &'static Format,
    /// Model family, if the file or its configuration names one.
    pub model_type: Option<String>,
    /// The adapter, if the file contains an adapter instead of a model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// Container version, if the format has one.
    pub version: Option<String>,
    /// Kind of file besides a checkpoint, if the format states it: a trainer's checkpoint, an
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
    /// Quantization of the tensors, if any tensor is quantized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<QuantizationSummary>,
    /// Compression of the tensors, if any is compressed; the codec with the most tensors first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub compression: Vec<CodecShare>,
    /// Fingerprints of the keys that the model states as its signers. They are not verified.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signed_by: Vec<String>,
    /// Header fields of the format.
    pub header: Value,
    /// Files the checkpoint consists of.
    pub files: Vec<FileInfo>,
    /// Companion files of the weights, without the graph of the weights file itself.
    pub companions: Vec<Companion>,
    /// Data in the model that is not a tensor of the checkpoint.
    #[serde(flatten)]
    pub left_out: LeftOut,
    /// Description of the model by its family, if the family is known.
    pub family: Option<Description>,
    /// Summaries of the model's graphs, if they are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub computes: Vec<PartSummary>,
    /// Metadata without the text of companions and the list of tokens.
    #[serde(serialize_with = "brief")]
    pub metadata: Metadata,
    /// Warnings about the model.
    pub warnings: Vec<String>,
}

/// Tensors, elements and bytes of one dtype.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DTypeShare {
    /// The dtype of the tensors; for weights in codes and scales, the dtype of their values.
    pub dtype: DType,
    /// Stored form of weights in codes and scales.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored: Option<String>,
    /// Number of tensors with the dtype.
    pub tensor_count: usize,
    /// Number of elements of these tensors.
    pub elements: u64,
    /// Bytes of the tensors; for weights in codes and scales, the bytes of codes and scales.
    pub bytes: u64,
    /// Bits per element, scales included.
    pub bits_per_weight: Option<f64>,
}

/// Tensors and bytes compressed by one codec.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CodecShare {
    /// Name of the codec: `lz4`, `zstd` or `entropy`.
    ///
    /// The prefix `planes+` is added if bytes were first sorted into planes, and `csr` or `bsr` for
    /// a sparse layout.
    pub codec: String,
    /// Tensors that went through it.
    pub tensor_count: usize,
    /// Bytes of these tensors after decoding.
    pub bytes: u64,
    /// Bytes of these tensors in the file.
    #[serde(rename = "stored_bytes")]
    pub stored: u64,
}

impl DTypeShare {
    /// Returns the dtype, followed by the stored form that it is decoded from.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.stored {
            Some(stored) => format!("{} from {stored}", self.dtype),
            None => self.dtype.to_string(),
        }
    }
}

impl InspectReport {
    /// Adds summaries of the model's graphs to the report.
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
    let rows = model.and_then(|model| model.dimension("vocab"));
    warnings.extend(rows.and_then(|rows| tokenizer_misfit(reader, rows)).map(|it| it.message));
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
        companions: reader
            .companions()
            .iter()
            .filter(|companion| !is_rest_of_file(reader.format(), &companion.name))
            .cloned()
            .collect(),
        left_out: LeftOut::known(reader),
        family: model.map(FamilyModel::description),
        computes: Vec::new(),
        metadata: without_texts(metadata),
        warnings,
    }
}

/// Returns the name of a file of a checkpoint, relative to the folder of `opened`.
///
/// A reader names a file by the path with which it was opened, as its errors do.
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

/// Quantization of a model's tensors.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct QuantizationSummary {
    /// Quantization scheme, if the file names one: `q4_k_m`.
    pub scheme: Option<String>,
    /// Original dtype of the tensors, if the file states it.
    pub original: Option<String>,
    /// Source of the importance weights, if the file states it.
    pub calibration: Option<String>,
    /// Bits per weight of the quantized tensors, if the file states it.
    pub bits_per_weight: Option<f64>,
    /// Relative error of all quantized tensors, if the file states that it is above 5 %.
    pub degradation: Option<f64>,
    /// The quantized dtypes, the one with most bytes first.
    pub types: Vec<QuantizedType>,
}

/// A quantized dtype of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct QuantizedType {
    /// Quantized dtype.
    pub dtype: DType,
    /// Number of elements that share a scale; the length of a row if a row has one scale.
    pub block_size: Option<u64>,
    /// Bits per element, scales included.
    pub bits_per_weight: Option<f64>,
    /// Number of tensors with the dtype.
    pub tensor_count: usize,
    /// Number of elements of these tensors.
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
