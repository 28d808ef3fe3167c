//! The writer's bytes, what it refuses, and that our own reader takes them.

use apr_core::{
    CheckpointWriter, DType, FileInfo, IoCause, MemoryFolder, Metadata, Notes, PlannedTensor,
    Shape, Sink, TensorInfo, keys,
};
use apr_pytorch::{PytorchWriter, WriteOptions, plan};
use apr_testkit::{corrupt, peak_memory, read_everything};
use serde_json::json;

use super::*;

pub(crate) const DTYPES: [DType; 11] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U8,
    DType::BOOL,
    DType::C64,
];

/// Dtypes that PyTorch has only since versions 2.1 to 2.7.
pub(crate) const LATER: [DType; 8] = [
    DType::F8_E4M3,
    DType::F8_E5M2,
    DType::F8_E4M3FNUZ,
    DType::F8_E5M2FNUZ,
    DType::F8_E8M0,
    DType::U16,
    DType::U32,
    DType::U64,
];

pub(crate) fn info(name: &str, dtype: DType, dims: &[u64]) -> TensorInfo {
    TensorInfo { name: name.into(), dtype, shape: Shape::from(dims.to_vec()) }
}

/// A tensor with bytes that no other has; every byte of a boolean is one.
pub(crate) fn tensor(name: &str, dtype: DType, dims: &[u64]) -> (TensorInfo, Vec<u8>) {
    let info = info(name, dtype, dims);
    let len = usize::try_from(info.byte_len().expect("a possible length")).expect("a small tensor");
    let seed = name.bytes().fold(7_usize, |seed, byte| seed * 31 % 65_521 + usize::from(byte));
    let byte = |at: usize| ((at * at + at * 57 + seed) % 251).to_le_bytes()[0];
    let bytes =
        (0..len).map(|at| if dtype == DType::BOOL { byte(at) & 1 } else { byte(at) }).collect();
    (info, bytes)
}

pub(crate) fn tied(pairs: &[(&str, &str)]) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set(
        keys::TIED,
        pairs.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect::<serde_json::Map<_, _>>(),
    );
    metadata
}

/// Writes tensors in pieces of `chunk` bytes.
pub(crate) fn write_to(
    sink: &mut dyn Sink,
    tensors: &[(TensorInfo, Vec<u8>)],
    metadata: &Metadata,
    chunk: usize,
) -> Result<PytorchWriter> {
    let infos: Vec<_> = tensors.iter().map(|(info, _)| info.clone()).collect();
    let mut writer = plan(&infos, metadata, &WriteOptions::default())?;
    let order: Vec<_> = writer.layout().tensors.iter().map(|planned| planned.source).collect();
    writer.begin(sink)?;
    for source in order {
        for bytes in tensors[source].1.chunks(chunk) {
            writer.write_chunk(sink, bytes, None)?;
        }
    }
    writer.finish(sink, &Notes::default())?;
    Ok(writer)
}

/// The file, once it is known to be as planned.
pub(crate) fn write(tensors: &[(TensorInfo, Vec<u8>)], metadata: &Metadata) -> Vec<u8> {
    let mut file = Vec::new();
    let writer = write_to(&mut file, tensors, metadata, 1 << 16).expect("a valid plan");
    let len = file.len() as u64;
    assert_eq!(writer.layout().files, [FileInfo { name: "model.pt".into(), len }]);
    for PlannedTensor { source, file: _, offset, len } in &writer.layout().tensors {
        let (offset, len) =
            (usize::try_from(*offset).expect("small"), usize::try_from(*len).expect("small"));
        assert_eq!(file[offset..offset + len], tensors[*source].1, "{}", tensors[*source].0.name);
        assert_eq!(offset % 64, 0);
    }
    file
}

fn contents(reader: &Table) -> Vec<(TensorInfo, Vec<u8>)> {
    reader
        .tensors()
        .iter()
        .cloned()
        .enumerate()
        .map(|(i, info)| (info, bytes_of(reader, i, 1 << 16)))
        .collect()
}

fn plan_of(tensors: &[TensorInfo]) -> Result<PytorchWriter> {
    plan(tensors, &Metadata::new(), &WriteOptions::default())
}

#[track_caller]
fn assert_refused<T>(result: Result<T>, code: Code, expected: &str) {
    let Err(error) = result else { panic!("accepted, instead of {code} '{expected}'") };
    assert_eq!(error.code(), code, "{error}");
    assert!(error.to_string().contains(expected), "'{expected}' is not in: {error}");
}

