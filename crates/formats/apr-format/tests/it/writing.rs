//! How bytes come in: in chunks with sums, in too few or too many, with losses to note, to sinks
//! that can't go back.

use crate::support::{Model, bytes_of, open, tensor};
use apr_core::digest::{CHUNK_LEN, ChunkSums};
use apr_core::{
    CheckpointReader, CheckpointWriter, Code, DType, IoCause, Loss, Notes, Result, Sink, keys,
};
use apr_format::apr2::CompanionFile;

/// A sink that can't seek back.
#[derive(Default)]
struct Pipe(Vec<u8>);

impl Sink for Pipe {
    fn next_file(&mut self, name: &str) -> Result<()> {
        self.0.next_file(name)
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

    fn patch(&mut self, offset: u64, _bytes: &[u8]) -> Result<()> {
        Err(apr_core::Error::io(IoCause::Other, "a pipe can't go back").at(offset))
    }
}

fn write_in_chunks(model: &Model, sink: &mut dyn Sink, chunk: usize, with_sums: bool) {
    let mut writer = model.plan().expect("a model that can be written");
    writer.begin(sink).expect("memory takes everything");
    for tensor in &model.tensors {
        let len = tensor.bytes.len();
        // An empty tensor may come as a chunk of nothing or not at all; both must give the same
        // file.
        let chunks = if len == 0 { vec![&[][..]] } else { tensor.bytes.chunks(chunk).collect() };
        for (i, bytes) in chunks.into_iter().enumerate() {
            let sums = with_sums.then(|| ChunkSums::of(bytes, (i * chunk) as u64, len as u64));
            writer.write_chunk(sink, bytes, sums).expect("the planned bytes");
        }
    }
    writer
        .finish(sink, &Notes { losses: model.losses.clone(), ..Notes::default() })
        .expect("all tensors are there");
}

fn losses(count: usize) -> Vec<Loss> {
    let loss = |i| Loss {
        name: format!("tensor.{i}"),
        what: "precision".into(),
        why: "no such dtype".into(),
    };
    (0..count).map(loss).collect()
}

fn small_model() -> Model {
    let tensors = vec![
        tensor("e", DType::F32, &[0]),
        tensor("w", DType::F32, &[9, 300]),
        tensor("l", DType::U8, &[5000]),
    ];
    let companions = vec![CompanionFile { name: "vocab.bin".into(), bytes: vec![0xfe; 77] }];
    Model { tensors, companions, ..Model::default() }
}

#[test]
fn chunks_with_or_without_sums_give_the_same_file() {
    let mut model = small_model();
    model.tensors.insert(1, tensor("big", DType::U8, &[3 * CHUNK_LEN as u64 + 12_345]));
    model.tensors.push(tensor("last", DType::F32, &[3, 0]));
    let whole = model.write();
    for (chunk, with_sums) in
        [(CHUNK_LEN, true), (1024, true), (4096, true), (CHUNK_LEN, false), (777, false)]
    {
        let mut file = Vec::new();
        write_in_chunks(&model, &mut file, chunk, with_sums);
        assert!(file == whole, "chunks of {chunk}, sums: {with_sums}");
    }
}

#[test]
fn losses_met_on_the_way_are_noted_in_the_metadata() {
    let plain = small_model();
    let model = Model { losses: losses(3), ..small_model() };
    let (without, with) = (plain.write(), model.write());
    assert_eq!(without.len(), with.len(), "the note must not move the data");
    let reader = open(with.clone());
    assert_eq!(reader.metadata().get(keys::LOSS), serde_json::to_value(losses(3)).ok().as_ref());
    assert_eq!(reader.footer().crc32, crc32fast::hash(&with[..with.len() - 16]));
    for (at, tensor) in model.tensors.iter().enumerate() {
        assert_eq!(bytes_of(&reader, at), tensor.bytes);
    }

    // Converted again, with another loss: both are told.
    let again = Model { metadata: reader.metadata().clone(), losses: losses(1), ..small_model() };
    let both = open(again.write())
        .metadata()
        .get(keys::LOSS)
        .and_then(|loss| loss.as_array().map(Vec::len));
    assert_eq!(both, Some(4));
}

#[test]
fn losses_that_do_not_fit_the_slack_are_summed_up() {
    let model = Model { losses: losses(500), ..small_model() };
    let file = model.write();
    assert_eq!(file.len(), small_model().write().len());
    let reader = open(file);
    let noted =
        reader.metadata().get(keys::LOSS).and_then(|loss| loss.as_array()).expect("a summary");
    assert_eq!(noted.len(), 1);
    assert_eq!(noted[0]["what"], "500 entries");
}

#[test]
fn a_pipe_gets_the_same_file_without_the_note() {
    let mut pipe = Pipe::default();
    write_in_chunks(&Model { losses: losses(3), ..small_model() }, &mut pipe, 4096, true);
    assert!(pipe.0 == small_model().write());
}

#[test]
fn bytes_that_were_not_planned_are_refused() {
    let model = small_model();
    let start = || {
        let (mut writer, mut file) = (model.plan().expect("a sound model"), Vec::new());
        writer.begin(&mut file).expect("memory takes everything");
        (writer, file)
    };
    let (mut writer, mut file) = start();
    let error =
        writer.write_chunk(&mut file, &[0; 9 * 300 * 4 + 1], None).expect_err("one byte too many");
    assert_eq!((error.code(), error.tensor()), (Code::Corrupt, Some("w")), "{error}");

    let (mut writer, mut file) = start();
    writer.write_chunk(&mut file, &[0; 9 * 300 * 4], None).expect("the planned bytes");
    writer.write_chunk(&mut file, &[0; 5000 - 77], None).expect("fewer than planned so far");
    // As many as the companion has: they must not be taken for the tensor's.
    let error = writer.finish(&mut file, &Notes::default()).expect_err("77 bytes are missing");
    assert_eq!((error.code(), error.tensor()), (Code::Corrupt, Some("l")), "{error}");
    assert!(error.message().starts_with("77 of 5000"), "{error}");

    let (mut writer, mut file) = start();
    for tensor in &model.tensors {
        writer.write_chunk(&mut file, &tensor.bytes, None).expect("the planned bytes");
    }
    let error =
        writer.write_chunk(&mut file, &[1; 77], None).expect_err("these are not the companion's");
    assert_eq!(error.code(), Code::Corrupt, "{error}");
}

#[test]
fn the_error_of_a_sink_is_reported_unchanged() {
    struct Full;
    impl Sink for Full {
        fn next_file(&mut self, _name: &str) -> Result<()> {
            Ok(())
        }
        fn write_all(&mut self, _bytes: &[u8]) -> Result<()> {
            Err(apr_core::Error::io(IoCause::Other, "no space left"))
        }
        fn position(&self) -> u64 {
            0
        }
        fn can_patch(&self) -> bool {
            true
        }
        fn patch(&mut self, _offset: u64, _bytes: &[u8]) -> Result<()> {
            Ok(())
        }
    }
    let error = small_model()
        .plan()
        .and_then(|mut writer| writer.begin(&mut Full))
        .expect_err("the disk is full");
    assert_eq!(error.code(), Code::Io);
}
