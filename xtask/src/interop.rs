//! Live peers: programs of others that load, run and rewrite what we write; and the builds that the
//! gate leaves out.
//!
//! They take minutes to build or to fetch, so the gate goes without them. What they agreed with is
//! recorded in `fixtures/peers/`, and `cargo xtask test` checks that we still write those very
//! bytes. When each part last passed is recorded too, and `cargo xtask lint` lists the parts that
//! are due.

mod passed;

use std::path::PathBuf;
use std::time::Instant;

use crate::builds;
use crate::process::{cargo, run as run_program, target_dir};
use crate::reference;
use crate::steps::{Outcome, Steps};

type Part = fn(&mut Steps);

/// The parts, in the order in which they run. Each sets up the programs that it compares with.
const PARTS: [(&str, Part); 18] = [
    ("builds", builds::run),
    ("parity", parity),
    ("candle", candle),
    ("hub", hub),
    ("torch", torch),
    ("python", python),
    ("graphs", graphs),
    ("distill", distill),
    ("merge", merge),
    ("codes", codes),
    ("runtimes", runtimes),
    ("texts", texts),
    ("optimum", optimum),
    ("simplify", simplify),
    ("quality", quality),
    ("damage", damage),
    ("llama", llama),
    ("trained", trained),
];

/// Runs the given parts, or all if none is given, and records those that passed completely.
///
/// # Errors
///
/// The known names, if one is unknown.
pub(crate) fn run(steps: &mut Steps, names: &[&str]) -> Result<(), String> {
    if let Some(unknown) = names.iter().find(|name| !known().contains(name)) {
        return Err(format!("no part is called \"{unknown}\"\n\n{}", usage()));
    }

    let commit = passed::commit();
    for (name, part) in PARTS {
        if names.is_empty() || names.contains(&name) {
            let (start, missed) = (Instant::now(), steps.missed());
            part(steps);
            if steps.missed() == missed {
                steps.run(&format!("the pass of {name} is recorded"), || {
                    passed::record(name, &commit, start.elapsed())
                });
            }
        }
    }
    Ok(())
}

/// The parts, with the last pass of each.
pub(crate) fn usage() -> String {
    let passes = passed::read();
    let parts = PARTS.map(|(name, _)| {
        let last = match &passes {
            Ok(passes) => passes.get(name).map_or_else(|| "never".to_owned(), passed::Pass::shown),
            Err(_) => "the record can't be read".to_owned(),
        };
        format!("  {name:<8} {last}\n")
    });
    let parts = parts.concat();
    format!("Usage: cargo xtask interop [PART]...\n\nParts, and their last pass:\n{parts}")
}

/// Lists the parts that have not passed for long.
pub(crate) fn list_due() -> Outcome {
    passed::list_due(&known())
}

fn known() -> [&'static str; PARTS.len()] {
    PARTS.map(|(name, _)| name)
}

fn parity(steps: &mut Steps) {
    steps.run("the Python reference environment", reference::set_up_python);
    steps.run("docs/parity.md has what its commands do", || reference::check_parity(&apr()?));
}

fn candle(steps: &mut Steps) {
    steps.run("candle reads what apr writes, and adds numbers with it", || {
        run_program(&mut cargo("test", ["--package", "apr-interop"]))
    });
}

fn hub(steps: &mut Steps) {
    steps.run("the Python reference environment", reference::set_up_python);
    if steps
        .run("Hugging Face's Python client, and an S3 store", reference::set_up_hub_client)
        .is_some()
    {
        steps.run("Hugging Face's client shares its cache with apr, and apr reads from S3", || {
            run_program(&mut cargo("build", ["--package", "apr-testkit", "--example", "hub"]))?;
            let hub = target_dir().join("debug/examples/hub");
            reference::check_with_hub_client(&apr()?, &hub)
        });
    }
}

fn torch(steps: &mut Steps) {
    steps.run("the Python reference environment", reference::set_up_python);
    if steps.run("torch, for PyTorch's files", reference::set_up_torch).is_some() {
        steps.run("torch loads what apr writes", || ask("apr-pytorch", "torch::"));
    }
}

