//! Dotted names in settings, which libraries import and often call: lists of those that only
//! compute.
//!
//! A name of a library is not harmless by itself: `torch.testing`, `mlflow.pyfunc` and
//! `AutoModel.from_pretrained` run commands, unpickle and download. Known are classes, and
//! functions of modules that only compute; any other name of a library is suspicious.

use apr_pytorch::{Verdict, verdict_on};

use super::torch_ops;
use crate::report::FileVerdict;

/// Libraries whose classes configurations name as a matter of course.
const LIBRARIES: [&str; 17] = [
    "diffusers",
    "hydra",
    "ignite",
    "lightning",
    "mlflow",
    "mlserver",
    "monai",
    "nemo",
    "omegaconf",
    "onnxruntime",
    "optimum",
    "pytorch_lightning",
    "sentence_transformers",
    "speechbrain",
    "torch",
    "torchvision",
    "transformers",
];

/// Libraries of models: their classes are layers, optimizers, datasets and the like.
const OF_CLASSES: [&str; 10] = [
    "diffusers",
    "ignite",
    "lightning",
    "monai",
    "nemo",
    "pytorch_lightning",
    "sentence_transformers",
    "speechbrain",
    "torchvision",
    "transformers",
];

/// Modules whose functions only compute, or make a model.
const COMPUTING: [&str; 25] = [
    "lightning.fabric.utilities.seed",
    "lightning.pytorch.utilities.seed",
    "monai.data.utils",
    "monai.handlers",
    "monai.losses",
    "monai.metrics",
    "monai.networks",
    "monai.transforms",
    "speechbrain.alignment",
    "speechbrain.augment",
    "speechbrain.decoders",
    "speechbrain.lobes",
    "speechbrain.nnet",
    "speechbrain.processing",
    "torch.distributions",
    "torch.nn.functional",
    "torch.nn.init",
    "torch.nn.utils",
    "torch.special",
    "torchvision.models",
    "torchvision.ops",
    "torchvision.transforms",
    "transformers.activations",
    "transformers.optimization",
    "transformers.trainer_pt_utils",
];

/// Modules of PyTorch whose classes only compute.
const OF_TORCH: [&str; 8] = [
    "torch.amp",
    "torch.ao.nn",
    "torch.cuda.amp",
    "torch.distributions",
    "torch.nn",
    "torch.optim",
    "torch.optim.lr_scheduler",
    "torch.utils.data",
];

/// Single names that only compute or hold values, although the rest of their modules may not.
const SINGLE: [&str; 56] = [
    "lightning.seed_everything",
    "monai.data.decollate_batch",
    "monai.data.list_data_collate",
    "monai.data.pad_list_data_collate",
    "monai.utils.set_determinism",
    "numpy.random.seed",
    "operator.not_",
    "pytorch_lightning.seed_everything",
    "random.seed",
    "sentencepiece.SentencePieceProcessor",
    "speechbrain.dataio.dataset.DynamicItemDataset.from_json",
    "speechbrain.utils.checkpoints.torch_recovery",
    "speechbrain.utils.hparams.choice",
    "speechbrain.utils.seed_everything",
    "torch.Generator",
    "torch.Size",
    "torch.Tensor",
    "torch.arange",
    "torch.as_tensor",
    "torch.backends.cudnn.is_available",
    "torch.bfloat16",
    "torch.blackman_window",
    "torch.bool",
    "torch.cat",
    "torch.cuda.device_count",
    "torch.cuda.is_available",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "torch.device",
    "torch.empty",
    "torch.eye",
    "torch.float",
    "torch.float16",
    "torch.float32",
    "torch.float64",
    "torch.full",
    "torch.get_default_dtype",
    "torch.half",
    "torch.hamming_window",
    "torch.hann_window",
    "torch.int",
    "torch.int32",
    "torch.int64",
    "torch.int8",
    "torch.linspace",
    "torch.long",
    "torch.manual_seed",
    "torch.ones",
    "torch.rand",
    "torch.randn",
    "torch.set_default_dtype",
    "torch.squeeze",
    "torch.stack",
    "torch.tensor",
    "torch.uint8",
    "torch.zeros",
];

/// Modules of libraries whose names run commands, load code or open files by their purpose.
const REACHING: [&str; 16] = [
    "mlflow.projects",
    "mlflow.pyfunc",
    "mlflow.run",
    "monai.apps.auto3dseg",
    "monai.apps.nnunet",
    "monai.bundle",
    "onnxruntime",
    "speechbrain.utils.data_utils",
    "speechbrain.utils.importutils",
    "speechbrain.utils.superpowers",
    "torch._C",
    "torch.classes",
    "torch.export",
    "torch.library",
    "torch.testing",
    "torchvision.datasets.utils",
];

