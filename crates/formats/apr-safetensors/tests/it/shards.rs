//! Checkpoints of several files.

use apr_core::{
    CheckpointReader, CheckpointWriter, Code, DType, IoCause, Limits, MemoryFolder, Metadata,
    Result, Table,
};
use apr_safetensors::{Order, WriteOptions, open_index, plan};
use serde_json::json;

use crate::{Folder, assert_refused, contents, entry, file, official, tensor, write_to};

const INDEX: &str = "model.safetensors.index.json";

fn open(folder: &Folder, index: impl AsRef<[u8]>) -> Result<Table> {
    open_index(index.as_ref(), INDEX, folder, &Limits::default())
}

/// Returns a folder with shard `1`, which has tensor `a`, and shard `2`, which has tensors `b` and
/// `c`.
fn two_shards() -> Folder {
    let one = file(format!("{{{}}}", entry("a", "U8", "[1]", "[0,1]")), b"a");
    let two =
        format!("{{{},{}}}", entry("c", "U8", "[1]", "[0,1]"), entry("b", "U8", "[1]", "[1,2]"));
    Folder([("1".into(), one), ("2".into(), file(two, b"cb"))].into())
}

#[test]
fn shards_come_back_as_they_were() {
    let tensors: Vec<_> = (0..9_u8)
        .map(|i| {
            let bytes: Vec<u8> = (0..if i == 5 { 100 } else { i * 2 }).collect();
            let dtype = if i % 2 == 0 { DType::U8 } else { DType::I16 };
            (
                tensor(&format!("layer.{i}\n"), dtype, &[bytes.len() as u64 / dtype.block_bytes()]),
                bytes,
            )
        })
        .collect();
    for order in [Order::AsGiven, Order::Canonical] {
        for shard_size in [1, 7, 16, 30, 99, 100, 161, 162] {
            let options =
                WriteOptions { shard_size: Some(shard_size), order, ..WriteOptions::default() };
            let mut folder = MemoryFolder::default();
            write_to(&mut folder, &tensors, &Metadata::new(), &options, 7).expect("a valid plan");
            let infos: Vec<_> = tensors.iter().map(|(info, _)| info.clone()).collect();
            let writer = plan(&infos, &Metadata::new(), &options).expect("a valid plan");
            let lens = writer.layout().files.iter().map(|file| file.len);
            if shard_size == 162 {
                assert_eq!(
                    folder.files().keys().collect::<Vec<_>>(),
                    [""],
                    "everything fits in one file"
                );
                continue;
            }
            assert!(folder.files().values().map(|file| file.len() as u64).eq(lens));

            let folder = Folder::from(folder);
            let reader = open(&folder, &folder.0[INDEX]).expect("what we write");
            assert!(reader.warnings().is_empty(), "{:?}", reader.warnings());
            let mut read = contents(&reader);
            read.sort_by(|a, b| a.0.name.cmp(&b.0.name));
            assert_eq!(read, tensors, "in shards of {shard_size}");
            for (name, file) in folder.0.iter().filter(|(name, _)| *name != INDEX) {
                let shard = official(file).expect("a complete file");
                let data: usize = shard.values().map(|(_, _, bytes)| bytes.len()).sum();
                assert!(data as u64 <= shard_size || shard.len() == 1, "{name} holds {data} bytes");
            }
        }
    }
}

