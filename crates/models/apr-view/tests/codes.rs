//! Weights that other programs quantized, against the values that their own libraries give.

use std::path::Path;

use apr_core::{CheckpointReader, DType, Limits};
use apr_testkit::FolderInMemory;
use apr_testkit::locate::shared_case;
use apr_view::Coded;

/// The files of a folder.
fn folder(path: &Path) -> FolderInMemory {
    let mut files = FolderInMemory::default();
    for entry in std::fs::read_dir(path).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name");
        files.0.insert(name, std::fs::read(entry.path()).expect("a file"));
    }
    files
}

fn open(path: &Path) -> Box<dyn CheckpointReader> {
    let model = apr_registry::open_folder(&folder(path), &Limits::default());
    Coded::over(Box::new(model.expect("a model")))
}

/// The values of a tensor in single precision.
fn values(model: &dyn CheckpointReader, tensor: usize) -> Vec<f32> {
    let info = &model.tensors()[tensor];
    let mut bytes = vec![0; usize::try_from(info.byte_len().expect("a length")).expect("small")];
    model.read_tensor(tensor, 0, &mut bytes).expect("values");
    let mut floats = Vec::new();
    apr_tensor::element::widen_f32(info.dtype, &bytes, &mut floats);
    floats
}

/// Reads a tensor in pieces that cross rows and split elements, and asserts that they equal the
/// whole.
fn check_pieces(model: &dyn CheckpointReader, tensor: usize) {
    let info = &model.tensors()[tensor];
    let mut whole = vec![0; usize::try_from(info.byte_len().expect("a length")).expect("small")];
    model.read_tensor(tensor, 0, &mut whole).expect("bytes");
    for len in [61, 997, 12_345] {
        let mut pieces = vec![0; whole.len()];
        for (number, piece) in pieces.chunks_mut(len).enumerate() {
            model.read_tensor(tensor, (number * len) as u64, piece).expect("a piece");
        }
        assert!(pieces == whole, "{} in pieces of {len}", info.name);
    }
}

/// Folders whose known values are not rounded to the dtype of the scales, as the library does.
const ROUNDED: [&str; 9] = [
    "ct-fp8-channel",
    "gptq3",
    "gptq4",
    "gptq4-actorder",
    "gptq4-sym-v2",
    "gptq8",
    "autoround4",
    "awq4",
    "torchao-fp8-st",
];

/// Folders whose known values are divided by 127, while the library multiplies by its reciprocal.
const LAST_BIT: [&str; 1] = ["bnb-int8"];

/// Folders whose known values have zeros with the sign of the value before rounding.
const SIGNED_ZEROS: [&str; 1] = ["bitnet158"];

/// Compares a folder with the values that are known of it; returns what differs.
fn differences(name: &str) -> Option<Vec<String>> {
    let path = shared_case(&format!("codes/{name}"))?;
    let known = std::fs::read(path.with_extension("ref.safetensors")).expect("values");
    let known = apr_registry::open(known, "known.safetensors", &Limits::default()).expect("values");
    let model = open(&path);
    let mut differences = Vec::new();
    for (position, info) in known.tensors().iter().enumerate() {
        let Some(tensor) = model.tensors().iter().position(|other| other.name == info.name) else {
            differences.push(format!("{name}: no {}", info.name));
            continue;
        };
        let of = &model.tensors()[tensor];
        if of.shape != info.shape {
            differences.push(format!("{name}: {} is {}, not {}", of.name, of.shape, info.shape));
            continue;
        }
        assert_eq!(info.dtype, DType::F32);
        let (ours, mut theirs) = (values(&*model, tensor), values(&*known, position));
        if ROUNDED.contains(&name) {
            let mut bytes = Vec::new();
            apr_tensor::cast::cast_values(&theirs, of.dtype, &mut bytes);
            apr_tensor::element::widen_f32(of.dtype, &bytes, &mut theirs);
        }
        check_pieces(&*model, tensor);
        let allowed = u32::from(LAST_BIT.contains(&name));
        let are_zeros = |a: f32, b: f32| SIGNED_ZEROS.contains(&name) && a == 0.0 && b == 0.0;
        let is_other = |(a, b): &(&f32, &f32)| {
            a.to_bits().abs_diff(b.to_bits()) > allowed && !are_zeros(**a, **b)
        };
        let other = ours.iter().zip(&theirs).filter(is_other).count();
        if other > 0 {
            let first = ours.iter().zip(&theirs).find(is_other);
            differences.push(format!(
                "{name}: {}: {other} of {} values differ, first {first:?}",
                info.name,
                ours.len()
            ));
        }
    }
    Some(differences)
}

macro_rules! kinds {
    ($($test:ident: $($folder:literal)+;)+) => {$(
        #[test]
        fn $test() {
            for folder in [$($folder),+] {
                let Some(found) = differences(folder) else { return };
                assert!(found.is_empty(), "{found:#?}");
            }
        }
    )+};
}

kinds! {
    fp8_in_blocks_is_what_transformers_reads: "fp8-block" "qwen3-fp8" "deepseek-fp8";
    fp8_with_scales_is_what_its_formula_says: "modelopt-fp8" "modelopt-fp8-nocfg" "fbgemm-fp8"
        "comfy-scaled-fp8" "torchao-fp8-st" "fp8-plain-cast";
    integers_and_fp8_of_compressed_tensors_are_its_own: "ct-fp8-channel" "ct-fp8-tensor"
        "ct-naive-int4" "ct-w8a8-int";
    int8_of_bitsandbytes_and_quanto_is_their_own: "bnb-int8" "quanto-int8" "quanto-float8";
    fp4_of_compressed_tensors_and_modelopt_is_what_their_formulas_say: "ct-nvfp4" "modelopt-nvfp4";
    four_bits_of_bitsandbytes_are_its_own: "bnb-nf4" "bnb-nf4-dq" "bnb-fp4";
    ternary_weights_of_bitnet_are_what_their_formula_says: "bitnet158";
    experts_of_gpt_oss_are_what_transformers_reads: "gptoss-mxfp4";
    weights_of_hqq_are_its_own: "hqq4";
    four_bits_of_quanto_are_its_own: "quanto-int4";
    gptq_is_what_autogptq_reads: "gptq3" "gptq4" "gptq4-actorder" "gptq4-sym-v2" "gptq8"
        "autoround4";
    awq_is_what_autoawq_reads: "awq4";
    integers_of_eetq_are_what_their_formula_says: "eetq8";
    int8_of_torchao_is_its_own: "torchao-int8-bin";
    packed_integers_are_what_compressed_tensors_reads: "ct-w4a16" "ct-w4a16-asym" "ct-w8a16";
    every_mode_of_mlx_is_its_own: "mlx-affine4" "mlx-affine6" "mlx-affine8" "mlx-mxfp44";
}
