//! Readers over readers: whatever way the tensors below are stored, each shows the right bytes and
//! says nothing of how they are stored that does not hold for what it shows.

#![cfg(all(feature = "compression", feature = "encryption", feature = "quantize"))]

use std::collections::BTreeMap;

use apr_arch::Families;
use apr_ops::convert::{ConvertOptions, plan};
use apr_quantize::TensorTarget;
use apr_registry::apr2::{Encrypt, Keys, WriteOptions};
use apr_registry::codec::Choice;
use apr_registry::crypto::{Argon2Costs, EncrBlock, Lock, Unlock};
use apr_registry::digest::TensorDigest;
use apr_registry::{
    CheckpointReader, DType, MemoryFolder, OpenOptions, PlanOptions, Serial, open_folder, open_in,
};
use apr_source::Source;
use apr_testkit::FolderInMemory;
use apr_testkit::locate::fixture;
use apr_view::{Unpacked, View};
use apr_watermark::{Carriers, MarkKey, Marked};

/// Costs that tests can afford.
const CHEAP: Argon2Costs = Argon2Costs { m: 8, t: 1, p: 1 };

type Bytes = BTreeMap<String, Vec<u8>>;

/// Storage of a model.
#[derive(Debug, Clone, Copy)]
struct Storage {
    compressed: bool,
    encrypted: bool,
    sharded: bool,
}

/// Every way; the plain one is first.
fn storages() -> Vec<Storage> {
    let way = |bits: u8| Storage {
        compressed: bits & 1 != 0,
        encrypted: bits & 2 != 0,
        sharded: bits & 4 != 0,
    };
    (0..8).map(way).collect()
}

fn options() -> OpenOptions {
    let keys = Keys {
        unlock: vec![Unlock::Password(b"correct horse".to_vec().into())],
        ..Keys::default()
    };
    OpenOptions { keys, ..OpenOptions::default() }
}

/// A folder with a model's companions and its weights in an `.apr` file of this kind.
fn stored(
    model: &dyn CheckpointReader,
    companions: &FolderInMemory,
    storage: Storage,
) -> FolderInMemory {
    let mut fixed = |bytes: &mut [u8]| {
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 37 + 11).to_le_bytes()[0]);
        Ok(())
    };
    let lock = Lock::Password { password: b"correct horse".to_vec().into(), costs: CHEAP };
    let (block, key) = EncrBlock::seal(&[lock], &mut fixed).expect("a lock");
    let encryption = storage.encrypted.then_some(Encrypt { block, key, hide_metadata: false });
    let compression = storage.compressed.then_some(Choice::Auto);
    let target = PlanOptions {
        shard_size: storage.sharded.then_some(300_000),
        apr2: WriteOptions { compression, encryption, ..WriteOptions::default() },
        ..PlanOptions::new(&apr_registry::apr2::FORMAT, "model.apr")
    };
    let mut folder = written(model, &target);
    let files = companions.0.iter().filter(|(name, _)| !name.ends_with(".safetensors"));
    folder.0.extend(files.map(|(name, bytes)| (name.clone(), bytes.clone())));
    folder
}

fn written(model: &dyn CheckpointReader, target: &PlanOptions) -> FolderInMemory {
    let mut sink = MemoryFolder::default();
    let conversion = plan(model, &ConvertOptions::default(), target).expect("it can be written");
    conversion
        .run(model, &mut sink, &Serial, &())
        .unwrap_or_else(|error| panic!("{}: {error}", target.file_name));
    let named = |(name, bytes): (&String, &Vec<u8>)| {
        (if name.is_empty() { target.file_name.clone() } else { name.clone() }, bytes.clone())
    };
    FolderInMemory(sink.files().iter().map(named).collect())
}

