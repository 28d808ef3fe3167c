//! Planning the output: the writer of the target format, and what happens to companions there.

use apr_core::digest::ChunkSums;
use apr_core::{CheckpointWriter, FileInfo, Layout, Loss, Metadata, Notes, Result, Sink, TensorInfo};
use apr_format::apr1;
use apr_format::apr2::{self, CompanionFile};
use apr_safetensors::Order;

/// Formats that can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetFormat {
    /// The native container.
    Apr2,
    /// A safetensors file, shards with an index, or a folder.
    Safetensors,
    /// A PyTorch state dict.
    Pytorch,
    /// A GGUF file, or the parts of a split model.
    Gguf,
    /// The Whisper container of seed 002.
    Apr1,
    /// The typed container that the model came from.
    #[cfg(feature = "typed")]
    Aprn,
}

/// How the output is laid out.
#[derive(Debug, Clone)]
pub struct PlanOptions {
    /// The format.
    pub format: TargetFormat,
    /// Name of the file, which shards and index are named after.
    pub file_name: String,
    /// Write a folder: named files, companions beside the weights.
    pub folder: bool,
    /// Most bytes of tensors in a shard.
    pub shard_size: Option<u64>,
    /// Align APR2 tensors to 32 bytes instead of 64.
    pub align_32: bool,
    /// How APR2 tensors are stored; `align_32` and `file_name` are the ones here.
    pub apr2: apr2::WriteOptions,
    /// The tensors come in the order of their first use; APR2 says so in its header.
    pub streaming: bool,
    /// Alignment of GGUF tensors in bytes; `None` for the source's, or 32.
    pub alignment: Option<u32>,
    /// Sort safetensors entries as its library does instead of keeping the source's order.
    pub canonical: bool,
}

impl PlanOptions {
    /// A single file with the format's defaults.
    #[must_use]
    pub fn new(format: TargetFormat, file_name: impl Into<String>) -> Self {
        let file_name = file_name.into();
        Self {
            format,
            file_name,
            folder: false,
            shard_size: None,
            align_32: false,
            apr2: apr2::WriteOptions::default(),
            streaming: false,
            alignment: None,
            canonical: false,
        }
    }
}

/// Plans the output for these tensors.
///
/// # Errors
/// E001 when the target can't hold a tensor, E008 when metadata exceed what it can address.
pub fn plan(
    tensors: &[TensorInfo],
    metadata: &Metadata,
    companions: Vec<CompanionFile>,
    options: &PlanOptions,
) -> Result<Box<dyn CheckpointWriter>> {
    match options.format {
        TargetFormat::Apr2 => {
            let write_options = apr2::WriteOptions {
                align_32: options.align_32,
                streaming: options.streaming,
                file_name: options.file_name.clone(),
                ..options.apr2.clone()
            };
            match options.shard_size {
                Some(size) => apr2::plan_shards(tensors, metadata, companions, &write_options, size),
                None => Ok(Box::new(apr2::plan(tensors, metadata, companions, &write_options)?)),
            }
        }
        TargetFormat::Safetensors => {
            let write_options = apr_safetensors::WriteOptions {
                file_name: options.file_name.clone(),
                shard_size: options.shard_size,
                order: if options.canonical { Order::Canonical } else { Order::AsGiven },
                named_files: options.folder,
            };
            let weights = apr_safetensors::plan(tensors, metadata, &write_options)?;
            Ok(Box::new(WithCompanions::new(weights, companions, options.folder)))
        }
        TargetFormat::Pytorch => {
            let write_options =
                apr_pytorch::WriteOptions { file_name: options.file_name.clone(), named_files: options.folder };
            let weights = apr_pytorch::plan(tensors, metadata, &write_options)?;
            Ok(Box::new(WithCompanions::new(weights, companions, options.folder)))
        }
        TargetFormat::Gguf => {
            let write_options = apr_gguf::WriteOptions {
                file_name: options.file_name.clone(),
                alignment: options.alignment,
                shard_size: options.shard_size,
                named_files: options.folder,
            };
            let weights = apr_gguf::plan(tensors, metadata, &write_options)?;
            Ok(Box::new(WithCompanions::new(weights, companions, options.folder)))
        }
        TargetFormat::Apr1 => {
            let write_options = apr1::WriteOptions { file_name: options.file_name.clone() };
            let weights = apr1::plan(tensors, metadata, &companions, &write_options)?;
            Ok(Box::new(WithCompanions::new(weights, companions, options.folder)))
        }
        #[cfg(feature = "typed")]
        TargetFormat::Aprn => {
            let weights = apr_format::aprn::plan(tensors, metadata, &options.file_name)?;
            Ok(Box::new(WithCompanions::new(weights, companions, false)))
        }
    }
}

/// Writes companions as files of their own after the weights, or reports them lost where there is no folder.
struct WithCompanions<W> {
    weights: W,
    companions: Vec<CompanionFile>,
    layout: Layout,
}

impl<W: CheckpointWriter> WithCompanions<W> {
    fn new(weights: W, companions: Vec<CompanionFile>, folder: bool) -> Self {
        let mut layout = weights.layout().clone();
        if folder {
            let files = companions.iter();
            layout.files.extend(files.map(|file| FileInfo { name: file.name.clone(), len: file.bytes.len() as u64 }));
            return Self { weights, companions, layout };
        }
        layout.losses.extend(companions.into_iter().map(|file| Loss {
            name: file.name,
            what: "companion file".into(),
            why: "a single file of weights holds no other files; write to a folder to keep it".into(),
        }));
        Self { weights, companions: Vec::new(), layout }
    }
}

impl<W: CheckpointWriter> CheckpointWriter for WithCompanions<W> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn wants_sums(&self) -> bool {
        self.weights.wants_sums()
    }

    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()> {
        self.weights.begin(sink)
    }

    fn write_chunk(&mut self, sink: &mut dyn Sink, bytes: &[u8], sums: Option<ChunkSums>) -> Result<()> {
        self.weights.write_chunk(sink, bytes, sums)
    }

    fn finish(&mut self, sink: &mut dyn Sink, notes: &Notes) -> Result<()> {
        self.weights.finish(sink, notes)?;
        self.companions.iter().try_for_each(|file| {
            sink.next_file(&file.name)?;
            sink.write_all(&file.bytes)
        })
    }
}
