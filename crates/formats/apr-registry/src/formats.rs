//! The formats that apr knows, an entry for each: readers, writers and messages follow from it.

#[cfg(any(feature = "onnx", feature = "orbax"))]
use apr_core::Error;
#[cfg(feature = "onnx")]
use apr_core::Limits;
use apr_core::{
    ByteSource, CheckpointReader, CheckpointWriter, Format, Metadata, Result, SourceSet, TensorInfo,
};
use apr_format::apr2::{self, CompanionFile};
#[cfg(feature = "typed")]
use apr_format::aprn;
use apr_format::{apr1, dialect};
#[cfg(feature = "gguf")]
use apr_gguf::ggml;
use apr_safetensors::Order;

use crate::companions::WithCompanions;
use crate::in_folder::{InFolder, Shards, shard_number};
#[cfg(any(feature = "numpy", feature = "keras"))]
use crate::incomplete::Incomplete;
use crate::options::{OpenOptions, PlanOptions};
#[cfg(any(feature = "gguf", feature = "pytorch"))]
use crate::wrapped;

/// A source of any kind.
pub(crate) type Bytes = Box<dyn ByteSource>;

/// A reader of any format.
pub(crate) type Reader = Box<dyn CheckpointReader>;

/// A writer of any format.
pub(crate) type Writer = Box<dyn CheckpointWriter>;

type Open = fn(Bytes, &str, &OpenOptions) -> Result<Reader>;
type OpenSet = fn(&dyn SourceSet, &str, &OpenOptions) -> Result<Reader>;
type OpenIndex = fn(&[u8], &str, &dyn SourceSet, &OpenOptions) -> Result<Reader>;
/// Graphs by their names; the main one is first.
#[cfg(feature = "graphs")]
pub type NamedGraphs = Vec<(String, apr_graph::Graph)>;

#[cfg(feature = "graphs")]
type GraphsOf = fn(&dyn CheckpointReader, &apr_core::Limits) -> Result<Option<NamedGraphs>>;
type PlanWriter = fn(&[TensorInfo], &Metadata, Vec<CompanionFile>, &PlanOptions) -> Result<Writer>;

/// Format with its reader and writer.
pub(crate) struct Registration {
    /// Description of the format.
    pub(crate) format: &'static Format,
    /// Opens one file; `None` if the format is only detected, not read.
    pub(crate) open: Option<Open>,
    /// Opens a file that belongs to others of its folder.
    pub(crate) open_set: Option<OpenSet>,
    /// Opens the model of a shard index, if the shards have one of the format's extensions.
    pub(crate) open_index: Option<OpenIndex>,
    /// Creates a writer; set exactly if the format can be written.
    pub(crate) plan: Option<PlanWriter>,
    /// `true` if a file may keep its weights in other files of its folder, without a name that
    /// shows it.
    pub(crate) spans_files: bool,
    /// Names of the weights in a model folder.
    pub(crate) in_folder: InFolder,
    /// Reads the graphs of a model that was read from a file of the format.
    #[cfg(feature = "graphs")]
    pub(crate) graphs: Option<GraphsOf>,
}