#[test]
fn names_and_index_match_transformers() {
    let tensors =
        ["c", "a", "b"].map(|name| (tensor(name, DType::U8, &[2]), name.repeat(2).into_bytes()));
    let options = WriteOptions {
        file_name: "tiny.safetensors".into(),
        shard_size: Some(4),
        ..WriteOptions::default()
    };
    let mut folder = MemoryFolder::default();
    write_to(&mut folder, &tensors, &Metadata::new(), &options, 9).expect("a valid plan");
    let index = r#"{
  "metadata": {
    "total_size": 6
  },
  "weight_map": {
    "a": "tiny-00001-of-00002.safetensors",
    "b": "tiny-00002-of-00002.safetensors",
    "c": "tiny-00001-of-00002.safetensors"
  }
}
"#;
    assert_eq!(str::from_utf8(&folder.files()["tiny.safetensors.index.json"]), Ok(index));
    for shard in ["tiny-00001-of-00002.safetensors", "tiny-00002-of-00002.safetensors"] {
        let shard = &folder.files()[shard];
        assert!(shard[8..].starts_with(br#"{"__metadata__":{"format":"pt"},"#));
    }
    let folder = Folder::from(folder);
    let reader = open(&folder, index).expect("what we write");
    let names: Vec<_> = reader.files().iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["tiny-00001-of-00002.safetensors", "tiny-00002-of-00002.safetensors"]);
    assert_eq!((0..3).map(|i| reader.stored(i).range.file).collect::<Vec<_>>(), [0, 0, 1]);
}

#[test]
fn canonical_order_is_within_shards() {
    let tensors = [
        tensor("b", DType::U8, &[2]),
        tensor("a", DType::U16, &[1]),
        tensor("0", DType::F64, &[1]),
    ];
    let options =
        WriteOptions { shard_size: Some(4), order: Order::Canonical, ..WriteOptions::default() };
    let writer = plan(&tensors, &Metadata::new(), &options).expect("a valid plan");
    let order: Vec<_> =
        writer.layout().tensors.iter().map(|planned| (planned.file, planned.source)).collect();
    // The large one is numbered when it is met, before the shard that is still open.
    assert_eq!(order, [(0, 2), (1, 1), (1, 0)]);
}

#[test]
fn shards_are_read_in_the_order_of_their_names() {
    let reader =
        open(&two_shards(), r#"{"weight_map":{"b":"2","c":"2","a":"1"}}"#).expect("a valid model");
    let names: Vec<_> = reader.tensors().iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["a", "c", "b"]);
    assert_eq!(reader.tensor_slice(2), Some(&b"b"[..]));
    let error =
        assert_refused(reader.read_tensor(2, 1, &mut [0]), Code::Corrupt, "E002: 2: tensor 'b'");
    assert_eq!(error.file(), Some("2"));
}

