//! Operators of PyTorch by their namespaces: those that compute, and those that reach out.
//!
//! Programs of TorchScript and of torch.export call operators by name. A name in a namespace that
//! PyTorch has itself is one of its own operators, or loading fails; any other namespace is of a
//! library that the loading program registers.

use crate::report::FileVerdict;

/// Namespaces of the operators that PyTorch 2.7 and torchvision register
/// (`torch._C._jit_get_all_schemas()`).
const KNOWN: [&str; 37] = [
    "_c10d_functional",
    "_c10d_functional_autograd",
    "_dtensor",
    "_quantized",
    "_test",
    "aten",
    "c10d",
    "c10d_functional",
    "cuda",
    "debugprims",
    "export",
    "fbgemm",
    "higher_order",
    "image",
    "inductor",
    "internal",
    "mkl",
    "mkldnn",
    "mkldnn_prepacked",
    "onednn",
    "onnx",
    "prepacked",
    "prim",
    "prims",
    "profiler",
    "quantization",
    "quantized",
    "quantized_decomposed",
    "rngprims",
    "sparse",
    "static_runtime",
    "streams",
    "symm_mem",
    "tensor",
    "torchao",
    "torchvision",
    "xnnpack",
];

/// Operators that reach files, processes or other machines: the namespace, the beginning of the
/// name, and what they do.
const REACHING: [(&str, &str, &str); 16] = [
    ("aten", "from_file", "reads and writes files"),
    ("aten", "save", "writes files"),
    ("aten", "load", "reads files"),
    ("c10d", "", "exchanges data with other machines"),
    ("debugprims", "load_tensor", "reads files"),
    ("image", "read_file", "reads files"),
    ("image", "write_file", "writes files"),
    ("prim", "PythonOp", "runs Python"),
    ("prim", "IgnoredPythonOp", "runs Python"),
    ("prim", "rpc_", "calls other machines"),
    ("torchaudio", "sox_io", "accesses files"),
    ("torchaudio", "ffmpeg", "accesses files"),
    ("torchvision", "read_file", "reads files"),
    ("torchvision", "read_video", "reads files"),
    ("torchvision", "write_file", "writes files"),
    ("video_reader", "", "reads files"),
];

/// Parts of `torch.ops` that are functions, not namespaces.
const LOADERS: [&str; 2] = ["import_module", "load_library"];

/// Returns the effect of calling an operator, or `None` if it only computes.
pub(super) fn judge(namespace: &str, name: &str) -> Option<(FileVerdict, &'static str)> {
    if LOADERS.contains(&namespace) || LOADERS.contains(&name) {
        return Some((FileVerdict::Dangerous, "loads a library of programs"));
    }
    let reaching =
        REACHING.iter().find(|(outer, start, _)| *outer == namespace && name.starts_with(start));
    if let Some((.., what)) = reaching {
        return Some((FileVerdict::Dangerous, what));
    }
    (!KNOWN.contains(&namespace)).then_some((
        FileVerdict::NotExamined,
        "is an operator of a library that the loading program registers",
    ))
}

/// Operators that reach out, as bytecode spells them: `aten::save`.
pub(crate) fn reaching() -> impl Iterator<Item = String> {
    REACHING.iter().map(|(namespace, start, _)| format!("{namespace}::{start}"))
}

/// Returns the verdict on a class of `torch.classes` in a program.
///
/// Returns `None` for the classes that PyTorch uses for packed weights.
pub(super) fn judge_class(namespace: &str, name: &str) -> Option<FileVerdict> {
    let known = match namespace {
        "quantized" | "xnnpack" | "sparse" | "mkldnn" | "mkldnn_prepacked" | "onednn" => true,
        "rnn" => name == "CellParamsBase",
        _ => false,
    };
    (!known).then_some(FileVerdict::NotExamined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_judged_by_namespace_and_name() {
        for (namespace, name, expected) in [
            ("aten", "relu", None),
            ("aten", "from_file", Some(FileVerdict::Dangerous)),
            ("prim", "rpc_sync", Some(FileVerdict::Dangerous)),
            ("torchvision", "nms", None),
            ("load_library", "__call__", Some(FileVerdict::Dangerous)),
            ("mine", "relu", Some(FileVerdict::NotExamined)),
        ] {
            let found = judge(namespace, name).map(|(verdict, _)| verdict);
            assert_eq!(found, expected, "{namespace}::{name}");
        }
        assert_eq!(judge_class("quantized", "LinearPackedParamsBase"), None);
        assert_eq!(judge_class("mine", "X"), Some(FileVerdict::NotExamined));
    }
}
