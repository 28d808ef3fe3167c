//! K-quants against the bytes of ggml's `ggml_quantize_chunk` and `dequantize_row_q?_K`.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;

use apr_core::DType;
use apr_tensor::block::{dequantize, quantize};
use apr_testkit::locate;

const COLUMNS: usize = 1024;
const TYPES: [(DType, &str); 5] = [
    (DType::Q2_K, "q2_K"),
    (DType::Q3_K, "q3_K"),
    (DType::Q4_K, "q4_K"),
    (DType::Q5_K, "q5_K"),
    (DType::Q6_K, "q6_K"),
];

/// The folder of goldens, which is not part of the repository.
fn goldens() -> Option<PathBuf> {
    locate::shared_data("quant")
}

fn floats(path: PathBuf) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// The first super-block that differs, for a message that fits a line.
fn assert_same(ours: &[u8], theirs: &[u8], block: usize, what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let differing = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs);
    assert_eq!(differing.map(|at| (at / block, at % block)), None, "{what}: super-block and byte");
}

#[test]
fn quantized_bytes_equal_ggmls() {
    let Some(folder) = goldens() else { return };
    let input = floats(folder.join("input.f32"));
    let importance = floats(folder.join("imatrix.f32"));
    for (dtype, name) in TYPES {
        for (prefix, importance) in [("plain", None), ("imatrix", Some(&importance[..]))] {
            let name = format!("{prefix}.{name}");
            let mut ours = Vec::new();
            quantize(dtype, &input, COLUMNS, importance, &mut ours);
            assert_same(
                &ours,
                &std::fs::read(folder.join(&name)).unwrap(),
                usize::try_from(dtype.block_bytes()).unwrap(),
                &name,
            );
        }
    }
}

#[test]
fn dequantized_values_equal_ggmls() {
    let Some(folder) = goldens() else { return };
    for (dtype, name) in TYPES {
        let quantized = std::fs::read(folder.join(format!("plain.{name}"))).unwrap();
        let expected = floats(folder.join(format!("plain.{name}.dequantized.f32")));
        let mut values = vec![7.0; 3];
        dequantize(dtype, &quantized, COLUMNS, &mut values);
        assert_eq!(values.len(), expected.len(), "{name}");
        let differing = values
            .iter()
            .zip(&expected)
            .position(|(ours, theirs)| ours.to_bits() != theirs.to_bits());
        assert_eq!(differing, None, "{name}");
    }
}
