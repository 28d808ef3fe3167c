//! Properties of the crate as its users see it, against the reference library where there is one to
//! compare with.

use std::collections::BTreeMap;

use apr_core::{
    ByteSource, CheckpointReader, CheckpointWriter, Code, DType, Error, IoCause, Limits,
    MemoryFolder, Metadata, Notes, Result, Shape, Sink, SourceSet, Table, TensorInfo,
};
use apr_safetensors::{WriteOptions, dtype_name, plan};
use safetensors::SafeTensors;

mod bad;
mod corpus;
mod large;
mod official;
mod shards;
mod write;

/// Returns a file with this header and this data.
fn file(header: impl AsRef<[u8]>, data: &[u8]) -> Vec<u8> {
    let header = header.as_ref();
    [&(header.len() as u64).to_le_bytes()[..], header, data].concat()
}

/// Returns a file with this header, padded as required, and this data.
fn padded_file(header: &str, data: &[u8]) -> Vec<u8> {
    file(format!("{header:width$}", width = header.len().next_multiple_of(8)), data)
}

/// Returns a header entry.
fn entry(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

fn tensor(name: &str, dtype: DType, dims: &[u64]) -> TensorInfo {
    TensorInfo { name: name.into(), dtype, shape: Shape::from(dims.to_vec()) }
}

fn open(file: Vec<u8>) -> Result<Table> {
    apr_safetensors::open(file, "model.safetensors", &Limits::default())
}

/// Returns the decoded bytes of a tensor. Asserts that reading and borrowing agree.
fn bytes_of(reader: &Table, tensor: usize) -> Vec<u8> {
    let stored = reader.stored(tensor).range;
    assert_eq!(reader.tensors()[tensor].byte_len(), Ok(stored.len));
    let mut bytes = vec![0; usize::try_from(stored.len).expect("a small tensor")];
    reader.read_tensor(tensor, 0, &mut bytes).expect("a tensor of an open file is readable");
    assert_eq!(reader.tensor_slice(tensor), Some(&bytes[..]));
    bytes
}

/// Returns the tensors with their bytes, in stored order.
fn contents(reader: &Table) -> Vec<(TensorInfo, Vec<u8>)> {
    reader
        .tensors()
        .iter()
        .cloned()
        .enumerate()
        .map(|(i, info)| (info, bytes_of(reader, i)))
        .collect()
}

/// Writes tensors in pieces of `chunk` bytes.
fn write_to(
    sink: &mut dyn Sink,
    tensors: &[(TensorInfo, Vec<u8>)],
    metadata: &Metadata,
    options: &WriteOptions,
    chunk: usize,
) -> Result<()> {
    let infos: Vec<_> = tensors.iter().map(|(info, _)| info.clone()).collect();
    let mut writer = plan(&infos, metadata, options)?;
    let order: Vec<_> = writer.layout().tensors.iter().map(|planned| planned.source).collect();
    writer.begin(sink)?;
    for source in order {
        for bytes in tensors[source].1.chunks(chunk) {
            writer.write_chunk(sink, bytes, None)?;
        }
    }
    writer.finish(sink, &Notes::default())
}

fn write(
    tensors: &[(TensorInfo, Vec<u8>)],
    metadata: &Metadata,
    options: &WriteOptions,
) -> Vec<u8> {
    let mut file = Vec::new();
    write_to(&mut file, tensors, metadata, options, 1 << 20).expect("a valid plan");
    file
}

fn rewrite(reader: &Table, options: &WriteOptions) -> Vec<u8> {
    write(&contents(reader), reader.metadata(), options)
}

/// Dtype, shape and bytes by name.
type ByName = BTreeMap<String, (String, Vec<u64>, Vec<u8>)>;

/// Returns the tensors that the reference library reads, or its error.
fn official(file: &[u8]) -> Result<ByName, safetensors::SafeTensorError> {
    let tensors = SafeTensors::deserialize(file)?;
    let view = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        let shape = view.shape().iter().map(|&dim| dim as u64).collect();
        (name.to_owned(), (format!("{:?}", view.dtype()), shape, view.data().to_vec()))
    };
    Ok(tensors.iter().map(view).collect())
}

/// Returns the tensors of our reader in the same form.
fn ours(reader: &Table) -> ByName {
    let named = |(info, bytes): (TensorInfo, Vec<u8>)| {
        let dtype = dtype_name(info.dtype).expect("a dtype of the format").to_owned();
        (info.name, (dtype, info.shape.dims().to_vec(), bytes))
    };
    contents(reader).into_iter().map(named).collect()
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

/// A model's folder in memory.
#[derive(Clone, Default)]
struct Folder(BTreeMap<String, Vec<u8>>);

impl From<MemoryFolder> for Folder {
    fn from(folder: MemoryFolder) -> Self {
        Self(folder.files().clone())
    }
}

impl SourceSet for Folder {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        match self.0.get(name) {
            Some(file) => Ok(Box::new(file.clone())),
            None => Err(Error::io(IoCause::NotFound, "no such file")),
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.0.keys().cloned().collect())
    }
}
