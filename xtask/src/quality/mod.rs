//! How good the tests and the code are, in figures: `docs/quality.md`.
//!
//! Apart from the gate: an instrumented build and a build for each mutant take from minutes to
//! hours.

mod advisories;
mod complexity;
mod coverage;
mod mutants;
mod report;
mod words;

use crate::steps::Steps;

const MEASURES: [&str; 5] = ["coverage", "mutants", "complexity", "words", "advisories"];

/// Default number of mutants of each crate, changed by `--sample`.
const SAMPLE: usize = 60;

/// Measures what `arguments` name, or everything, and writes the figures down.
///
/// # Errors
/// How to call it, where an argument is not understood.
pub(crate) fn run(steps: &mut Steps, arguments: &[&str]) -> Result<(), String> {
    let (wanted, sample) = parse(arguments)?;
    for measure in
        MEASURES.into_iter().filter(|measure| wanted.is_empty() || wanted.contains(measure))
    {
        match measure {
            "coverage" => coverage::run(steps),
            "mutants" => mutants::run(steps, sample),
            "complexity" => complexity::run(steps),
            "words" => words::run(steps),
            _ => advisories::run(steps),
        }
    }
    Ok(())
}

fn parse<'a>(arguments: &[&'a str]) -> Result<(Vec<&'a str>, usize), String> {
    let (mut wanted, mut sample) = (Vec::new(), SAMPLE);
    let mut arguments = arguments.iter().copied();
    while let Some(argument) = arguments.next() {
        if argument == "--sample" {
            let number = arguments
                .next()
                .and_then(|number| number.parse().ok())
                .filter(|&number| number > 0);
            sample = number.ok_or("--sample takes a number of mutants")?;
        } else if MEASURES.contains(&argument) {
            wanted.push(argument);
        } else {
            return Err(format!("'{argument}' is none of {}", MEASURES.join(", ")));
        }
    }

    Ok((wanted, sample))
}
