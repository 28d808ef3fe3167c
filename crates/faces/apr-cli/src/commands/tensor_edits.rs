//! Tensors that are left out, renamed or added, by what the user writes of their names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;

use apr_io::io_error;
use apr_registry::{CheckpointReader, Error, Escaped, Limits, TensorInfo};
use apr_view::{Checked, NamePattern, Renamings, Verified, View, parse_filter};

use crate::args::TensorNames;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Returns a model with the requested tensors and names.
pub(super) fn edited(
    reader: Box<dyn CheckpointReader>,
    names: &TensorNames,
    model: &Path,
) -> Outcome<Box<dyn CheckpointReader>> {
    if names.is_empty() {
        return Ok(reader);
    }
    let edits = TensorEdits::of(names)?;
    edits.dropped(&*reader)?;
    let renames = edits.renames(&*reader, model)?;
    let mut view = View::new(&*reader);
    edits.apply(&mut view, &renames)?;
    let mapping = view.into_mapping();
    Ok(Box::new(mapping.over(reader)))
}

/// Returns the model that a gate compares with: under the requested names, and with the tensors
/// that are left out.
pub(super) fn renamed(
    reader: Box<dyn CheckpointReader>,
    names: &TensorNames,
    model: &Path,
) -> Outcome<Box<dyn CheckpointReader>> {
    if names.rename.is_empty() {
        return Ok(reader);
    }
    let edits = TensorEdits::of(names)?;
    let renames = edits.renames(&*reader, model)?;
    let taken: BTreeSet<&String> = renames.values().collect();
    let mut view = View::new(&*reader);
    view.rename(|_, name| {
        // A tensor that is left out may have given its name to another one.
        let is_taken = edits.is_dropped(name) && taken.contains(&name.to_owned());
        renames.get(name).cloned().or_else(|| is_taken.then(|| format!("{name} (left out)")))
    });
    let mapping = view.into_mapping();
    Ok(Box::new(mapping.over(reader)))
}

/// The two sides of `KEY=VALUE`.
pub(in crate::commands) fn split<'a>(pair: &'a str, usage: &str) -> Outcome<(&'a str, &'a str)> {
    let parts = pair.split_once('=').filter(|(key, _)| !key.is_empty());
    parts.ok_or_else(|| Failure::Usage(format!("'{pair}' is not of the form {usage}")))
}

/// Splits several arguments of the form `KEY=VALUE`.
pub(in crate::commands) fn pairs_of(
    arguments: &[String],
    usage: &str,
) -> Outcome<Vec<(String, String)>> {
    arguments
        .iter()
        .map(|pair| split(pair, usage).map(|(key, value)| (key.to_owned(), value.to_owned())))
        .collect()
}

/// Edits of tensors: some are removed, others renamed, and arrays are added.
pub(in crate::commands) struct TensorEdits {
    drops: Vec<NamePattern>,
    keeps: Vec<NamePattern>,
    renamings: Renamings,
    added: Vec<(TensorInfo, Vec<u8>)>,
}

impl TensorEdits {
    /// Returns the removals and renames that the arguments request.
    pub(in crate::commands) fn of(args: &TensorNames) -> Outcome<Self> {
        let patterns = |globs: &[String]| {
            globs.iter().map(|glob| Ok(parse_filter(glob)?)).collect::<Outcome<Vec<_>>>()
        };
        let renames = pairs_of(&args.rename, "--rename OLD=NEW")?;
        Ok(Self {
            drops: patterns(&args.drop)?,
            keeps: patterns(&args.keep)?,
            renamings: Renamings::new(renames)?,
            added: Vec::new(),
        })
    }

    /// Adds the arrays of `NAME=FILE`.
    pub(in crate::commands) fn adding(self, pairs: &[String], context: &Context) -> Outcome<Self> {
        let mut left = context.max_memory();
        let added = pairs_of(pairs, "--add NAME=FILE")?
            .into_iter()
            .map(|(name, file)| array(name, Path::new(&file), &mut left, &context.options.limits));
        Ok(Self { added: added.collect::<Outcome<_>>()?, ..self })
    }

