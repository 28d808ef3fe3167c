//! Lists of tensors, with statistics where asked for.

use std::collections::BTreeMap;

use apr_core::{Phase, Progress, StoredForm, Sum};
use apr_registry::digest::ChunkSums;
use apr_registry::{CheckpointReader, DType, Pipeline, Result, Shape};
use apr_tensor::stats::{Histogram, Moments, Stats};
use apr_view::NamePattern;
use apr_view::chunks::{Chunk, chunks, take};
use apr_view::nearest_or_first;
use apr_view::values::{self, Buffers};
use base16ct::lower::encode_string;
use serde::Serialize;

use crate::integrity::{Tally, check_parts, of_plain};
use crate::left_out::LeftOut;
use crate::manifest;

/// Sort order of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SortBy {
    /// Position of the data in the file.
    #[default]
    Offset,
    /// Name, compared bytewise.
    Name,
    /// Size, the largest tensor first.
    Size,
    /// Dtype, then the position of the data in the file.
    DType,
}

/// Selection and order of tensors, and additional data to report.
#[derive(Debug, Clone, Default)]
pub struct TensorsOptions {
    /// Pattern that names must match; `*` also crosses dots.
    pub filter: Option<NamePattern>,
    /// Order of the list.
    pub sort: SortBy,
    /// Read the bytes and compute statistics.
    pub stats: bool,
    /// Read the bytes and compute their SHA-256.
    pub digests: bool,
}

/// The report of `apr tensors`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TensorsReport {
    /// Path or location of the opened model.
    pub path: String,
    /// Tensors in the checkpoint.
    pub tensor_count: usize,
    /// The selected tensors.
    pub tensors: Vec<TensorRow>,
    /// Data in the model that is not a tensor of the checkpoint.
    #[serde(flatten)]
    pub left_out: LeftOut,
    /// Warnings about the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl TensorsReport {
    /// Bits of an element in the narrowest type that a twentieth of all elements has, scales
    /// included: what a model was rounded to.
    #[must_use]
    pub fn narrowest_bits(&self) -> f64 {
        let mut by_bits = BTreeMap::<u64, u64>::new();
        for row in self.tensors.iter().filter(|row| row.elements > 0) {
            // Codes and scales are what a weight is; what a codec packs is whole where it is read.
            let stored = row.stored_bytes.filter(|_| row.coding.is_some()).unwrap_or(row.bytes);
            let hundredths = stored.saturating_mul(800) / row.elements;
            *by_bits.entry(hundredths).or_default() += row.elements;
        }
        let all: u64 = by_bits.values().sum();
        let mut narrower = 0_u64;
        let mut found = by_bits.iter().filter(|(_, elements)| {
            narrower += **elements;
            narrower.saturating_mul(20) >= all
        });
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        found.next().map_or(32.0, |(bits, _)| *bits as f64 / 100.0)
    }
}

/// A tensor in the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TensorRow {
    /// Name of the tensor.
    pub name: String,
    /// Element type of the tensor.
    pub dtype: DType,
    /// Dimensions of the tensor.
    pub shape: Shape,
    /// Number of elements.
    pub elements: u64,
    /// Bytes, decoded.
    pub bytes: u64,
    /// File that holds it.
    pub file: String,
    /// Byte offset in that file.
    pub offset: u64,
    /// Compression codec, if the tensor is compressed, as in
    /// [`CodecShare::codec`](crate::inspect::CodecShare::codec).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codec: Option<String>,
    /// Bytes, compressed or in codes and scales.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// The tensors of the file that a weight in codes and scales is made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coding: Option<CodingRow>,
    /// Statistics, if they were requested and the dtype is not quantized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stats: Option<Stats>,
    /// SHA-256 of the decoded bytes, if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// Storage of a weight in codes and scales.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CodingRow {
    /// The method: `fp8`, `gptq`.
    pub method: &'static str,
    /// The method in words.
    pub description: String,
    /// Names of the tensors in the file.
    pub parts: Vec<String>,
}

/// A tensor's distribution: the report of `apr tensors --hist`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HistogramReport {
    /// Path or location of the opened model.
    pub path: String,
    /// The tensor, with statistics.
    pub tensor: TensorRow,
    /// Lower edge of the first bin.
    pub start: f64,
    /// Width of a bin, a power of two.
    pub width: f64,
    /// Finite values in each bin.
    pub counts: Vec<u64>,
}

