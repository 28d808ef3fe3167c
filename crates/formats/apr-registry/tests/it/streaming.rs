//! Loading tensor by tensor: what is read for it, and what is checked.

use std::sync::{Arc, Mutex};

use apr_registry::crypto::{Argon2Costs, EncrBlock, Lock, Unlock};
use apr_registry::{
    ByteSource, CheckpointReader, Code, DType, Error, IoCause, Limits, MemoryFolder, Metadata,
    Notes, OpenOptions, Result, SourceSet, StreamingLoader, TensorInfo, TensorLoader, apr2,
};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::{CountingSource, FolderInMemory, SparseSource, corrupt};

/// A tensor of a gigabyte takes part without taking memory.
const LARGE: u64 = 1 << 30;

const BUDGET: u64 = 1 << 20;

fn tensor(name: &str, len: u64) -> TensorInfo {
    TensorInfo { name: name.into(), dtype: DType::U8, shape: [len].into() }
}

fn write(
    tensors: &[(&str, Vec<u8>)],
    metadata: &Metadata,
    shard_size: Option<u64>,
) -> FolderInMemory {
    write_with(tensors, metadata, &apr2::WriteOptions::default(), shard_size.unwrap_or(u64::MAX))
}

fn write_with(
    tensors: &[(&str, Vec<u8>)],
    metadata: &Metadata,
    options: &apr2::WriteOptions,
    shard_size: u64,
) -> FolderInMemory {
    let infos: Vec<TensorInfo> =
        tensors.iter().map(|(name, bytes)| tensor(name, bytes.len() as u64)).collect();
    let mut writer = apr2::plan_shards(&infos, metadata, Vec::new(), options, shard_size)
        .expect("a model to be written");
    let mut folder = MemoryFolder::default();
    writer.begin(&mut folder).expect("memory takes everything");
    for planned in writer.layout().tensors.clone() {
        writer
            .write_chunk(&mut folder, &tensors[planned.source].1, None)
            .expect("the planned bytes");
    }
    writer.finish(&mut folder, &Notes::default()).expect("all tensors are there");
    let mut files = folder.files().clone();
    if let Some(only) = files.remove("") {
        files.insert("model.apr".into(), only);
    }
    FolderInMemory(files)
}

/// Writes the model encrypted with the password `open sesame`.
fn write_encrypted(tensors: &[(&str, Vec<u8>)], shard_size: u64) -> FolderInMemory {
    let costs = Argon2Costs { m: 8, t: 1, p: 1 };
    let locks = [Lock::Password { password: b"open sesame".to_vec().into(), costs }];
    let mut random = |bytes: &mut [u8]| {
        bytes.fill(7);
        Ok(())
    };
    let (block, key) = EncrBlock::seal(&locks, &mut random).expect("one lock");
    let encryption = Some(apr2::Encrypt { block, key, hide_metadata: false });
    write_with(
        tensors,
        &Metadata::new(),
        &apr2::WriteOptions { encryption, ..Default::default() },
        shard_size,
    )
}

fn with_password(password: &str) -> OpenOptions {
    let mut options = OpenOptions::default();
    options.keys.unlock.push(Unlock::Password(password.as_bytes().to_vec().into()));
    options
}

fn three() -> Vec<(&'static str, Vec<u8>)> {
    vec![("a", vec![1; 1000]), ("b", vec![2; 70]), ("c", vec![3; 16])]
}

/// A folder that remembers which files were opened, and counts what is read of each.
#[derive(Default)]
struct CountingFolder {
    files: FolderInMemory,
    sources: Mutex<Vec<(String, CountingSource<Vec<u8>>)>>,
}

impl CountingFolder {
    fn of(files: FolderInMemory) -> Self {
        Self { files, sources: Mutex::default() }
    }

    /// Reads and bytes of a file.
    fn counts(&self, name: &str) -> (u64, u64) {
        let sources = self.sources.lock().expect("no test panics with it");
        let of_file = sources.iter().filter(|(file, _)| file == name);
        of_file.fold((0, 0), |(reads, bytes), (_, source)| {
            (reads + source.reads(), bytes + source.bytes_read())
        })
    }
}

impl SourceSet for CountingFolder {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        let bytes = self
            .files
            .0
            .get(name)
            .ok_or_else(|| Error::io(IoCause::NotFound, "no such file").in_file(name))?;
        let source = CountingSource::new(bytes.clone());
        self.sources
            .lock()
            .expect("no test panics with it")
            .push((name.to_owned(), source.clone()));
        Ok(Box::new(source))
    }

    fn list(&self) -> Result<Vec<String>> {
        self.files.list()
    }
}