/// All formats that are built in. If several match a file, the first one is used.
pub(crate) static FORMATS: &[Registration] = &[
    Registration {
        open: Some(|source, name, options| Ok(Box::new(open_apr2(source, name, options)?))),
        plan: Some(plan_apr2),
        in_folder: InFolder {
            rank: 0,
            extensions: &["apr"],
            shards: Shards::Manifest,
            ..InFolder::NONE
        },
        ..told_apart(&apr2::FORMAT)
    },
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(apr1::open(source, name, &options.limits)?))
        }),
        plan: Some(|tensors, metadata, companions, options| {
            let write_options = apr1::WriteOptions { file_name: options.file_name.clone() };
            let weights = apr1::plan(tensors, metadata, &companions, &write_options)?;
            Ok(Box::new(WithCompanions::new(weights, companions, options.folder)))
        }),
        ..told_apart(&apr1::FORMAT)
    },
    #[cfg(feature = "typed")]
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(aprn::open(source, name, &options.limits, &options.aprn())?))
        }),
        plan: Some(|tensors, metadata, companions, options| {
            let weights = aprn::plan(tensors, metadata, &options.file_name)?;
            Ok(Box::new(WithCompanions::new(weights, companions, false)))
        }),
        ..told_apart(&aprn::FORMAT)
    },
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(dialect::open(source, name, &options.limits)?))
        }),
        ..told_apart(&dialect::FORMAT)
    },
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(apr_safetensors::open(source, name, &options.limits)?))
        }),
        open_index: Some(|json, name, set, options| {
            Ok(Box::new(apr_safetensors::open_index(json, name, set, &options.limits)?))
        }),
        plan: Some(|tensors, metadata, companions, options| {
            let write_options = apr_safetensors::WriteOptions {
                file_name: options.file_name.clone(),
                shard_size: options.shard_size,
                order: if options.canonical { Order::Canonical } else { Order::AsGiven },
                named_files: options.folder,
            };
            let weights = apr_safetensors::plan(tensors, metadata, &write_options)?;
            Ok(Box::new(WithCompanions::new(weights, companions, options.folder)))
        }),
        in_folder: InFolder {
            rank: 0,
            whole: Some("model.safetensors"),
            adapters: &["adapter_model.safetensors", "adapters.safetensors"],
            extensions: &["safetensors"],
            shards: Shards::Index(".safetensors.index.json"),
            ..InFolder::NONE
        },
        ..told_apart(&apr_safetensors::FORMAT)
    },
    #[cfg(feature = "gguf")]
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(apr_gguf::open(source, name, &options.limits)?))
        }),
        open_set: Some(|set, name, options| {
            Ok(Box::new(apr_gguf::open_split(set, name, &options.limits)?))
        }),
        plan: Some(|tensors, metadata, companions, options| {
            let write_options = apr_gguf::WriteOptions {
                file_name: options.file_name.clone(),
                alignment: options.alignment,
                shard_size: options.shard_size,
                named_files: options.folder,
            };
            let weights = apr_gguf::plan(tensors, metadata, &write_options)?;
            Ok(Box::new(WithCompanions::new(weights, companions, options.folder)))
        }),
        in_folder: InFolder {
            rank: 2,
            extensions: &["gguf"],
            shards: Shards::First,
            ..InFolder::NONE
        },
        ..told_apart(&apr_gguf::FORMAT)
    },
    #[cfg(feature = "gguf")]
    Registration { open: Some(wrapped::open_llamafile), ..told_apart(&wrapped::LLAMAFILE) },
    #[cfg(feature = "gguf")]
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(ggml::open(source, name, &options.limits, options.family.as_deref())?))
        }),
        ..told_apart(&ggml::FORMAT)
    },
    #[cfg(feature = "numpy")]
    Registration { open: Some(open_numpy), ..told_apart(&apr_numpy::NPY) },
    // Before ZIP archives of any kind.
    #[cfg(feature = "numpy")]
    Registration { open: Some(open_numpy), ..told_apart(&apr_numpy::NPZ) },
    #[cfg(feature = "keras")]
    Registration {
        open: Some(open_keras),
        in_folder: InFolder { rank: 5, extensions: &["keras"], ..InFolder::NONE },
        ..told_apart(&apr_keras::ARCHIVE)
    },
    #[cfg(feature = "pytorch")]
    Registration { open: Some(open_pytorch), ..told_apart(&apr_pytorch::ZIP) },
    // Before TAR archives of any kind.
    #[cfg(feature = "pytorch")]
    Registration {
        open: Some(wrapped::open_nemo),
        in_folder: InFolder { rank: 5, extensions: &["nemo"], ..InFolder::NONE },
        ..told_apart(&wrapped::NEMO)
    },
    #[cfg(feature = "pytorch")]
    Registration { open: Some(open_pytorch), ..told_apart(&apr_pytorch::TAR) },
    #[cfg(feature = "pytorch")]
    Registration {
        open: Some(open_pytorch),
        open_set: Some(open_pickle_in),
        ..told_apart(&apr_pytorch::PICKLE)
    },
    #[cfg(feature = "pytorch")]
    Registration {
        open: Some(open_pytorch),
        open_index: Some(|json, name, set, options| {
            Ok(Box::new(apr_pytorch::open_index_with(
                json,
                name,
                set,
                &options.limits,
                &options.pytorch(),
            )?))
        }),
        plan: Some(|tensors, metadata, companions, options| {
            let write_options = apr_pytorch::WriteOptions {
                file_name: options.file_name.clone(),
                named_files: options.folder,
            };
            let weights = apr_pytorch::plan(tensors, metadata, &write_options)?;
            Ok(Box::new(WithCompanions::new(weights, companions, options.folder)))
        }),
        // Read where there are none in a format that can't run code.
        in_folder: InFolder {
            rank: 1,
            description: Some((apr_pytorch::METADATA, "distcp")),
            adapters: &["adapter_model.bin"],
            names: &["pytorch_model.bin", "pytorch_model.bin.index.json"],
            extensions: &["pt", "pth", "ckpt"],
            shards: Shards::Index(".bin.index.json"),
            ..InFolder::NONE
        },
        ..told_apart(&apr_pytorch::FORMAT)
    },
    #[cfg(feature = "torchscript")]
    Registration {
        plan: Some(|tensors, metadata, companions, options| {
            let write_options = apr_pytorch::WriteOptions {
                file_name: options.file_name.clone(),
                named_files: options.folder,
            };
            // One is what the model computes; several are its parts, by their names.
            let is_one = options.models.len() == 1;
            let name = |file_name| if is_one { "forward" } else { file_name };
            let methods = options.models.iter();
            let methods: Vec<apr_torchscript::Method<'_>> =
                methods.map(|model| (name(model.file_name.as_str()), &model.graph)).collect();
            let weights = apr_torchscript::plan(tensors, metadata, &methods, &write_options)?;
            Ok(Box::new(WithCompanions::new(weights, companions, options.folder)))
        }),
        ..told_apart(&apr_torchscript::FORMAT)
    },
    // Before ONNX, whose files have the same kind of fields.
    #[cfg(feature = "tensorflow")]
    Registration {
        in_folder: InFolder { rank: 5, names: &["saved_model.pb"], ..InFolder::NONE },
        graphs: Some(apr_tensorflow::graphs_of),
        ..of_tensorflow(&apr_tensorflow::SAVED_MODEL)
    },
    #[cfg(feature = "tensorflow")]
    of_tensorflow(&apr_tensorflow::GRAPH),
    #[cfg(feature = "tensorflow")]
    Registration {
        in_folder: InFolder { rank: 7, extensions: &["index"], ..InFolder::NONE },
        ..of_tensorflow(&apr_tensorflow::CHECKPOINT)
    },
    // Before ONNX, for the same reason.
    #[cfg(feature = "coreml")]
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(apr_coreml::open(source, name, &options.limits)?))
        }),
        open_set: Some(|set, name, options| {
            Ok(Box::new(apr_coreml::open_in(set, name, &options.limits)?))
        }),
        spans_files: true,
        graphs: Some(apr_coreml::graphs_of),
        in_folder: InFolder { rank: 7, extensions: &["mlmodel"], ..InFolder::NONE },
        ..told_apart(&apr_coreml::MODEL)
    },
    #[cfg(not(feature = "coreml"))]
    told_apart(&crate::unread::COREML),
    // Its manifest is a JSON, which `open_in` tells apart.
    #[cfg(feature = "coreml")]
    Registration {
        in_folder: InFolder { rank: 8, names: &["Manifest.json"], ..InFolder::NONE },
        ..told_apart(&apr_coreml::PACKAGE)
    },
    // A JSON, which `open_in` tells apart.
    #[cfg(feature = "tensorflow")]
    Registration {
        in_folder: InFolder { rank: 8, names: &["model.json"], ..InFolder::NONE },
        ..told_apart(&apr_tensorflow::JS)
    },
    #[cfg(feature = "onnx")]
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(apr_onnx::open(source, name, &options.limits)?))
        }),
        open_set: Some(|set, name, options| {
            Ok(Box::new(apr_onnx::open_in(set, name, &options.limits)?))
        }),
        plan: Some(plan_onnx),
        graphs: Some(|reader, limits| {
            let graph = apr_onnx::skeleton::graph_of(reader, limits)?;
            Ok(graph.map(|graph| vec![("model".to_owned(), graph)]))
        }),
        spans_files: true,
        in_folder: InFolder { rank: 3, extensions: &["onnx"], ..InFolder::NONE },
        ..told_apart(&apr_onnx::FORMAT)
    },
    #[cfg(feature = "onnx")]
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(apr_onnx::open(source, name, &options.limits)?))
        }),
        ..told_apart(&apr_onnx::TENSOR)
    },
    #[cfg(feature = "ort")]
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(apr_runtimes::ort::open(source, name, &options.limits)?))
        }),
        graphs: Some(apr_runtimes::ort::graphs_of),
        in_folder: InFolder { rank: 4, extensions: &["ort"], ..InFolder::NONE },
        ..told_apart(&apr_runtimes::ort::FORMAT)
    },
    #[cfg(not(feature = "ort"))]
    told_apart(&crate::unread::ORT),
    #[cfg(feature = "openvino")]
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(apr_runtimes::openvino::open(source, name, &options.limits)?))
        }),
        open_set: Some(|set, name, options| {
            Ok(Box::new(apr_runtimes::openvino::open_in(set, name, &options.limits)?))
        }),
        spans_files: true,
        graphs: Some(apr_runtimes::openvino::graphs_of),
        in_folder: InFolder {
            rank: 4,
            names: &["openvino_model.xml", "model.xml"],
            pair: Some(("xml", "bin")),
            ..InFolder::NONE
        },
        ..told_apart(&apr_runtimes::openvino::FORMAT)
    },
    #[cfg(not(feature = "openvino"))]
    told_apart(&crate::unread::OPENVINO),
    #[cfg(feature = "flax")]
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(apr_flax::open(source, name, &options.limits)?))
        }),
        in_folder: InFolder { rank: 6, extensions: &["msgpack"], ..InFolder::NONE },
        ..told_apart(&apr_flax::FORMAT)
    },
    #[cfg(feature = "orbax")]
    Registration {
        open: Some(|_, name, _| {
            let message = "this describes a checkpoint of Orbax, whose arrays are in files next \
                to it: open the folder";
            Err(Error::format(message).in_file(name))
        }),
        open_set: Some(|set, name, options| {
            Ok(Box::new(apr_orbax::open_in(set, name, &options.limits)?))
        }),
        spans_files: true,
        in_folder: InFolder { rank: 5, names: &[apr_orbax::METADATA], ..InFolder::NONE },
        ..told_apart(&apr_orbax::FORMAT)
    },
    #[cfg(feature = "bin")]
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(apr_bin::ctranslate2::open(source, name, &options.limits)?))
        }),
        open_set: Some(|set, name, options| {
            Ok(Box::new(apr_bin::ctranslate2::open_in(set, name, &options.limits)?))
        }),
        in_folder: InFolder { rank: 3, names: &[apr_bin::ctranslate2::MODEL], ..InFolder::NONE },
        ..told_apart(&apr_bin::ctranslate2::FORMAT)
    },
    #[cfg(feature = "bin")]
    Registration { open: Some(open_vectors), ..told_apart(&apr_bin::vectors::FASTTEXT) },
    #[cfg(feature = "bin")]
    Registration { open: Some(open_vectors), ..told_apart(&apr_bin::vectors::WORD2VEC) },
    #[cfg(feature = "tflite")]
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(apr_tflite::open(source, name, &options.limits)?))
        }),
        graphs: Some(apr_tflite::graphs_of),
        in_folder: InFolder { rank: 4, extensions: &["tflite"], ..InFolder::NONE },
        ..told_apart(&apr_tflite::FORMAT)
    },
    #[cfg(not(feature = "tflite"))]
    told_apart(&crate::unread::TFLITE),
    #[cfg(feature = "keras")]
    Registration {
        open: Some(open_keras),
        graphs: Some(apr_keras::graphs_of),
        in_folder: InFolder { rank: 6, extensions: &["h5", "hdf5"], ..InFolder::NONE },
        ..told_apart(&apr_keras::HDF5)
    },
    #[cfg(not(feature = "keras"))]
    told_apart(&crate::unread::HDF5),
    #[cfg(feature = "trees")]
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(apr_runtimes::trees::xgboost::open(source, name, &options.limits)?))
        }),
        graphs: Some(apr_runtimes::trees::graphs_of),
        in_folder: InFolder { rank: 8, extensions: &["ubj"], ..InFolder::NONE },
        ..told_apart(&apr_runtimes::trees::xgboost::FORMAT)
    },
    #[cfg(feature = "trees")]
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(apr_runtimes::trees::lightgbm::open(source, name, &options.limits)?))
        }),
        ..told_apart(&apr_runtimes::trees::lightgbm::FORMAT)
    },
    told_apart(crate::unread::NAMED[0]),
    told_apart(crate::unread::NAMED[1]),
    told_apart(crate::unread::NAMED[2]),
    told_apart(crate::unread::NAMED[3]),
];