/// Lists tensors; reads their bytes only for statistics.
///
/// # Errors
/// E002 and E007 when bytes can't be read, E004 when they don't match a checksum that the source
/// states.
pub fn list<P: Pipeline>(
    reader: &dyn CheckpointReader,
    file: &str,
    options: &TensorsOptions,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<TensorsReport> {
    let wanted = |name: &str| options.filter.as_ref().is_none_or(|filter| filter.is_match(name));
    let tensors = reader.tensors();
    let chosen: Vec<usize> =
        (0..tensors.len()).filter(|&tensor| wanted(&tensors[tensor].name)).collect();
    let mut rows = chosen.iter().map(|&tensor| row(reader, tensor)).collect::<Result<Vec<_>>>()?;
    if options.stats {
        let moments = moments(reader, &chosen, pipeline, progress)?;
        for (row, moments) in rows.iter_mut().zip(moments) {
            row.stats = Some(moments.finish());
        }
    }

    if options.digests {
        let digests = manifest::digests(reader, &chosen, pipeline, progress)?;
        for (row, digest) in rows.iter_mut().zip(digests.tensors) {
            row.sha256 = Some(encode_string(&digest));
        }
    }

    match options.sort {
        SortBy::Offset => {}
        SortBy::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
        SortBy::Size => rows.sort_by_key(|row| std::cmp::Reverse(row.bytes)),
        // The sort is stable: what is of one dtype stays as stored.
        SortBy::DType => rows.sort_by_key(|row| row.dtype),
    }

    Ok(TensorsReport {
        path: file.to_owned(),
        tensor_count: tensors.len(),
        tensors: rows,
        left_out: LeftOut::of(reader)?,
        warnings: reader.warnings().to_vec(),
    })
}

/// A tensor of the list with its statistics, in one read.
///
/// # Errors
/// Those of [`list`].
pub fn measured<P: Pipeline>(
    reader: &dyn CheckpointReader,
    tensor: usize,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<TensorRow> {
    let mut found = moments(reader, &[tensor], pipeline, progress)?;
    let stats = found.pop().map(|moments| moments.finish());
    Ok(TensorRow { stats, ..row(reader, tensor)? })
}

/// Returns the position of the tensor with this name.
///
/// # Errors
/// Returns similar names, or if there are none, the first as examples, if there is no such tensor.
pub fn find<'a>(reader: &'a dyn CheckpointReader, name: &str) -> Result<usize, Vec<&'a str>> {
    let tensors = reader.tensors();
    let found = tensors.iter().position(|info| info.name == name);
    found.ok_or_else(|| nearest_or_first(name, tensors.iter().map(|info| info.name.as_str()), 5))
}

