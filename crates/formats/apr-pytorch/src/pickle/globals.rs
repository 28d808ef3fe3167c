//! The list of names a checkpoint may use, closed by default.

use std::collections::HashSet;
use std::sync::LazyLock;

use apr_core::DType;

use super::dangers::{is_dangerous_name, is_in_dangerous_module, leaves};
use super::element::Element;
use super::uses::Verdict;

/// Meaning of an allowed name. None of them is code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// `_rebuild_tensor` and `_rebuild_tensor_v2`: storage, offset, size, stride.
    Tensor,
    /// `_rebuild_tensor_v3`: the same over an untyped storage, and a dtype.
    TensorWithDType,
    /// A function that hands its first argument on: a parameter, a typed list of TorchScript.
    First,
    /// `_rebuild_from_type_v2`: function, class, arguments, state.
    FromType,
    /// `_rebuild_wrapper_subclass`: class, dtype, shape, strides, offset, layout, device; the state
    /// has the tensors.
    Wrapper,
    /// torchao's `AffineQuantizedTensor`.
    AffineTensor,
    /// torchao's `Int8Tensor` and `Float8Tensor`, which replace it.
    CodesTensor,
    /// The codes, scales and zero points of one, in the order of the weight.
    AffineParts,
    /// `_rebuild_qtensor`: storage, offset, size, stride, quantizer.
    Quantized,
    /// `_rebuild_sparse_tensor`: layout, indices and values and size.
    Sparse,
    /// A tensor of a kind that is not read.
    Unsupported(&'static str),
    /// The class of a storage.
    Storage(Element),
    /// `torch.float32` and the like; `None` if this build has no such dtype.
    DType(Option<DType>),
    Dict,
    DefaultDict,
    List,
    Tuple,
    Set,
    /// `_codecs.encode`, by which protocol 2 spells bytes.
    Encode,
    /// `numpy.dtype`: text, whether aligned, whether copied.
    NumpyDType,
    /// `numpy.core.multiarray.scalar`: dtype, bytes.
    NumpyScalar,
    /// `numpy.core.multiarray._reconstruct`: class, shape, dtype; the state has the rest.
    NumpyArray,
    /// `numpy.core.numeric._frombuffer`: bytes, dtype, shape, order.
    NumpyBuffer,
    /// `numpy.ndarray`.
    NumpyClass,
    /// `joblib.numpy_pickle.NumpyArrayWrapper`: the array's bytes follow its state in the stream.
    JoblibArray,
    /// `copyreg._reconstructor`: class, base, state.
    Reconstructor,
    /// A class whose instances only hold state.
    Class,
    /// A value that no tensor depends on, called or not.
    Inert,
    /// A name that only a scan accepts.
    Forbidden,
}

const fn element(name: &'static str, dtype: Option<DType>, width: u64) -> Element {
    Element { dtype, width, name }
}

const ELEMENTS: &[Element] = &[
    element("FloatStorage", Some(DType::F32), 4),
    element("DoubleStorage", Some(DType::F64), 8),
    element("HalfStorage", Some(DType::F16), 2),
    element("BFloat16Storage", Some(DType::BF16), 2),
    element("ByteStorage", Some(DType::U8), 1),
    element("CharStorage", Some(DType::I8), 1),
    element("ShortStorage", Some(DType::I16), 2),
    element("IntStorage", Some(DType::I32), 4),
    element("LongStorage", Some(DType::I64), 8),
    element("BoolStorage", Some(DType::BOOL), 1),
    element("ComplexFloatStorage", Some(DType::C64), 8),
    element("ComplexDoubleStorage", None, 16),
    element("QInt8Storage", None, 1),
    element("QUInt8Storage", None, 1),
    element("QInt32Storage", None, 4),
    element("QUInt4x2Storage", None, 1),
    element("QUInt2x4Storage", None, 1),
];

/// The class in `torch` whose storages hold elements of this dtype.
pub(crate) fn storage_class(dtype: DType) -> Option<&'static str> {
    ELEMENTS.iter().find(|element| element.dtype == Some(dtype)).map(|element| element.name)
}

