//! Weights whose codes are kept in memory have the values that reading them gives, bit for bit.

use std::fs;

use apr_core::{CheckpointReader, Limits, TensorInfo};
use apr_tensor::element::widen_f32;
use apr_testkit::FolderInMemory;
use apr_testkit::locate::shared_case;
use apr_view::Coded;

/// Folders that other programs quantized, and whether the codes of their weights are kept.
const FOLDERS: [(&str, bool); 34] = [
    ("autoround4", true),
    ("awq4", true),
    ("bnb-int8", true),
    ("bitnet158", true),
    ("bnb-fp4", true),
    ("bnb-nf4", true),
    ("bnb-nf4-dq", true),
    ("comfy-scaled-fp8", true),
    ("ct-fp8-channel", true),
    ("ct-fp8-tensor", true),
    ("ct-naive-int4", true),
    ("ct-nvfp4", true),
    ("ct-w4a16", true),
    ("ct-w4a16-asym", true),
    ("ct-w8a16", true),
    ("ct-w8a8-int", true),
    ("eetq8", true),
    ("fp8-block", true),
    ("gptq3", true),
    ("gptq4", true),
    ("gptq4-actorder", true),
    ("gptq4-sym-v2", true),
    ("gptoss-mxfp4", false),
    ("gptq8", true),
    ("hqq4", true),
    ("mlx-affine4", true),
    ("mlx-affine6", true),
    ("mlx-affine8", true),
    ("mlx-mxfp44", true),
    ("modelopt-nvfp4", true),
    ("quanto-float8", true),
    ("quanto-int4", true),
    ("quanto-int8", true),
    ("torchao-fp8-st", true),
];

fn open(name: &str) -> Option<Box<dyn CheckpointReader>> {
    let mut folder = FolderInMemory::default();
    for entry in fs::read_dir(shared_case(&format!("codes/{name}"))?).expect("a folder") {
        let entry = entry.expect("an entry");
        let file = entry.file_name().into_string().expect("text");
        folder.0.insert(file, fs::read(entry.path()).expect("a file"));
    }
    let model = apr_registry::open_folder(&folder, &Limits::default()).expect("a model");
    Some(Coded::over(Box::new(model)))
}

/// The values that reading gives.
fn values(model: &dyn CheckpointReader, tensor: usize) -> Vec<f32> {
    let info = &model.tensors()[tensor];
    let len = usize::try_from(info.byte_len().expect("a length")).expect("small");
    let mut bytes = vec![0; len];
    model.read_tensor(tensor, 0, &mut bytes).expect("bytes");
    let mut values = Vec::new();
    widen_f32(info.dtype, &bytes, &mut values);
    values
}

fn matrix(info: &TensorInfo) -> [usize; 2] {
    let dims: Vec<usize> =
        info.shape.dims().iter().map(|&dim| usize::try_from(dim).expect("small")).collect();
    dims.try_into().expect("a matrix")
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn values_of_codes_kept_in_memory_equal_those_read_from_the_file() {
    for (name, is_kept) in FOLDERS {
        let Some(model) = open(name) else { return };
        let mut kept = 0;
        for (tensor, info) in model.tensors().iter().enumerate() {
            let Some(coding) = model.stored(tensor).coding() else { continue };
            let Some(codes) = coding.in_memory else { continue };
            assert!(codes.kept_len() < info.byte_len().expect("a length"), "{name}");
            let [rows, columns] = matrix(info);
            let known = values(&*model, tensor);
            let codes = codes.keep(coding.base).expect("codes");
            let mut all = vec![0.0; rows * columns];
            codes.decode(coding.base, 0..rows, 0, &mut all).expect("rows");
            assert_eq!(bits(&all), bits(&known), "{name} {}", info.name);
            // Pieces of some rows, which begin within a group or a byte.
            for (first, len) in [(1, 7), (32, 33), (37, columns - 37)] {
                let mut piece = vec![0.0; 2 * len];
                codes.decode(coding.base, 3..5, first, &mut piece).expect("a piece");
                for (row, piece) in (3..5).zip(piece.chunks(len)) {
                    let known = &known[row * columns + first..][..len];
                    assert_eq!(bits(piece), bits(known), "{name} {} {first}", info.name);
                }
            }
            kept += 1;
        }
        assert_eq!(kept > 0, is_kept, "{name}");
    }
}
