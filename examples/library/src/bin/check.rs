//! Says what is wrong with a model: `cargo run -p library --bin check -- MODEL`.

use std::env::args;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = apr::Model::open(args().nth(1).ok_or("check MODEL")?)?;
    let report = model.validate(apr::report::ValidateOptions::default())?;
    report.checks.iter().for_each(|check| println!("{:?}: {}", check.check, check.detail));
    if report.valid { Ok(()) } else { Err("the model is damaged".into()) }
}
