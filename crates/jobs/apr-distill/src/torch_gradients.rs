//! Gradients beside those that torch's autograd found (`xtask/interop/gradients.py`).

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apr_arch::Families;
use apr_core::{ByteSource, Error, Limits};
use apr_graph::{Intermediates, gradient, infer};
use apr_infer::{Alone, Engine, RunLimits, Tensor, Unwatched, Value};
use apr_io::Sources;
use apr_registry::OpenOptions;
use apr_run::{Facts, NoHost, RunOptions, Runner, with_runner};
use apr_source::Source;
use apr_testkit::locate::fixture;

use crate::parameters::{initial, parameters};

/// Largest difference, as a share of the largest element of the gradient.
const TOLERANCE: f32 = 1e-4;
/// Gradients are not compared below this share of the model's largest: sums of rounding errors.
const NOISE: f32 = 1e-2;

/// Gradients from torch for one part of a model.
struct Found {
    inputs: Vec<(String, Value)>,
    /// Name of the output, and the weights of its elements.
    seed: (String, Value),
    /// Every n-th element of each gradient, by the tensor's name in the file.
    gradients: HashMap<String, Vec<f32>>,
}

impl Found {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("the gradients are there");
        let source: Arc<dyn ByteSource> = Arc::new(bytes);
        let reader = apr_safetensors::open(source, "gradients", &Limits::default()).expect("safe");
        let arrays = apr_run::arrays_of(&reader).expect("arrays");
        let mut found = Self {
            inputs: Vec::new(),
            seed: (String::new(), Value::from(Tensor::scalar(0_i64))),
            gradients: HashMap::new(),
        };
        for (name, tensor) in arrays {
            match name.split_once('.').expect("a kind and a name") {
                ("input", name) => found.inputs.push((name.to_owned(), tensor.into())),
                ("seed", name) => found.seed = (name.to_owned(), tensor.into()),
                (_, name) => {
                    let values = tensor.values::<f32>().expect("floats").to_vec();
                    found.gradients.insert(name.to_owned(), values);
                }
            }
        }
        found
    }
}

impl Found {
    /// Returns the gradient of a tensor, whose name has a prefix in the files of some tasks.
    fn gradient(&self, name: &str) -> Option<&Vec<f32>> {
        let is_short = |other: &&String| {
            let prefix = name.strip_suffix(other.as_str());
            prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
        };
        let key = self.gradients.keys().filter(is_short).max_by_key(|key| key.len())?;
        self.gradients.get(key)
    }
}

