//! Opening: which files there are, and which of their tensors are the model's.

use std::collections::BTreeMap;
use std::sync::Arc;

use apr_core::protobuf::Walker;
use apr_core::{
    ByteSource, CheckpointReader, Error, Escaped, FileInfo, HEAD_LEN, IoCause, Limits, Result,
    SharedSource, SourceSet, StoredRange, Table, TensorBytes, Unlisted, counted, read_vec,
};
use serde_json::{Map, Value};

use crate::bundle::{Bundle, Entry};
use crate::bytes::{Found, Part, Parts, Repeated};
use crate::constants::{Constant, Graph, Values};
use crate::saved_model::SavedModel;
use crate::slices::Extent;
use crate::{CHECKPOINT, GRAPH, METADATA, SAVED_MODEL, dtype, objects, table};

/// Path of the variables in the folder of a SavedModel.
const VARIABLES: &str = "variables/variables";

/// Suffix of a variable's key, after the path of its object.
pub(crate) const VALUE: &str = "/.ATTRIBUTES/VARIABLE_VALUE";

/// Separator in the key of an optimizer's variable, after the path of the model's variable.
const SLOT: &str = "/.OPTIMIZER_SLOT/";

/// Suffixes that optimizers of TensorFlow 1 append to the name of a variable.
const SLOTS: [&str; 8] =
    ["Adadelta", "Adadelta_1", "Adagrad", "Adam", "Adam_1", "Ftrl", "Momentum", "RMSProp"];

/// Opens one file by itself: a graph with its constants. Variables are in other files, which
/// [`open_in`] finds.
///
/// # Errors
/// E001 for what is no graph, and for a model whose variables are in other files; E002 for a
/// damaged file, E003 for one whose values no format here holds, E007 when reading fails, E008 over
/// a limit.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    open_file(Arc::new(source), name, None, limits).map_err(|error| located(error, name))
}

