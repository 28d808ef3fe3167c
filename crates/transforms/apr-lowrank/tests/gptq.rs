//! Rounding by inputs gives the codes of llm-compressor's GPTQ (`fixtures/quantize/gptq.py`).

use std::fs;

use apr_core::{CheckpointReader, DType, Limits};
use apr_lowrank::second_order::{Gram, round};
use apr_quantize::Layout;
use apr_tensor::element::widen_f32;
use apr_testkit::locate;

const COLUMNS: usize = 256;

fn golden(reader: &dyn CheckpointReader, name: &str) -> Vec<f32> {
    let position = reader.tensors().iter().position(|info| info.name == name);
    let position = position.unwrap_or_else(|| panic!("no tensor {name}"));
    let info = &reader.tensors()[position];
    let mut bytes = vec![0; usize::try_from(info.byte_len().expect("few")).expect("few")];
    reader.read_tensor(position, 0, &mut bytes).expect("readable");
    let mut values = Vec::new();
    widen_f32(info.dtype, &bytes, &mut values);
    values
}

#[test]
fn codes_match_those_of_llm_compressor() {
    let file = fs::read(locate::fixture("quantize/gptq.safetensors")).expect("the fixture");
    let reader = apr_registry::open(file, "gptq.safetensors", &Limits::default()).expect("a model");
    let (weights, inputs) = (golden(&*reader, "weights"), golden(&*reader, "inputs"));
    for (case, layout, most) in [("w8a8", Layout::W8A8, 127.5), ("fp8", Layout::Fp8, 448.0)] {
        let mut gram = Gram::new(COLUMNS).expect("small");
        inputs.chunks(9 * COLUMNS).for_each(|rows| gram.add(rows).expect("finite"));
        let rounding = layout.rounding(DType::F32, 1.0);
        let mut found = weights.clone();
        let error = round(rounding, gram, &mut found, COLUMNS).expect("it can be factored");
        assert!(error > 0.0 && error < 0.05, "{case}: {error}");

        let expected = golden(&*reader, &format!("{case}_codes"));
        let (mut others, mut moved) = (0, 0);
        for ((row, found), expected) in
            weights.chunks(COLUMNS).zip(found.chunks(COLUMNS)).zip(expected.chunks(COLUMNS))
        {
            let largest = row.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            let scale = half::bf16::from_f32(largest / most).to_f32();
            for ((weight, found), expected) in row.iter().zip(found).zip(expected) {
                let nearest = rounding.round(*weight, rounding.scale(row, None));
                moved += usize::from(nearest != *found);
                let is_same = (found / scale - expected).abs() <= expected.abs() / 1024.0;
                others += usize::from(!is_same);
            }
        }
        // Sums in another order may choose another of two codes that are as near.
        assert!(others <= 4, "{case}: {others} of {} codes", weights.len());
        assert!(moved > 100, "{case}: only {moved} codes are not the nearest");
    }
}