/// Compares the gradients of a part. Returns the number of compared tensors, or the differences.
fn compared(
    runner: &Runner<'_>,
    part: &str,
    found: &Found,
    source: &Source<'_>,
) -> Result<usize, String> {
    let text = |error: Error| error.to_string();
    let runnable = runner.parts().iter().find(|other| other.name == part);
    let runnable = runnable.ok_or_else(|| format!("the model has no part '{part}'"))?;
    let mut graph = runnable.graph.clone();
    let all = parameters(&mut graph, runner.weights(), &BTreeSet::new()).map_err(text)?;
    infer(&mut graph);
    let names: Vec<&str> = all.iter().map(|one| one.input.as_str()).collect();
    let family = source.family().map_err(text)?.ok_or("its family is not known")?;
    let files: HashMap<&str, &str> = (0..source.reader().tensors().len())
        .filter_map(|at| Some((family.canonical(at)?, source.reader().tensors()[at].name.as_str())))
        .collect();

    let values = initial(&all, runner.weights(), 4 << 30).map_err(text)?;
    let mut worst = 0;
    for intermediates in [Intermediates::Kept, Intermediates::Recomputed] {
        let made = gradient(&graph, &[&found.seed.0], &names, intermediates).map_err(text)?;
        let reached: Vec<_> =
            all.iter().filter(|one| !made.unreached.contains(&one.input)).collect();
        let mut limits = RunLimits::default();
        limits.max_work = Some(u64::MAX);
        let session = Engine::prepare(&made.graph, runner.weights(), limits).map_err(text)?;
        let known = |name: &str| {
            made.graph.body.inputs.iter().any(|id| made.graph.body.value(*id).name == name)
        };
        let mut inputs: Vec<_> =
            found.inputs.iter().filter(|(name, _)| known(name)).cloned().collect();
        inputs.push((format!("{}/gradient", found.seed.0), found.seed.1.clone()));
        inputs.extend(
            all.iter().zip(&values).map(|(one, value)| (one.input.clone(), value.clone().into())),
        );
        let wanted: Vec<String> =
            reached.iter().map(|one| format!("{}/gradient", one.input)).collect();
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let outcome = session.run(inputs, &wanted, &Alone, &mut Unwatched).map_err(text)?;

        let largest =
            |values: &[f32]| values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let noise =
            found.gradients.values().map(|values| largest(values)).fold(0.0, f32::max) * NOISE;
        let mut count = 0;
        for (one, value) in reached.iter().zip(&outcome.outputs) {
            let name = files.get(one.tensor.as_str()).copied().unwrap_or_default();
            let Some(theirs) = found.gradient(name) else { continue };
            let own = value.tensor().and_then(Tensor::values::<f32>).map_err(text)?;
            let own = one.stored(own);
            let whole = largest(&own);
            let every = (own.len() / 500).max(1);
            let own: Vec<f32> = own.into_iter().step_by(every).collect();
            if own.len() != theirs.len() {
                return Err(format!(
                    "{}: {} elements, torch has {}",
                    one.tensor,
                    own.len(),
                    theirs.len()
                ));
            }
            // That of the whole tensor: torch's are only some of its elements.
            let scale = whole.max(noise);
            let differences = own.iter().zip(theirs).map(|(own, theirs)| own - theirs);
            let difference = largest(&differences.collect::<Vec<_>>());
            if difference.is_nan() || difference > TOLERANCE * scale {
                return Err(format!("{}: apart by {difference:e}, of {scale:e}", one.tensor));
            }
            count += 1;
        }
        worst = count;
    }
    Ok(worst)
}

/// Compares all parts of a model whose gradients are in a folder.
fn check(model: &Path, gradients: &Path) -> Vec<(String, Result<usize, String>)> {
    let reader = Sources::default().open_model_with_companions(model, &OpenOptions::default());
    let reader = reader.expect("the model opens");
    let families = Families::builtin();
    let source = Source::new(&*reader, &families);
    let facts = Facts::of(&*reader).expect("facts");
    let mut options = RunOptions::reading();
    options.family_graphs = true;
    let mut results = Vec::new();
    let ran = with_runner(&source, &facts, &options, &NoHost, |runner| {
        for path in gradients_in(gradients) {
            let part = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let found = compared(runner, &part, &Found::read(&path), &source);
            results.push((part, found));
        }
        Ok::<_, Error>(())
    });
    if let Err(error) = ran {
        results.push(("graph".to_owned(), Err(error.to_string())));
    }
    results
}

fn gradients_in(folder: &Path) -> Vec<PathBuf> {
    let files =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("entry").path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "gradients")).collect();
    files.sort();
    files
}

#[test]
fn gradients_match_torch() {
    let models = [
        ("tiny-llama", "tiny-llama"),
        ("tiny-bert", "run/tiny-bert"),
        ("tiny-t5", "run/tiny-t5"),
        ("tiny-whisper", "run/tiny-whisper"),
        ("tiny-vit", "run/tiny-vit"),
    ];
    for (name, model) in models {
        let found = check(&fixture(model), &fixture("gradients").join(name));
        assert!(!found.is_empty(), "{name} has gradients");
        for (part, result) in found {
            let count = result.unwrap_or_else(|error| panic!("{name}, {part}: {error}"));
            assert!(count > 15, "{name}, {part}: only {count} tensors were compared");
        }
    }
}