/// All tensors, each read in two parts.
fn read(reader: &dyn CheckpointReader) -> Bytes {
    let tensors = reader.tensors().iter().enumerate();
    let bytes = tensors.map(|(at, info)| {
        let mut bytes =
            vec![0; usize::try_from(info.byte_len().expect("a length")).expect("small")];
        let third = bytes.len() / 3;
        let (front, back) = bytes.split_at_mut(third);
        reader.read_tensor(at, 0, front).unwrap_or_else(|error| panic!("{}: {error}", info.name));
        reader
            .read_tensor(at, front.len() as u64, back)
            .unwrap_or_else(|error| panic!("{}: {error}", info.name));
        if let Some(slice) = reader.tensor_slice(at) {
            assert!(slice == bytes, "{}: what is lent is what is read", info.name);
        }
        (info.name.clone(), bytes)
    });
    bytes.collect()
}

/// Checks that stated digests and lengths match the bytes that can be read from the file.
fn assert_consistent(reader: &dyn CheckpointReader, what: &str) {
    for (at, info) in reader.tensors().iter().enumerate() {
        let stored = reader.stored(at);
        let len = match stored.encoded() {
            Some(_) => stored.range.len,
            None => info.byte_len().expect("a length"),
        };
        let mut bytes = vec![0; usize::try_from(len).expect("small")];
        match stored.encoded() {
            Some(encoded) => encoded.read_verbatim(0, &mut bytes).expect("it is there"),
            None => reader.read_tensor(at, 0, &mut bytes).expect("it is there"),
        }
        let mut digest = TensorDigest::new();
        digest.update(&bytes);
        assert!(
            stored.digest().is_none_or(|stated| stated == digest.value()),
            "{what}: digest of {}",
            info.name
        );
        assert!(stored.digest().is_none() || stored.crc32().is_none(), "{what}: {}", info.name);
        if let (Some(form), Some(encoded)) = (stored.form(), stored.encoded()) {
            let mut bytes = vec![0; usize::try_from(form.len).expect("small")];
            encoded.read_form(0, &mut bytes).expect("it can be decrypted");
            assert!(encoded.read_form(1, &mut bytes).is_err(), "{what}: {} ends", info.name);
        }
    }
}

/// Checks that a wrapping reader returns these bytes, and that files written from it contain them.
fn assert_shows(reader: &dyn CheckpointReader, expected: &Bytes, what: &str) {
    assert!(read(reader) == *expected, "{what}");
    assert_consistent(reader, what);
    for target in [
        PlanOptions::new(&apr_registry::apr2::FORMAT, "out.apr"),
        PlanOptions::new(&apr_registry::safetensors::FORMAT, "out.safetensors"),
    ] {
        let folder = written(reader, &target);
        let again = open_in(&folder, &target.file_name, OpenOptions::default())
            .expect("it was just written");
        assert!(read(&*again) == *expected, "{what} -> {}", target.file_name);
    }
}

/// Calls `each` with a model in every storage, the plain one first.
fn in_every_storage(
    model: &dyn CheckpointReader,
    companions: &FolderInMemory,
    mut each: impl FnMut(&dyn CheckpointReader, &str),
) {
    for storage in storages() {
        let folder = stored(model, companions, storage);
        let reader = open_folder(&folder, options()).expect("it was just written");
        each(&reader, &format!("{storage:?}"));
    }
}

/// Bytes through a reader over the model, which has to be the same over every storage as over the
/// plain one.
fn assert_same_over_every_storage(
    model: &dyn CheckpointReader,
    companions: &FolderInMemory,
    over: impl Fn(&dyn CheckpointReader, &dyn Fn(&dyn CheckpointReader)),
) {
    let expected = std::cell::OnceCell::new();
    in_every_storage(model, companions, |reader, what| {
        over(reader, &|wrapper| {
            assert_shows(wrapper, expected.get_or_init(|| read(wrapper)), what);
        });
    });
}

fn tiny_llama() -> FolderInMemory {
    let names = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];
    let file =
        |name: &str| std::fs::read(fixture("tiny-llama").join(name)).expect("the fixture is there");
    FolderInMemory(names.iter().map(|name| ((*name).to_owned(), file(name))).collect())
}

