//! GGUF through the one way in and the one way out.

use apr_registry::{
    CheckpointReader, Code, Format, Limits, Notes, PlanOptions, open_folder, open_in, plan,
};
use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use apr_testkit::{FolderInMemory, locate};

fn model() -> GgufBuilder {
    GgufBuilder::new().text("general.architecture", "llama").entry(GgufEntry::i8("a", &[1]))
}

fn part(number: u16) -> Vec<u8> {
    let entry = GgufEntry::i8(if number == 0 { "a" } else { "b" }, &[1]);
    let builder = GgufBuilder::new().text("general.architecture", "llama").u16("split.no", number);
    builder.u16("split.count", 2).i32("split.tensors.count", 2).entry(entry).build()
}

#[test]
fn bytes_decide_that_a_file_is_gguf() {
    let reader =
        apr_registry::open(model().build(), "m.bin", &Limits::default()).expect("a sound file");
    assert_eq!(reader.format(), &apr_registry::gguf::FORMAT);
    let folder = FolderInMemory::from([("m.bin", model().build())]);
    assert_eq!(
        open_in(&folder, "m.bin", &Limits::default()).expect("a sound file").format(),
        &apr_registry::gguf::FORMAT
    );
    let error = apr_registry::open(b"no GGUF".to_vec(), "m.gguf", &Limits::default())
        .err()
        .expect("another format");
    assert!(error.message().contains("this is not GGUF"), "{error}");
}

#[test]
fn a_folder_with_one_gguf_model_is_opened_whole_or_split() {
    let whole = FolderInMemory::from([
        ("m.gguf", model().build()),
        ("config.json", b"{\"hidden_size\": 8}".to_vec()),
    ]);
    let reader = open_folder(&whole, &Limits::default()).expect("one model");
    assert_eq!((reader.tensors().len(), reader.companions().len()), (1, 1));

    let parts = [("m-00001-of-00002.gguf", part(0)), ("m-00002-of-00002.gguf", part(1))];
    let split = FolderInMemory::from(parts.clone());
    let reader = open_folder(&split, &Limits::default()).expect("one model");
    assert_eq!(reader.tensors().len(), 2);
    assert_eq!(reader.warnings(), [""; 0]);
    assert_eq!(reader.left_out(), [""; 0]);
    let reader = open_in(&split, "m-00002-of-00002.gguf", &Limits::default()).expect("one model");
    assert_eq!(reader.files().len(), 2);

    let two = FolderInMemory::from([parts[0].clone(), ("other.gguf", model().build())]);
    let error = open_folder(&two, &Limits::default()).err().expect("two models");
    assert!(error.message().contains("name one of m-00001-of-00002.gguf, other.gguf"), "{error}");
    let cut = FolderInMemory::from([parts[0].clone()]);
    let error = open_folder(&cut, &Limits::default()).err().expect("a part is missing");
    assert_eq!((error.code(), error.file()), (Code::Io, Some("m-00002-of-00002.gguf")));
}

#[test]
fn gguf_is_planned_with_its_alignment() {
    let reader =
        apr_registry::open(model().build(), "m.gguf", &Limits::default()).expect("a sound file");
    let options = PlanOptions {
        alignment: Some(64),
        ..PlanOptions::new(&apr_registry::gguf::FORMAT, "out.gguf")
    };
    let writer =
        plan(reader.tensors(), reader.metadata(), Vec::new(), &options).expect("a valid plan");
    assert_eq!(writer.layout().tensors[0].offset % 64, 0);
    assert_eq!(writer.layout().losses, []);
}

fn converted(reader: &dyn CheckpointReader, format: &'static Format) -> Vec<u8> {
    let mut writer =
        plan(reader.tensors(), reader.metadata(), Vec::new(), &PlanOptions::new(format, "m"))
            .expect("a valid plan");
    assert_eq!(writer.layout().losses, []);
    let order: Vec<_> = writer.layout().tensors.iter().map(|planned| planned.source).collect();
    let mut file = Vec::new();
    writer.begin(&mut file).expect("memory takes everything");
    for tensor in order {
        let len = usize::try_from(reader.stored(tensor).range.len).expect("a small tensor");
        let mut bytes = vec![0; len];
        reader.read_tensor(tensor, 0, &mut bytes).expect("it can be read");
        writer.write_chunk(&mut file, &bytes, None).expect("as planned");
    }
    writer.finish(&mut file, &Notes::default()).expect("every tensor is complete");
    file
}

#[test]
fn a_file_comes_back_from_apr2_byte_for_byte() {
    let mut files =
        vec![model().pair("f", 6, &f32::NAN.to_le_bytes()).text("general.license", "MIT").build()];
    for name in
        ["derived/stories260K_Q8_0.gguf", "gguf/ggerganov_llama.cpp__ggml-vocab-llama-spm.gguf"]
    {
        let Some(path) = locate::shared_data(name) else { break };
        files.push(std::fs::read(path).expect("a readable file"));
    }
    for file in files {
        let reader =
            apr_registry::open(file.clone(), "m.gguf", &Limits::default()).expect("a sound file");
        let native = converted(&*reader, &apr_registry::apr2::FORMAT);
        let native =
            apr_registry::open(native, "m.apr", &Limits::default()).expect("what was written");
        assert!(converted(&*native, &apr_registry::gguf::FORMAT) == file);
    }
}
