//! What a page asks of a model: each answer is the JSON that a command prints.

use apr_core::{Code, Error, Result, Serial};
use apr_ops::diff::DiffOptions;
use apr_ops::elements::Selection;
use apr_ops::tensors::{TensorsOptions, find};
use apr_ops::validate::ValidateOptions;
use apr_registry::Limits;
use apr_registry::crypto::{PublicKey, SignBlock};
use apr_scan::{ScanSummary, scan_file};
use serde::Serialize;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::error::{JsResult, Thrown, json};
use crate::files::{HostFiles, Lent};
use crate::model::Model;
use crate::progress::{OnProgress, Told};

/// Tokens of a vocabulary that a page gets at a time.
const MOST_TOKENS: usize = 1000;

/// Part of a vocabulary, and the number of tokens that match a search.
#[derive(Serialize)]
struct FoundTokens<'v> {
    source: &'v str,
    total: usize,
    found: usize,
    tokens: Vec<ShownToken<'v>>,
}

/// Token with its readable text.
#[derive(Serialize)]
struct ShownToken<'v> {
    #[serde(flatten)]
    token: &'v apr_tokenizer::Token,
    /// Text of the token with visible spaces, new lines and single bytes.
    shown: String,
}

#[wasm_bindgen]
impl Model {
    /// The report of `apr inspect`.
    ///
    /// # Errors
    /// None that are known.
    pub fn inspect(&self) -> std::result::Result<String, JsValue> {
        json(&self.session().inspect().map_err(Thrown::from)?)
    }

    /// The report of `apr tensors`, without statistics.
    ///
    /// # Errors
    /// E002 and E007 where a skeleton can't be read.
    pub fn tensors(&self) -> std::result::Result<String, JsValue> {
        let options = TensorsOptions::default();
        json(&self.session().tensors(&options, &Serial, &()).map_err(Thrown::from)?)
    }

    /// A part of a tensor as numbers: the report of `apr tensors --values`. `ranges` are Python's,
    /// such as `0:8, :4`; the corner where they are empty.
    ///
    /// # Errors
    /// E001, E002, E007 and E008, as JSON.
    pub fn values(&self, name: &str, ranges: &str) -> std::result::Result<String, JsValue> {
        let tensor = self.position(name)?;
        let shape = &self.reader.tensors()[tensor].shape;
        let selection = match ranges {
            "" => Selection::corner(shape),
            ranges => Selection::parse(ranges, shape).map_err(Thrown::from)?,
        };
        json(&self.session().values(tensor, &selection).map_err(Thrown::from)?)
    }

    /// Bytes of a tensor, as its dtype stores them.
    ///
    /// # Errors
    /// E002 past its end, E007 where they can't be read, E008 where they don't fit in memory.
    pub fn bytes(&self, name: &str, offset: f64, len: usize) -> JsResult<Vec<u8>> {
        /// Maximum number of bytes in one call.
        const MOST: usize = 1 << 28;
        if len > MOST {
            let message = format!("{len} bytes requested, and {MOST} is the maximum of a call");
            return Err(Error::memory(message).for_tensor(name).into());
        }
        let tensor = self.position(name)?;
        let mut bytes = vec![0; len];
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let offset = offset as u64;
        self.reader.read_tensor(tensor, offset, &mut bytes)?;
        Ok(bytes)
    }

    /// The report of `apr validate`; `strict` makes warnings errors.
    ///
    /// # Errors
    /// E002 and E007 where bytes can't be read; what is wrong with those that can is in the report.
    pub fn validate(
        &self,
        strict: bool,
        on_progress: OnProgress,
    ) -> std::result::Result<String, JsValue> {
        let options = ValidateOptions { strict, ..ValidateOptions::default() };
        let told = Told::new(on_progress);
        let report = self.session().validate(options, &Serial, &told);
        json(&report.map_err(Thrown::from)?)
    }

    /// Who signed the model, by the fingerprints of their keys; E006 where none of the keys in
    /// `trusted`, in PEM as `apr keygen` writes them, is among them.
    ///
    /// # Errors
    /// E001 for what is no public key; E006 where there is no signature, or none that is trusted;
    /// E004 where the signed bytes are not those in the file.
    pub fn verify(&self, trusted: Vec<String>) -> std::result::Result<String, JsValue> {
        json(&self.signers(&trusted).map_err(Thrown::from)?)
    }

    /// The report of `apr lint`.
    ///
    /// # Errors
    /// E002 and E007 where padding can't be read.
    pub fn lint(&self) -> std::result::Result<String, JsValue> {
        json(&self.session().lint().map_err(Thrown::from)?)
    }

