//! Files that the page lends: their names, their lengths, and ranges of their bytes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use apr_core::{ByteSource, Error, IoCause, Result, SourceSet, check_range};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::blocks::Blocks;

#[wasm_bindgen(typescript_custom_section)]
const HOST_FILES: &str = r#"
/** Files that a program lends the module, by their names. */
export interface HostFiles {
  /** Names of all files: relative, with `/`. */
  names(): string[];
  /** Length of a file in bytes. */
  size(name: string): number;
  /** Fills `into` with the bytes from `offset` on, or throws. */
  read(name: string, offset: number, into: Uint8Array): void;
}
"#;

#[wasm_bindgen]
extern "C" {
    /// The files as JavaScript has them.
    #[wasm_bindgen(typescript_type = "HostFiles")]
    #[derive(Clone)]
    pub type HostFiles;

    #[wasm_bindgen(method)]
    fn names(this: &HostFiles) -> Vec<String>;

    #[wasm_bindgen(method)]
    fn size(this: &HostFiles, name: &str) -> f64;

    #[wasm_bindgen(method, catch)]
    fn read(
        this: &HostFiles,
        name: &str,
        offset: f64,
        into: &mut [u8],
    ) -> std::result::Result<(), JsValue>;
}

thread_local! {
    /// Files of JavaScript, by the number of their loan.
    ///
    /// Values of JavaScript stay on their thread. Readers can be sent to another thread, so they
    /// store the number only.
    static LENT: RefCell<(u32, BTreeMap<u32, HostFiles>)> = const {
        RefCell::new((0, BTreeMap::new()))
    };
}

/// Number of the lent files. When the loan is dropped, the files are released.
#[derive(Debug)]
struct Loan(u32);

impl Drop for Loan {
    fn drop(&mut self) {
        LENT.with_borrow_mut(|(_, lent)| lent.remove(&self.0));
    }
}

/// The files of a model.
#[derive(Debug)]
pub(crate) struct Lent {
    loan: Arc<Loan>,
    /// Lengths by name.
    lens: BTreeMap<String, u64>,
}

impl Lent {
    /// Takes the files from the page.
    pub(crate) fn new(files: HostFiles) -> Self {
        let lens = files.names().into_iter().map(|name| {
            let len = length(files.size(&name));
            (name, len)
        });
        let lens = lens.collect();
        let number = LENT.with_borrow_mut(|(last, lent)| {
            *last += 1;
            lent.insert(*last, files);
            *last
        });
        Self { loan: Arc::new(Loan(number)), lens }
    }

    /// One of the files.
    pub(crate) fn file(&self, name: &str) -> Result<HostFile> {
        let missing = || Error::io(IoCause::NotFound, "no such file was given").in_file(name);
        let len = *self.lens.get(name).ok_or_else(missing)?;
        let loan = Arc::clone(&self.loan);
        Ok(HostFile { loan, name: name.to_owned(), len, blocks: Mutex::default() })
    }

    /// Names of the files, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.lens.keys().map(String::as_str)
    }
}

impl SourceSet for Lent {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        Ok(Box::new(self.file(name)?))
    }

    fn list(&self) -> Result<Vec<String>> {
        // A folder and one level below.
        Ok(self.names().filter(|name| name.matches('/').count() < 2).map(str::to_owned).collect())
    }
}

/// File that the page lends.
#[derive(Debug)]
pub(crate) struct HostFile {
    loan: Arc<Loan>,
    name: String,
    len: u64,
    blocks: Mutex<Blocks>,
}

impl HostFile {
    fn fetch(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let files = LENT.with_borrow(|(_, lent)| lent.get(&self.loan.0).cloned());
        let closed = || Error::io(IoCause::Other, "the model was closed").in_file(&self.name);
        let files = files.ok_or_else(closed)?;
        #[allow(clippy::cast_precision_loss, reason = "files of 8 PiB are not lent")]
        let position = offset as f64;
        files.read(&self.name, position, buf).map_err(|thrown| {
            let message = thrown.as_string().unwrap_or_else(|| {
                let thrown = js_sys::Error::from(thrown);
                String::from(thrown.message())
            });
            Error::io(IoCause::Other, message).in_file(&self.name).at(offset)
        })
    }
}

impl ByteSource for HostFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range(offset, buf.len(), self.len)?;
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.read(offset, buf, self.len, |offset, buf| self.fetch(offset, buf))
    }
}

/// A number of JavaScript as a length.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
fn length(number: f64) -> u64 {
    number as u64
}
