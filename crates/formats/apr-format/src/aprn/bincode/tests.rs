//! Expected bytes are those of bincode 1.3.3's `serialize`, printed by a program of its own.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Debug;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::*;

const EVERYTHING: &str = "07000000000000006772c3b6c39f65e282ac010700fffeffffffffffffff000000000000e\
    03f0000000000000080040000000000000000000000010000000000c03f0200000003fcff0300000005000102000000\
    000000000101000000000000006102000000000000000001000000000000000000000000000000fffffffffffffffff\
    fffffffffffffff";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Point,
    Circle(f32),
    Line(u8, i16),
    Box { width: u16, tall: bool },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Everything {
    name: String,
    letter: char,
    maybe: Option<u8>,
    none: Option<u8>,
    unit: (),
    pair: (i8, i64),
    array: [f64; 2],
    shapes: Vec<Shape>,
    map: BTreeMap<u8, String>,
    wide: (u128, i128),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Node(Option<Box<Node>>);

fn everything() -> Everything {
    Everything {
        name: "größe".into(),
        letter: '€',
        maybe: Some(7),
        none: None,
        unit: (),
        pair: (-1, -2),
        array: [0.5, -0.0],
        shapes: vec![
            Shape::Point,
            Shape::Circle(1.5),
            Shape::Line(3, -4),
            Shape::Box { width: 5, tall: true },
        ],
        map: [(1, "a".to_string()), (2, String::new())].into(),
        wide: (1, -1),
    }
}

fn holds<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, hex: &str) {
    let bytes = to_bytes(value).expect("a value that can be written");
    let digits: String = bytes.iter().map(|byte| alloc::format!("{byte:02x}")).collect();
    assert_eq!(digits, hex);
    assert_eq!(from_bytes::<T>(&bytes).as_ref(), Ok(value));
}

#[test]
fn bytes_match_bincode_1() {
    holds(&everything(), EVERYTHING);
    holds(&(Some(vec![1.0_f32, 2.0]), true), "0102000000000000000000803f0000004001");
    holds(&Node(Some(Box::new(Node(None)))), "0100");
    holds(&usize::MAX, "ffffffffffffffff");
}

#[test]
fn a_payload_cut_anywhere_is_refused() {
    let bytes = to_bytes(&everything()).expect("a value that can be written");
    for len in 0..bytes.len() {
        assert!(from_bytes::<Everything>(&bytes[..len]).is_err(), "cut at {len}");
    }
}

#[test]
fn bytes_left_over_are_refused() {
    assert!(from_bytes::<u8>(&[1, 2]).expect_err("two bytes").to_string().contains("left over"));
}

#[test]
fn a_length_past_the_end_is_refused_before_anything_is_made() {
    for len in [9, 1 << 31, u64::from(u32::MAX), 1 << 63, u64::MAX] {
        let bytes = [&len.to_le_bytes()[..], &[0; 8]].concat();
        assert!(from_bytes::<Vec<u8>>(&bytes).is_err());
        assert!(from_bytes::<String>(&bytes).is_err());
        assert!(from_bytes::<Vec<()>>(&bytes).is_err());
        assert!(from_bytes::<BTreeMap<u8, u8>>(&bytes).is_err());
    }
}

#[test]
fn tags_text_and_variants_must_be_what_they_claim() {
    assert!(from_bytes::<bool>(&[2]).is_err());
    assert!(from_bytes::<Option<u8>>(&[2, 0]).is_err());
    assert!(from_bytes::<String>(&[1, 0, 0, 0, 0, 0, 0, 0, 0xff]).is_err());
    assert!(from_bytes::<char>(&[0xff]).is_err());
    assert!(from_bytes::<Shape>(&[4, 0, 0, 0]).is_err());
}

#[test]
fn nesting_ends_at_the_limit_when_writing_and_when_reading() {
    let chain = |len: usize| (0..len).fold(Node(None), |inner, _| Node(Some(Box::new(inner))));
    // Each link nests twice: the struct and its option.
    let deepest = chain(MAX_DEPTH / 2 - 1);
    let bytes = to_bytes(&deepest).expect("within the limit");
    assert_eq!(from_bytes(&bytes), Ok(deepest));
    assert!(to_bytes(&chain(MAX_DEPTH)).is_err());
    assert!(from_bytes::<Node>(&vec![1; 1 << 20]).is_err());
}

#[test]
fn types_that_are_not_self_describing_are_rejected() {
    assert!(from_bytes::<serde_json::Value>(&[0; 16]).is_err());
}
