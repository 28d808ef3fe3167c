//! The portable crates behind plain WebAssembly exports, for `smoke.mjs` to call.
//!
//! JavaScript asks for room (`input`), puts a file there, calls `inspect` or `convert`, and reads the result from where
//! `output` and `output_len` say. Without a binding generator, the module shows what the crates need of their host: nothing.

use std::cell::RefCell;

use apr_core::digest::{Crc32, TensorDigest};
use apr_core::{CheckpointReader, CheckpointWriter, Error, FormatId, Limits, Notes, Result, recognise};
use apr_format::apr2;
use serde_json::{Value, json};

thread_local! {
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static OUTPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The names JavaScript sees.
#[allow(
    unsafe_code,
    reason = "a name that is not mangled may clash with another one; these are the module's only ones"
)]
mod exports {
    use super::{INPUT, OUTPUT, convert_file, describe, inspect_file};

    /// Makes room for a file of `len` bytes.
    #[unsafe(no_mangle)]
    extern "C" fn input(len: usize) -> *mut u8 {
        INPUT.with_borrow_mut(|input| {
            *input = vec![0; len];
            input.as_mut_ptr()
        })
    }

    /// Where the result is.
    #[unsafe(no_mangle)]
    extern "C" fn output() -> *const u8 {
        OUTPUT.with_borrow(Vec::as_ptr)
    }

    /// Length of the result in bytes.
    #[unsafe(no_mangle)]
    extern "C" fn output_len() -> usize {
        OUTPUT.with_borrow(Vec::len)
    }

    /// Checks every checksum of the file and describes its tensors, as JSON. False: the result is the error.
    #[unsafe(no_mangle)]
    extern "C" fn inspect() -> bool {
        finish(inspect_file(INPUT.take()).map(|report| report.to_string().into_bytes()))
    }

    /// Converts the file to APR2. False: the result is the error, as JSON.
    #[unsafe(no_mangle)]
    extern "C" fn convert() -> bool {
        finish(convert_file(INPUT.take()))
    }

    fn finish(result: apr_core::Result<Vec<u8>>) -> bool {
        let is_ok = result.is_ok();
        OUTPUT.set(result.unwrap_or_else(|error| describe(&error).to_string().into_bytes()));
        is_ok
    }
}

fn open(bytes: Vec<u8>) -> Result<Box<dyn CheckpointReader>> {
    let limits = Limits::default();
    match recognise(&bytes) {
        Some(FormatId::Apr2) => Ok(Box::new(apr2::open(bytes, "input", &limits)?)),
        Some(FormatId::Safetensors) => Ok(Box::new(apr_safetensors::open(bytes, "input", &limits)?)),
        _ => Err(Error::format("neither APR2 nor safetensors")),
    }
}

/// The facts that JavaScript compares with its own reading of the file.
fn inspect_file(bytes: Vec<u8>) -> Result<Value> {
    let reader = open(bytes)?;
    let mut tensors = Vec::new();
    for (tensor, info) in reader.tensors().iter().enumerate() {
        let mut digest = TensorDigest::new();
        digest.update(&read_tensor(&*reader, tensor)?);
        let digest = digest.value();
        if reader.digest(tensor).is_some_and(|stated| stated != digest) {
            return Err(Error::checksum("the bytes are not those the digest was taken of").for_tensor(&info.name));
        }
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        tensors.push(json!({
            "name": info.name,
            "dtype": info.dtype,
            "shape": info.shape,
            "offset": reader.stored(tensor).offset,
            "len": info.byte_len()?,
            "blake3": digest,
            "has_digest": reader.digest(tensor).is_some(),
        }));
    }
    check_file(&*reader)?;
    Ok(json!({ "format": reader.format().name(), "tensors": tensors }))
}

/// Compares the checksum over the whole file, where the format has one.
fn check_file(reader: &dyn CheckpointReader) -> Result<()> {
    let Some(checksum) = reader.checksum() else { return Ok(()) };
    let mut crc = Crc32::new();
    for extent in checksum.extents {
        let mut bytes = vec![0; memory_len(extent.len)?];
        reader.read_raw(extent.offset, &mut bytes)?;
        crc.update(&bytes);
    }
    if crc.value() != checksum.crc32 {
        return Err(Error::checksum("the bytes are not those the checksum was taken of"));
    }
    Ok(())
}

/// Converts tensor by tensor.
fn convert_file(bytes: Vec<u8>) -> Result<Vec<u8>> {
    let reader = open(bytes)?;
    let options = apr2::WriteOptions::default();
    let mut writer = apr2::plan(reader.tensors(), reader.metadata(), Vec::new(), &options)?;
    let mut file = Vec::new();
    writer.begin(&mut file)?;
    for planned in writer.layout().tensors.clone() {
        writer.write_chunk(&mut file, &read_tensor(&*reader, planned.source)?, None)?;
    }
    writer.finish(&mut file, &Notes::default())?;
    Ok(file)
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