/// Returns the name in `torch` of a dtype without a storage class, or `None` for other dtypes.
///
/// Tensors of such dtypes use untyped storages and state the dtype themselves. PyTorch has the
/// 8-bit floats since 2.1, the wider unsigned integers since 2.3 and the scale of 8 exponent bits
/// since 2.7.
pub(crate) fn untyped_name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F8_E4M3 => "float8_e4m3fn",
        DType::F8_E5M2 => "float8_e5m2",
        DType::F8_E4M3FNUZ => "float8_e4m3fnuz",
        DType::F8_E5M2FNUZ => "float8_e5m2fnuz",
        DType::F8_E8M0 => "float8_e8m0fnu",
        DType::U16 => "uint16",
        DType::U32 => "uint32",
        DType::U64 => "uint64",
        _ => return None,
    })
}

/// Storages of bytes: the tensor names the dtype.
const UNTYPED: Element = element("UntypedStorage", Some(DType::U8), 1);

fn storage(module: &str, name: &str) -> Option<Meaning> {
    match (module, name) {
        ("torch" | "torch.storage", "UntypedStorage" | "_UntypedStorage") => {
            Some(Meaning::Storage(UNTYPED))
        }
        ("torch" | "torch.storage" | "torch.cuda", _) => ELEMENTS
            .iter()
            .find(|element| element.name == name)
            .map(|element| Meaning::Storage(*element)),
        _ => None,
    }
}

fn dtype(name: &str) -> Option<Meaning> {
    Some(Meaning::DType(Some(match name {
        "float32" | "float" => DType::F32,
        "float64" | "double" => DType::F64,
        "float16" | "half" => DType::F16,
        "bfloat16" => DType::BF16,
        "uint8" => DType::U8,
        "int8" => DType::I8,
        "int16" | "short" => DType::I16,
        "int32" | "int" => DType::I32,
        "int64" | "long" => DType::I64,
        "uint16" => DType::U16,
        "uint32" => DType::U32,
        "uint64" => DType::U64,
        "bool" => DType::BOOL,
        "complex64" | "cfloat" => DType::C64,
        "float8_e4m3fn" => DType::F8_E4M3,
        "float8_e5m2" => DType::F8_E5M2,
        "float8_e4m3fnuz" => DType::F8_E4M3FNUZ,
        "float8_e5m2fnuz" => DType::F8_E5M2FNUZ,
        "float8_e8m0fnu" => DType::F8_E8M0,
        "complex128" | "cdouble" | "complex32" | "chalf" | "qint8" | "quint8" | "qint32"
        | "quint4x2" | "quint2x4" | "float4_e2m1fn_x2" => return Some(Meaning::DType(None)),
        _ => return None,
    })))
}