/// Parts of MONAI's applications whose classes only compute. Others download and run commands.
const APPLICATIONS: [&str; 7] = [
    "monai.apps.deepedit",
    "monai.apps.deepgrow",
    "monai.apps.detection",
    "monai.apps.generation",
    "monai.apps.pathology",
    "monai.apps.reconstruction",
    "monai.apps.vista3d",
];

/// Ends of names of classes that unpickle what is in a folder, run what a language model writes, or
/// load code and models that their arguments name.
const REACHING_CLASSES: [&str; 19] = [
    "Agent",
    "AutoTokenizer",
    "CLI",
    "CacheNTransDataset",
    "Command",
    "ConfigParser",
    "CrossEncoder",
    "FileOpener",
    "GDSDataset",
    "Interpreter",
    "LMDBDataset",
    "LegacyIndex",
    "PersistentDataset",
    "RagRetriever",
    "SentenceTransformer",
    "SparseEncoder",
    "Tool",
    "TransfoXLCorpus",
    "TransfoXLTokenizer",
];

/// Functions of MONAI that only compute, which its configurations name without a module.
const OF_MONAI: [&str; 8] = [
    "decollate_batch",
    "from_engine",
    "list_data_collate",
    "one_hot",
    "pad_list_data_collate",
    "partition_dataset",
    "set_determinism",
    "worker_init_fn",
];

/// Modules of Python that libraries import and that reach the system: a path through one of them
/// leads out of the library.
const WAYS_OUT: [&str; 16] = [
    "builtins",
    "ctypes",
    "importlib",
    "marshal",
    "multiprocessing",
    "os",
    "pathlib",
    "pickle",
    "posix",
    "runpy",
    "shutil",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "urllib",
];

/// Returns `true` for a name or module of a library that configurations refer to.
pub(super) fn is_of_library(name: &str) -> bool {
    let first = name.split('.').next().unwrap_or_default();
    LIBRARIES.contains(&first) || first.starts_with("mlserver_")
}

/// Modules of libraries that configurations import by a key for modules.
const MODULES: [&str; 4] = ["keras", "megatron.core", "tensorflow.keras", "tf_keras"];

/// Returns the verdict on importing a module.
///
/// Returns `None` for a module of a library that configurations refer to.
pub(super) fn module(path: &str) -> Option<FileVerdict> {
    if verdict_on(path, "") == Verdict::Dangerous || leaves(path) {
        return Some(FileVerdict::Dangerous);
    }
    (!is_of_library(path) && !MODULES.contains(&path)).then_some(FileVerdict::Suspicious)
}

/// Returns the verdict on importing a dotted name and calling it.
///
/// Returns `None` for a name without a module, and for a class or function that only computes.
pub(super) fn called(path: &str) -> Option<FileVerdict> {
    let (module, name) = path.rsplit_once('.')?;
    let mut operator = path.strip_prefix("torch.ops.").unwrap_or_default().split('.');
    if let (Some(namespace), Some(operator)) = (operator.next(), operator.next()) {
        let is_special = |part: &str| part.starts_with("__") && part.ends_with("__");
        // `aten.__and__.Tensor` is one.
        let is_plain = !is_special(namespace) && !is_special(name);
        if is_plain {
            return torch_ops::judge(namespace, operator).map(|(verdict, _)| verdict);
        }
    }
    if leaves(path) {
        return Some(FileVerdict::Dangerous);
    }
    if is_known(path, module, name) {
        return None;
    }
    let reaches = REACHING.iter().any(|outer| is_within(path, outer))
        || module == "torch" && torch_ops::judge("aten", name).is_some();
    if reaches || verdict_on(module, name) == Verdict::Dangerous {
        return Some(FileVerdict::Dangerous);
    }
    Some(FileVerdict::Suspicious)
}

/// Returns the verdict on the target of an instantiation, which is imported and called.
///
/// A name without a module is a module for Hydra. MONAI has any class and function of its own by
/// such a name, among them those that run commands (`run_cmd`) and import others (`instantiate`).
pub(super) fn target(name: &str) -> Option<FileVerdict> {
    if name.contains('.') {
        return called(name);
    }
    if verdict_on(name, "") == Verdict::Dangerous {
        return Some(FileVerdict::Dangerous);
    }
    let is_class = name.starts_with(|first: char| first.is_ascii_uppercase());
    let is_known = match is_class {
        true => !REACHING_CLASSES.iter().any(|end| name.ends_with(end)),
        false => OF_MONAI.contains(&name),
    };
    (!is_known).then_some(FileVerdict::Suspicious)
}

/// Returns `true` if a path leads through a module that reaches the system, or a private name.
fn leaves(path: &str) -> bool {
    path.split('.').skip(1).any(|part| WAYS_OUT.contains(&part.trim_start_matches('_')))
        || path.contains("__")
}

