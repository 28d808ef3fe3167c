//! Tensors that are computed from stored ones, and NumPy's values beside them. What the fixtures
//! hold is compared with torch's in `values.rs`; here is what is refused, and what the bounds are.

use apr_core::{DType, keys};
use apr_testkit::torch::{Entry, zip};
use apr_testkit::{CountingSource, corrupt, peak_memory, read_everything};
use serde_json::json;

use super::*;

/// A pickle of `{"s": sparse}`: places of two values in storage `0`, the values in storage `1`.
fn sparse(size: &str, sparse_dims: u64, indices: &[i64]) -> Vec<u8> {
    let tensor = |class: &str, key: u64, len: u64, shape: &str, strides: &str| {
        format!(
            "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\n{class}\nS'{key}'\nS'cpu'\n\
             I{len}\ntQI0\n({shape}t({strides}tI00\nNtR"
        )
    };
    let len = indices.len() as u64;
    let pickle = format!(
        "}}S's'\nctorch._utils\n_rebuild_sparse_tensor\n(S'torch.sparse_coo'\n({}{}({size}tttRs.",
        tensor("LongStorage", 0, len, &format!("I{sparse_dims}\nI2\n"), "I2\nI1\n"),
        tensor("FloatStorage", 1, 2, "I2\n", "I1\n"),
    );
    let values = [1.5_f32, -2.0].map(f32::to_le_bytes);
    let indices: Vec<u8> = indices.iter().flat_map(|index| index.to_le_bytes()).collect();
    zip(&[
        Entry::new("m/data.pkl", pickle.as_bytes()),
        Entry::new("m/data/0", &indices),
        Entry::new("m/data/1", values.as_flattened()),
    ])
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}

#[test]
fn a_sparse_tensor_is_zero_but_for_its_values_whatever_their_order() {
    let reader = open(sparse("I2\nI2\n", 2, &[1, 0, 0, 1])).expect("a good file");
    assert_eq!(reader.tensors()[0].dtype, DType::F32);
    for piece in [1, 3, 4, 16] {
        assert_eq!(floats(&bytes_of(&reader, 0, piece)), [0.0, -2.0, 1.5, 0.0]);
    }
    assert_eq!(reader.tensor_slice(0), None);
}

#[test]
fn sparse_tensors_that_make_no_sense_are_refused_by_name() {
    let huge = u64::MAX.to_string();
    let cases = [
        (sparse("I2\nI2\n", 2, &[1, 0, 0, 2]), Code::Corrupt, "must be below 2"),
        (sparse("I2\nI2\n", 2, &[-1, 0, 0, 0]), Code::Corrupt, "must be below 2"),
        (sparse("I2\nI2\n", 2, &[1, 1, 0, 0]), Code::Version, "several values"),
        (sparse("", 0, &[]), Code::Version, "several values"),
        (sparse("I1\n", 1, &[0, 0]), Code::Version, "several values"),
        (sparse("I2\nI2\nI2\n", 2, &[1, 0, 0, 1]), Code::Corrupt, "values and size"),
        (sparse("I2\n", 2, &[1, 0, 0, 1]), Code::Corrupt, "indices and size"),
        (sparse("I2\nI2\n", 1, &[1, 0, 0, 1]), Code::Corrupt, "values and size"),
        (sparse("I100000\nI100000\n", 2, &[1, 0, 0, 1]), Code::Memory, "64 MiB"),
        (
            sparse(&format!("L{huge}L\nL{huge}L\n"), 2, &[1, 0, 0, 1]),
            Code::Corrupt,
            "no valid length",
        ),
        (sparse("I2\nI2\n", 2, &[1, 0, 0]), Code::Corrupt, "past the end"),
    ];
    for (file, code, expected) in cases {
        let (error, peak) = peak_memory(|| refused(file));
        assert_eq!((error.code(), error.tensor()), (code, Some("s")), "{error}");
        assert!(error.message().contains(expected), "'{expected}' is not in: {error}");
        assert!(peak < 1 << 20, "{peak} bytes held: {error}");
    }
    // As much as is allowed is claimed by few bytes, and read without holding it.
    let reader = open(sparse("I4096\nI4096\n", 2, &[1, 0, 0, 1])).expect("64 MiB");
    let (_, peak) = peak_memory(|| read_everything(&reader).expect("readable"));
    assert!(peak < 1 << 20, "{peak} bytes held");
}

#[test]
fn indices_are_decoded_within_the_limit_of_an_index() {
    let mut limits = Limits::default();
    limits.max_index = 4096;
    let file = golden("sparse_kinds.pt");
    let error =
        apr_pytorch::open(file, "model.pt", &limits).map(drop).expect_err("too many indices");
    assert_eq!((error.code(), error.tensor()), (Code::Memory, Some("large")), "{error}");
}

#[test]
fn values_are_read_on_demand() {
    let source = CountingSource::new(golden("quantized_kinds.pt"));
    let copy = source.clone();
    let reader = apr_pytorch::open(copy, "model.pt", &Limits::default()).expect("a checkpoint");
    let many = reader.tensors().iter().position(|info| info.name == "many").expect("a large one");
    let before = source.bytes_read();
    let mut element = [0; 4];
    reader.read_tensor(many, 40_000, &mut element).expect("in the middle");
    assert_eq!(source.bytes_read() - before, 1);
    assert_eq!(reader.metadata().get(keys::TIED), Some(&json!({"again": "signed"})));
}

