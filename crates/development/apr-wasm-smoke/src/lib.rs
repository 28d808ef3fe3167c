//! The portable crates behind plain WebAssembly exports, for `smoke.mjs` to call.
//!
//! JavaScript asks for room (`input`, and `options` where it wants other than the defaults), puts a
//! file and JSON there, calls `inspect`, `convert`, `verify` or `load`, and reads the result from
//! where `output` and `output_len` say. Without a binding generator, the module shows what the
//! crates need of their host: nothing.

mod options;

use std::cell::RefCell;

use apr_core::digest::{Crc32, Digest, TensorDigest};
use apr_core::{CheckpointReader, CheckpointWriter, Code, Error, Limits, Notes, Result};
use apr_format::apr2;
use apr_format::aprn::{self, ModelType};
use apr_format::crypto::SignBlock;
use options::Options;
use serde::Deserialize;
use serde_json::{Value, json};

thread_local! {
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static OPTIONS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static OUTPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The names JavaScript sees.
#[allow(
    unsafe_code,
    reason = "a name that is not mangled may clash with another one; these are the module's only \
        ones"
)]
mod exports {
    use super::{
        INPUT, OPTIONS, OUTPUT, Options, convert_file, describe, inspect_file, load_file,
        verify_file,
    };

    /// Makes room for a file of `len` bytes.
    #[unsafe(no_mangle)]
    extern "C" fn input(len: usize) -> *mut u8 {
        INPUT.with_borrow_mut(|input| {
            *input = vec![0; len];
            input.as_mut_ptr()
        })
    }

    /// Makes room for `len` bytes of options in JSON, for the next call.
    #[unsafe(no_mangle)]
    extern "C" fn options(len: usize) -> *mut u8 {
        OPTIONS.with_borrow_mut(|options| {
            *options = vec![0; len];
            options.as_mut_ptr()
        })
    }

    /// Returns the address of the result.
    #[unsafe(no_mangle)]
    extern "C" fn output() -> *const u8 {
        OUTPUT.with_borrow(Vec::as_ptr)
    }

    /// Length of the result in bytes.
    #[unsafe(no_mangle)]
    extern "C" fn output_len() -> usize {
        OUTPUT.with_borrow(Vec::len)
    }

    /// Checks every checksum of the file and describes its tensors, as JSON. False: the result is
    /// the error.
    #[unsafe(no_mangle)]
    extern "C" fn inspect() -> bool {
        run(|file, options| Ok(inspect_file(file, options)?.to_string().into_bytes()))
    }

    /// Converts the file to APR2. False: the result is the error, as JSON.
    #[unsafe(no_mangle)]
    extern "C" fn convert() -> bool {
        run(convert_file)
    }

    /// Checks that a trusted key signed the file; names the signers, as JSON. False: the result is
    /// the error.
    #[unsafe(no_mangle)]
    extern "C" fn verify() -> bool {
        run(|file, options| Ok(verify_file(file, options)?.to_string().into_bytes()))
    }

    /// Loads a linear regression from an APRN file, as JSON. False: the result is the error.
    #[unsafe(no_mangle)]
    extern "C" fn load() -> bool {
        run(|file, options| Ok(load_file(&file, options)?.to_string().into_bytes()))
    }

    fn run(operation: impl FnOnce(Vec<u8>, &Options) -> apr_core::Result<Vec<u8>>) -> bool {
        let result =
            Options::parse(&OPTIONS.take()).and_then(|options| operation(INPUT.take(), &options));
        let is_ok = result.is_ok();
        OUTPUT.set(result.unwrap_or_else(|error| describe(&error).to_string().into_bytes()));
        is_ok
    }
}

fn open(bytes: Vec<u8>, options: &Options) -> Result<Box<dyn CheckpointReader>> {
    let limits = Limits::default();
    if (apr2::FORMAT.recognises)(&bytes) {
        return Ok(Box::new(apr2::open_with_keys(bytes, "input", &limits, &options.keys())?));
    }
    if (apr_safetensors::FORMAT.recognises)(&bytes) {
        return Ok(Box::new(apr_safetensors::open(bytes, "input", &limits)?));
    }
    Err(Error::format("neither APR2 nor safetensors"))
}

