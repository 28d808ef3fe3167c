//! Checkpoints made from the input's bytes.

use apr_core::CheckpointReader;
use apr_registry::gguf::{self, Array, KeyValue, Value};
use apr_registry::{
    CheckpointWriter, DType, Limits, MemoryFolder, Metadata, Notes, Shape, TensorInfo, apr2, keys,
};
use apr_testkit::FolderInMemory;
use arbitrary::{Arbitrary, Unstructured};

/// Maximum number of bytes of a generated tensor. Larger tensors only make a run slower.
const MAX_TENSOR: u64 = 1 << 14;

#[derive(Debug, Arbitrary)]
struct Tensor {
    name: String,
    dtype: u8,
    dims: Vec<u8>,
    fill: u8,
    chunk: u8,
}

#[derive(Debug, Arbitrary)]
struct Checkpoint {
    tensors: Vec<Tensor>,
    companions: Vec<(String, Vec<u8>)>,
    align_32: bool,
}

/// Makes a checkpoint from the input, writes it as APR2, and reads it back.
pub fn roundtrip_apr2(data: &[u8]) {
    let Ok(checkpoint) = Checkpoint::arbitrary(&mut Unstructured::new(data)) else { return };
    let tensors: Vec<(&Tensor, TensorInfo, u64)> =
        checkpoint.tensors.iter().filter_map(describe).collect();
    let infos: Vec<TensorInfo> = tensors.iter().map(|(_, info, _)| info.clone()).collect();
    let companions = checkpoint.companions.iter();
    let companions: Vec<_> = companions
        .map(|(name, bytes)| apr2::CompanionFile { name: name.clone(), bytes: bytes.clone() })
        .collect();
    let options =
        apr2::WriteOptions { align_32: checkpoint.align_32, ..apr2::WriteOptions::default() };

    // Names may be empty, twice, or not plain; the plan says so.
    let Ok(mut writer) = apr2::plan(&infos, &Metadata::new(), companions.clone(), &options) else {
        return;
    };
    let planned = writer.layout().clone();

    let mut sink = MemoryFolder::default();
    writer.begin(&mut sink).expect("memory takes everything");
    let contents: Vec<Vec<u8>> =
        tensors.iter().map(|(tensor, _, len)| content(*len, tensor.fill)).collect();
    for (content, (tensor, _, _)) in contents.iter().zip(&tensors) {
        for chunk in content.chunks(usize::from(tensor.chunk) + 1) {
            writer.write_chunk(&mut sink, chunk, None).expect("lengths are as planned");
        }
    }

    writer.finish(&mut sink, &Notes::default()).expect("every tensor is complete");

    let file = sink.files().values().next().cloned().unwrap_or_default();
    assert_eq!(file.len() as u64, planned.total_len(), "the plan told the length");
    let reader =
        apr2::open(file, "generated", &Limits::default()).expect("what was written can be read");
    assert_eq!(reader.tensors(), infos);
    assert_eq!(reader.warnings(), [""; 0]);
    for (at, content) in contents.iter().enumerate() {
        assert_eq!(reader.tensor_bytes(&infos[at].name).expect("it is there").as_ref(), content);
    }

    assert_eq!(reader.companions().len(), companions.len());
    for (at, companion) in reader.companions().iter().enumerate() {
        let original =
            companions.iter().find(|file| file.name == companion.name).expect("names are kept");
        assert_eq!(reader.read_companion(at).expect("it is there"), original.bytes);
    }
}

/// A GGUF checkpoint: pairs of all kinds, and how to lay it out.
#[derive(Debug, Arbitrary)]
struct GgufCheckpoint {
    tensors: Vec<Tensor>,
    pairs: Vec<(String, Pair)>,
    alignment: Option<u8>,
    shard_size: Option<u16>,
}

#[derive(Debug, Arbitrary)]
enum Pair {
    Text(String),
    Texts(Vec<String>),
    U32(u32),
    I64(i64),
    F32(u32),
    F64(u64),
    Bools(Vec<bool>),
    Floats(Vec<u32>),
    Nested(Vec<Vec<i8>>),
}

