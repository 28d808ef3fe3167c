//! Prunes a model, quantizes the result, and writes it:
//! `cargo run -p library --bin prune_quantize -- MODEL OUTPUT.gguf`.

use std::env::args;

use apr::prune::{Amount, Pruning, Scope};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (model, output) = args().nth(1).zip(args().nth(2)).ok_or("prune_quantize MODEL OUTPUT")?;
    let half = Pruning::new(Amount::Share { share: 0.5, scope: Scope::Tensor });
    let (pruned, report) = apr::Model::open(model)?.prune(half)?;
    apr::convert(pruned).quantize(apr::Scheme::Q8_0).write(output)?;
    println!("{} of {} weights are zero", report.total.zeros, report.total.elements);
    Ok(())
}
