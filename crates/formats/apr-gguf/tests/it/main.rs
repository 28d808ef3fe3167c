//! Properties of the crate as its users see it, on files packed by hand and files of llama.cpp.

use apr_core::{
    CheckpointReader, CheckpointWriter, Code, Error, Limits, Metadata, Notes, Result, Sink,
    SourceSet, Table, TensorInfo,
};
use apr_gguf::{KeyValue, WriteOptions, key_values, plan};
use apr_testkit::PeakAlloc;

mod bad;
mod corpus;
mod endian;
mod ggml;
mod json;
mod read;
mod splits;
mod sweep;
mod tail;
mod write;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

fn open(file: Vec<u8>) -> Result<Table> {
    apr_gguf::open(file, "model.gguf", &Limits::default())
}

fn open_split(set: &dyn SourceSet, name: &str) -> Result<Table> {
    apr_gguf::open_split(set, name, &Limits::default())
}

fn bytes_of(reader: &dyn CheckpointReader, tensor: usize) -> Vec<u8> {
    let stored = reader.stored(tensor).range;
    assert_eq!(reader.tensors()[tensor].byte_len(), Ok(stored.len));
    let mut bytes = vec![0; usize::try_from(stored.len).expect("a small tensor")];
    reader.read_tensor(tensor, 0, &mut bytes).expect("a tensor of an open file is readable");
    if let Some(slice) = reader.tensor_slice(tensor) {
        assert_eq!(slice, bytes);
    }
    bytes
}

/// Returns the tensors with their bytes, in stored order.
fn contents(reader: &dyn CheckpointReader) -> Vec<(TensorInfo, Vec<u8>)> {
    reader
        .tensors()
        .iter()
        .cloned()
        .enumerate()
        .map(|(i, info)| (info, bytes_of(reader, i)))
        .collect()
}

fn pairs(reader: &Table) -> Vec<KeyValue> {
    key_values(reader.metadata())
        .expect("what a reader gave")
        .expect("a reader gives them")
        .to_vec()
}

fn write_to(
    sink: &mut dyn Sink,
    tensors: &[(TensorInfo, Vec<u8>)],
    metadata: &Metadata,
    options: &WriteOptions,
) -> Result<()> {
    let infos: Vec<_> = tensors.iter().map(|(info, _)| info.clone()).collect();
    let mut writer = plan(&infos, metadata, options)?;
    let order: Vec<_> = writer.layout().tensors.iter().map(|planned| planned.source).collect();
    writer.begin(sink)?;
    for source in order {
        // In pieces of an odd length.
        for bytes in tensors[source].1.chunks(1001) {
            writer.write_chunk(sink, bytes, None)?;
        }
    }
    writer.finish(sink, &Notes::default())
}

/// Writes the checkpoint again. Asserts that the plan stated the length.
fn rewrite(reader: &dyn CheckpointReader, options: &WriteOptions) -> Vec<u8> {
    let mut file = Vec::new();
    write_to(&mut file, &contents(reader), reader.metadata(), options).expect("a valid plan");
    let planned = plan(reader.tensors(), reader.metadata(), options).expect("a valid plan");
    assert_eq!(planned.layout().total_len(), file.len() as u64);
    file
}

/// Asserts that a result is an error of this code whose message contains `expected`, on one line
/// and no longer than one.
#[track_caller]
fn assert_refused<T>(result: Result<T>, code: Code, expected: &str) -> Error {
    let Err(error) = result else { panic!("accepted, instead of {code} '{expected}'") };
    let message = error.to_string();
    assert_eq!(error.code(), code, "{message}");
    assert!(message.contains(expected), "'{expected}' is not in: {message}");
    assert!(message.len() < 1000 && !message.contains(char::is_control), "{message}");
    error
}
