//! Checkpoints made from the input's bytes.

use apr::{CheckpointWriter, DType, Limits, MemoryFolder, Metadata, Notes, Shape, TensorInfo, apr2};
use apr_core::CheckpointReader;
use arbitrary::{Arbitrary, Unstructured};

/// Most bytes of a generated tensor; more only makes a run slower.
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
    let tensors: Vec<(&Tensor, TensorInfo, u64)> = checkpoint.tensors.iter().filter_map(describe).collect();
    let infos: Vec<TensorInfo> = tensors.iter().map(|(_, info, _)| info.clone()).collect();
    let companions = checkpoint.companions.iter();
    let companions: Vec<_> =
        companions.map(|(name, bytes)| apr2::CompanionFile { name: name.clone(), bytes: bytes.clone() }).collect();
    let options = apr2::WriteOptions { align_32: checkpoint.align_32, ..apr2::WriteOptions::default() };
    // Names may be empty, twice, or not plain; the plan says so.
    let Ok(mut writer) = apr2::plan(&infos, &Metadata::new(), companions.clone(), &options) else { return };
    let planned = writer.layout().clone();

    let mut sink = MemoryFolder::default();
    writer.begin(&mut sink).expect("memory takes everything");
    let contents: Vec<Vec<u8>> = tensors.iter().map(|(tensor, _, len)| content(*len, tensor.fill)).collect();
    for (content, (tensor, _, _)) in contents.iter().zip(&tensors) {
        for chunk in content.chunks(usize::from(tensor.chunk) + 1) {
            writer.write_chunk(&mut sink, chunk, None).expect("lengths are as planned");
        }
    }
    writer.finish(&mut sink, &Notes::default()).expect("every tensor is complete");

    let file = sink.files().values().next().cloned().unwrap_or_default();
    assert_eq!(file.len() as u64, planned.total_len(), "the plan told the length");
    let reader = apr2::open(file, "generated", &Limits::default()).expect("what was written can be read");
    assert_eq!(reader.tensors(), infos);
    assert_eq!(reader.warnings(), [""; 0]);
    for (at, content) in contents.iter().enumerate() {
        assert_eq!(reader.tensor_bytes(&infos[at].name).expect("it is there").as_ref(), content);
    }
    assert_eq!(reader.companions().len(), companions.len());
    for (at, companion) in reader.companions().iter().enumerate() {
        let original = companions.iter().find(|file| file.name == companion.name).expect("names are kept");
        assert_eq!(reader.read_companion(at).expect("it is there"), original.bytes);
    }
}

fn describe(tensor: &Tensor) -> Option<(&Tensor, TensorInfo, u64)> {
    let dtype = DType::ALL[usize::from(tensor.dtype) % DType::ALL.len()];
    let shape = Shape::from(tensor.dims.iter().take(Shape::MAX_DIMS).map(|&dim| dim.into()).collect::<Vec<u64>>());
    let len = dtype.stored_len(&shape).filter(|&len| len <= MAX_TENSOR)?;
    Some((tensor, TensorInfo { name: tensor.name.clone(), dtype, shape }, len))
}

fn content(len: u64, fill: u8) -> Vec<u8> {
    (0..len).map(|at| at.to_le_bytes()[0] ^ fill).collect()
}