/// Opens a file of a folder: the index of a checkpoint with its shards, a SavedModel with its
/// variables, or a graph. No weights are read.
///
/// # Errors
/// Those of [`open`]; E004 for a wrong checksum, E007 where a shard is missing.
pub fn open_in(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<Table> {
    let source = set.open(name).map_err(|error| error.in_file(name))?;
    open_file(source.into(), name, Some(set), limits).map_err(|error| located(error, name))
}

fn located(error: Error, name: &str) -> Error {
    if error.file().is_some() { error } else { error.in_file(name) }
}

fn open_file(
    source: SharedSource,
    name: &str,
    set: Option<&dyn SourceSet>,
    limits: &Limits,
) -> Result<Table> {
    let head = read_vec(&source, 0, source.len().min(HEAD_LEN))?;
    if ends_as_table(&source)? {
        let Some(set) = set else {
            let message = "this is the index of a checkpoint, whose weights are in files next \
                to it (.data-00000-of-00001): open it in their folder";
            return Err(Error::format(message));
        };
        let prefix = name.strip_suffix(".index").unwrap_or(name);
        let mut opened = Opened::new(Table::of_file(&CHECKPOINT, name, source), limits);
        opened.add_checkpoint(set, prefix, 0)?;
        return opened.finish();
    }
    if (SAVED_MODEL.recognises)(&head) {
        let mut opened = Opened::new(Table::of_file(&SAVED_MODEL, name, source), limits);
        opened.add_saved_model(set)?;
        return opened.finish();
    }
    if (GRAPH.recognises)(&head) {
        let mut walker = Walker::new(&source, limits);
        let message = walker.message();
        let graph = Graph::read(&mut walker, message, limits)?;
        let mut opened = Opened::new(Table::of_file(&GRAPH, name, source), limits);
        opened.check_variables(&graph)?;
        opened.add_constants(graph, true);
        return opened.finish();
    }
    Err(Error::format("neither a graph of TensorFlow nor the index of a checkpoint").at(0))
}

/// Returns `true` if a file ends like a table.
fn ends_as_table(source: &dyn ByteSource) -> Result<bool> {
    let mut mark = [0; table::MARK.len()];
    let Some(at) = source.len().checked_sub(mark.len() as u64) else { return Ok(false) };
    source.read_at(at, &mut mark)?;
    Ok(mark == table::MARK)
}

/// A model that is being opened.
pub(crate) struct Opened {
    /// Its files, and what was found beside tensors.
    pub(crate) table: Table,
    pub(crate) found: Vec<Found>,
    pub(crate) fields: Map<String, Value>,
    refused: Vec<Error>,
    /// Operators of the graph in the first file.
    operators: u64,
    limits: Limits,
}

impl Opened {
    pub(crate) fn new(table: Table, limits: &Limits) -> Self {
        Self {
            table,
            found: Vec::new(),
            fields: Map::new(),
            refused: Vec::new(),
            operators: 0,
            limits: *limits,
        }
    }

    pub(crate) fn file_len(&self, file: usize) -> u64 {
        self.table.files()[file].len
    }

    /// Adds a file; returns its position.
    pub(crate) fn add_file(&mut self, set: &dyn SourceSet, name: String) -> Result<usize> {
        let source = set.open(&name).map_err(|error| error.in_file(&name))?;
        self.table.add_file(FileInfo { name, len: source.len() }, source.into());
        Ok(self.table.files().len() - 1)
    }

    fn add_saved_model(&mut self, set: Option<&dyn SourceSet>) -> Result<()> {
        let source = Arc::clone(&self.table.sources()[0]);
        let mut walker = Walker::new(&source, &self.limits);
        let SavedModel { graph, fields, assets, others } =
            SavedModel::read(&mut walker, &self.limits)?;
        self.fields = fields;
        self.table
            .left_out
            .extend(assets.iter().map(|name| format!("asset '{}'", Escaped::short(name))));
        let tags =
            others.iter().map(|tags| format!("the graph of tags '{}'", Escaped::short(tags)));
        self.table.left_out.extend(tags);

        let index = format!("{VARIABLES}.index");
        let names = set.map(SourceSet::list).transpose()?.unwrap_or_default();
        let has_data = names.iter().any(|name| name.starts_with(&format!("{VARIABLES}.data-")));
        match set {
            Some(set) if names.contains(&index) => {
                let index = self.add_file(set, index)?;
                self.add_checkpoint(set, VARIABLES, index)?;
                self.add_constants(graph, false);
            }
            Some(_) if has_data => {
                let message = "the index of the variables is missing";
                return Err(Error::io(IoCause::NotFound, message).in_file(index));
            }
            _ => {
                self.check_variables(&graph)?;
                self.add_constants(graph, true);
            }
        }
        Ok(())
    }

    /// Refuses a graph whose variables are not there.
    fn check_variables(&self, graph: &Graph) -> Result<()> {
        let variables = ["VarHandleOp", "Variable", "VariableV2", "VarIsInitializedOp"];
        let count: u64 = variables.iter().filter_map(|name| graph.operators.get(*name)).sum();
        if count == 0 || graph.constants.iter().any(|constant| !constant.is_setting) {
            return Ok(());
        }
        Err(Error::format(format!(
            "the weights of this graph are {}, in files next to it ({VARIABLES}.index): open the \
             folder",
            counted(count, "variable")
        )))
    }

    /// Adds the variables of a checkpoint, whose index is the file at this position.
    fn add_checkpoint(&mut self, set: &dyn SourceSet, prefix: &str, index: usize) -> Result<()> {
        let index_name = self.table.files()[index].name.clone();
        let bundle = Bundle::read(&*self.table.sources()[index], &self.limits)
            .map_err(|error| located(error, &index_name))?;
        let mut shards = Vec::new();
        let used = |shard| {
            let entries = bundle.entries.values().chain(bundle.parts.iter().map(|part| &part.2));
            entries.clone().any(|entry| entry.shard == shard && entry.len > 0)
        };
        for shard in 0..bundle.shards {
            // A shard without bytes may be left away.
            let name = format!("{prefix}.data-{shard:05}-of-{:05}", bundle.shards);
            shards.push(if used(shard) { Some(self.add_file(set, name)?) } else { None });
        }

        let names = self.full_names(&bundle, &shards)?;
        let mut of_optimizer = Vec::new();
        for (key, entry) in &bundle.entries {
            if is_of_optimizer(key, &bundle) {
                of_optimizer.push(key.as_str());
                continue;
            }
            if key == objects::KEY {
                continue;
            }
            let name = key.strip_suffix(VALUE).unwrap_or(key).to_owned();
            match self.variable(key, entry, &bundle, &shards) {
                Ok((dtype, bytes)) => {
                    let dims = entry.dims.clone();
                    self.found.push(Found { name, dtype, dims, bytes });
                }
                Err(error) if error.code() == apr_core::Code::Version => {
                    self.refused.push(error.for_tensor(Escaped::short(&name)));
                }
                Err(error) => {
                    let error = error.for_tensor(Escaped::short(&name));
                    return Err(located(error, &index_name));
                }
            }
        }
        if let [first, ..] = of_optimizer.as_slice() {
            let count = counted(of_optimizer.len() as u64, "variable");
            let first = Escaped::short(first);
            self.table.left_out.push(format!("the optimizer's state ({count}, such as {first})"));
        }
        if !names.is_empty() {
            let names = names.into_iter().map(|(key, name)| {
                (key.strip_suffix(VALUE).unwrap_or(&key).to_owned(), Value::from(name))
            });
            self.fields.insert("full_names".to_owned(), names.collect::<Map<_, _>>().into());
        }
        Ok(())
    }

    /// Names that variables had in the program, by their keys.
    fn full_names(
        &mut self,
        bundle: &Bundle,
        shards: &[Option<usize>],
    ) -> Result<BTreeMap<String, String>> {
        let Some(entry) = bundle.entries.get(objects::KEY) else { return Ok(BTreeMap::new()) };
        let range = self.range(entry, shards)?;
        self.limits.check_metadata(range.len)?;
        let bytes = read_vec(&self.table.sources()[range.file], range.offset, range.len)?;
        let names = objects::only_text(&bytes).map(|text| objects::full_names(text, &self.limits));
        match names {
            Some(Ok(mut names)) => {
                names.retain(|key, _| {
                    bundle.entries.contains_key(key) && !is_of_optimizer(key, bundle)
                });
                Ok(names)
            }
            Some(Err(error)) => {
                self.table.warnings.push(format!("the graph of objects can't be read: {error}"));
                Ok(BTreeMap::new())
            }
            None => {
                self.table.warnings.push("the graph of objects is damaged".to_owned());
                Ok(BTreeMap::new())
            }
        }
    }

    /// Returns the range of an entry's bytes.
    fn range(&self, entry: &Entry, shards: &[Option<usize>]) -> Result<StoredRange> {
        let shard = usize::try_from(entry.shard).ok().and_then(|shard| shards.get(shard));
        let file = shard.copied().flatten().unwrap_or(0);
        let FileInfo { name, len } = &self.table.files()[file];
        let end = entry.offset.checked_add(entry.len);
        if entry.len > 0 && end.is_none_or(|end| end > *len) {
            let message = format!("its {} bytes end past the {len} bytes of the file", entry.len);
            return Err(Error::corrupt(message).at(entry.offset).in_file(name));
        }
        Ok(StoredRange { file, offset: entry.offset, len: entry.len })
    }

    /// Returns the bytes of a variable: one range, or the ranges of its parts.
    fn variable(
        &self,
        key: &str,
        entry: &Entry,
        bundle: &Bundle,
        shards: &[Option<usize>],
    ) -> Result<(apr_core::DType, TensorBytes)> {
        let dtype = dtype::dtype(entry.dtype)?;
        if entry.slices.is_empty() {
            let part = Part::new(self.range(entry, shards)?, entry.sum);
            return Ok((dtype, TensorBytes::decoded(Parts(vec![part]))));
        }
        let mut own: Vec<_> = bundle.parts.iter().filter(|(name, ..)| name == key).collect();
        own.sort_by_key(|(_, extents, _)| extents.first().map(|extent| extent.start));
        let mut rows = 0;
        for (_, extents, part) in &own {
            let start = follows(extents, &entry.dims, rows, part)?;
            rows = start;
        }
        if entry.dims.first() != Some(&rows) || own.len() != entry.slices.len() {
            let message = format!("its {} parts do not make up its shape", own.len());
            return Err(Error::corrupt(message));
        }
        let parts = own.iter().map(|(_, _, part)| {
            if part.dtype != entry.dtype {
                return Err(Error::corrupt("its parts have several dtypes"));
            }
            Ok(Part::new(self.range(part, shards)?, part.sum))
        });
        Ok((dtype, TensorBytes::decoded(Parts(parts.collect::<Result<_>>()?))))
    }

    /// Adds the constants of a graph that are weights, or all constants if `all` is set.
    fn add_constants(&mut self, graph: Graph, all: bool) {
        let mut settings = Vec::new();
        for Constant { name, dtype, dims, values, is_setting } in graph.constants {
            if is_setting && !all {
                settings.push(name);
                continue;
            }
            let bytes = match values {
                Values::Flat(span) => {
                    StoredRange { file: 0, offset: span.offset, len: span.len }.into()
                }
                Values::Repeated(bytes) => {
                    let element = usize::try_from(dtype.block_bytes()).unwrap_or(8);
                    let len = bytes.len() as u64;
                    let range = StoredRange { file: 0, offset: 0, len };
                    TensorBytes::decoded(Repeated { bytes, element, range })
                }
            };
            self.found.push(Found { name, dtype, dims, bytes });
        }
        if !settings.is_empty() {
            let what = "numbers and shapes of the graph".to_owned();
            self.table.unlisted.push(Unlisted { what, names: settings });
        }
        if !graph.texts.is_empty() {
            let what = "texts of the graph".to_owned();
            self.table.unlisted.push(Unlisted { what, names: graph.texts });
        }
        self.refused.extend(graph.refused);
        let count: u64 = graph.operators.values().sum();
        self.operators = count;
        if count > 0 {
            let operators = graph.operators.into_iter().map(|(name, count)| (name, count.into()));
            self.fields.insert("operators".into(), operators.collect::<Map<_, Value>>().into());
        }
    }

    pub(crate) fn finish(self) -> Result<Table> {
        let Self { mut table, mut found, fields, refused, .. } = self;
        found.sort_by_key(Found::place);
        let mut data = Vec::new();
        for found in found {
            if let TensorBytes::Plain(StoredRange { file: 0, offset, len }) = found.bytes {
                data.push((offset, len));
            }
            table.add(found.info(), found.bytes)?;
        }
        table.tell_apart();
        table.leave_out(refused)?;
        // A graph can be stored with the tensors, as the file around them.
        let has_graph = self.operators > 0;
        if has_graph && apr_skeleton::offer(&mut table, data, &self.limits).is_err() {
            let count = counted(self.operators, "operator");
            table.left_out.push(format!("the graph of {count}"));
        }
        if fields.is_empty() {
            table.show("container", table.format().id);
        } else {
            table.describe(METADATA, fields);
        }
        // There is a name for each variable, and an operator for each step.
        table.fields.swap_remove("full_names");
        table.fields.swap_remove("operators");
        Ok(table)
    }
}

/// Checks that a part has whole rows that follow the earlier ones.
///
/// Returns the number of rows so far.
fn follows(extents: &[Extent], dims: &[u64], rows: u64, part: &Entry) -> Result<u64> {
    let is_whole = |(extent, dim): (&Extent, &u64)| {
        extent.start == 0 && extent.len.is_none_or(|len| len == *dim)
    };
    let inner = extents.iter().zip(dims).skip(1).all(is_whole);
    let (Some(first), Some(&dim), true) =
        (extents.first(), dims.first(), inner && extents.len() == dims.len())
    else {
        let message = "it is partitioned along another dimension than the first, which is not \
            supported";
        return Err(Error::version(message));
    };
    let len = first.len.unwrap_or(dim);
    let expected = [&[len], &dims[1..]].concat();
    if first.start != rows || part.dims != expected {
        return Err(Error::corrupt("its parts overlap, or leave something out"));
    }
    rows.checked_add(len).ok_or_else(|| Error::corrupt("its parts are too long"))
}

/// Returns `true` if a variable belongs to the optimizer, not to the model.
fn is_of_optimizer(key: &str, bundle: &Bundle) -> bool {
    let of_variable = key.rsplit_once('/').is_some_and(|(variable, slot)| {
        SLOTS.contains(&slot) && bundle.entries.contains_key(variable)
    });
    of_variable
        || key.contains(SLOT)
        || key.starts_with("optimizer/")
        || ["save_counter", "save_counter/.ATTRIBUTES/VARIABLE_VALUE"].contains(&key)
        || ["beta1_power", "beta2_power"].contains(&key)
}