#[test]
fn a_prefix_leaves_out_what_is_not_read() {
    let pickle = "}S'model'\n}S'w'\nctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\n\
        FloatStorage\nS'0'\nS'cpu'\nI2\ntQI0\n(I2\nt(I1\ntI00\nNtRssS'opt'\nctorch._utils\n\
        _rebuild_meta_tensor_no_storage\n)Rs.";
    let file = apr_testkit::torch::checkpoint(pickle.as_bytes());
    assert_eq!(refused(file.clone()).tensor(), Some("opt"));
    let options = OpenOptions { prefix: Some("model.".into()), ..OpenOptions::default() };
    let reader = open_with(file, &options).expect("only the model");
    assert_eq!(reader.tensors()[0].name, "w");
    assert_eq!(reader.warnings(), ["1 tensors outside 'model.' are not read"]);
}

#[test]
fn numpy_scalars_are_plain_values_and_arrays_are_listed_as_omitted() {
    for name in ["numpy.pt", "numpy_protocol4.pt"] {
        let reader = open(golden(name)).expect(name);
        let values = reader.metadata().object("pytorch").expect("values");
        let expected = [
            ("lr", json!(0.25)),
            ("loss", json!(1.5)),
            ("step", json!(-7)),
            ("seen", json!(200)),
            ("done", json!(true)),
            ("args.lr", json!(0.5)),
            ("counts.a", json!(2)),
            ("default.x.0", json!(1)),
            ("rng.0", json!("MT19937")),
            ("size.1", json!(3)),
        ];
        for (path, value) in expected {
            assert_eq!(values.get(path), Some(&value), "{name}: {path}");
        }
        assert!(!values.contains_key("half"), "no plain value has its precision");
        let arrays = "3 NumPy arrays are not read, the first is 'rng.1'";
        assert!(
            reader.warnings().iter().any(|warning| warning == arrays),
            "{:?}",
            reader.warnings()
        );
    }
}

#[test]
fn big_endian_numbers_of_numpy_are_left_out() {
    let values = |order: &str| {
        let pickle = format!(
            "}}(S'x'\ncnumpy._core.multiarray\nscalar\n(cnumpy\ndtype\n(S'i4'\ntR(I3\nS'{order}'\n\
             tbS'\\x01\\x00\\x00\\x00'\ntRS'y'\nI1\nu."
        );
        let file = zip(&[Entry::new("m/data.pkl", pickle.as_bytes())]);
        open(file).expect("a good file").metadata().get("pytorch").cloned()
    };
    assert_eq!(values("<"), Some(json!({"x": 1, "y": 1})));
    assert_eq!(values(">"), Some(json!({"y": 1})));
}

#[test]
fn arrays_of_objects_are_refused() {
    let error = refused(golden("numpy_objects.pt"));
    assert!(error.message().contains("numpy.dtype('O8')") && error.offset().is_some(), "{error}");

    let cases: &[(&[u8], &str)] = &[
        (b"cnumpy\ndtype\n(cbuiltins\nobject\ntR.", "dtype('?')"),
        (b"cnumpy\ndtype\n(S'i4,O'\ntR.", "dtype('i4,O')"),
        (b"cnumpy.core.multiarray\nscalar\n(S'O'\nS'x'\ntR.", "without a dtype"),
        (
            b"cnumpy.core.multiarray\n_reconstruct\n(cbuiltins\nobject\n(I0\ntS'b'\ntR.",
            "not numpy.ndarray",
        ),
        (b"cnumpy\nndarray\n)R.", "made otherwise"),
        (b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.", "otherwise than bytes"),
        (b"c_codecs\nencode\n(V\\u20ac\nS'latin1'\ntR.", "not Latin-1"),
        (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I1\n\
              tcnumpy\ndtype\n(S'V8'\ntRI00\n]tb.",
            "not a dtype and bytes",
        ),
    ];
    for (pickle, expected) in cases {
        let error = refused(apr_testkit::torch::checkpoint(pickle));
        assert_eq!(error.code(), Code::Format, "{error}");
        assert!(error.message().contains(expected), "'{expected}' is not in: {error}");
    }
}

#[test]
fn broken_copies_are_errors_or_readable() {
    let samples = [
        golden("numpy_protocol4.pt"),
        golden("sparse_twice.pt"),
        sparse("I2\nI2\n", 2, &[1, 0, 0, 1]),
        golden("quantized.pt"),
        golden("quantized_channels.pt"),
    ];
    for file in samples {
        for broken in
            corrupt::truncations(&file).chain(corrupt::bit_flips(&file, 0..file.len().min(2048)))
        {
            let ((), peak) = peak_memory(|| {
                if let Ok(reader) = open(broken) {
                    let total: u64 =
                        reader.tensors().iter().filter_map(|info| info.byte_len().ok()).sum();
                    if total < 1 << 20 {
                        read_everything(&reader).expect("what opens is readable");
                    }
                }
            });
            assert!(peak < 64 << 20, "{peak} bytes held");
        }
    }
}