#[test]
fn importance_matches_torch() {
    let expected = std::fs::read(fixture("gradients/fisher.json")).expect("a fixture");
    let expected: serde_json::Value = serde_json::from_slice(&expected).expect("JSON");
    let reader = Sources::default()
        .open_model_with_companions(&fixture("tiny-llama"), &OpenOptions::default())
        .expect("the model opens");
    let families = Families::builtin();
    let source = Source::new(&*reader, &families);
    let facts = Facts::of(&*reader).expect("facts");
    let mut options = RunOptions::reading();
    options.family_graphs = true;
    let units = apr_prune::unit_tensors(&source).expect("a known family");
    let found = with_runner(&source, &facts, &options, &NoHost, |runner| {
        // The tokenizer of the fixture: a byte is its token, behind the token 256.
        let row = |text: &serde_json::Value| {
            let bytes = text.as_str().unwrap_or_default().bytes().map(i64::from);
            crate::Row::new(std::iter::once(256).chain(bytes).collect())
        };
        let rows: Vec<_> = expected["rows"].as_array().expect("rows").iter().map(row).collect();
        crate::importance(runner, &rows, 0, &units, &mut |_| {})
            .map_err(|error| Error::format(error.to_string()))
    });
    let found = found.expect("it is measured");
    assert_eq!(found.tensors.len(), 21);
    let family = source.family().unwrap().expect("a known family");
    for tensor in &found.tensors {
        let place =
            (0..reader.tensors().len()).find(|at| family.canonical(*at) == Some(&tensor.name));
        let name = &reader.tensors()[place.expect("a tensor of the file")].name;
        let theirs = &expected["tensors"][name];
        for (what, own) in
            [("squared_gradient", tensor.squared_gradient), ("saliency", tensor.saliency)]
        {
            let theirs = theirs[what].as_f64().expect("a number");
            assert!((own - theirs).abs() <= 1e-4 * theirs, "{name}, {what}: {own}, torch {theirs}");
        }
    }

    assert_eq!(found.units.len(), 2);
    for (own, theirs) in found.units.iter().zip(expected["units"].as_array().expect("layers")) {
        for (own, theirs) in [(&own.groups, &theirs["groups"]), (&own.neurons, &theirs["neurons"])]
        {
            let theirs = theirs.as_array().expect("numbers");
            assert_eq!(own.len(), theirs.len());
            for (own, theirs) in own.iter().zip(theirs) {
                let theirs = theirs.as_f64().expect("a number");
                assert!((own - theirs).abs() <= 1e-4 * theirs, "{own}, torch {theirs}");
            }
        }
    }
}

/// Compares with the gradients that `cargo xtask interop distill` writes with torch.
#[test]
fn gradients_of_all_families_match_torch() {
    let Some(folder) = std::env::var_os("APR_TORCH_GRADIENTS").map(PathBuf::from) else {
        eprintln!("skipped: APR_TORCH_GRADIENTS names no folder with gradients of torch");
        return;
    };
    let models =
        std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("entry").path());
    let mut models: Vec<PathBuf> = models.filter(|path| path.is_dir()).collect();
    models.sort();
    let (mut right, mut wrong, mut refused) = (0, Vec::new(), Vec::new());
    for model in models {
        let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if gradients_in(&model).is_empty() {
            continue;
        }
        for (part, result) in check(&model, &model) {
            match result {
                Ok(count) => {
                    println!("{name:28} {part:16} {count} tensors");
                    right += 1;
                }
                Err(error) if error.starts_with("E003") => {
                    refused.push(format!("{name} {part}: {error}"));
                }
                Err(error) => wrong.push(format!("{name} {part}: {error}")),
            }
        }
    }
    println!("{right} right\nrefused:\n{}\nwrong:\n{}", refused.join("\n"), wrong.join("\n"));
    assert!(wrong.is_empty(), "{} of the gradients are others than torch's", wrong.len());
}