/// A small checkpoint with everything that is special.
pub(crate) fn sample() -> (Vec<(TensorInfo, Vec<u8>)>, Metadata) {
    let mut tensors = vec![
        tensor("embed.weight", DType::F32, &[3, 2]),
        tensor("scalar", DType::BF16, &[]),
        tensor("empty", DType::I64, &[0, 3]),
        tensor("größe\n", DType::BOOL, &[5]),
        tensor("head.weight", DType::F32, &[3, 2]),
    ];
    tensors[4].1 = tensors[0].1.clone();
    (tensors, tied(&[("head.weight", "embed.weight")]))
}

#[test]
fn written_files_are_read_back_unchanged() {
    let (tensors, metadata) = sample();
    let reader = open(write(&tensors, &metadata)).expect("what we write");
    assert_eq!(contents(&reader), tensors);
    assert_eq!(reader.metadata().get(keys::TIED), metadata.get(keys::TIED));
    assert!(reader.warnings().is_empty(), "{:?}", reader.warnings());
    assert_eq!(reader.stored(0).range, reader.stored(4).range);
    assert!(open(write(&[], &Metadata::new())).expect("an empty one").tensors().is_empty());
}

#[test]
fn any_tensors_in_any_pieces_give_the_same_file() {
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..200 {
        let tensors: Vec<_> = (0..random(9))
            .map(|i| {
                let dtype = DTYPES[usize::try_from(random(11)).expect("small")];
                let dims: Vec<_> = (0..random(6)).map(|_| random(5)).collect();
                tensor(
                    &format!("{}.{i}", "läyer".repeat(usize::try_from(random(40)).expect("small"))),
                    dtype,
                    &dims,
                )
            })
            .collect();
        let file = write(&tensors, &Metadata::new());
        for chunk in [1, 3, 64] {
            let mut pieces = Vec::new();
            write_to(&mut pieces, &tensors, &Metadata::new(), chunk).expect("a valid plan");
            assert!(pieces == file, "round {round} in pieces of {chunk}");
        }
        assert_eq!(contents(&open(file).expect("what we write")), tensors, "round {round}");
    }
}

#[test]
fn invalid_ties_are_written_as_separate_tensors() {
    let tensors = ["a", "b", "c", "d"]
        .map(|name| info(name, DType::U8, if name == "d" { &[3][..] } else { &[2] }));
    let streamed = |pairs: &[(&str, &str)]| {
        let writer = plan(&tensors, &tied(pairs), &WriteOptions::default()).expect("a valid plan");
        writer.layout().tensors.iter().map(|planned| planned.source).collect::<Vec<_>>()
    };
    assert_eq!(streamed(&[("b", "a"), ("c", "a")]), [0, 3]);
    assert_eq!(streamed(&[("a", "c")]), [1, 2, 3]);
    assert_eq!(streamed(&[("d", "a"), ("b", "absent"), ("absent", "a")]), [0, 1, 2, 3]);
    assert_eq!(streamed(&[("a", "b"), ("b", "a"), ("c", "c")]), [0, 1, 2, 3]);
    let mut metadata = Metadata::new();
    for nonsense in [json!(["a", "b"]), json!({"b": 1})] {
        metadata.set(keys::TIED, nonsense);
        assert_eq!(
            plan(&tensors, &metadata, &WriteOptions::default())
                .expect("a plan")
                .layout()
                .tensors
                .len(),
            4
        );
    }
}

/// A sink that cannot seek or patch.
struct Pipe(Vec<u8>);

impl Sink for Pipe {
    fn next_file(&mut self, _: &str) -> Result<()> {
        Err(Error::io(IoCause::Other, "a pipe is one file"))
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes)
    }

    fn position(&self) -> u64 {
        self.0.position()
    }

    fn can_patch(&self) -> bool {
        false
    }

    fn patch(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::io(IoCause::Other, "a pipe can't go back"))
    }
}

#[test]
fn a_pipe_gets_the_same_file_and_a_folder_gets_its_name() {
    let (tensors, metadata) = sample();
    let mut pipe = Pipe(Vec::new());
    write_to(&mut pipe, &tensors, &metadata, 5).expect("a pipe is enough");
    assert_eq!(pipe.0, write(&tensors, &metadata));

    let options = WriteOptions { file_name: "pytorch_model.bin".into(), named_files: true };
    let mut folder = MemoryFolder::default();
    let mut writer = plan(&[], &Metadata::new(), &options).expect("a valid plan");
    writer.begin(&mut folder).expect("memory");
    writer.finish(&mut folder, &Notes::default()).expect("memory");
    assert!(folder.files().keys().eq(["pytorch_model.bin"]));
    assert!(folder.files()["pytorch_model.bin"][30..].starts_with(b"pytorch_model/data.pkl"));
    let outside = WriteOptions { file_name: "../m.pt".into(), named_files: true };
    assert_refused(plan(&[], &Metadata::new(), &outside), Code::Format, "not a plain file name");
}