/// Returns the meaning of a name, if a checkpoint may use it.
pub(crate) fn allowed(module: &str, name: &str) -> Option<Meaning> {
    // Protocol 4 reads a dotted name as a path of attributes, which leads anywhere.
    if name.contains('.') {
        return None;
    }

    let meaning = match (module, name) {
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Meaning::Tensor,
        ("torch._utils", "_rebuild_tensor_v3") => Meaning::TensorWithDType,
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Meaning::First,
        ("torch._tensor", "_rebuild_from_type_v2") => Meaning::FromType,
        ("torch._utils", "_rebuild_wrapper_subclass") => Meaning::Wrapper,
        ("torchao.dtypes.affine_quantized_tensor", "AffineQuantizedTensor") => {
            Meaning::AffineTensor
        }
        ("torchao.quantization", "Int8Tensor" | "Float8Tensor") => Meaning::CodesTensor,
        ("torchao.quantization", "Int4Tensor" | "IntxUnpackedToInt8Tensor") => {
            Meaning::Unsupported("a quantized tensor of torchao in a packed layout")
        }
        ("torchao.dtypes.uintx.plain_layout", "PlainAQTTensorImpl") => Meaning::AffineParts,
        ("torchao.dtypes.utils", "PlainLayout") => Meaning::Class,
        // An enumeration: the argument is the number of its member.
        ("torchao.quantization.quant_primitives", "ZeroPointDomain" | "MappingType")
        | ("torchao.quantization.quantize_.common.kernel_preference", "KernelPreference") => {
            Meaning::First
        }
        // How activations are quantized during a run.
        ("torchao.quantization.granularity", "PerRow" | "PerTensor")
        | (
            "torchao.quantization.quantize_.workflows.int8.int8_tensor",
            "QuantizeTensorToInt8Kwargs",
        )
        | (
            "torchao.quantization.quantize_.workflows.float8.float8_tensor",
            "QuantizeTensorToFloat8Kwargs",
        ) => Meaning::Class,
        ("torch._utils", "_rebuild_qtensor") => Meaning::Quantized,
        ("torch._utils", "_rebuild_sparse_tensor" | "_rebuild_sparse_csr_tensor") => {
            Meaning::Sparse
        }
        ("torch._utils", "_rebuild_meta_tensor_no_storage") => {
            Meaning::Unsupported("a tensor without values (meta)")
        }
        ("torch._utils", "_rebuild_nested_tensor") => Meaning::Unsupported("a nested tensor"),
        ("torch._utils", "_rebuild_device_tensor_from_numpy" | "_rebuild_xla_tensor") => {
            Meaning::Unsupported("a tensor pickled through NumPy")
        }
        ("torch.storage", "TypedStorage" | "_TypedStorage") => {
            Meaning::Unsupported("a storage pickled inside the pickle")
        }
        // Hands on its argument as far as anyone here looks at it.
        ("torch.serialization", "_get_layout") => Meaning::First,
        (
            "torch.jit._pickle",
            "build_intlist" | "build_tensorlist" | "build_doublelist" | "build_boollist",
        )
        | ("torch.jit._pickle", "restore_type_tag") => Meaning::First,
        ("torch", "Size") => Meaning::Tuple,
        (
            "torch",
            "device" | "Tensor" | "strided" | "sparse_coo" | "sparse_csr" | "contiguous_format",
        )
        | ("torch", "channels_last" | "channels_last_3d" | "preserve_format")
        | (
            "torch",
            "per_tensor_affine"
            | "per_channel_affine"
            | "per_tensor_symmetric"
            | "per_channel_symmetric",
        )
        | (
            "torch",
            "per_channel_affine_float_qparams" | "sparse_csc" | "sparse_bsr" | "sparse_bsc",
        )
        | ("torch.nn.backends.thnn", "_get_thnn_function_backend")
        | ("torch._C._nn", "gelu") => Meaning::Inert,
        ("torch", tensor) if tensor.strip_suffix("Tensor").is_some_and(is_element) => {
            Meaning::Inert
        }
        ("collections", "OrderedDict" | "Counter") => Meaning::Dict,
        ("collections", "defaultdict") => Meaning::DefaultDict,
        ("collections", "deque") => Meaning::List,
        ("builtins" | "__builtin__", "dict") => Meaning::Dict,
        ("builtins" | "__builtin__", "list") => Meaning::List,
        ("builtins" | "__builtin__", "tuple") => Meaning::Tuple,
        ("builtins" | "__builtin__", "set" | "frozenset") => Meaning::Set,
        (
            "builtins" | "__builtin__",
            "int" | "long" | "float" | "str" | "unicode" | "bool" | "complex" | "bytes",
        )
        | ("builtins" | "__builtin__", "bytearray" | "object" | "slice" | "range" | "xrange") => {
            Meaning::Inert
        }
        ("_codecs", "encode") => Meaning::Encode,
        ("numpy", "dtype") => Meaning::NumpyDType,
        ("numpy", "ndarray") => Meaning::NumpyClass,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Meaning::NumpyScalar,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => Meaning::NumpyArray,
        ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => Meaning::NumpyBuffer,
        ("joblib.numpy_pickle" | "sklearn.externals.joblib.numpy_pickle", "NumpyArrayWrapper") => {
            Meaning::JoblibArray
        }
        ("datetime", "datetime" | "date" | "time" | "timedelta" | "timezone")
        | (
            "pathlib" | "pathlib._local",
            "PosixPath" | "WindowsPath" | "PurePosixPath" | "PureWindowsPath",
        )
        | ("torch.torch_version", "TorchVersion") => Meaning::Inert,
        // States of random number generators.
        (
            "numpy.random._pickle" | "numpy.random",
            "__randomstate_ctor" | "__generator_ctor" | "__bit_generator_ctor",
        )
        | ("numpy.random.bit_generator", "SeedSequence" | "__pyx_unpickle_SeedSequence")
        | ("numpy.random._mt19937", "MT19937")
        | ("numpy.random._pcg64", "PCG64" | "PCG64DXSM")
        | ("numpy.random._philox", "Philox")
        | ("numpy.random._sfc64", "SFC64") => Meaning::Inert,
        ("uuid", "UUID") => Meaning::Class,
        ("copyreg" | "copy_reg", "_reconstructor") => Meaning::Reconstructor,
        ("argparse", "Namespace")
        | ("deepspeed.runtime.fp16.loss_scaler", "LossScaler" | "DynamicLossScaler")
        | ("deepspeed.runtime.zero.config", "ZeroStageEnum")
        | ("deepspeed.utils.tensor_fragment", "fragment_address")
        | ("torch.distributed.checkpoint.metadata", "Metadata" | "MetadataIndex" | "StorageMeta")
        | (
            "torch.distributed.checkpoint.metadata",
            "TensorStorageMetadata" | "BytesStorageMetadata",
        )
        | ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata" | "TensorProperties")
        | ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING")
        | ("torch.distributed.checkpoint.filesystem", "_StorageInfo") => Meaning::Class,
        _ => {
            return storage(module, name)
                .or_else(|| holder(module, name))
                .or_else(|| torch_dtype(module, name));
        }
    };

    Some(meaning)
}

