//! Tied tensors: bit 13 in the index, the target in the metadata.

use crate::support::{bytes_of, open, pattern, refused};
use apr_core::{CheckpointReader, DType};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::read_everything;

const TIED: u32 = 1 << 13;

fn tied(name: &str, dtype: DType, dims: &[u64]) -> Apr2Entry {
    Apr2Entry { flags: TIED, ..Apr2Entry::new(name, dtype, dims, &[]) }
}

fn with_ties(ties: &str) -> Apr2Builder {
    Apr2Builder::new()
        .metadata(format!(
            r#"{{"apr_version":"2.0.0","architecture":{{}},"model_type":"x","tied":{ties}}}"#
        ))
        .entry(Apr2Entry::new("embed", DType::F32, &[2, 3], &pattern(24, 3)))
        .entry(Apr2Entry::of_bytes("other", &pattern(70, 4)))
}

#[test]
fn a_tied_tensor_reads_as_its_target_and_stores_no_bytes() {
    let builder = with_ties(r#"{"lm_head":"embed"}"#).entry(tied("lm_head", DType::F32, &[2, 3]));
    let file = builder.build();
    let reader = open(file.clone());
    let at = |name| reader.position(name).expect("it is in the index");
    let (embed, head) = (at("embed"), at("lm_head"));
    assert_eq!(bytes_of(&reader, head), pattern(24, 3));
    assert_eq!(
        reader.tensor_bytes("lm_head").expect("it reads"),
        reader.tensor_bytes("embed").expect("it reads")
    );
    assert_eq!(reader.stored(head).range.len, 0);
    assert_eq!(reader.stored(embed).range.len, 24);
    assert_eq!(reader.stored(head).digest(), None);
    assert_eq!(reader.warnings(), [""; 0]);
    read_everything(&reader).expect("a sound file");

    let checksum = reader.container().checksum().expect("APR2 has one");
    let covered: u64 = checksum.extents.iter().map(|extent| extent.len).sum();
    assert_eq!(covered, file.len() as u64 - 16, "tied bytes are covered once");
}

#[test]
fn a_tie_to_an_empty_or_the_last_tensor_does_not_move_the_trailer() {
    let builder = with_ties(r#"{"t.empty":"empty","t.other":"other"}"#)
        .entry(Apr2Entry::new("empty", DType::F32, &[0], &[]))
        .entry(tied("t.empty", DType::F32, &[0]))
        .entry(tied("t.other", DType::U8, &[70]));
    let reader = open(builder.build());
    assert_eq!(reader.tensors().len(), 5);
    read_everything(&reader).expect("a sound file");
}

#[test]
fn ties_without_a_valid_target_are_corrupt() {
    let cases = [
        (r#"{}"#, "does not state"),
        (r#"[]"#, "does not state"),
        (r#"{"lm_head":7}"#, "does not state"),
        (r#"{"lm_head":"absent"}"#, "not a tensor like it"),
        (r#"{"lm_head":"lm_head"}"#, "not a tensor like it"),
        (r#"{"lm_head":"loop","loop":"lm_head"}"#, "not a tensor like it"),
        (r#"{"lm_head":"other"}"#, "not a tensor like it"),
        (r#"{"lm_head":"transposed"}"#, "not a tensor like it"),
        (r#"{"lm_head":"integers"}"#, "not a tensor like it"),
    ];
    for (ties, message) in cases {
        let builder = with_ties(ties)
            .entry(tied("lm_head", DType::F32, &[2, 3]))
            .entry(tied("loop", DType::F32, &[2, 3]))
            .entry(Apr2Entry::new("transposed", DType::F32, &[3, 2], &[0; 24]))
            .entry(Apr2Entry::new("integers", DType::I32, &[2, 3], &[0; 24]));
        let error = refused(builder.build());
        assert_eq!(
            (error.code().id(), error.tensor()),
            ("E002", Some("lm_head")),
            "{ties}: {error}"
        );
        assert!(error.message().contains(message), "{ties}: {error}");
    }
}

#[test]
fn a_tied_tensor_with_bytes_of_its_own_is_corrupt() {
    let mut entry = Apr2Entry::new("lm_head", DType::F32, &[2, 3], &[0; 24]);
    entry.flags = TIED;
    let error = refused(with_ties(r#"{"lm_head":"embed"}"#).entry(entry).build());
    assert_eq!((error.code().id(), error.tensor()), ("E002", Some("lm_head")), "{error}");
}
