//! Tensors of torchao, which are listed as the parts that they are stored in.

use apr_core::DType;
use apr_pytorch::{PickleSurvey, Verdict};
use apr_testkit::torch::{Entry, zip};

use super::*;

const TENSOR: &str = "ctorchao.dtypes.affine_quantized_tensor\nAffineQuantizedTensor\n";
const PARTS: &str = "ctorchao.dtypes.uintx.plain_layout\nPlainAQTTensorImpl\n";

/// `_rebuild_wrapper_subclass` of this class, with this shape and this state.
fn wrapper(class: &str, shape: &str, state: &str) -> String {
    format!(
        "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\n{class}\
         ({class}ctorch\nbfloat16\n({shape}t(I2\nI1\ntI0\nt}}{state}tR"
    )
}

fn tensor(class: &str, key: u64, len: u64, shape: &str, strides: &str) -> String {
    format!(
        "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\n{class}\nS'{key}'\nS'cpu'\n\
         I{len}\ntQI0\n({shape}t({strides}tI00\nNtR"
    )
}

/// The pickle of one such tensor of one row of two, `up.weight`.
fn pickle(class: &str, shape: &str, domain: u64, more: &str) -> Vec<u8> {
    let parts = format!(
        "S'int_data'\n{}sS'scale'\n{}sS'zero_point'\n{}sS'_layout'\nctorchao.dtypes.utils\n\
         PlainLayout\n)\u{81}s{more}",
        tensor("CharStorage", 0, 2, "I1\nI2\n", "I2\nI1\n"),
        tensor("BFloat16Storage", 1, 1, "I1\n", "I1\n"),
        tensor("LongStorage", 2, 1, "I1\n", "I1\n"),
    );
    let state = format!(
        "S'tensor_impl'\n{}sS'zero_point_domain'\nctorchao.quantization.quant_primitives\n\
         ZeroPointDomain\n(I{domain}\ntRs",
        wrapper(PARTS, "I1\nI2\n", &parts)
    );
    let pickle = format!("}}S'up.weight'\n{}s.", wrapper(class, shape, &state));
    pickle.chars().map(|letter| letter as u8).collect()
}

/// A checkpoint of it.
fn file(class: &str, shape: &str, domain: u64, more: &str) -> Vec<u8> {
    zip(&[
        Entry::new("m/data.pkl", &pickle(class, shape, domain, more)),
        Entry::new("m/data/0", &[3, 0xfd]),
        Entry::new("m/data/1", &[0x80, 0x3f]),
        Entry::new("m/data/2", &[0; 8]),
    ])
}

#[test]
fn a_quantized_tensor_is_its_parts_under_the_names_of_safetensors_files() {
    let reader = open(file(TENSOR, "I1\nI2\n", 1, "")).expect("a good file");
    let found: Vec<_> =
        reader.tensors().iter().map(|info| (&*info.name, info.dtype, info.shape.dims())).collect();
    assert_eq!(
        found,
        [
            ("up._weight_qdata", DType::I8, &[1, 2][..]),
            ("up._weight_scale", DType::BF16, &[1]),
            ("up._weight_zero_point", DType::I64, &[1]),
        ]
    );
    assert_eq!(bytes_of(&reader, 0, 1), [3, 0xfd]);
    assert_eq!(bytes_of(&reader, 1, 2), [0x80, 0x3f]);

    let pickle = pickle(TENSOR, "I1\nI2\n", 1, "");
    let range = (0, pickle.len() as u64);
    let survey = PickleSurvey::read(&pickle, range, false, &Limits::default());
    assert_eq!(survey.problem, None);
    assert!(survey.findings.iter().all(|found| found.verdict == Verdict::Allowed));

    let without = open(file(TENSOR, "I1\nI2\n", 3, "")).expect("a good file");
    assert_eq!(without.tensors().len(), 2);
}

#[test]
fn tensors_of_later_versions_are_their_parts_too() {
    for class in ["Int8Tensor", "Float8Tensor"] {
        let class = format!("ctorchao.quantization\n{class}\n");
        let of = |shape: &str, more: &str| {
            let state = format!(
                "S'qdata'\n{}sS'scale'\n{}s{more}",
                tensor("CharStorage", 0, 2, "I1\nI2\n", "I2\nI1\n"),
                tensor("BFloat16Storage", 1, 1, "I1\nI1\n", "I1\nI1\n"),
            );
            let pickle = format!("}}S'up.weight'\n{}s.", wrapper(&class, shape, &state));
            zip(&[
                Entry::new("m/data.pkl", pickle.as_bytes()),
                Entry::new("m/data/0", &[3, 0xfd]),
                Entry::new("m/data/1", &[0x80, 0x3f]),
            ])
        };
        for more in ["", "S'zero_point'\nNs", "S'mm_config'\nNs"] {
            let reader = open(of("I1\nI2\n", more)).expect("a good file");
            let names: Vec<_> = reader.tensors().iter().map(|info| &*info.name).collect();
            assert_eq!(names, ["up._weight_qdata", "up._weight_scale"]);
        }
        let error = refused(of("I2\nI1\n", ""));
        assert!(error.to_string().contains("another layout"), "{error}");
    }
}

#[test]
fn other_wrappers_are_refused_by_name() {
    for (file, code, expected) in [
        (file(TENSOR, "I1\nI2\n", 2, ""), Code::Version, "zero points that are not integers"),
        (file(TENSOR, "I2\nI1\n", 1, ""), Code::Version, "another layout"),
        (file("ctorch.nn.parameter\nBuffer\n", "I1\nI2\n", 1, ""), Code::Version, "wraps others"),
        (file("cx\nTensor\n", "I1\nI2\n", 1, ""), Code::Format, "x.Tensor"),
        (file(TENSOR, "I1\nI2\n", 1, "S'__class__'\nI1\ns"), Code::Format, "sets __class__"),
        (file(TENSOR, "S'a'\n", 1, ""), Code::Format, "sizes"),
    ] {
        let error = refused(file);
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    for pickle in [
        "ctorch._utils\n_rebuild_wrapper_subclass\n)R.".to_owned(),
        format!("{TENSOR})R."),
        format!("{PARTS})R."),
    ] {
        let error = refused(apr_testkit::torch::checkpoint(pickle.as_bytes()));
        assert!(error.message().contains("without its parts"), "{error}");
    }
}