#[test]
fn a_folder_shows_the_weights_however_they_are_stored() {
    let folder = tiny_llama();
    let model = open_folder(&folder, options()).expect("a model");
    let expected = read(&model);
    in_every_storage(&model, &folder, |reader, what| {
        assert_shows(reader, &expected, what);
        assert_eq!(reader.companions().len(), model.companions().len(), "{what}");
        assert!(reader.stored(0).is_encoded() || what.contains("encrypted: false"), "{what}");
    });
}

#[test]
fn a_view_shows_renamed_and_selected_tensors_however_they_are_stored() {
    let folder = tiny_llama();
    let model = open_folder(&folder, options()).expect("a model");
    let all = read(&model);
    let under = |(name, bytes): (&String, &Vec<u8>)| {
        Some((format!("x.{}", name.strip_prefix("model.layers.")?), bytes.clone()))
    };
    let mut expected: Bytes = all.iter().filter_map(under).collect();
    expected.insert("added".to_owned(), vec![1, 2, 3]);
    in_every_storage(&model, &folder, |reader, what| {
        let mut view = View::new(reader);
        view.select("model.layers.").expect("there are layers");
        view.rename(|_, name| Some(format!("x.{name}")));
        view.sort_by_key(|name| std::cmp::Reverse(name.to_owned()));
        let info = apr_registry::TensorInfo {
            name: "added".to_owned(),
            dtype: DType::U8,
            shape: vec![3].into(),
        };
        view.add(info, vec![1, 2, 3]);
        assert_shows(&view, &expected, what);
    });
}

#[test]
fn a_mark_is_put_into_weights_however_they_are_stored() {
    let folder = tiny_llama();
    let model = open_folder(&folder, options()).expect("a model");
    let key = MarkKey::from_secret(b"sixteen secret bytes").expect("long enough");
    assert_same_over_every_storage(&model, &folder, |reader, assert| {
        let carriers = Carriers::survey(reader, None, &Serial, &()).expect("weights");
        let marked =
            Marked::new(reader, &carriers, &key, "buyer", Some(0.1)).expect("room for a mark");
        assert!(read(&marked) != read(reader), "the mark changes weights");
        assert(&marked);
    });
}

#[test]
fn llama_cpps_layout_is_made_of_weights_however_they_are_stored() {
    let folder = tiny_llama();
    let model = open_folder(&folder, options()).expect("a model");
    let families = Families::builtin();
    assert_same_over_every_storage(&model, &folder, |reader, assert| {
        let exported =
            apr_llama::export(&Source::new(reader, &families), Vec::new()).expect("a LLaMA");
        assert(&exported.view);
    });
}

#[test]
fn quantized_tensors_are_taken_apart_however_they_are_stored() {
    let folder = tiny_llama();
    let model = open_folder(&folder, options()).expect("a model");
    let target = |info: &apr_registry::TensorInfo| {
        let rows_are_blocks =
            info.shape.dims().len() == 2 && info.shape.row_len().is_multiple_of(32);
        rows_are_blocks.then(|| TensorTarget::from(DType::Q8_0))
    };
    let options = ConvertOptions {
        targets: model.tensors().iter().map(target).collect(),
        ..ConvertOptions::default()
    };
    let mut file = Vec::new();
    let conversion =
        plan(&model, &options, &PlanOptions::new(&apr_registry::apr2::FORMAT, "q.apr"))
            .expect("a plan");
    conversion.run(&model, &mut file, &Serial, &()).expect("it is quantized");
    let quantized =
        apr_registry::open(file, "q.apr", OpenOptions::default()).expect("it was just written");
    assert!(Unpacked::is_needed(&*quantized));
    assert_same_over_every_storage(&*quantized, &FolderInMemory::default(), |reader, assert| {
        assert(&Unpacked::new(reader.into()).expect("blocks with plain scales"));
    });
}