/// Returns an entry for a format that is only detected.
const fn told_apart(format: &'static Format) -> Registration {
    Registration {
        format,
        open: None,
        open_set: None,
        open_index: None,
        plan: None,
        spans_files: false,
        in_folder: InFolder::NONE,
        #[cfg(feature = "graphs")]
        graphs: None,
    }
}

/// Returns an entry for a TensorFlow format, whose files are distinguished when they are opened.
#[cfg(feature = "tensorflow")]
const fn of_tensorflow(format: &'static Format) -> Registration {
    Registration {
        open: Some(|source, name, options| {
            Ok(Box::new(apr_tensorflow::open(source, name, &options.limits)?))
        }),
        open_set: Some(|set, name, options| {
            Ok(Box::new(apr_tensorflow::open_in(set, name, &options.limits)?))
        }),
        spans_files: true,
        ..told_apart(format)
    }
}

/// Returns `true` if a file of the format may keep its weights in other files of its folder.
///
/// The names of such files do not show it.
#[must_use]
pub fn may_span_files(format: &Format) -> bool {
    FORMATS.iter().any(|entry| entry.spans_files && entry.format == format)
}

/// Returns `true` if a file's name shows that it is completed by other files of its folder.
///
/// Examples are a part of a split GGUF model, and the file that describes a distributed checkpoint.
#[must_use]
pub fn is_part_name(name: &str) -> bool {
    #[cfg(feature = "gguf")]
    if apr_gguf::is_part_name(name) {
        return true;
    }
    #[cfg(feature = "pytorch")]
    if name == apr_pytorch::METADATA {
        return true;
    }
    let _ = name;
    false
}