#[test]
fn indexes_that_are_malformed_are_refused() {
    let refuse = |index: &str, expected: &str| {
        let error = assert_refused(open(&two_shards(), index), Code::Format, expected);
        assert_eq!(error.file(), Some(INDEX), "{error}");
    };
    refuse("", "");
    refuse("{}", "'weight_map' is missing");
    refuse("[{}]", "expected an object");
    refuse("[]", "expected an object");
    refuse(r#"{"weight_map":{}}"#, "names no shard");
    refuse(r#"{"weight_map":[]}"#, "");
    refuse(r#"{"weight_map":{"a":1}}"#, "expected a string");
    refuse(r#"{"weight_map":{"a":"1"}} x"#, "trailing characters (at byte 25)");
    refuse(r#"{"weight_map":{"a":"1"},"weight_map":{"a":"1"}}"#, "duplicate field 'weight_map'");
    refuse(
        r#"{"weight_map":{"a":"1","a":"1"}}"#,
        "tensor 'a': the index has two tensors of this name",
    );
    refuse(
        r#"{"weight_map":{"a":"1"},"metadata":{"total_size":1,"total_size":1}}"#,
        "duplicate field 'total_size'",
    );
    refuse(r#"{"weight_map":{"a":"1"},"metadata":{"total_size":{}}}"#, "");
    let deep = format!(r#"{{"metadata":{{"x":{}"#, "[".repeat(1_000_000));
    refuse(&deep, "");
    for name in [
        "",
        ".",
        "..",
        "../1",
        "/1",
        "./1",
        "x/../1",
        "..\\\\1",
        "C:1",
        "c:\\\\1",
        "\\\\\\\\host\\\\1",
        "1\\u0000",
    ] {
        refuse(&format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#), "is not a plain file name");
    }
    let long = format!(r#"{{"weight_map":{{"a":"/{}"}}}}"#, "x".repeat(1 << 20));
    refuse(&long, "is not a plain file name");

    assert_refused(
        open(&two_shards(), b"{\"weight_map\":{\"\xff\":\"1\"}}"),
        Code::Format,
        "not UTF-8 (at byte 16)",
    );
    let mut limits = Limits::default();
    limits.max_metadata = 10;
    let limited = open_index(b"{\"weight_map\":{}}", INDEX, &two_shards(), &limits);
    assert_refused(limited, Code::Memory, INDEX);
}

#[test]
fn an_absent_shard_is_reported_with_the_index_that_lists_it() {
    let absent = open(&two_shards(), r#"{"weight_map":{"a":"1","b":"3"}}"#);
    let error = assert_refused(
        absent,
        Code::Io,
        "E007: 3: model.safetensors.index.json names this shard: no such file",
    );
    assert_eq!(error.cause(), Some(IoCause::NotFound));
}

#[test]
fn index_and_shards_must_agree() {
    let refuse = |index: &str, file: &str, tensor: &str, expected: &str| {
        let error = assert_refused(open(&two_shards(), index), Code::Corrupt, expected);
        assert_eq!((error.file(), error.tensor()), (Some(file), Some(tensor)), "{error}");
    };
    refuse(
        r#"{"weight_map":{"a":"1","b":"2","c":"2","d":"2"}}"#,
        "2",
        "d",
        "this shard has no such tensor",
    );
    refuse(r#"{"weight_map":{"a":"1","b":"2"}}"#, "2", "c", "does not list it");
    refuse(r#"{"weight_map":{"a":"1","b":"1","c":"2"}}"#, "2", "b", "lists it in '1'");

    let mut folder = two_shards();
    folder.0.insert("3".into(), folder.0["1"].clone());
    let both = open(&folder, r#"{"weight_map":{"a":"1","b":"3","c":"3"}}"#);
    assert_refused(
        both,
        Code::Corrupt,
        "E002: 3: tensor 'a': model.safetensors.index.json lists it in '1'",
    );
}

#[test]
fn a_broken_shard_is_reported_by_name() {
    let mut folder = two_shards();
    folder.0.get_mut("2").expect("a shard").pop();
    let broken = open(&folder, r#"{"weight_map":{"a":"1","b":"2","c":"2"}}"#);
    assert_refused(broken, Code::Corrupt, "E002: 2: tensor 'b'");
}

#[test]
fn text_of_the_shards_is_merged_and_contradictions_are_reported() {
    let shard = |name: &str, text: &str| {
        file(format!("{{\"__metadata__\":{text},{}}}", entry(name, "U8", "[0]", "[0,0]")), b"")
    };
    let folder = Folder(
        [
            ("1".into(), shard("a", r#"{"format":"pt","a":"1"}"#)),
            ("2".into(), shard("b", r#"{"format":"tf","a":"2","b":"2"}"#)),
            ("3".into(), shard("c", r#"{"format":"pt"}"#)),
        ]
        .into(),
    );
    let index =
        r#"{"metadata":{"total_size":1,"made_by":"x"},"weight_map":{"a":"1","b":"2","c":"3"}}"#;
    let reader = open(&folder, index).expect("a valid model");
    let merged = json!({
        "metadata": {"format": "pt", "a": "1", "b": "2"}, "metadata_order": ["format", "a", "b"],
    });
    assert_eq!(reader.metadata().get("safetensors"), Some(&merged));
    let [shard, size, unread] = reader.warnings() else { panic!("{:?}", reader.warnings()) };
    assert!(
        shard.starts_with(
            "2: __metadata__ contradicts an earlier shard in 'format' and 1 more keys"
        ),
        "{shard}"
    );
    assert!(size.contains("total_size is 1, but the tensors take 0 bytes"), "{size}");
    assert!(unread.contains("made_by"), "{unread}");
}
