//! Trained models beside the ranges: what packages ship is no damage (`fixtures/statistics`).

use apr_arch::{Families, FamilyModel};
use apr_ops::physics::{Level, Physics, Sibling, Violation, expectation, outliers};
use apr_registry::{DType, Metadata, Shape, TensorInfo};
use apr_tensor::stats::Stats;
use apr_testkit::locate::fixture;
use serde::Deserialize;

/// A model of `models.json`.
#[derive(Deserialize)]
struct Model {
    name: String,
    family: Option<String>,
}

/// Tensors of floats that are recorded, and their statistics.
struct Recorded {
    tensors: Vec<TensorInfo>,
    stats: Vec<Stats>,
}

fn models() -> Vec<Model> {
    let file = std::fs::read(fixture("statistics").join("models.json")).expect("the fixture");
    serde_json::from_slice(&file).expect("a list of models")
}

fn recorded(model: &str) -> Recorded {
    let path = fixture("statistics").join(format!("{model}.tsv"));
    let text = std::fs::read_to_string(path).expect("the fixture");
    let mut found = Recorded { tensors: Vec::new(), stats: Vec::new() };
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, _, shape, count, numbers @ .., zeros, nan, _] = &fields[..] else {
            panic!("{model}: {line}")
        };
        let [mean, std, min, max] =
            <[f64; 4]>::try_from(numbers.iter().map(|text| number(text)).collect::<Vec<_>>())
                .unwrap_or_else(|_| panic!("{model}: {line}"));

        let finite = |value: f64| value.is_finite().then_some(value);
        let of: u64 = count.parse().expect("a count");
        found.stats.push(Stats {
            count: of,
            nan: nan.parse().expect("a count"),
            // What may be infinite the graph says, which is not recorded.
            inf: 0,
            zeros: zeros.parse().expect("a count"),
            min: finite(min),
            max: finite(max),
            mean: finite(mean),
            std: finite(std),
            l2: (of as f64 * (mean * mean + std * std)).sqrt(),
        });

        let sides = shape.split('x').filter(|side| !side.is_empty());
        let sides: Vec<u64> = sides.map(|side| side.parse().expect("a size")).collect();
        // Statistics are of values, however they were stored.
        let name = (*name).to_owned();
        found.tensors.push(TensorInfo { name, dtype: DType::F32, shape: Shape::from(sides) });
    }
    found
}

fn number(text: &str) -> f64 {
    text.parse().expect("a number")
}

/// Returns the findings for each tensor that has any.
fn findings(
    Recorded { tensors, stats }: &Recorded,
    model: Option<&FamilyModel<'_>>,
) -> Vec<String> {
    let judged = tensors.iter().zip(stats).enumerate().flat_map(|(position, (info, stats))| {
        let expected = expectation(model, position, info);
        let violations = Physics::ALL.violations(&info.name, stats, expected);
        violations.into_iter().map(|violation| shown(info, &violation))
    });
    judged.collect()
}

fn shown(info: &TensorInfo, violation: &Violation) -> String {
    let level = if violation.level() == Level::Error { "error" } else { "warning" };
    format!("{level}: {}: {violation}", info.name)
}

#[test]
fn no_tensor_of_a_trained_model_is_an_error() {
    let (families, metadata) = (Families::builtin(), Metadata::new());
    let (mut tensors, mut warnings, mut errors) = (0, 0, Vec::new());
    for Model { name, family } in models() {
        let recorded = recorded(&name);
        let model = family.map(|family| {
            families.apply(&family, &recorded.tensors, &metadata).expect("a family that is known")
        });
        let (bad, odd): (Vec<_>, Vec<_>) = findings(&recorded, model.as_ref())
            .into_iter()
            .partition(|finding| finding.starts_with("error"));
        println!("{name}: {} of {} tensors warn", odd.len(), recorded.tensors.len());
        odd.iter().for_each(|finding| println!("  {finding}"));
        tensors += recorded.tensors.len();
        warnings += odd.len();
        errors.extend(bad.into_iter().map(|finding| format!("{name}: {finding}")));
    }

    println!("{warnings} warnings of {tensors} tensors");
    assert!(tensors > 5000, "all models are there");
    assert_eq!(errors, Vec::<String>::new());
}

/// Norms and matrices of a model's layers.
fn siblings(Recorded { tensors, stats }: &Recorded, model: &FamilyModel<'_>) -> Vec<Sibling> {
    let judged = tensors.iter().zip(stats).enumerate();
    judged.filter_map(|(at, (info, stats))| Sibling::of(Some(model), at, info, stats)).collect()
}

/// The mean that half of the layers have less than.
fn typical(siblings: &[Sibling], place: &str) -> f64 {
    let layers = siblings.iter().filter(|sibling| sibling.place == place);
    let mut means: Vec<f64> = layers.map(|sibling| sibling.mean).collect();
    means.sort_by(f64::total_cmp);
    means[means.len() / 2]
}

#[test]
fn no_weight_of_a_trained_model_is_an_outlier_and_a_scaled_one_is() {
    let (families, metadata) = (Families::builtin(), Metadata::new());
    // Of matrices, and of norms.
    let (mut planted, mut found) = ([0, 0], [0, 0]);
    for Model { name, family } in models() {
        let Some(family) = family else { continue };
        let recorded = recorded(&name);
        let model = families.apply(&family, &recorded.tensors, &metadata).expect("a known family");
        let siblings = siblings(&recorded, &model);
        assert_eq!(outliers(&siblings), [], "{name}");

        // Where layers differ widely as trained, a planted norm need not stand out.
        for at in 0..siblings.len() {
            let mut changed = siblings.clone();
            let is_norm = usize::from(changed[at].is_norm);
            match is_norm {
                1 => changed[at].mean = 50.0 * typical(&siblings, &siblings[at].place),
                _ => changed[at].size *= 10.0,
            }
            planted[is_norm] += 1;
            match outliers(&changed)[..] {
                [] => {}
                [(tensor, _)] if tensor == changed[at].tensor => found[is_norm] += 1,
                ref others => panic!("{name}: {others:?}"),
            }
        }
    }
    let [matrices, norms] = [0, 1].map(|kind| (found[kind], planted[kind]));
    println!("found of planted: {matrices:?} matrices, {norms:?} norms");
    assert!(norms.1 > 250 && norms.0 * 4 > norms.1 * 3, "{norms:?}");
    assert!(matrices.1 > 700 && matrices.0 * 20 > matrices.1 * 17, "{matrices:?}");
}

#[test]
fn families_know_the_tensors_of_their_trained_models() {
    let (families, metadata) = (Families::builtin(), Metadata::new());
    for Model { name, family } in models() {
        let Some(family) = family else { continue };
        let recorded = recorded(&name);
        let model = families.apply(&family, &recorded.tensors, &metadata).expect("a known family");
        let unknown = (0..recorded.tensors.len()).filter(|at| model.expectation(*at).is_none());
        let unknown: Vec<&str> = unknown.map(|at| recorded.tensors[at].name.as_str()).collect();
        assert_eq!(unknown, Vec::<&str>::new(), "{name}");
    }
}