fn python(steps: &mut Steps) {
    if set_up_transformers(steps)
        && steps
            .run("the wheel, and what tests of safetensors use", reference::set_up_suite)
            .is_some()
    {
        steps.run("apr.safetensors passes the tests of safetensors", reference::check_with_suite);
    }
}

fn set_up_transformers(steps: &mut Steps) -> bool {
    let what = "transformers and onnxruntime, to compare with";
    steps.run(what, reference::set_up_transformers).is_some()
}

fn graphs(steps: &mut Steps) {
    if !set_up_transformers(steps) {
        return;
    }
    steps.run("the onnx package reads the collection as apr does", || ask("apr-onnx", "live_"));
    steps.run("onnxruntime runs what apr writes, as transformers computes", || {
        ask("apr-cli", "onnx_")
    });
    steps.run("torch runs the programs that apr writes", || ask("apr-cli", "torchscript::"));
    steps.run("graphs of families compute what transformers computes", || {
        ask("apr-cli", "graphs::")
    });
    steps.run("graphs of families do so for odd sizes and rare options", || {
        reference::check_graphs(&apr()?, "onnxruntime")
    });
    steps.run("torch computes with programs what transformers computes", || {
        reference::check_graphs(&apr()?, "torchscript")
    });
    steps.run("apr run computes what transformers computes", || {
        reference::check_graphs(&apr()?, "apr")
    });
    steps.run("GGUF files compute what transformers computes of their folders", || {
        reference::check_gguf_graphs(&apr()?)
    });
    steps.run("onnxruntime runs what apr translates of Keras, TensorFlow and Core ML", || {
        reference::check_translated(&apr()?)
    });
    steps.run("apr run passes the official tests of ONNX", || reference::check_node_suite(&apr()?));
    steps.run("every layer's states and attention within apr run are transformers'", || {
        reference::check_inside(&apr()?)
    });
}

fn codes(steps: &mut Steps) {
    if set_up_transformers(steps)
        && steps.run("compressed-tensors and mlx-lm", reference::set_up_codes).is_some()
    {
        steps.run("other libraries load the quantized layouts that apr writes", || {
            reference::check_codes(&apr()?)
        });
    }
}

fn runtimes(steps: &mut Steps) {
    if set_up_transformers(steps)
        && steps.run("OpenVINO, XGBoost and LightGBM", reference::set_up_runtimes).is_some()
    {
        steps.run("they compute what apr and onnxruntime compute of their models", || {
            reference::check_runtimes(&apr()?)
        });
    }
}

fn texts(steps: &mut Steps) {
    if !set_up_transformers(steps)
        || steps.run("jsonschema and lark, to judge texts", reference::set_up_texts).is_none()
    {
        return;
    }
    if steps.run("the templates of llama.cpp", reference::set_up_llama_source).is_some() {
        steps.run("chat templates write what they write in transformers", || {
            reference::check_chat_templates(&apr()?)
        });
    }
    steps.run("texts match their JSON schemas, expressions and grammars", || {
        reference::check_grammars(&apr()?)
    });
}

fn distill(steps: &mut Steps) {
    if !set_up_transformers(steps) {
        return;
    }
    steps.run("gradients of all families are those of torch", || {
        let folder = target_dir().join("gradients");
        reference::write_gradients(&folder)?;
        let mut command = cargo("test", ["--package", "apr-distill", "--lib", "all_families"]);
        run_program(command.env("APR_TORCH_GRADIENTS", &folder))
    });
    steps.run("a student learns from apr what it learns from torch", || {
        run_program(&mut cargo("build", ["--release", "--package", "apr-cli"]))?;
        reference::check_distillation(&target_dir().join("release/apr"))
    });
}

fn merge(steps: &mut Steps) {
    if !set_up_transformers(steps)
        || steps.run("mergekit, to compare with", reference::set_up_mergekit).is_none()
    {
        return;
    }
    steps.run("mergekit merges models of six families to what apr makes of them", || {
        reference::check_with_mergekit(&apr()?)
    });
    steps.run("PEFT merges adapters of all kinds to what apr makes of them", || {
        reference::check_with_peft(&apr()?)
    });
}