fn torch_dtype(module: &str, name: &str) -> Option<Meaning> {
    if module == "torch" { dtype(name) } else { None }
}

fn is_element(name: &str) -> bool {
    ELEMENTS.iter().any(|element| element.name.strip_suffix("Storage") == Some(name))
}

/// The modules below `torch.nn`, each with the classes or functions that it defines
/// (`fixtures/scan/torch_names.py`). What a module imports is not among them: by
/// `torch.nn.functional` one gets at all of NumPy.
const TORCH_NAMES: &str = include_str!("torch_names.txt");

/// Classes of PyTorch's modules, and of TorchScript, which only exist inside its archives.
fn holder(module: &str, name: &str) -> Option<Meaning> {
    if module.starts_with("__torch__.") || module == "__torch__" {
        return Some(Meaning::Class);
    }
    if !module.starts_with("torch.nn.") && !module.starts_with("torch.ao.nn.") {
        return None;
    }

    // Until PyTorch 1.12, quantized modules were defined where they are only imported today.
    let moved = module.strip_prefix("torch.nn.").map(|rest| format!("torch.ao.nn.{rest}"));
    let of_release_1_5 = (module, name) == ("torch.nn.modules.linear", "_LinearWithBias");
    if !of_release_1_5 && !defines(module, name) && !moved.is_some_and(|at| defines(&at, name)) {
        return None;
    }
    Some(if module == "torch.nn.functional" { Meaning::Inert } else { Meaning::Class })
}

/// Returns `true` if a module defines a name or re-exports it from a module below it.
fn defines(module: &str, name: &str) -> bool {
    let joins = module == "torch.nn.modules" && !name.starts_with('_');
    let is_asked = |listed: &str| match listed.strip_prefix(module) {
        Some(rest) => rest.is_empty() || joins && rest.starts_with('.'),
        None => false,
    };
    TORCH_NAMES
        .lines()
        .filter_map(|line| line.split_once(' '))
        .any(|(listed, names)| is_asked(listed) && names.split(' ').any(|defined| defined == name))
}

/// Classes of scikit-learn, of trainers and of other libraries whose instances only hold state, and
/// functions that rebuild one, by the modules that define them (`fixtures/scan/library_names.py`).
/// A reader of tensors has no use for them.
const LIBRARY_NAMES: &str = include_str!("library_names.txt");

/// Names of the library classes with their modules.
///
/// Names of scikit-learn are also under its packages.
static OF_LIBRARIES: LazyLock<HashSet<(&str, &str)>> = LazyLock::new(|| {
    let lines = LIBRARY_NAMES.lines().filter_map(|line| line.split_once(' '));
    let names = lines.flat_map(|(module, names)| {
        names.split(' ').flat_map(move |name| {
            [Some((module, name)), sklearn_package(module).map(|package| (package, name))]
        })
    });
    names.flatten().collect()
});

/// `sklearn.linear_model` of a module in it.
fn sklearn_package(module: &str) -> Option<&str> {
    let package = module.strip_prefix("sklearn.")?.split('.').next()?;
    module.get(.."sklearn.".len() + package.len())
}

