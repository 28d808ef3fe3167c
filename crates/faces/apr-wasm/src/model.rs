//! A model that a page has opened.

use std::cell::OnceCell;
#[cfg(feature = "run")]
use std::cell::RefCell;
use std::sync::OnceLock;

use apr_arch::Families;
use apr_core::{ByteSource, CheckpointReader, HEAD_LEN, Result, read_vec};
use apr_llama::describe;
use apr_ops::graph::Computed;
use apr_ops::session::{Graphs, Session};
use apr_registry::OpenOptions;
use apr_registry::crypto::Unlock;
use apr_source::{Architecture, Knowledge, Source};
use apr_tokenizer::{Vocabulary, vocabulary};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::error::Thrown;
use crate::files::{HostFiles, Lent};
use crate::graph::Scenes;

/// An open model. Headers are in memory, weights are read when they are asked for. All methods
/// return JSON: the reports of the commands.
#[wasm_bindgen]
pub struct Model {
    pub(crate) reader: Box<dyn CheckpointReader>,
    pub(crate) name: String,
    knowledge: Knowledge,
    graphs: Graphs,
    vocabulary: OnceCell<Option<Vocabulary>>,
    pub(crate) scenes: Scenes,
    /// Keys and values of the current conversation.
    #[cfg(feature = "run")]
    pub(crate) memory: RefCell<apr_infer::Memory>,
}

#[wasm_bindgen]
impl Model {
    /// Opens one of the files, or all of them as a model's folder where no name is given; a
    /// password opens what is encrypted.
    ///
    /// # Errors
    /// The errors of the format's reader, as JSON.
    pub fn open(
        files: HostFiles,
        name: Option<String>,
        password: Option<String>,
    ) -> std::result::Result<Self, JsValue> {
        let mut options = OpenOptions { absent_shards: true, ..OpenOptions::default() };
        if let Some(password) = password {
            options.keys.unlock.push(Unlock::Password(password.into_bytes().into()));
        }
        let lent = Lent::new(files);
        let called = name.clone().unwrap_or_else(|| "model".to_owned());
        let reader = open(&lent, name.as_deref(), &options).map_err(Thrown::from)?;
        Ok(Self {
            reader: describe(reader, families(), &Architecture::Auto),
            name: called,
            knowledge: Knowledge::default(),
            graphs: Graphs::default(),
            vocabulary: OnceCell::new(),
            scenes: Scenes::default(),
            #[cfg(feature = "run")]
            memory: RefCell::default(),
        })
    }
}

impl Model {
    /// The model as passes take it.
    pub(crate) fn source(&self) -> Source<'_> {
        Source::new(&*self.reader, families()).named(&self.name).sharing(&self.knowledge)
    }

    /// The reports on it.
    pub(crate) fn session(&self) -> Session<'_> {
        Session::of(self.source()).sharing(&self.graphs)
    }

    /// Returns the graphs of the model as `apr graph` draws them.
    pub(crate) fn graphs(&self) -> Result<&Computed> {
        self.graphs.drawn(&self.source())
    }
}

impl Model {
    /// Returns the whole vocabulary, read once, or `None` if the model has none.
    pub(crate) fn whole_vocabulary(&self) -> Result<Option<&Vocabulary>> {
        if let Some(vocabulary) = self.vocabulary.get() {
            return Ok(vocabulary.as_ref());
        }
        let found = vocabulary(&*self.reader, usize::MAX)?;
        Ok(self.vocabulary.get_or_init(|| found).as_ref())
    }
}

/// The families that are known; their tables are parsed once.
pub(crate) fn families() -> &'static Families {
    static FAMILIES: OnceLock<Families> = OnceLock::new();
    FAMILIES.get_or_init(Families::builtin)
}

/// Opens one of the files with its companion files, or all files as a model folder.
fn open(
    files: &Lent,
    name: Option<&str>,
    options: &OpenOptions,
) -> Result<Box<dyn CheckpointReader>> {
    let Some(name) = name else {
        return Ok(Box::new(apr_registry::open_folder(files, options)?));
    };
    let reader = if is_in_several(files, name)? {
        apr_registry::open_in(files, name, options)?
    } else {
        apr_registry::open(files.file(name)?, name, options)?
    };
    apr_registry::with_neighbours(reader, files, &options.limits)
}

/// Returns `true` if the data of a file may be in several files.
///
/// This is so for an index or manifest of shards, a part of a split model, and formats with
/// external data.
fn is_in_several(files: &Lent, name: &str) -> Result<bool> {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    if extension == "json" || apr_registry::is_part_name(name) {
        return Ok(true);
    }
    let source = files.file(name)?;
    let head = read_vec(&source, 0, source.len().min(HEAD_LEN))?;
    let spans = apr_registry::recognise_file(&head, Some(extension))
        .is_some_and(apr_registry::may_span_files);
    Ok(spans || apr_registry::is_manifest(name, &head))
}