impl From<&Pair> for Value {
    fn from(pair: &Pair) -> Self {
        match pair {
            Pair::Text(text) => text.as_str().into(),
            Pair::Texts(texts) => texts.clone().into(),
            Pair::U32(number) => (*number).into(),
            Pair::I64(number) => (*number).into(),
            Pair::F32(bits) => f32::from_bits(*bits).into(),
            Pair::F64(bits) => f64::from_bits(*bits).into(),
            Pair::Bools(items) => items.clone().into(),
            Pair::Floats(bits) => {
                bits.iter().copied().map(f32::from_bits).collect::<Vec<_>>().into()
            }
            Pair::Nested(arrays) => {
                Self::Array(Array::Array(arrays.iter().cloned().map(Array::I8).collect()))
            }
        }
    }
}

/// Makes a checkpoint from the input, writes it as GGUF, whole or in parts, and reads it back.
pub fn roundtrip_gguf(data: &[u8]) {
    let Ok(checkpoint) = GgufCheckpoint::arbitrary(&mut Unstructured::new(data)) else { return };
    let tensors: Vec<(&Tensor, TensorInfo, u64)> =
        checkpoint.tensors.iter().filter_map(describe).collect();
    let infos: Vec<TensorInfo> = tensors.iter().map(|(_, info, _)| info.clone()).collect();
    let pairs: Vec<_> =
        checkpoint.pairs.iter().map(|(key, pair)| KeyValue::new(key.as_str(), pair)).collect();
    let json: Vec<_> = pairs.iter().map(KeyValue::to_json).collect();
    let mut metadata = Metadata::new();
    metadata.set(
        keys::GGUF,
        [("kv".to_owned(), json.into())].into_iter().collect::<serde_json::Map<_, _>>(),
    );
    let options = gguf::WriteOptions {
        alignment: checkpoint.alignment.map(|power| 1 << (power % 13)),
        shard_size: checkpoint.shard_size.map(u64::from),
        ..gguf::WriteOptions::default()
    };

    // Names may be too long or twice, dtypes absent from ggml; the plan says so.
    let Ok(mut writer) = gguf::plan(&infos, &metadata, &options) else { return };
    let planned = writer.layout().clone();

    let mut sink = MemoryFolder::default();
    writer.begin(&mut sink).expect("memory takes everything");
    let contents: Vec<Vec<u8>> =
        tensors.iter().map(|(tensor, _, len)| content(*len, tensor.fill)).collect();
    for (content, (tensor, _, _)) in contents.iter().zip(&tensors) {
        for chunk in content.chunks(usize::from(tensor.chunk) + 1) {
            writer.write_chunk(&mut sink, chunk, None).expect("lengths are as planned");
        }
    }

    writer.finish(&mut sink, &Notes::default()).expect("every tensor is complete");

    let written: u64 = sink.files().values().map(|file| file.len() as u64).sum();
    assert_eq!(written, planned.total_len(), "the plan told the length");
    let folder = FolderInMemory(sink.files().clone());
    let first = folder.0.keys().next().cloned().unwrap_or_default();
    let reader = gguf::open_split(&folder, &first, &Limits::default())
        .expect("what was written can be read");
    assert_eq!(reader.files().len(), planned.files.len());
    for (at, (info, content)) in infos.iter().zip(&contents).enumerate() {
        let found = reader.tensors().iter().position(|other| other == info).expect("it is there");
        let mut bytes = vec![0; content.len()];
        reader.read_tensor(found, 0, &mut bytes).expect("it can be read");
        assert_eq!(&bytes, content, "tensor {at} keeps its bytes");
    }

    let kept =
        |pair: &&KeyValue| !pair.key.starts_with("split.") && pair.key != "general.alignment";
    let read = gguf::key_values(reader.metadata())
        .expect("what a reader gives")
        .expect("a reader gives them")
        .to_vec();
    let (read, given): (Vec<_>, Vec<_>) =
        (read.iter().filter(kept).collect(), pairs.iter().filter(kept).collect());
    assert_eq!(format!("{read:?}"), format!("{given:?}"), "pairs are kept");
}

fn describe(tensor: &Tensor) -> Option<(&Tensor, TensorInfo, u64)> {
    let dtype = DType::ALL[usize::from(tensor.dtype) % DType::ALL.len()];
    let shape = Shape::from(
        tensor.dims.iter().take(Shape::MAX_DIMS).map(|&dim| dim.into()).collect::<Vec<u64>>(),
    );
    let len = dtype.stored_len(&shape).filter(|&len| len <= MAX_TENSOR)?;
    Some((tensor, TensorInfo { name: tensor.name.clone(), dtype, shape }, len))
}

fn content(len: u64, fill: u8) -> Vec<u8> {
    (0..len).map(|at| at.to_le_bytes()[0] ^ fill).collect()
}