/// Returns `true` if a companion is the rest of a file of the format, and not a file of its own.
///
/// Files with a graph are read as tensors and a companion that has everything else, which
/// conversions keep.
///
/// ```
/// use apr_registry::{is_rest_of_file, onnx, safetensors};
///
/// assert!(is_rest_of_file(&onnx::FORMAT, "model.onnx.graph"));
/// assert!(!is_rest_of_file(&onnx::FORMAT, "config.json"));
/// assert!(!is_rest_of_file(&safetensors::FORMAT, "model.onnx.graph"));
/// ```
#[cfg(feature = "graphs")]
#[must_use]
pub fn is_rest_of_file(format: &Format, companion: &str) -> bool {
    let has_graph = || FORMATS.iter().any(|entry| entry.format == format && entry.graphs.is_some());
    crate::folder::SKELETONS.contains(&companion) && has_graph()
}

/// The graphs of a model whose file had them, by their names: the main one is first; and the format
/// of that file, by whose names of tensors they refer to weights. `None` for a model without one.
///
/// ```
/// use apr_registry::{Limits, graphs_of, tflite};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tflite/kinds.tflite");
/// # let file = std::fs::read(path).expect("the fixture");
/// let model = apr_registry::open(file, "kinds.tflite", &Limits::default())?;
/// let (format, graphs) = graphs_of(&*model, &Limits::default())?.expect("it has one");
/// assert_eq!((format.id, graphs.len()), (tflite::FORMAT.id, 2));
/// # Ok::<(), apr_registry::Error>(())
/// ```
///
/// # Errors
/// E002 for a damaged graph, E003 for one that this version does not read, E007 when reading fails,
/// E008 over the limits.
#[cfg(feature = "graphs")]
pub fn graphs_of(
    reader: &dyn CheckpointReader,
    limits: &apr_core::Limits,
) -> Result<Option<(&'static Format, NamedGraphs)>> {
    for entry in FORMATS {
        let Some(graphs) = entry.graphs else { continue };
        if let Some(graphs) = graphs(reader, limits)? {
            return Ok(Some((entry.format, graphs)));
        }
    }
    Ok(None)
}

