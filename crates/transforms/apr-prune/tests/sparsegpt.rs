//! Pruning with an update gives what the paper's algorithm gives (`fixtures/prune/sparsegpt.py`).
#![cfg(feature = "second-order")]

use std::fs;

use apr_core::{CheckpointReader, Limits};
use apr_lowrank::second_order::Gram;
use apr_prune::second_order::Pruner;
use apr_prune::{Amount, Scope};
use apr_testkit::locate;

fn golden(reader: &dyn CheckpointReader, name: &str) -> Vec<f32> {
    let position = reader.tensors().iter().position(|info| info.name == name);
    let position = position.unwrap_or_else(|| panic!("no tensor {name}"));
    let count = reader.tensors()[position].shape.elements().expect("few");
    let mut bytes = vec![0; usize::try_from(4 * count).expect("few")];
    reader.read_tensor(position, 0, &mut bytes).expect("readable");
    let four = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
    bytes.chunks(4).map(four).collect()
}

#[test]
fn weights_and_errors_match_the_algorithm_of_the_paper() {
    const COLUMNS: usize = 144;

    let file = fs::read(locate::fixture("prune/sparsegpt.safetensors")).expect("the fixture");
    let reader = apr_registry::open(file, "sparsegpt.safetensors", &Limits::default());
    let reader = reader.expect("a model");
    let (weights, inputs) = (golden(&*reader, "weights"), golden(&*reader, "inputs"));
    let share = |share| Amount::Share { share, scope: Scope::Tensor };
    for (case, amount) in [
        ("half", share(0.5)),
        ("most", share(0.9)),
        ("two_of_four", Amount::Pattern { keep: 2, of: 4 }),
    ] {
        let mut gram = Gram::new(COLUMNS).expect("small");
        // In pieces, as runs give them.
        inputs.chunks(7 * COLUMNS).for_each(|rows| gram.add(rows).expect("finite"));
        assert_eq!(gram.rows(), 48);
        let mut found = weights.clone();
        let mut pruner = Pruner::new(amount).expect("an amount that is updated");
        let error = gram.rewrite(&mut found, COLUMNS, &mut pruner).expect("it can be factored");
        let expected = golden(&*reader, case);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(*found == 0.0, *expected == 0.0, "{case}, weight {at}");
            assert!((found - expected).abs() < 2e-3, "{case}, weight {at}: {found} {expected}");
        }
        let expected = f64::from(golden(&*reader, &format!("{case}_error"))[0]);
        // Ours has the damping in it.
        assert!((error - expected).abs() < 0.1 * expected + 0.01, "{case}: {error} {expected}");
    }
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let mut gram = Gram::new(4).expect("small");
    gram.add(&[1.0; 6]).expect_err("no whole rows");
    gram.add(&[1.0, 2.0, 3.0, f32::NAN]).expect_err("NaN");
    gram.add(&[1.0, 2.0, 3.0, 4.0]).expect("a row");
    let pattern = Amount::Pattern { keep: 1, of: 2 };
    let mut pruner = Pruner::new(pattern).expect("an amount that is updated");
    gram.clone().rewrite(&mut [1.0; 6], 3, &mut pruner).expect_err("other columns");
    gram.rewrite(&mut [f32::INFINITY; 4], 4, &mut pruner).expect_err("infinite");
    Pruner::new(Amount::Threshold(0.5)).expect_err("no share");
}