/// The front of a file with a large tensor, as the writer makes it, and the file's tail behind a
/// hole.
#[derive(Clone)]
struct Holed {
    head: Vec<u8>,
    tail: Vec<u8>,
    len: u64,
}

impl ByteSource for Holed {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        SparseSource::new(self.head.clone(), self.len).read_at(offset, buf)?;
        let tail_start = self.len - self.tail.len() as u64;
        for (at, byte) in (offset..).zip(buf.iter_mut()).filter(|(at, _)| *at >= tail_start) {
            *byte = self.tail[usize::try_from(at - tail_start).expect("a small tail")];
        }
        Ok(())
    }
}

/// A file of a gigabyte of zeros, `huge`, and a small tensor after it, without the gigabyte.
fn large_file() -> Holed {
    let small = [7_u8; 100];
    // Packed by hand: as if `huge` were empty, then with its size and what lies behind moved by
    // that much.
    let build = |huge: u64| {
        let entry = |name: &str, dims: &[u64], offset: u64, size: u64| Apr2Entry {
            dims: dims.to_vec(),
            offset: Some(offset),
            size: Some(size),
            ..Apr2Entry::of_bytes(name, &[])
        };
        Apr2Builder { digests: false, ..Apr2Builder::new() }
            .entry(entry("huge", &[huge], 0, huge))
            .entry(entry("small", &[100], huge, 100))
    };
    let builder = build(LARGE);
    let data = u64::from(builder.data_start());
    let mut head = builder.build();
    head.truncate(usize::try_from(data).expect("a small front"));

    let mut tail = small.to_vec();
    tail.resize(128, 0);
    // Nobody reads `huge`, so that its digest does not matter.
    let digests = [[0; 32], *blake3::hash(&small).as_bytes()].concat();
    tail.extend(
        [
            &b"DGST"[..],
            &1_u32.to_le_bytes(),
            &72_u64.to_le_bytes(),
            &[1, 0, 0, 0, 0, 0, 0, 0],
            &digests,
        ]
        .concat(),
    );
    tail.resize(256, 0);
    let len = data + LARGE + tail.len() as u64 + 16;
    tail.extend([&0_u32.to_le_bytes()[..], b"2RPA", &len.to_le_bytes()].concat());
    Holed { head, tail, len }
}

#[test]
fn one_tensor_of_a_large_file_takes_four_reads() {
    let file = large_file();
    let front = file.head.len() as u64;
    let source = CountingSource::new(file);
    let mut loader = TensorLoader::open(source.clone(), "m.apr", &Limits::default(), BUDGET)
        .expect("a sound file");
    let trailer = 128 + 16;
    assert_eq!(source.reads(), 3, "header, rest of the front, trailer");
    assert!(
        source.bytes_read() <= front + trailer,
        "{} of {front} and {trailer}",
        source.bytes_read()
    );

    let before = source.bytes_read();
    assert_eq!(loader.load_tensor("small").expect("it is there").bytes.as_ref(), [7; 100]);
    assert_eq!((source.reads(), source.bytes_read() - before), (4, 100));
    assert_eq!(loader.load_index().expect("it is read").len(), 2);
    assert!(loader.load_metadata().expect("it is read").get("apr_version").is_some());
    assert_eq!(source.reads(), 4);
}

#[test]
fn prefetched_tensors_are_not_read_again() {
    let folder = write(&three(), &Metadata::new(), None);
    let source = CountingSource::new(folder.0["model.apr"].clone());
    let mut loader = TensorLoader::open(source.clone(), "m.apr", &Limits::default(), BUDGET)
        .expect("a sound file");
    loader.prefetch(&["c", "a", "no such tensor"]);
    let reads = source.reads();
    assert_eq!(reads, 5);
    for name in ["a", "c", "a"] {
        let expected =
            three().into_iter().find(|(known, _)| *known == name).expect("one of three").1;
        let loaded = loader.load_tensor(name).expect("it is there");
        assert_eq!(
            (loaded.bytes.as_ref(), &loaded.info),
            (&*expected, &tensor(name, expected.len() as u64))
        );
    }
    loader.prefetch(&["a"]);
    assert_eq!(source.reads(), reads);
    loader.load_tensor("b").expect("it is there");
    assert_eq!(source.reads(), reads + 1);
}

