//! A training that was cut in the middle, and one that was not.

use std::collections::HashMap;

use apr_arch::Families;
use apr_core::{Error, IoCause, Result};
use apr_io::Sources;
use apr_lowrank::InMemory;
use apr_prune::{LayerChoice, plan_layers};
use apr_registry::OpenOptions;
use apr_run::{Facts, NoHost, RunOptions, RunResult, with_runner};
use apr_source::Source;
use apr_testkit::locate::fixture;

use crate::{DistillOptions, DistillReport, Events, Progress, Row, Student, distill};

type Trained = (HashMap<String, Vec<f32>>, DistillReport);

/// Event handler that keeps the last state, and fails after a number of states.
struct States {
    most: usize,
    kept: Vec<Vec<u8>>,
    losses: Vec<f64>,
}

impl States {
    fn new(most: usize) -> Self {
        Self { most, kept: Vec::new(), losses: Vec::new() }
    }
}

impl Events for States {
    fn progress(&mut self, progress: &Progress) {
        if let Progress::Step { loss, .. } = progress {
            self.losses.push(*loss);
        }
    }

    fn save(&mut self, state: &[u8]) -> Result<()> {
        if self.kept.len() == self.most {
            return Err(Error::io(IoCause::Other, "no space left on device"));
        }
        self.kept.push(state.to_vec());
        Ok(())
    }

    fn saves(&self) -> bool {
        true
    }
}

/// Trains the first layer of the tiny LLaMA to do what both do.
fn train(resumed: Option<Vec<u8>>, states: &mut States) -> RunResult<Trained> {
    let open = || {
        let options = OpenOptions::default();
        Sources::default().open_model_with_companions(&fixture("tiny-llama"), &options)
    };
    let families = Families::builtin();
    let reader = open()?;
    let source = Source::new(&*reader, &families);
    let planned = plan_layers(&source, &LayerChoice::Listed(vec![1]))?;
    let (smaller, _) = planned.apply(open()?)?;
    let small_source = Source::new(&*smaller, &families);
    let (facts, own_facts) = (Facts::of(&*reader)?, Facts::of(&*smaller)?);
    let reading = RunOptions::reading();
    // The tokenizer of the fixture: a byte is its token, behind the token 256.
    let row = |number: i64| {
        Row::new(vec![256, 48 + number % 10, 43, 48 + number / 7, 61, 49, 48 + number % 8])
    };
    let mut options = DistillOptions::default();
    (options.steps, options.batch, options.seed) = (Some(6), 4, 3);
    with_runner(&source, &facts, &reading, &NoHost, |teacher| {
        with_runner(&small_source, &own_facts, &reading, &NoHost, |runner| {
            let student = Student {
                teacher,
                student: runner,
                layers: vec![0],
                rows: (0..24).map(row).collect(),
                encoded: None,
                cut: 0,
                written: 0,
                padding: 0,
                options,
            };
            distill(&student, Box::new(InMemory::default()), resumed, states)
        })
    })
}

#[test]
fn a_training_that_was_cut_goes_on_to_the_same_bits() {
    let mut states = States::new(usize::MAX);
    let (whole, report) = train(None, &mut states).expect("it trains");
    assert_eq!((states.losses.len(), states.kept.len()), (6, 6));

    let mut cut = States::new(2);
    let error = train(None, &mut cut).expect_err("the third state can't be kept");
    assert!(error.to_string().contains("no space left"), "{error}");
    assert_eq!(cut.kept[..], states.kept[..2]);

    let mut rest = States::new(usize::MAX);
    let (resumed, of_resumed) = train(cut.kept.pop(), &mut rest).expect("it goes on");
    assert_eq!(rest.losses, states.losses[2..], "the steps from the third on");
    assert_eq!(rest.kept[..], states.kept[2..]);
    assert_eq!(resumed, whole);
    assert_eq!((of_resumed.steps, of_resumed.tokens), (report.steps, report.tokens));
}
