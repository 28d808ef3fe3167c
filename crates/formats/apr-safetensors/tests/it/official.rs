//! Differential tests against the reference library.

use std::collections::{BTreeMap, HashMap};

use apr_core::{CheckpointReader, DType, Metadata, TensorInfo};
use apr_safetensors::{Order, WriteOptions, dtype_name};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::json;

use crate::{entry, file, official, open, ours, padded_file, rewrite, tensor, write};

fn options(order: Order) -> WriteOptions {
    WriteOptions { order, ..WriteOptions::default() }
}

type Tensors = Vec<(TensorInfo, Vec<u8>)>;

/// Returns tensors in any order, of every dtype, including empty ones.
fn tensors() -> impl Strategy<Value = Tensors> {
    let dtypes: Vec<_> =
        DType::ALL.iter().copied().filter(|dtype| dtype_name(*dtype).is_some()).collect();
    let dims = prop::collection::vec(0..4_u64, 0..4);
    let one = (".{1,12}", prop::sample::select(dtypes), dims, any::<u8>());
    let tensors = prop::collection::vec(one, 0..12).prop_map(|tensors| {
        let mut unique = BTreeMap::new();
        for (name, dtype, mut dims, fill) in tensors {
            if dtype.block_len() > 1 {
                // Packed bits must fill their last byte.
                dims.push(4);
            }
            let info = tensor(&name, dtype, &dims);
            let len = info
                .byte_len()
                .ok()
                .and_then(|len| usize::try_from(len).ok())
                .expect("a small tensor");
            unique.insert(name, (info, (0..len).map(|i| fill ^ i.to_le_bytes()[0]).collect()));
        }
        unique.into_values().collect::<Vec<_>>()
    });
    tensors.prop_shuffle()
}

/// Returns the file that the reference library writes for these tensors.
fn serialized(tensors: &Tensors, text: Option<HashMap<String, String>>) -> Vec<u8> {
    let view = |(info, bytes): &'_ (TensorInfo, Vec<u8>)| {
        let dtype: Dtype =
            serde_json::from_value(json!(dtype_name(info.dtype))).expect("a dtype of the format");
        let shape = info
            .shape
            .dims()
            .iter()
            .map(|&dim| usize::try_from(dim).expect("a small dimension"))
            .collect();
        (dtype, shape, bytes.clone())
    };
    let views: Vec<_> =
        tensors.iter().map(|tensor| (tensor.0.name.clone(), view(tensor))).collect();
    let views = views.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, Vec::clone(shape), bytes).expect("a valid tensor"))
    });
    serialize(views, text).expect("valid tensors")
}

proptest! {
    #[test]
    fn what_the_reference_writes_comes_back_byte_for_byte(
        tensors in tensors(),
        // Not empty: without tensors, the reference would write `{}"__metadata__":{}}` then.
        text in prop::option::of(prop::collection::hash_map(".{0,8}", ".{0,8}", 1..4)),
    ) {
        let bytes = serialized(&tensors, text);
        let reader = open(bytes.clone()).expect("what the reference writes");
        prop_assert_eq!(Some(ours(&reader)), official(&bytes).ok());
        prop_assert_eq!(&rewrite(&reader, &options(Order::AsGiven)), &bytes);
        prop_assert_eq!(&rewrite(&reader, &options(Order::Canonical)), &bytes);
        // From any order, canonical is the reference's.
        prop_assert_eq!(&write(&tensors, reader.metadata(), &options(Order::Canonical)), &bytes);
    }

    #[test]
    fn the_reference_reads_files_that_we_write_in_any_order(tensors in tensors()) {
        let bytes = write(&tensors, &Metadata::new(), &options(Order::AsGiven));
        let reader = open(bytes.clone()).expect("what we write");
        prop_assert!(reader.tensors().iter().eq(tensors.iter().map(|(info, _)| info)));
        prop_assert_eq!(Some(ours(&reader)), official(&bytes).ok());
        prop_assert_eq!(rewrite(&reader, &options(Order::AsGiven)), bytes);
    }

    /// Headers made of the format's own words, most of them wrong somewhere.
    #[test]
    fn the_reference_reads_files_that_we_accept_the_same_way(
        words in prop::collection::vec(0..WORDS.len(), 0..8),
        data in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        let words: Vec<_> = words.into_iter().map(|word| WORDS[word]).collect();
        let bytes = file(format!("{{{}}}", words.join("")), &data);
        if let Ok(reader) = open(bytes.clone()) {
            prop_assert_eq!(Some(ours(&reader)), official(&bytes).ok());
        }
    }
}

const WORDS: [&str; 10] = [
    ",",
    " ",
    r#""a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#,
    r#""b":{"shape":[1],"data_offsets":[4,8],"dtype":"F32"}"#,
    r#""c":{"dtype":"F64","shape":[],"data_offsets":[0,8]}"#,
    r#""d":{"dtype":"F4","shape":[2,0],"data_offsets":[4,4]}"#,
    r#""e":{"dtype":"F4","shape":[2,0],"data_offsets":[0,0]}"#,
    r#""f":{"dtype":"I64","shape":[0,18446744073709551615],"data_offsets":[8,8]}"#,
    r#""__metadata__":{"k":"v"}"#,
    "{",
];

#[test]
fn every_dtype_of_the_reference_is_known() {
    // The reference has no list of its dtypes, but reports one it does not know.
    let unknown = serde_json::from_str::<Dtype>("\"?\"").expect_err("no dtype").to_string();
    let names: Vec<_> = unknown.split('`').skip(3).step_by(2).collect();
    assert_eq!(names.len(), 22, "{unknown}");
    for name in names {
        let dtype =
            apr_safetensors::dtype_from_name(name).unwrap_or_else(|| panic!("{name} is unknown"));
        assert_eq!(dtype_name(dtype), Some(name));
    }
}

#[test]
fn tensors_are_listed_in_data_order_and_ties_in_header_order() {
    let entries = [
        entry("last", "U8", "[2]", "[2,4]"),
        entry("empty 2", "U8", "[0]", "[2,2]"),
        entry("empty 1", "F32", "[0]", "[2,2]"),
        entry("first", "U8", "[2]", "[0,2]"),
        entry("empty 3", "F32", "[0]", "[0,0]"),
    ];
    let bytes = file(format!("{{{}}}  \n", entries.join(", ")), b"abcd");
    let reader = open(bytes.clone()).expect("a valid file");
    let names: Vec<_> = reader.tensors().iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["empty 3", "first", "empty 2", "empty 1", "last"]);
    assert_eq!(Some(ours(&reader)), official(&bytes).ok());
}

#[test]
fn metadata_comes_back_in_its_order() {
    for (text, expected) in [
        ("", json!({})),
        (r#""__metadata__":{},"#, json!({"metadata": {}})),
        (
            r#""__metadata__":{"a":"1","format":"np"},"#,
            json!({"metadata": {"a": "1", "format": "np"}}),
        ),
        (
            r#""__metadata__":{"format":"np","a":"1"},"#,
            json!({"metadata": {"a": "1", "format": "np"}, "metadata_order": ["format", "a"]}),
        ),
    ] {
        let bytes = padded_file(&format!("{{{text}{}}}", entry("a", "U8", "[1]", "[0,1]")), b"a");
        let reader = open(bytes.clone()).expect("a valid file");
        assert_eq!(reader.metadata().get("safetensors"), Some(&expected));
        assert_eq!(rewrite(&reader, &WriteOptions::default()), bytes);
    }
}