    /// Returns `true` if tensors are added.
    pub(in crate::commands) fn adds_any(&self) -> bool {
        !self.added.is_empty()
    }

    /// Returns `true` if a tensor is removed.
    pub(in crate::commands) fn is_dropped(&self, name: &str) -> bool {
        let fits = |patterns: &[NamePattern]| patterns.iter().any(|glob| glob.is_match(name));
        fits(&self.drops) || !self.keeps.is_empty() && !fits(&self.keeps)
    }

    /// The new names of the tensors that are not left out.
    pub(in crate::commands) fn renames(
        &self,
        reader: &dyn CheckpointReader,
        model: &Path,
    ) -> Outcome<BTreeMap<String, String>> {
        let names = reader.tensors().iter().map(|info| info.name.as_str());
        let names: Vec<&str> = names.filter(|name| !self.is_dropped(name)).collect();
        self.renamings.of(&names).map_err(|error| {
            let (model, message) = (model.display(), error.message());
            let of = error.tensor().map(|name| format!(" {}", Escaped::short(name)));
            let of = of.unwrap_or_default();
            Failure::Usage(format!("{model}: --rename{of}: {message}"))
        })
    }

    /// Returns the number of tensors to remove.
    ///
    /// # Errors
    /// [`Failure::Usage`] for a glob that fits none.
    pub(in crate::commands) fn dropped(&self, reader: &dyn CheckpointReader) -> Outcome<usize> {
        let tensors = reader.tensors();
        for (option, globs) in [("--drop", &self.drops), ("--keep", &self.keeps)] {
            let fits = |glob: &NamePattern| tensors.iter().any(|info| glob.is_match(&info.name));
            if let Some(glob) = globs.iter().find(|glob| !fits(glob)) {
                return Err(Failure::Usage(format!("no tensor matches {option} {}", glob.text())));
            }
        }
        Ok(tensors.iter().filter(|info| self.is_dropped(&info.name)).count())
    }

    /// Applies the edits to a view of the whole model.
    pub(in crate::commands) fn apply(
        self,
        view: &mut View<'_>,
        renames: &BTreeMap<String, String>,
    ) -> Outcome {
        view.drop_tensors(|name| self.is_dropped(name));
        view.rename(|_, name| renames.get(name).cloned());
        let mut names = BTreeSet::new();
        if let Some(info) = view.tensors().iter().find(|info| !names.insert(info.name.clone())) {
            let message = "two tensors would have this name";
            return Err(Error::format(message).for_tensor(&info.name).into());
        }
        for (info, bytes) in self.added {
            if view.tensors().iter().any(|other| other.name == info.name) {
                let message = "a tensor has this name already; --drop it to replace it";
                return Err(Error::format(message).for_tensor(&info.name).into());
            }
            view.add(info, bytes);
        }
        Ok(())
    }
}

/// The only array of a file, under another name.
fn array(
    name: String,
    path: &Path,
    left: &mut u64,
    limits: &Limits,
) -> Outcome<(TensorInfo, Vec<u8>)> {
    let wrong = |error: std::io::Error| io_error(&error, path);
    let len = File::open(path).and_then(|file| file.metadata()).map_err(wrong)?.len();
    // Arrays are held until the output is written.
    *left = left.checked_sub(len.saturating_mul(2)).ok_or_else(|| {
        let message = "the arrays of --add exceed the memory limit (--max-memory)";
        Error::memory(message).in_file(path.display())
    })?;
    let bytes = std::fs::read(path).map_err(wrong)?;
    let reader = apr_registry::open(bytes, &path.display().to_string(), limits)?;
    let [info] = reader.tensors() else {
        let count = apr_core::counted(reader.tensors().len() as u64, "array");
        let message = format!("expected a file of one array, as .npy, found {count}");
        return Err(Error::format(message).in_file(path.display()).into());
    };
    let len = usize::try_from(info.byte_len()?).map_err(|_| Error::memory("the array is large"))?;
    let mut elements = vec![0; len];
    let checked = Checked::default();
    Verified::new(&*reader, &checked).read_tensor(0, 0, &mut elements)?;
    Ok((TensorInfo { name, ..info.clone() }, elements))
}