#[test]
fn seventy_thousand_tensors_need_and_get_the_wide_count() {
    let tensors: Vec<_> =
        (0..70_000).map(|i| tensor(&format!("layers.{i}.weight"), DType::U8, &[1])).collect();
    let file = write(&tensors, &Metadata::new());
    let end = file.len() - 22;
    assert_eq!(file[end + 8..end + 12], [0xff; 4], "the narrow counts give way");
    let reader = open(file).expect("what we write");
    assert!(reader.tensors().iter().eq(tensors.iter().map(|(info, _)| info)));
    assert_eq!(bytes_of(&reader, 69_999, 1), tensors[69_999].1);
}

/// Keeps what is written around the tensors, which are zero and large.
struct Sparse {
    len: u64,
    pieces: Vec<(u64, Vec<u8>)>,
}

impl Sink for Sparse {
    fn next_file(&mut self, _: &str) -> Result<()> {
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() < 1 << 20 {
            self.pieces.push((self.len, bytes.to_vec()));
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn position(&self) -> u64 {
        self.len
    }

    fn can_patch(&self) -> bool {
        false
    }

    fn patch(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::io(IoCause::Other, "what was written is not kept"))
    }
}

impl apr_core::ByteSource for Sparse {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|&end| end <= self.len);
        let end = end.ok_or_else(|| Error::corrupt("a read past the end").at(offset))?;
        buf.fill(0);
        for (at, piece) in &self.pieces {
            let (from, to) = (offset.max(*at), end.min(at + piece.len() as u64));
            if from < to {
                let place =
                    |base: u64, at: u64| usize::try_from(at - base).expect("within a buffer");
                buf[place(offset, from)..place(offset, to)]
                    .copy_from_slice(&piece[place(*at, from)..place(*at, to)]);
            }
        }
        Ok(())
    }
}

#[test]
fn entries_over_four_gibibytes_have_the_planned_offsets() {
    let wide = (1_u64 << 32) + 4096;
    let tensors = [
        info("before", DType::U8, &[3]),
        info("wide", DType::U8, &[wide]),
        info("after", DType::F32, &[2]),
        info("empty", DType::F32, &[0]),
    ];
    let mut writer = plan_of(&tensors).expect("a valid plan");
    let mut sink = Sparse { len: 0, pieces: Vec::new() };
    writer.begin(&mut sink).expect("memory");
    writer.write_chunk(&mut sink, b"abc", None).expect("memory");
    assert_eq!(sink.len, writer.layout().tensors[1].offset);
    let zeros = vec![0; 1 << 24];
    // Checksums of zeros are put together, not computed.
    let sums = apr_core::digest::ChunkSums::of(&zeros, 0, wide);
    for _ in 0..256 {
        writer.write_chunk(&mut sink, &zeros, Some(sums)).expect("memory");
    }
    let rest = vec![0; 4096];
    let sums = apr_core::digest::ChunkSums::of(&rest, 0, 4096);
    writer.write_chunk(&mut sink, &rest, Some(sums)).expect("memory");
    writer.write_chunk(&mut sink, b"12345678", None).expect("memory");
    writer.finish(&mut sink, &Notes::default()).expect("memory");

    assert_eq!(sink.len, writer.layout().total_len());
    let planned = writer.layout().tensors.clone();
    let reader = apr_pytorch::open(sink, "wide.pt", &Limits::default()).expect("what we write");
    assert_eq!(reader.tensors(), tensors);
    for (tensor, planned) in planned.iter().enumerate().take(3) {
        assert_eq!(
            (reader.stored(tensor).range.offset, reader.stored(tensor).range.len),
            (planned.offset, planned.len)
        );
    }
    assert_eq!(bytes_of(&reader, 2, 8), b"12345678");
}

#[test]
fn plans_of_terabytes_are_arithmetic() {
    let tensors: Vec<_> =
        (0..64).map(|i| info(&format!("w{i}"), DType::BF16, &[1 << 19, 1 << 20])).collect();
    let writer = plan_of(&tensors).expect("a valid plan");
    assert!(
        writer
            .layout()
            .tensors
            .windows(2)
            .all(|pair| pair[1].offset - pair[0].offset - pair[0].len < 200)
    );
    assert!(writer.layout().total_len() > 64 << 40);
}