/// Returns the distribution of a tensor of the model at `path`, in at most `bins` bins.
///
/// The tensor is read once.
///
/// # Errors
/// E002 and E007 when bytes can't be read, E004 when they don't match a checksum that the source
/// states.
pub fn histogram<P: Pipeline>(
    reader: &dyn CheckpointReader,
    path: &str,
    tensor: usize,
    bins: usize,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<HistogramReport> {
    #[derive(Default)]
    struct HistogramPart {
        bytes: Vec<u8>,
        buffers: Buffers,
        moments: Moments,
        histogram: Histogram,
        sums: Option<ChunkSums>,
    }

    // Statistics of damaged bytes would look as good as any others.
    check_parts(reader, [tensor], pipeline)?;
    let stated = of_plain(reader, tensor);
    let mut tally = Tally::default();
    let info = &reader.tensors()[tensor];
    let len = info.byte_len()?;
    let pieces: Vec<Chunk> = chunks(info, len).collect();
    let (mut moments, mut histogram) = (Moments::default(), Histogram::default());
    let produce = |at: usize, slot: &mut HistogramPart| {
        let bytes = take(&mut slot.bytes, pieces[at].len);
        reader.read_tensor(tensor, pieces[at].offset, bytes)?;
        slot.sums = sums_of(stated, pieces[at], bytes, len);
        slot.moments = values::moments(reader, tensor, pieces[at], bytes, &mut slot.buffers)?;
        slot.histogram = Histogram::default();
        values::add_to_histogram(
            &mut slot.histogram,
            reader,
            (tensor, pieces[at]),
            bytes,
            &mut slot.buffers,
        )
    };

    progress.begin(Phase::Measuring, len);
    pipeline.run(pieces.len(), produce, |at, slot: &mut HistogramPart| {
        moments.merge(&slot.moments);
        histogram.merge(&slot.histogram);
        compare(reader, (tensor, stated), pieces[at], &mut tally, (&slot.bytes, slot.sums))?;
        progress.advance(pieces[at].len as u64);
        Ok(())
    })?;
    let bins = histogram.bins(bins);
    let tensor = TensorRow { stats: Some(moments.finish()), ..row(reader, tensor)? };
    Ok(HistogramReport {
        path: path.to_owned(),
        tensor,
        start: bins.start,
        width: bins.width,
        counts: bins.counts,
    })
}

pub(crate) fn row(reader: &dyn CheckpointReader, tensor: usize) -> Result<TensorRow> {
    let info = &reader.tensors()[tensor];
    let stored = reader.stored(tensor);
    let (range, form, coding) = (stored.range, stored.form(), stored.coding());
    let coded_bytes = coding.map(|coding| coding.byte_len()).transpose()?;
    Ok(TensorRow {
        name: info.name.clone(),
        dtype: info.dtype,
        shape: info.shape.clone(),
        elements: info.shape.elements().unwrap_or_default(),
        bytes: info.byte_len()?,
        file: reader.files().get(range.file).map(|file| file.name.clone()).unwrap_or_default(),
        offset: range.offset,
        codec: form.map(codec_name).or(coding.map(|coding| coding.kind.to_owned())),
        stored_bytes: form.map(|form| form.len).or(coded_bytes),
        coding: coding.map(|coding| CodingRow {
            method: coding.kind,
            description: coding.description.to_owned(),
            parts: coding.names().map(str::to_owned).collect(),
        }),
        stats: None,
        sha256: None,
    })
}

/// Returns the digest state of a chunk if it is to be compared with a digest.
///
/// A CRC-32 is computed in order instead, which is as fast.
pub(crate) fn sums_of(
    stated: Option<Sum>,
    chunk: Chunk,
    bytes: &[u8],
    len: u64,
) -> Option<ChunkSums> {
    let wanted = chunk.summable && matches!(stated, Some(Sum::Digest(_)));
    wanted.then(|| ChunkSums::of(bytes, chunk.offset, len))
}

/// Adds a chunk. After the last chunk, compares the tensor with the checksum stated by the source.
pub(crate) fn compare(
    reader: &dyn CheckpointReader,
    (tensor, stated): (usize, Option<Sum>),
    chunk: Chunk,
    tally: &mut Tally,
    (bytes, sums): (&[u8], Option<ChunkSums>),
) -> Result<()> {
    let Some(stated) = stated else { return Ok(()) };
    tally.append(stated, &bytes[..chunk.len], sums);
    let mismatch = if chunk.last { tally.finish(stated) } else { None };
    match mismatch {
        Some(mismatch) => Err(mismatch.into_error(reader, tensor, reader.stored(tensor).range)),
        None => Ok(()),
    }
}

/// Moments of each chosen tensor.
fn moments<P: Pipeline>(
    reader: &dyn CheckpointReader,
    chosen: &[usize],
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<Vec<Moments>> {
    #[derive(Default)]
    struct MomentsPart {
        bytes: Vec<u8>,
        buffers: Buffers,
        moments: Moments,
        sums: Option<ChunkSums>,
    }
    check_parts(reader, chosen.iter().copied(), pipeline)?;
    let stated: Vec<Option<Sum>> = chosen.iter().map(|&tensor| of_plain(reader, tensor)).collect();
    let mut tally = Tally::default();
    let tensors = reader.tensors();
    let mut result = vec![Moments::default(); chosen.len()];
    let mut tasks = Vec::new();
    for (place, &tensor) in chosen.iter().enumerate() {
        tasks.extend(
            chunks(&tensors[tensor], tensors[tensor].byte_len()?)
                .map(|chunk| (place, tensor, chunk)),
        );
    }

    let produce = |at: usize, slot: &mut MomentsPart| {
        let (place, tensor, chunk) = tasks[at];
        let bytes = take(&mut slot.bytes, chunk.len);
        reader.read_tensor(tensor, chunk.offset, bytes)?;
        slot.sums = sums_of(stated[place], chunk, bytes, tensors[tensor].byte_len()?);
        slot.moments = values::moments(reader, tensor, chunk, bytes, &mut slot.buffers)?;
        Ok(())
    };

    progress.begin(Phase::Measuring, tasks.iter().map(|(.., chunk)| chunk.len as u64).sum());
    pipeline.run(tasks.len(), produce, |at, slot: &mut MomentsPart| {
        let (place, tensor, chunk) = tasks[at];
        result[place].merge(&slot.moments);
        compare(reader, (tensor, stated[place]), chunk, &mut tally, (&slot.bytes, slot.sums))?;
        progress.advance(chunk.len as u64);
        Ok(())
    })?;
    Ok(result)
}

/// A stored form in words, by the bits of the index entry's flags (`docs/format/apr2.md`, "Index").
pub(crate) fn codec_name(form: StoredForm) -> String {
    let layout = ["", "csr", "bsr", "factors"]
        .get((form.flags >> 8 & 0xf) as usize)
        .copied()
        .unwrap_or("other");
    let filter = if form.flags & 0xf0 == 0 { "" } else { "planes" };
    let codec =
        ["", "lz4", "zstd", "entropy"].get((form.flags & 0xf) as usize).copied().unwrap_or("other");
    [layout, filter, codec]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("+")
}