/// Returns `true` if a name is on the list of classes that only hold state.
///
/// Before 0.22, modules of scikit-learn had other names, such as `linear_model.logistic`.
fn is_of_library(module: &str, name: &str) -> bool {
    OF_LIBRARIES.contains(&(module, name))
        || sklearn_package(module).is_some_and(|package| OF_LIBRARIES.contains(&(package, name)))
}

/// Returns the verdict on an imported name: allowed, unknown or dangerous.
pub fn verdict(module: &str, name: &str) -> Verdict {
    if allowed(module, name).is_some() || is_of_library(module, name) {
        Verdict::Allowed
    } else if is_dangerous_name(module, name) || is_in_dangerous_module(module) || leaves(name) {
        Verdict::Dangerous
    } else {
        Verdict::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_of_their_module_are_not_on_the_list() {
        for (module, name) in [
            ("os", "system"),
            ("__builtin__", "eval"),
            ("pip._internal", "main"),
            ("pkgutil", "resolve_name"),
            ("torch.nn.modules.module", "os.system"),
            ("torch.utils.data", "x"),
            ("functools", "reduce"),
            ("sklearn.externals.joblib", "os.system"),
            ("numpy", "load"),
            ("numpy.testing._private.utils", "runstring"),
            ("pathlib", "os.system"),
            ("pathlib", "io"),
        ] {
            assert_eq!(allowed(module, name), None, "{module}.{name}");
            assert_eq!(verdict(module, name), Verdict::Dangerous, "{module}.{name}");
        }
        for (module, name) in [
            ("__main__", "Net"),
            ("numpy", "object_"),
            ("datetime", "sys"),
            ("torch.nn.modules.x", "lower"),
            ("torch.nn.modules.x", "Upper"),
            ("sklearn.datasets", "fetch_openml"),
            ("sklearn.utils._testing", "TempMemmap"),
            ("sklearn.tree._classes", "np"),
            ("torch.nn.functional", "np"),
            ("torch.nn.functional", "torch"),
            ("torch.nn.functional", "Callable"),
            ("torch.nn.modules.module", "OrderedDict"),
            ("torch.nn.utils.rnn", "Iterable"),
            ("torch.nn.parallel.distributed", "Any"),
            ("torch.nn", "modules"),
            ("torchao.dtypes.uintx.plain_layout", "torch"),
            ("torchao.dtypes.affine_quantized_tensor", "to_affine_quantized_intx"),
        ] {
            assert_eq!(allowed(module, name), None, "{module}.{name}");
            assert_eq!(verdict(module, name), Verdict::Unknown, "{module}.{name}");
        }
    }

    #[test]
    fn classes_that_only_hold_state_give_neither_findings_nor_tensors() {
        for (module, name) in [
            ("functools", "partial"),
            ("sklearn.svm._classes", "SVC"),
            ("sklearn.linear_model.logistic", "LogisticRegression"),
            ("sklearn.tree._tree", "Tree"),
            ("transformers.training_args", "TrainingArguments"),
            ("scipy.sparse._csr", "csr_matrix"),
            ("numpy", "float64"),
        ] {
            assert_eq!(allowed(module, name), None, "{module}.{name}");
            assert_eq!(verdict(module, name), Verdict::Allowed, "{module}.{name}");
        }
    }

    #[test]
    fn names_that_torch_writes_are_allowed() {
        for (module, name) in [
            ("torch", "FloatStorage"),
            ("torch.storage", "UntypedStorage"),
            ("torch", "bfloat16"),
            ("torch", "FloatTensor"),
            ("collections", "OrderedDict"),
            ("torch.nn.modules.linear", "Linear"),
            ("torch.nn.modules.container", "Sequential"),
            ("torch.nn.parameter", "Parameter"),
            ("torch.nn.modules", "Linear"),
            ("torch.nn.functional", "relu"),
            ("torch._utils", "_rebuild_wrapper_subclass"),
            ("torchao.dtypes.affine_quantized_tensor", "AffineQuantizedTensor"),
            ("torch.nn.quantized.dynamic.modules.linear", "Linear"),
            ("torch.ao.nn.quantized.modules.conv", "Conv2d"),
            ("__torch__.torch.nn", "Module"),
            ("numpy.core.multiarray", "scalar"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("pathlib", "PosixPath"),
            ("datetime", "datetime"),
        ] {
            assert_eq!(verdict(module, name), Verdict::Allowed, "{module}.{name}");
        }
    }
}