#[test]
fn bytes_off_the_plan_are_refused() {
    let tensors = [info("a", DType::U8, &[4]), info("b", DType::U8, &[4])];
    let mut writer = plan_of(&tensors).expect("a valid plan");
    let mut file = Vec::new();
    writer.begin(&mut file).expect("memory");
    let written = file.clone();
    assert_refused(
        writer.write_chunk(&mut file, &[0; 5], None),
        Code::Corrupt,
        "tensor 'a': received 5 more bytes",
    );
    assert_eq!(file, written);
    writer.write_chunk(&mut file, &[0; 3], None).expect("three of four");
    assert_refused(
        writer.finish(&mut file, &Notes::default()),
        Code::Corrupt,
        "tensor 'a': it ends after 3 bytes",
    );
    writer.write_chunk(&mut file, &[0], None).expect("the fourth");
    assert_refused(
        writer.finish(&mut file, &Notes::default()),
        Code::Corrupt,
        "tensor 'b': it ends after 0 bytes",
    );
    writer.write_chunk(&mut file, &[0; 4], None).expect("tensor b");
    assert_refused(
        writer.write_chunk(&mut file, &[0], None),
        Code::Corrupt,
        "after the last planned tensor",
    );
    writer.finish(&mut file, &Notes::default()).expect("the plan is fulfilled");
    assert!(open(file).is_ok());
}

#[test]
fn tensors_that_a_state_dict_cannot_hold_are_rejected() {
    let format = Code::Format;
    assert_refused(
        plan_of(&[info("q", DType::Q4_0, &[32])]),
        format,
        "tensor 'q': a state dict does not support q4_0; `deq",
    );
    for dtype in [DType::F6_E2M3, DType::F6_E3M2, DType::F4_E2M1] {
        let expected = format!("PyTorch does not support {dtype}; cast the tensor first");
        assert_refused(plan_of(&[info("x", dtype, &[4])]), format, &expected);
    }
    for &dtype in DType::ALL {
        assert_eq!(
            plan_of(&[info("x", dtype, &[0])]).is_ok(),
            DTYPES.contains(&dtype) || LATER.contains(&dtype),
            "{dtype}"
        );
    }
    assert_refused(plan_of(&[info("", DType::U8, &[1])]), format, "an empty name");
    assert_refused(
        plan_of(&[info(&"n".repeat(65_536), DType::U8, &[1])]),
        format,
        "65536 bytes long",
    );
    assert_refused(plan_of(&[info("d", DType::U8, &[1; 65])]), format, "tensor 'd': 65 dimensions");
    assert_refused(
        plan_of(&[info("a", DType::U8, &[1]), info("a", DType::U8, &[1])]),
        format,
        "two tensors",
    );
    assert_refused(
        plan_of(&[info("z", DType::U8, &[0, 1 << 63])]),
        format,
        "tensor 'z': PyTorch can't count",
    );
    let large = info("a", DType::U8, &[(1 << 63) - 1]);
    let endless = [large.clone(), TensorInfo { name: "b".into(), ..large.clone() }];
    assert_refused(plan_of(&endless), Code::Memory, "2^64");

    let longest = tensor(&"n".repeat(65_535), DType::U8, &[1; 64]);
    assert_eq!(
        contents(
            &open(write(std::slice::from_ref(&longest), &Metadata::new())).expect("what we write")
        ),
        [longest]
    );
}

#[test]
fn metadata_without_a_place_is_a_loss() {
    let mut metadata = Metadata::new();
    for key in ["apr_version", "model_type", "architecture", "source", "loss", "files", "tied"] {
        metadata.set(key, json!({}));
    }
    let lost = |metadata: &Metadata| {
        let writer = plan(&[], metadata, &WriteOptions::default()).expect("a valid plan");
        writer.layout().losses.iter().map(|loss| loss.name.clone()).collect::<Vec<_>>()
    };
    metadata.set("safetensors", json!({"metadata": {"format": "pt"}}));
    assert!(lost(&metadata).is_empty());
    metadata.set("safetensors", json!({"metadata": {"format": "pt", "author": "x"}}));
    metadata.set("tokenizer", "t");
    assert_eq!(lost(&metadata), ["safetensors", "tokenizer"]);
}

#[test]
fn truncated_files_are_rejected_and_flipped_bits_are_handled() {
    let (tensors, metadata) = sample();
    let file = write(&tensors, &metadata);
    for cut in corrupt::truncations(&file) {
        assert!(open(cut).is_err());
    }
    for flipped in corrupt::bit_flips(&file, 0..file.len()) {
        let ((), peak) = peak_memory(|| {
            if let Ok(reader) = open(flipped) {
                let total: u64 =
                    reader.tensors().iter().filter_map(|info| info.byte_len().ok()).sum();
                if total < 1 << 20 {
                    read_everything(&reader).expect("what opens is readable");
                }
            }
        });
        assert!(peak < 64 << 20, "{peak} bytes held");
    }
}
