//! ONNX models as checkpoints.

mod build;
mod collect;
mod content;
mod external;
mod message;
mod numbers;
mod paths;
mod sparse;
mod turned;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use apr_core::protobuf::Walker;
use apr_core::{
    ByteSource, CheckpointReader, Companion, Error, HEAD_LEN, Limits, Result, SharedSource,
    SourceSet, StoredRange, Table, TensorBytes, Unlisted, keys, pass_on, read_vec,
};

use crate::describe;
use crate::names::{self, Revealed};
use crate::proto::{Model, Tensor};
use crate::scan;
use crate::skeleton::{COMPANION, Cut};
pub(crate) use build::{fills_no_byte, narrow};
pub(crate) use collect::SMALL;
use collect::{Collected, Item};
use content::Decoder;
pub(crate) use content::Narrow;
use external::Files;
pub(crate) use external::{ExternalLocation, checked_location};
use message::Message;
pub(crate) use paths::{Scope, each_tensor};

/// An ONNX model opened for reading; [`open`] and [`open_in`] make it.
#[derive(Debug)]
pub struct OnnxReader {
    content: Message,
    table: Table,
    /// Packing of the elements of tensors that are a range of a file, but not as it is.
    packings: HashMap<usize, Option<Narrow>>,
    limits: Limits,
    /// Names in the file of tensors that are parts of the graph.
    constants: HashSet<String>,
    /// The facts that the graph reveals about each tensor, by its name in the file.
    revealed: BTreeMap<String, Revealed>,
}

/// Source of the names and the layout of an opened model's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// The modules that the graph reveals. Constants of the graph are not tensors.
    Revealed,
    /// The names and the layout of the file.
    AsStored,
}

/// Opens a model whose data are all in its file. No data are read.
///
/// # Errors
/// E001 for what is not an ONNX model, E002 for a damaged one, E003 for elements of unknown types,
/// E007 when reading fails or data are in another file, E008 over a limit.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<OnnxReader> {
    read(&(Arc::new(source) as SharedSource), name, None, limits, Naming::Revealed)
}