#[test]
fn the_cache_keeps_within_its_budget_and_drops_what_was_used_longest_ago() {
    let tensors: Vec<(&str, Vec<u8>)> =
        ["a", "b", "c", "d"].map(|name| (name, vec![0; 100])).to_vec();
    let folder = write(&tensors, &Metadata::new(), None);
    let source = CountingSource::new(folder.0["model.apr"].clone());
    let mut loader =
        TensorLoader::open(source.clone(), "m.apr", &Limits::default(), 250).expect("a sound file");
    let reads = |loader: &mut TensorLoader, name: &str| {
        let before = source.reads();
        loader.load_tensor(name).expect("it is there");
        source.reads() - before
    };
    // Two of three fit; those asked for in the same breath don't push each other out.
    loader.prefetch(&["a", "b", "c"]);
    assert_eq!(
        [reads(&mut loader, "b"), reads(&mut loader, "a"), reads(&mut loader, "c")],
        [0, 0, 1]
    );
    // b was used before a.
    loader.prefetch(&["d"]);
    assert_eq!(
        [reads(&mut loader, "a"), reads(&mut loader, "d"), reads(&mut loader, "b")],
        [0, 0, 1]
    );
}

#[test]
fn a_damaged_tensor_is_e004_by_its_name_and_the_others_load() {
    let folder = write(&three(), &Metadata::new(), None);
    let file = folder.0["model.apr"].clone();
    let reader = apr2::open(file.clone(), "m.apr", &Limits::default()).expect("a sound file");
    let at = usize::try_from(reader.stored(1).range.offset).expect("a small file");
    for damaged in corrupt::bit_flips(&file, at..at + 70) {
        let mut loader = TensorLoader::open(damaged, "m.apr", &Limits::default(), BUDGET)
            .expect("a sound front");
        loader.prefetch(&["b"]);
        let error = loader.load_tensor("b").expect_err("a flipped bit");
        assert_eq!(
            (error.code(), error.tensor(), error.file()),
            (Code::Checksum, Some("b"), Some("m.apr"))
        );
        loader.load_tensor("a").expect("it is sound");
    }
}

#[test]
fn a_damaged_tensor_is_found_through_the_one_tied_to_it() {
    let tied = Apr2Entry { flags: 1 << 13, ..Apr2Entry::new("head", DType::U8, &[70], &[]) };
    let metadata =
        r#"{"apr_version":"2.0.0","architecture":{},"model_type":"x","tied":{"head":"embed"}}"#;
    let file = Apr2Builder::new()
        .metadata(metadata)
        .entry(Apr2Entry::of_bytes("embed", &[5; 70]))
        .entry(tied);
    let at = usize::try_from(file.data_start()).expect("a small file");
    let mut loader = TensorLoader::open(file.build(), "m.apr", &Limits::default(), BUDGET)
        .expect("a sound file");
    assert_eq!(loader.load_tensor("head").expect("it is tied").bytes.as_ref(), [5; 70]);
    let damaged = corrupt::overwrite(&file.build(), at, &[6]);
    let mut loader =
        TensorLoader::open(damaged, "m.apr", &Limits::default(), BUDGET).expect("a sound front");
    assert_eq!(loader.load_tensor("head").expect_err("another byte").code(), Code::Checksum);
}

#[test]
fn a_tensor_of_an_encrypted_file_loads_without_the_others() {
    let tensors = [("a", vec![1; 200_000]), ("b", vec![2; 70]), ("c", vec![3; 200_000])];
    let folder = write_encrypted(&tensors, u64::MAX);
    let source = CountingSource::new(folder.0["model.apr"].clone());
    let mut loader =
        TensorLoader::open(source.clone(), "m.apr", with_password("open sesame"), BUDGET)
            .expect("the password");
    assert_eq!(loader.load_tensor("b").expect("it is there").bytes.as_ref(), [2; 70]);
    assert!(source.bytes_read() < 10_000, "{} bytes", source.bytes_read());

    let open = |options: OpenOptions| {
        TensorLoader::open(folder.0["model.apr"].clone(), "m.apr", options, BUDGET)
    };
    let mut without = open(OpenOptions::default()).expect("its front is readable");
    assert_eq!(without.load_index().expect("it is readable").len(), 3);
    assert_eq!(without.load_tensor("b").expect_err("no key").code(), Code::Decrypt);
    assert_eq!(
        open(with_password("open barley")).expect_err("a wrong password").code(),
        Code::Decrypt
    );
}

#[test]
fn a_tensor_of_encrypted_shards_loads_from_its_shard() {
    let folder = CountingFolder::of(write_encrypted(&three(), 1000));
    let mut loader =
        TensorLoader::open_in(&folder, "model.apr", with_password("open sesame"), BUDGET)
            .expect("the password");
    assert_eq!(loader.load_tensor("c").expect("it is there").bytes.as_ref(), [3; 16]);
    assert_eq!(folder.counts("model-00001-of-00002.apr"), (0, 0));
}

