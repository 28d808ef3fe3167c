//! Files and folders as sources.

use std::fs;

use apr_core::{
    ByteSource, CheckpointReader, CheckpointWriter, Code, DType, IoCause, Metadata, Notes,
    SourceSet, TensorInfo,
};
use apr_io::{FileSource, MappedFile, ModelFolder};
use apr_registry::Limits;

#[test]
fn a_mapped_tensor_is_lent_where_it_lies_and_aligned() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.apr");
    let tensors = [TensorInfo { name: "weight".into(), dtype: DType::U8, shape: [200].into() }];
    let mut writer = apr_registry::apr2::plan(
        &tensors,
        &Metadata::new(),
        Vec::new(),
        &apr_registry::apr2::WriteOptions::default(),
    )
    .expect("it fits");
    let mut file = Vec::new();
    writer.begin(&mut file).expect("memory takes it");
    writer.write_chunk(&mut file, &[7; 200], None).expect("as planned");
    writer.finish(&mut file, &Notes::default()).expect("complete");
    fs::write(&path, file).expect("writable");

    let mapped = MappedFile::open(&path).expect("it can be mapped");
    let reader =
        apr_registry::apr2::open(mapped, "model.apr", &Limits::default()).expect("it is valid");
    let slice = reader.tensor_slice(0).expect("mapped bytes are lent");
    assert_eq!(slice, [7; 200]);
    assert!(slice.as_ptr().addr().is_multiple_of(64));

    let positioned = FileSource::open(&path).expect("it can be opened");
    let reader =
        apr_registry::apr2::open(positioned, "model.apr", &Limits::default()).expect("it is valid");
    assert!(reader.tensor_slice(0).is_none(), "a positioned file lends nothing");
    assert_eq!(reader.tensor_bytes("weight").expect("read").as_ref(), [7; 200]);
}

#[test]
fn a_file_that_shrinks_is_an_error_and_no_signal() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model");
    fs::write(&path, [0; 100]).expect("writable");
    let source = FileSource::open(&path).expect("it can be opened");
    fs::write(&path, [0; 10]).expect("writable");
    let error = source.read_at(50, &mut [0; 10]).expect_err("the bytes are gone");
    assert_eq!((error.code(), error.offset()), (Code::Io, Some(50)));
    let error = source.read_at(95, &mut [0; 10]).expect_err("past the length it had");
    assert_eq!(error.code(), Code::Corrupt);
}

#[test]
fn folders_pipes_and_absent_files_are_rejected_as_sources() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    assert_eq!(
        FileSource::open(folder.path()).map(drop).map_err(|error| error.code()),
        Err(Code::Io)
    );
    let absent = FileSource::open(folder.path().join("absent")).map(drop);
    assert_eq!(absent.map_err(|error| error.cause()), Err(Some(IoCause::NotFound)));
}

#[test]
fn names_and_links_that_lead_out_of_the_folder_are_refused() {
    let outside = tempfile::tempdir().expect("a temporary folder");
    fs::write(outside.path().join("secret"), "x").expect("writable");
    let inside = outside.path().join("model");
    fs::create_dir(&inside).expect("writable");
    fs::write(inside.join("config.json"), "{}").expect("writable");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("../secret", inside.join("link.json")).expect("links");
        std::os::unix::fs::symlink("config.json", inside.join("alias.json")).expect("links");
    }

    let set = ModelFolder::open(&inside).expect("it is a folder");
    // Elsewhere `C:` is a name like others.
    let own = if cfg!(windows) { "C:/secret" } else { "link.json" };
    for name in ["../secret", "/etc/hostname", own, "", ".", "a\\b", "./config.json/.."] {
        let error = set.open(name).map(drop).expect_err(name);
        assert_eq!(error.code(), Code::Format, "{name}");
    }
    assert_eq!(set.open("config.json").expect("plain").len(), 2);
    if cfg!(unix) {
        assert_eq!(set.open("alias.json").expect("a link within the folder").len(), 2);
    }
    assert_eq!(
        set.open("absent").map(drop).map_err(|error| error.cause()),
        Err(Some(IoCause::NotFound))
    );
}

#[cfg(unix)]
#[test]
fn a_hugging_face_cache_works_though_its_snapshots_are_links() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let repository = cache.path().join("models--org--name");
    let snapshot = repository.join("snapshots/0123abc");
    fs::create_dir_all(&snapshot).expect("writable");
    fs::create_dir(repository.join("blobs")).expect("writable");
    fs::write(repository.join("blobs/aa"), "{}").expect("writable");
    fs::write(cache.path().join("other"), "x").expect("writable");
    std::os::unix::fs::symlink("../../blobs/aa", snapshot.join("config.json"))
        .expect("links are supported");
    std::os::unix::fs::symlink("../../../other", snapshot.join("stray.json"))
        .expect("links are supported");

    let set = ModelFolder::open(&snapshot).expect("it is a folder");
    assert_eq!(set.open("config.json").expect("within the repository's folder").len(), 2);
    assert_eq!(set.open("stray.json").map(drop).map_err(|error| error.code()), Err(Code::Format));
    assert_eq!(set.list().expect("readable"), ["config.json", "stray.json"]);
}