fn optimum(steps: &mut Steps) {
    if set_up_transformers(steps)
        && steps.run("Optimum, to compare with", reference::set_up_optimum).is_some()
    {
        steps.run("Optimum names what apr exports alike, and runs it", || {
            reference::check_with_optimum(&apr()?)
        });
    }
}

fn simplify(steps: &mut Steps) {
    if set_up_transformers(steps)
        && steps.run("onnxsim and onnxslim, to compare with", reference::set_up_simplify).is_some()
    {
        steps.run("simplified graphs compute what they did, for onnxruntime", || {
            run_program(&mut cargo("build", ["--release", "--package", "apr-cli"]))?;
            reference::check_simplified(&target_dir().join("release/apr"))
        });
    }
}

fn quality(steps: &mut Steps) {
    steps.run("the Python reference environment", reference::set_up_python);
    if steps.run("the model all-MiniLM-L6-v2", reference::fetch_model).is_some() {
        steps.run("a comparison of two models names the tensor that was damaged", || {
            reference::check_damage(&apr()?)
        });
    }
    steps.run("types that are searched are nearer than mixes of the same size", || {
        reference::check_search(&apr()?)
    });
}

fn damage(steps: &mut Steps) {
    steps.run("the Python reference environment", reference::set_up_python);
    if !set_up_transformers(steps)
        || steps.run("the model all-MiniLM-L6-v2", reference::fetch_model).is_none()
        || steps.run("small models, trained with torch", reference::train_small_models).is_none()
    {
        return;
    }
    let apr = || {
        run_program(&mut cargo("build", ["--release", "--package", "apr-cli"]))?;
        Ok(target_dir().join("release/apr"))
    };
    steps.run("comparisons of models do not accuse sound quantizations", || {
        reference::check_false_alarms(&apr()?)
    });
    steps.run("sound models score 95 or more, and damaged copies are scored", || {
        reference::check_scores(&apr()?)
    });
}

fn llama(steps: &mut Steps) {
    steps.run("the Python reference environment", reference::set_up_python);
    let minilm = steps.run("the model all-MiniLM-L6-v2", reference::fetch_model);
    if steps.run("llama.cpp, to compare with", reference::set_up_llama_cpp).is_none() {
        return;
    }
    if steps.run("llama.cpp's programs", reference::set_up_llama_programs).is_some() {
        steps.run("llama-perplexity finds the perplexity and divergence that apr finds", || {
            reference::check_perplexity(&apr()?)
        });
        if set_up_transformers(steps) {
            steps.run("llama-imatrix measures the importance that apr measures", || {
                reference::check_imatrix(&apr()?)
            });
        }
    }
    if minilm.is_some() {
        steps.run("llama.cpp quantizes to the same files", || ask("apr-cli", "llama_cpp::"));
        steps.run("llama.cpp loads, runs and equals what apr writes", || {
            reference::check_with_llama_cpp(&apr()?)
        });
    }
}

fn trained(steps: &mut Steps) {
    let what = "what reads and runs trained models";
    if steps.run(what, reference::set_up_trained).is_some() {
        steps.run("trained models that packages ship pass through every command", || {
            run_program(&mut cargo("build", ["--release", "--package", "apr-cli"]))?;
            reference::check_trained(&target_dir().join("release/apr"))
        });
    }
}

/// The binary, which is built if it is not up to date.
fn apr() -> Outcome<PathBuf> {
    run_program(&mut cargo("build", ["--package", "apr-cli"]))?;
    Ok(target_dir().join("debug/apr"))
}

/// Runs the tests of a crate that compare with another program, and lets them record the results.
fn ask(package: &str, tests: &str) -> Outcome {
    let mut command = cargo("test", ["--package", package, "--all-features", "--test", "*", tests]);
    run_program(command.env("APR_INTEROP", "1").env("APR_GRAPH_PYTHON", reference::graph_python()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recorded_pass_is_of_a_part_that_there_is() {
        for part in passed::read().expect("the record").keys() {
            assert!(known().contains(&part.as_str()), "no part is called \"{part}\"");
        }
    }
}