/// Opens a model in a folder, whose other files may contain its data.
///
/// # Errors
/// The errors of [`open`]; E001 for data that the model declares outside the folder, E007 for a
/// missing file.
pub fn open_in(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<OnnxReader> {
    let source = set.open(name).map_err(|error| error.in_file(name))?;
    read(&Arc::from(source), name, Some(set), limits, Naming::Revealed)
}

/// Opens a model in a folder with all its tensors, under the names and in the layout that they have
/// in the file.
///
/// # Errors
/// Those of [`open_in`].
pub fn open_as_stored(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<OnnxReader> {
    let source = set.open(name).map_err(|error| error.in_file(name))?;
    read(&Arc::from(source), name, Some(set), limits, Naming::AsStored)
}

/// Opens a model whose data are not there.
pub(crate) fn open_skeleton(
    source: &SharedSource,
    name: &str,
    set: &dyn SourceSet,
    limits: &Limits,
    as_stored: bool,
) -> Result<OnnxReader> {
    read(
        source,
        name,
        Some(set),
        limits,
        if as_stored { Naming::AsStored } else { Naming::Revealed },
    )
}

fn read(
    source: &SharedSource,
    name: &str,
    set: Option<&dyn SourceSet>,
    limits: &Limits,
    naming: Naming,
) -> Result<OnnxReader> {
    let reader = read_unnamed(source, name, set, limits, naming);
    reader.map_err(|error| error.in_file(name))
}

fn read_unnamed(
    source: &SharedSource,
    name: &str,
    set: Option<&dyn SourceSet>,
    limits: &Limits,
    naming: Naming,
) -> Result<OnnxReader> {
    let head = read_vec(source, 0, source.len().min(HEAD_LEN))?;

    // What is no tensor is read as a model, and its errors are those of one.
    let content = if (crate::TENSOR.recognises)(&head) {
        Message::Tensor(Box::new(Tensor::read_file(source, limits)?))
    } else {
        Message::Model(Box::new(Model::read(source, limits)?))
    };
    let mut collected = Collected::new(Files::new(Arc::clone(source), name, set), limits);
    collected.add(&content)?;
    let mut table = Table::new(match content {
        Message::Model(_) => &crate::FORMAT,
        Message::Tensor(_) => &crate::TENSOR,
    });
    let Files { infos, sources, .. } = &collected.files;
    for (file, source) in infos.iter().zip(sources) {
        table.add_file(file.clone(), Arc::clone(source));
    }
    if let Message::Model(model) = &content {
        table.metadata = describe::metadata(model, source, limits)?;
        describe::show(model, &mut table);
    }

    let tied = collected.tied();
    if !tied.is_empty() {
        table.metadata.set(keys::TIED, tied);
    }
    table.warnings = collected.warnings();

    let outside = std::mem::take(&mut collected.files.found);
    let mut reader = OnnxReader {
        content,
        table,
        packings: HashMap::new(),
        limits: *limits,
        constants: collected.constants(),
        revealed: BTreeMap::new(),
    };

    let mut unlisted = collected.unlisted(naming);
    if naming == Naming::Revealed {
        let numbers = reader.reveal(&mut collected)?;
        if !numbers.is_empty() {
            unlisted.insert("numbers that an exporter put among the weights".into(), numbers);
        }
    }

    let (mut flat, blocks) = (Vec::new(), Arc::default());
    for (tensor, Item { info, content, .. }) in collected.tensors.into_iter().enumerate() {
        let stored = content.stored_flat();
        flat.extend(stored.map(|(range, _)| range));
        let bytes = match content.flat() {
            Some(range) => TensorBytes::Plain(range),
            None => {
                reader.packings.extend(stored.map(|(_, narrow)| (tensor, narrow)));
                let blocks = Arc::clone(&blocks);
                TensorBytes::decoded(Decoder { content, blocks, tensor })
            }
        };
        reader.table.add(info, bytes)?;
    }

    if let Some(model) = reader.model() {
        let warnings = scan::of_model(model).warnings();
        let lists = paths::lists_of_learnt_models(model);
        if !lists.is_empty() {
            unlisted.insert("lists in attributes of ai.onnx.ml operators".into(), lists);
        }
        reader.table.warnings.extend(warnings);
    }

    let unlisted = unlisted.into_iter();
    reader.table.unlisted = unlisted.map(|(what, names)| Unlisted { what, names }).collect();

    reader.offer_skeleton(&flat, &outside);
    Ok(reader)
}

impl OnnxReader {
    /// Gives tensors the names and the layout that the graph reveals, and takes its constants out.
    /// Returns those that only the nodes show to be constants.
    fn reveal(&mut self, collected: &mut Collected<'_>) -> Result<Vec<String>> {
        let Message::Model(model) = &self.content else { return Ok(Vec::new()) };
        let Some(graph) = &model.graph else { return Ok(Vec::new()) };
        let mut walker = Walker::new(&self.table.sources()[0], &self.limits);
        let names = names::reveal(graph, &collected.candidates(), &mut walker)?;
        let transposed = describe::noted(model, describe::TRANSPOSED, &mut walker)?;
        let noted = describe::noted(model, describe::CONSTANTS, &mut walker)?;
        // What the file says of large ones would be worth nothing: they are weights.
        let is_noted =
            |item: &&collect::Item| item.content.len <= SMALL && noted.contains(&item.info.name);
        let noted = collected.tensors.iter().filter(is_noted).map(|item| item.info.name.clone());
        let mut numbers: Vec<String> = names.constants.iter().cloned().chain(noted).collect();
        numbers.sort_unstable();
        self.constants.extend(numbers.iter().cloned());
        let constants = &self.constants;
        collected.tensors.retain(|item| !constants.contains(&item.info.name));
        for item in &mut collected.tensors {
            let is_matrix = item.info.shape.dims().len() == 2;
            if is_matrix && transposed.contains(&item.info.name) {
                let found = Revealed::transposed(&item.info.name);
                let name = item.rename(&found);
                self.revealed.insert(name, found);
            } else if let Some(found) = names.revealed.get(&item.info.name) {
                let stored_shape = found.squeezed.then(|| item.info.shape.dims().to_vec());
                let name = item.rename(found);
                self.revealed.insert(name, Revealed { stored_shape, ..found.clone() });
            }
        }

        self.note_names();
        Ok(numbers)
    }

    /// Offers the file around the tensors as a companion, unless it is too large for one.
    ///
    /// `flat` are the ranges of tensors, and `outside` those of data in other files.
    fn offer_skeleton(&mut self, flat: &[StoredRange], outside: &[StoredRange]) {
        if self.model().is_none() {
            return;
        }
        let cut = Cut::new(self.table.files(), flat, outside);
        let len = cut.len();
        if self.limits.check_companion(len).is_ok() {
            let companion = Companion { name: COMPANION.to_owned(), len };
            self.table.offer(companion, move |sources| cut.read(sources));
        } else {
            self.table.warnings.push(format!(
                "without the data of its tensors the file has {len} bytes: too many to copy, so \
                 the graph is not kept"
            ));
        }
    }

    /// Records the renamed tensors and the number of constants.
    ///
    /// The names are added to the metadata, with a warning, and the number to the fields.
    fn note_names(&mut self) {
        let counted = |number: usize| apr_core::counted(number as u64, "tensor");
        let renamed = || self.revealed.iter().filter(|(stored, found)| **stored != found.name);
        if renamed().next().is_some() {
            let turned = renamed().filter(|(_, found)| found.transposed).count();
            let warning = format!(
                "{} renamed by the graph, of which {turned} are transposed to the layout of the \
                 modules",
                counted(renamed().count())
            );
            self.table.warnings.push(warning);
        }
        self.table.show("constants", self.constants.len());
        describe::note_names(&mut self.table.metadata, &self.revealed);
    }

    /// The range of a file that a tensor's elements are, whichever way they are read, and how they
    /// are packed there.
    pub(crate) fn flat_range(&self, tensor: usize) -> Option<(StoredRange, Option<Narrow>)> {
        match self.table.bytes(tensor) {
            TensorBytes::Plain(range) => Some((*range, None)),
            bytes => self.packings.get(&tensor).map(|narrow| (bytes.range(), *narrow)),
        }
    }

    /// Returns the facts that the graph reveals about a tensor, by its name in the file.
    pub(crate) fn revealed(&self, stored: &str) -> Option<&Revealed> {
        self.revealed.get(stored)
    }

    /// Returns `true` if a tensor is part of the graph itself.
    pub(crate) fn is_constant(&self, stored: &str) -> bool {
        self.constants.contains(stored)
    }

    /// Returns the model without the data of its tensors, or `None` if the file is a single tensor.
    #[must_use]
    pub fn model(&self) -> Option<&Model> {
        match &self.content {
            Message::Model(model) => Some(model),
            Message::Tensor(_) => None,
        }
    }

    /// Returns the model's file and the files with data.
    pub(crate) fn sources(&self) -> &[SharedSource] {
        self.table.sources()
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn in_own_file(&self, error: Error) -> Error {
        error.in_file(&self.files()[0].name)
    }

    /// The `len` bytes of a tensor as `raw_data` would have them. Its data must be found already.
    pub(crate) fn packed(&self, tensor: &Tensor, len: u64) -> Result<Vec<u8>> {
        let mut files = Files::opened(self.sources(), self.files());
        let packed = build::packed_of(tensor, &mut files)?;
        packed.check_len(len)?;
        // The data have this length, so the file is long enough to justify it.
        let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
        packed.read(self.sources(), 0, &mut bytes)?;
        Ok(bytes)
    }
}

impl CheckpointReader for OnnxReader {
    pass_on!(table);
}