/// Returns `true` if loaders run code that files of the format name, so that a scan must examine
/// their contents.
///
/// ```
/// assert!(!apr_registry::may_hold_code(&apr_registry::gguf::FORMAT));
/// ```
#[must_use]
pub fn may_hold_code(format: &Format) -> bool {
    ["hdf5", "keras", "llamafile", "nemo"].contains(&format.id)
}

#[cfg(feature = "keras")]
fn open_keras(source: Bytes, name: &str, options: &OpenOptions) -> Result<Reader> {
    let (reader, damage) = apr_keras::open_damaged(source, name, &options.limits)?;
    Incomplete::unless_whole(Box::new(reader), damage, 0, options)
}

#[cfg(feature = "bin")]
fn open_vectors(source: Bytes, name: &str, options: &OpenOptions) -> Result<Reader> {
    Ok(Box::new(apr_bin::vectors::open(source, name, &options.limits)?))
}

#[cfg(feature = "pytorch")]
fn open_pytorch(source: Bytes, name: &str, options: &OpenOptions) -> Result<Reader> {
    Ok(Box::new(apr_pytorch::open_with(source, name, &options.limits, &options.pytorch())?))
}

/// A pickle in a folder may describe other files there.
#[cfg(feature = "pytorch")]
fn open_pickle_in(set: &dyn SourceSet, name: &str, options: &OpenOptions) -> Result<Reader> {
    let source = set.open(name).map_err(|error| error.in_file(name))?;
    if name != apr_pytorch::METADATA {
        return open_pytorch(source, name, options);
    }
    Ok(Box::new(apr_pytorch::open_distributed(&source, set, &options.limits, &options.pytorch())?))
}