/// The facts that JavaScript compares with its own reading of the file.
fn inspect_file(bytes: Vec<u8>, options: &Options) -> Result<Value> {
    let reader = open(bytes, options)?;
    let mut tensors = Vec::new();
    for (tensor, info) in reader.tensors().iter().enumerate() {
        let stored = reader.stored(tensor);
        let mut verbatim = vec![0; memory_len(stored.range.len)?];
        match stored.encoded() {
            Some(encoded) => encoded.read_verbatim(0, &mut verbatim)?,
            None => reader.read_tensor(tensor, 0, &mut verbatim)?,
        }

        let digest = digest_of(&verbatim);
        if stored.digest().is_some_and(|stated| stated != digest) {
            return Err(Error::checksum("the bytes are not those the digest was taken of")
                .for_tensor(&info.name));
        }

        let hex = |byte: &u8| format!("{byte:02x}");
        let content: String = digest_of(&read_tensor(&*reader, tensor)?).iter().map(hex).collect();
        tensors.push(json!({
            "name": info.name,
            "dtype": info.dtype,
            "shape": info.shape,
            "offset": stored.range.offset,
            "stored_len": stored.range.len,
            "len": info.byte_len()?,
            "blake3": content,
            "has_digest": stored.digest().is_some(),
        }));
    }

    check_file(&*reader)?;
    Ok(json!({ "format": reader.format().name, "tensors": tensors }))
}

fn digest_of(bytes: &[u8]) -> Digest {
    let mut digest = TensorDigest::new();
    digest.update(bytes);
    digest.value()
}

/// Compares the checksum over the whole file, if the format has one.
fn check_file(reader: &dyn CheckpointReader) -> Result<()> {
    let Some(checksum) = reader.container().checksum() else { return Ok(()) };
    let mut crc = Crc32::new();
    for extent in checksum.extents {
        let mut bytes = vec![0; memory_len(extent.len)?];
        reader.container().read_raw(extent.offset, &mut bytes)?;
        crc.update(&bytes);
    }
    if crc.value() != checksum.crc32 {
        return Err(Error::checksum("the bytes are not those the checksum was taken of"));
    }
    Ok(())
}

/// Converts tensor by tensor.
fn convert_file(bytes: Vec<u8>, options: &Options) -> Result<Vec<u8>> {
    let reader = open(bytes, options)?;
    let mut writer =
        apr2::plan(reader.tensors(), reader.metadata(), Vec::new(), &options.writing()?)?;
    let mut file = Vec::new();
    writer.begin(&mut file)?;
    for planned in writer.layout().tensors.clone() {
        writer.write_chunk(&mut file, &read_tensor(&*reader, planned.source)?, None)?;
    }
    writer.finish(&mut file, &Notes::default())?;
    Ok(file)
}

/// The fingerprints of the signers, at least one of whom is trusted.
fn verify_file(bytes: Vec<u8>, options: &Options) -> Result<Value> {
    let reader = open(bytes, options)?;
    let signed = reader.container().signed()?;
    let unsigned = || Error::new(Code::Signature, "the file has no signature");
    let signed = signed.ok_or_else(unsigned)?;
    let signatures = SignBlock::decode(&signed.signatures.ok_or_else(unsigned)?)?;
    let verification = signatures.verify(&signed.digest, &options.trusted());
    verification.check()?;
    reader.container().check_uncovered()?;
    Ok(verification.signers.iter().map(|signer| signer.public.fingerprint()).collect())
}

/// A model as programs of their own define it, field by field as it was saved.
#[derive(Deserialize)]
struct LinearRegression {
    coefficients: Option<Coefficients>,
    intercept: f32,
    fit_intercept: bool,
}

#[derive(Deserialize)]
struct Coefficients {
    data: Vec<f32>,
}

fn load_file(bytes: &[u8], options: &Options) -> Result<Value> {
    let loaded = aprn::load_from_bytes_with(bytes, ModelType::LinearRegression, &options.loading());
    let model: LinearRegression = loaded.map_err(aprn::Andon::into_error)?;
    Ok(json!({
        "coefficients": model.coefficients.map(|coefficients| coefficients.data),
        "intercept": model.intercept,
        "fit_intercept": model.fit_intercept,
    }))
}

fn read_tensor(reader: &dyn CheckpointReader, tensor: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; memory_len(reader.tensors()[tensor].byte_len()?)?];
    reader.read_tensor(tensor, 0, &mut bytes)?;
    Ok(bytes)
}

/// A length that this machine's memory can have.
fn memory_len(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Error::memory(format!("{len} bytes do not fit in memory")))
}

fn describe(error: &Error) -> Value {
    json!({ "code": error.code().id(), "message": error.to_string() })
}
