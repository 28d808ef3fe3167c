//! Checkpoints of several files, and the index that names them.

use apr_core::{DType, IoCause, Metadata, keys};
use apr_pytorch::{open_index, open_index_with};
use apr_testkit::{FolderInMemory, corrupt, read_everything};
use serde_json::json;

use super::write::{tensor, tied, write};
use super::*;

const INDEX: &str = "pytorch_model.bin.index.json";
const GOOD: &str =
    r#"{"metadata":{"total_size":9,"by":1},"weight_map":{"a":"1","d":"1","b":"2","c":"2"}}"#;

/// Shards `1` with tensors `a` and, tied to it, `d`, and `2` with tensors `c` and `b`.
fn two_shards() -> FolderInMemory {
    let a = tensor("a", DType::U8, &[2]);
    let d = (tensor("d", DType::U8, &[2]).0, a.1.clone());
    let one = write(&[a, d], &tied(&[("d", "a")]));
    let two =
        write(&[tensor("c", DType::F32, &[1]), tensor("b", DType::U8, &[1])], &Metadata::new());
    FolderInMemory::from([("1", one), ("2", two)])
}

fn open(folder: &FolderInMemory, index: impl AsRef<[u8]>) -> Result<Table> {
    open_index(index.as_ref(), INDEX, folder, &Limits::default())
}

#[track_caller]
fn assert_refused<T>(result: Result<T>, code: Code, expected: &str) -> Error {
    let Err(error) = result else { panic!("accepted, instead of {code} '{expected}'") };
    let message = error.to_string();
    assert_eq!(error.code(), code, "{message}");
    assert!(message.contains(expected), "'{expected}' is not in: {message}");
    assert!(message.len() < 1000 && !message.contains(char::is_control), "{message}");
    error
}

#[test]
fn shards_are_read_in_the_order_of_their_names() {
    let reader = open(&two_shards(), GOOD).expect("a valid model");
    let names: Vec<_> = reader.tensors().iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["a", "d", "c", "b"]);
    let a = tensor("a", DType::U8, &[2]).1;
    let expected = [a.clone(), a, tensor("c", DType::F32, &[1]).1, tensor("b", DType::U8, &[1]).1];
    for (position, expected) in expected.iter().enumerate() {
        assert_eq!(&bytes_of(&reader, position, 100), expected);
        assert_eq!(reader.tensor_slice(position), Some(&expected[..]));
    }
    assert_eq!(reader.metadata().get(keys::TIED), Some(&json!({"d": "a"})));
    assert_eq!((0..4).map(|i| reader.stored(i).range.file).collect::<Vec<_>>(), [0, 0, 1, 1]);
    assert_eq!(
        reader.files().iter().map(|file| file.name.as_str()).collect::<Vec<_>>(),
        ["1", "2"]
    );
    assert_eq!(reader.warnings(), ["pytorch_model.bin.index.json: metadata not copied: by"]);
    let error =
        assert_refused(reader.read_tensor(3, 1, &mut [0]), Code::Corrupt, "E002: 2: tensor 'b'");
    assert_eq!(error.file(), Some("2"));
    read_everything(&reader).expect("readable");
}

#[test]
fn a_prefix_applies_to_all_shards_together() {
    let one =
        write(&[tensor("m.x", DType::U8, &[1]), tensor("o.x", DType::U8, &[1])], &Metadata::new());
    let two = write(&[tensor("m.y", DType::U8, &[1])], &Metadata::new());
    let folder = FolderInMemory::from([("1", one), ("2", two)]);
    let index = br#"{"weight_map":{"m.x":"1","o.x":"1","m.y":"2"}}"#;
    let select = |prefix: &str| {
        let options = OpenOptions { prefix: Some(prefix.into()), ..OpenOptions::default() };
        open_index_with(index, INDEX, &folder, &Limits::default(), &options)
    };
    let reader = select("m.").expect("a valid model");
    let names: Vec<_> = reader.tensors().iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["x", "y"]);
    assert_eq!(bytes_of(&reader, 1, 1), tensor("m.y", DType::U8, &[1]).1);
    assert_eq!(reader.warnings(), ["1 tensors outside 'm.' are not read"]);
    assert_refused(select("n."), Code::Format, "no tensor's name starts with 'n.'");
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
    refuse(r#"{"weight_map":{}}"#, "names no shard");
    refuse(r#"{"weight_map":[]}"#, "");
    refuse(r#"{"weight_map":{"a":1}}"#, "expected a string");
    refuse(r#"{"weight_map":{"a":"1"}} x"#, "trailing characters (at byte 25)");
    refuse(r#"{"weight_map":{"a":"1"},"weight_map":{"a":"1"}}"#, "duplicate field 'weight_map'");
    refuse(
        r#"{"weight_map":{"a":"1","a":"1"}}"#,
        "tensor 'a': the index has two tensors of this name",
    );
    refuse(r#"{"weight_map":{"a":"1"},"metadata":[]}"#, "");
    refuse(&format!(r#"{{"metadata":{{"x":{}"#, "[".repeat(1_000_000)), "");
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
        "\\\\\\\\host\\\\1",
        "1\\u0000",
    ] {
        refuse(&format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#), "is not a plain file name");
    }
    refuse(
        &format!(r#"{{"weight_map":{{"a":"/{}"}}}}"#, "x".repeat(1 << 20)),
        "is not a plain file name",
    );
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
fn index_and_shards_must_agree() {
    let refuse = |index: &str, file: &str, tensor: &str, expected: &str| {
        let error = assert_refused(open(&two_shards(), index), Code::Corrupt, expected);
        assert_eq!((error.file(), error.tensor()), (Some(file), Some(tensor)), "{error}");
    };
    refuse(
        r#"{"weight_map":{"a":"1","d":"1","b":"2","c":"2","e":"2"}}"#,
        "2",
        "e",
        "this shard has no such tensor",
    );
    refuse(r#"{"weight_map":{"a":"1","d":"1","b":"2"}}"#, "2", "c", "does not list it");
    refuse(r#"{"weight_map":{"a":"1","d":"1","b":"1","c":"2"}}"#, "2", "b", "lists it in '1'");
    let absent = open(&two_shards(), r#"{"weight_map":{"a":"1","d":"1","b":"3"}}"#);
    let error = assert_refused(
        absent,
        Code::Io,
        "3: pytorch_model.bin.index.json names this shard: no such file",
    );
    assert_eq!(error.cause(), Some(IoCause::NotFound));
    let mut broken = two_shards();
    broken.0.get_mut("2").expect("a shard").pop();
    assert_eq!(assert_refused(open(&broken, GOOD), Code::Corrupt, "truncated").file(), Some("2"));
    let mut hostile = two_shards();
    hostile.0.insert("2".into(), b"\x80\x02cos\nsystem\n)R.".to_vec());
    assert_eq!(assert_refused(open(&hostile, GOOD), Code::Format, "os.system").file(), Some("2"));
}

#[test]
fn a_broken_index_is_an_error_or_a_readable_model() {
    let folder = two_shards();
    for cut in corrupt::truncations(GOOD.as_bytes()) {
        assert!(open(&folder, cut).is_err());
    }
    for flipped in corrupt::bit_flips(GOOD.as_bytes(), 0..GOOD.len()) {
        if let Ok(reader) = open(&folder, flipped) {
            read_everything(&reader).expect("readable");
        }
    }
}