#[cfg(feature = "numpy")]
fn open_numpy(source: Bytes, name: &str, options: &OpenOptions) -> Result<Reader> {
    let (reader, damage) = apr_numpy::open_damaged(source, name, &options.limits)?;
    let absent = damage.len() as u64;
    Incomplete::unless_whole(Box::new(reader), damage, absent, options)
}

fn open_apr2(source: Bytes, name: &str, options: &OpenOptions) -> Result<apr2::Apr2Reader> {
    let mut reader = apr2::open_with_keys(source, name, &options.limits, &options.keys)?;
    if reader.header().flags.contains(apr2::Flags::SHARDED) {
        let which = match shard_number(name) {
            Some((number, count)) => format!("shard {number} of {count}"),
            None => "one of several shards".to_owned(),
        };
        reader.warn(format!("this is {which} only; open the manifest instead"));
    }
    Ok(reader)
}

#[cfg(feature = "onnx")]
fn plan_onnx(
    tensors: &[TensorInfo],
    _metadata: &Metadata,
    mut companions: Vec<CompanionFile>,
    options: &PlanOptions,
) -> Result<Writer> {
    let skeleton =
        companions.iter().position(|companion| companion.name == apr_onnx::skeleton::COMPANION);
    let skeleton = skeleton.map(|position| companions.remove(position).bytes);
    if let (true, Some(skeleton)) = (options.models.is_empty(), skeleton) {
        let restore_options = apr_onnx::skeleton::RestoreOptions {
            file_name: options.file_name.clone(),
            named_files: options.folder,
        };
        let weights =
            apr_onnx::skeleton::restore(skeleton, tensors, &restore_options, &Limits::default())?;
        return Ok(Box::new(WithCompanions::new(weights, companions, options.folder)));
    }

    if options.models.is_empty() {
        return Err(Error::format("an ONNX file needs a graph, but the model has none"));
    }

    let write_options = apr_onnx::write::WriteOptions {
        named_files: options.folder,
        external_data: options.external_data,
    };
    let weights = apr_onnx::write::plan(&options.models, tensors, write_options)?;
    Ok(Box::new(WithCompanions::new(weights, companions, options.folder)))
}

fn plan_apr2(
    tensors: &[TensorInfo],
    metadata: &Metadata,
    companions: Vec<CompanionFile>,
    options: &PlanOptions,
) -> Result<Writer> {
    let write_options = apr2::WriteOptions {
        align_32: options.alignment == Some(32),
        streaming: options.streaming,
        file_name: options.file_name.clone(),
        ..options.apr2.clone()
    };

    match (options.shard_size, options.shard) {
        (Some(size), Some(number)) => {
            apr2::plan_shard(tensors, metadata, companions, &write_options, size, number)
        }
        (Some(size), None) => {
            apr2::plan_shards(tensors, metadata, companions, &write_options, size)
        }
        (None, _) => Ok(Box::new(apr2::plan(tensors, metadata, companions, &write_options)?)),
    }
}