fn is_within(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns `true` for classes of libraries, and for functions that only compute.
fn is_known(path: &str, module: &str, name: &str) -> bool {
    let is_plain = path.split('.').all(|part| {
        !part.is_empty()
            && !part.starts_with('_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    });
    if !is_plain {
        return false;
    }
    if SINGLE.contains(&path) || COMPUTING.iter().any(|outer| is_within(module, outer)) {
        return true;
    }

    // A class in a module: a method of a class has a class before its name. Modules of speechbrain
    // have such names, too.
    let first = path.split('.').next().unwrap_or_default();
    let is_class = |part: &str| part.starts_with(|first: char| first.is_ascii_uppercase());
    if !is_class(name) || first != "speechbrain" && module.split('.').any(is_class) {
        return false;
    }
    if is_within(module, "monai.apps") && !APPLICATIONS.iter().any(|it| is_within(module, it)) {
        return false;
    }
    if REACHING_CLASSES.iter().any(|end| name.ends_with(end)) {
        return false;
    }
    if first == "torch" {
        return OF_TORCH.iter().any(|outer| is_within(module, outer));
    }
    (OF_CLASSES.contains(&first) || first.starts_with("mlserver_"))
        && !REACHING.iter().any(|outer| is_within(path, outer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_functions_that_only_compute_are_known() {
        for path in [
            "gelu",
            "torch.nn.Linear",
            "torch.nn.modules.activation.Tanh",
            "torch.nn.functional.relu",
            "torch.optim.lr_scheduler.StepLR",
            "torch.utils.data.DataLoader",
            "torch.device",
            "torch.ops.aten.add.Tensor",
            "nemo.collections.asr.modules.ConvASREncoder",
            "monai.networks.nets.UNet",
            "monai.transforms.Compose",
            "torchvision.models.resnet18",
            "lightning.pytorch.Trainer",
            "speechbrain.nnet.losses.mse_loss",
            "speechbrain.utils.parameter_transfer.Pretrainer",
            "mlserver_sklearn.SKLearnModel",
            "transformers.BertModel",
            "ignite.metrics.Accuracy",
            "monai.apps.detection.transforms.dictionary.BoxToMaskd",
            "speechbrain.utils.Accuracy.AccuracyStats",
            "sentencepiece.SentencePieceProcessor",
            "torch.hamming_window",
        ] {
            assert_eq!(called(path), None, "{path}");
        }
        assert_eq!(module("mlflow.sklearn"), None);
    }

    #[test]
    fn other_names_of_libraries_are_reported() {
        use FileVerdict::{Dangerous, Suspicious};
        for (path, expected) in [
            ("os.system", Dangerous),
            ("torch.load", Dangerous),
            ("torch.classes.load_library", Dangerous),
            ("torch.testing._internal.common_utils.shell", Dangerous),
            ("torch.nn.modules.os.system", Dangerous),
            ("torch.utils.data.dataset.__builtins__", Dangerous),
            ("mlflow.pyfunc.load_model", Dangerous),
            ("monai.bundle.run", Dangerous),
            ("monai.apps.nnunet.nnUNetV2Runner", Dangerous),
            ("monai.apps.MedNISTDataset", Suspicious),
            ("monai.apps.utils.download_url", Suspicious),
            ("speechbrain.inference.ASR.EncoderDecoderASR.from_hparams", Suspicious),
            ("onnxruntime.InferenceSession", Dangerous),
            ("speechbrain.utils.superpowers.run_shell", Dangerous),
            ("torch.from_file", Dangerous),
            ("torch.nn.modules._functions.x", Suspicious),
            ("transformers.AutoModel.from_pretrained", Suspicious),
            ("diffusers.DiffusionPipeline.from_pretrained", Suspicious),
            ("hydra.utils.get_method", Suspicious),
            ("monai.data.PersistentDataset", Suspicious),
            ("lightning.pytorch.cli.LightningCLI", Suspicious),
            ("sentence_transformers.SentenceTransformer", Suspicious),
            ("torch.utils.data.datapipes.iter.FileOpener", Dangerous),
            ("mine.Net", Suspicious),
        ] {
            assert_eq!(called(path), Some(expected), "{path}");
        }
        for (name, expected) in [
            ("UNet", None),
            ("set_determinism", None),
            ("run_cmd", Some(Suspicious)),
            ("PersistentDataset", Some(Suspicious)),
            ("subprocess", Some(Dangerous)),
            ("torch.nn.Linear", None),
        ] {
            assert_eq!(target(name), expected, "{name}");
        }
        assert_eq!(module("os"), Some(Dangerous));
        assert_eq!(module("mine"), Some(Suspicious));
    }
}