    /// The report of `apr explain`.
    ///
    /// # Errors
    /// None that are known.
    pub fn explain(&self) -> std::result::Result<String, JsValue> {
        json(&self.session().explain().map_err(Thrown::from)?)
    }

    /// The report of `apr explain MODEL --tensor`: what it is for, its statistics, what reads it.
    ///
    /// # Errors
    /// E002 and E007 where its bytes can't be read.
    pub fn explain_tensor(
        &self,
        name: &str,
        on_progress: OnProgress,
    ) -> std::result::Result<String, JsValue> {
        let told = Told::new(on_progress);
        let explained = self.session().explain_tensor(name, &Serial, &told);
        match explained.map_err(Thrown::from)? {
            Ok(report) => json(&report),
            Err(_) => Err(no_such_tensor(name).into()),
        }
    }

    /// The report of `apr diff` on this model and another one.
    ///
    /// # Errors
    /// E002 and E007 where bytes can't be read.
    pub fn diff(
        &self,
        other: &Model,
        on_progress: OnProgress,
    ) -> std::result::Result<String, JsValue> {
        let report = self.compared(other, &Told::new(on_progress)).map_err(Thrown::from)?;
        json(&report)
    }

    /// Tokens of the vocabulary whose texts, or the texts that they stand for, contain `text`, from
    /// the `start`th of these on; `null` where the model has no vocabulary.
    ///
    /// # Errors
    /// E007 and E008 where a tokenizer file can't be read.
    pub fn vocabulary(&self, text: &str, start: usize) -> std::result::Result<String, JsValue> {
        let all = self.whole_vocabulary().map_err(Thrown::from)?;
        let page = all.map(|all| {
            let contains = |token: &&apr_tokenizer::Token| {
                let stands_for = || all.spelling.bytes(&token.text);
                token.text.contains(text) || String::from_utf8_lossy(&stands_for()).contains(text)
            };
            let found: Vec<_> = all.tokens.iter().filter(contains).collect();
            let shown = |token| ShownToken { token, shown: all.readable(token) };
            FoundTokens {
                source: &all.source,
                total: all.size,
                found: found.len(),
                tokens: found.into_iter().skip(start).take(MOST_TOKENS).map(shown).collect(),
            }
        });
        json(&page)
    }

    /// Names and lengths of the files that travel with the model, and what is left out.
    ///
    /// # Errors
    /// None that are known.
    pub fn companions(&self) -> std::result::Result<String, JsValue> {
        json(&self.reader.companions())
    }

    /// The bytes of one of those files.
    ///
    /// # Errors
    /// E001 where there is none of this name, E007 where it can't be read.
    pub fn companion(&self, name: &str) -> JsResult<Vec<u8>> {
        let found = self.reader.companions().iter().position(|file| file.name == name);
        let missing = || Error::format("no such companion file").in_file(name);
        Ok(self.reader.read_companion(found.ok_or_else(missing)?)?)
    }
}

/// The report of `apr scan` on each of the files.
///
/// # Errors
/// None: what can't be read is a finding.
#[wasm_bindgen]
pub fn scan(files: HostFiles) -> std::result::Result<String, JsValue> {
    let lent = Lent::new(files);
    let scanned = lent.names().map(|name| {
        let report = lent.file(name).and_then(|file| scan_file(file, name, &Limits::default()));
        report.unwrap_or_else(|error| {
            apr_scan::ScanReport::unreadable(name, "file", error.to_string())
        })
    });
    json(&ScanSummary::of(scanned.collect()))
}

impl Model {
    fn signers(&self, trusted: &[String]) -> Result<Vec<String>> {
        let keys = trusted.iter().map(|text| PublicKey::from_pem(text));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let unsigned = || Error::new(Code::Signature, "the file has no signature");
        let signed = self.reader.container().signed()?.ok_or_else(unsigned)?;
        let block = SignBlock::decode(&signed.signatures.ok_or_else(unsigned)?)?;
        let verification = block.verify(&signed.digest, &keys);
        verification.check()?;
        self.reader.container().check_uncovered()?;
        Ok(verification.signers.iter().map(|signer| signer.public.fingerprint()).collect())
    }

    /// Position of a tensor by its name.
    pub(crate) fn position(&self, name: &str) -> JsResult<usize> {
        find(&*self.reader, name).map_err(|_| no_such_tensor(name))
    }

    fn compared(&self, other: &Self, told: &Told) -> Result<apr_ops::diff::DiffReport> {
        let (left, right) = (self.session(), other.session());
        left.beside(&right).diff(&DiffOptions::default(), &Serial, told)
    }
}

pub(crate) fn no_such_tensor(name: &str) -> Thrown {
    Error::format("no such tensor").for_tensor(name).into()
}
