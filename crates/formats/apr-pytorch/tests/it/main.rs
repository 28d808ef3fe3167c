//! Properties of the crate as its users see it; values are compared with what torch itself reads.

use std::path::PathBuf;

use apr_core::{CheckpointReader, Code, Error, Limits, Result, Table};
use apr_pytorch::OpenOptions;

mod arrays;
mod corruption;
mod derived;
mod hostile;
mod shards;
mod today;
mod torch;
mod torchao;
mod values;
mod wrapped;
mod write;

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;

fn golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    std::fs::read(&path).expect("the fixture is in the repository")
}

fn open(file: Vec<u8>) -> Result<Table> {
    apr_pytorch::open(file, "model.pt", &Limits::default())
}

fn open_with(file: Vec<u8>, options: &OpenOptions) -> Result<Table> {
    apr_pytorch::open_with(file, "model.pt", &Limits::default(), options)
}

fn refused(file: Vec<u8>) -> Error {
    open(file).map(drop).expect_err("the file is refused")
}

/// The decoded bytes of a tensor, read in pieces of `piece` bytes.
fn bytes_of(reader: &Table, tensor: usize, piece: usize) -> Vec<u8> {
    let len = reader.tensors()[tensor].byte_len().expect("a possible length");
    let mut bytes = vec![0; usize::try_from(len).expect("a small tensor")];
    let mut offset = 0;
    for chunk in bytes.chunks_mut(piece) {
        reader.read_tensor(tensor, offset, chunk).expect("a tensor of an open file is readable");
        offset += chunk.len() as u64;
    }
    bytes
}