#[test]
fn an_unknown_name_is_e001() {
    let folder = write(&three(), &Metadata::new(), None);
    let mut loader = TensorLoader::open_in(&folder, "model.apr", &Limits::default(), BUDGET)
        .expect("a sound file");
    let error = loader.load_tensor("d").expect_err("there are three");
    assert_eq!(error.to_string(), "E001: model.apr: tensor 'd': no such tensor");
}

#[test]
fn only_the_manifest_and_the_shard_of_the_tensor_are_read() {
    let folder = CountingFolder::of(write(&three(), &Metadata::new(), Some(1000)));
    let mut loader = TensorLoader::open_in(&folder, "model.apr", &Limits::default(), BUDGET)
        .expect("a sound model");
    let shard = |number: u32| folder.counts(&format!("model-0000{number}-of-00002.apr"));
    assert_eq!(loader.load_index().expect("the manifest tells").len(), 3);
    assert_eq!((shard(1), shard(2)), ((0, 0), (0, 0)));
    let manifest = folder.files.0["model.apr"].len() as u64;
    assert_eq!(folder.counts("model.apr"), (2, manifest));

    assert_eq!(loader.load_tensor("b").expect("it is there").bytes.as_ref(), [2; 70]);
    assert_eq!(shard(1), (0, 0));
    assert_eq!(shard(2).0, 4);
    loader.load_tensor("c").expect("it is there");
    assert_eq!((shard(1).0, shard(2).0), (0, 5));
}

#[test]
fn a_missing_shard_is_e007_for_its_tensors_only() {
    let mut files = write(&three(), &Metadata::new(), Some(1000));
    files.0.remove("model-00001-of-00002.apr");
    let mut loader = TensorLoader::open_in(&files, "model.apr", &Limits::default(), BUDGET)
        .expect("the manifest tells");
    assert_eq!(loader.load_tensor("b").expect("its shard is there").bytes.as_ref(), [2; 70]);
    let error = loader.load_tensor("a").expect_err("its shard is not");
    assert_eq!((error.code(), error.file()), (Code::Io, Some("model-00001-of-00002.apr")));
}

#[test]
fn any_checkpoint_can_be_loaded_from() {
    let header = br#"{"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header, &[9; 8]].concat();
    let reader =
        apr_registry::open(file, "m.safetensors", &Limits::default()).expect("a sound file");
    let mut loader = TensorLoader::new(reader, BUDGET);
    let bytes: Arc<[u8]> = loader.load_tensor("bias").expect("it is there").bytes;
    assert_eq!(bytes.as_ref(), [9; 8]);
}

#[test]
fn a_broken_file_is_the_same_error_behind_few_reads() {
    let folder = write(&three(), &Metadata::new(), None);
    let file = &folder.0["model.apr"];
    let sweep = corrupt::truncations(file).chain(corrupt::bit_flips(file, 0..256)).step_by(3);
    for broken in sweep {
        let plain =
            apr2::open(CountingSource::new(broken.clone()), "m.apr", &Limits::default()).map(drop);
        let few =
            TensorLoader::open(CountingSource::new(broken), "m.apr", &Limits::default(), BUDGET)
                .map(drop);
        assert_eq!(plain, few);
    }
}

#[test]
fn a_folder_opens_by_its_manifest_and_a_single_shard_has_a_warning() {
    let folder = write(&three(), &Metadata::new(), Some(1000));
    let reader = apr_registry::open_folder(&folder, &Limits::default()).expect("one model");
    assert_eq!((reader.tensors().len(), reader.container().shard_count()), (3, 2));
    assert_eq!((reader.warnings(), reader.left_out()), (&[][..], &[][..]));

    let shard = folder.0["model-00002-of-00002.apr"].clone();
    let alone = apr_registry::open(shard, "model-00002-of-00002.apr", &Limits::default())
        .expect("a file of its own");
    assert_eq!(alone.tensors().len(), 2);
    assert!(alone.warnings()[0].contains("shard 2 of 2 only"), "{:?}", alone.warnings());

    let mut without = folder.clone();
    let manifest = without.0.remove("model.apr").expect("it was written");
    let error =
        apr_registry::open_folder(&without, &Limits::default()).map(drop).expect_err("no manifest");
    assert!(
        error.to_string().contains("shard 1 of 2, and the folder does not contain the manifest"),
        "{error}"
    );
    let error = apr_registry::open(manifest, "model.apr", &Limits::default())
        .map(drop)
        .expect_err("no folder");
    assert!(error.message().contains("the manifest of a sharded model"), "{error}");
}
