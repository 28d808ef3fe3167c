//! Generates text behind a prompt: `cargo run -p library --bin generate -- MODEL PROMPT`.

use std::env::args;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (model, prompt) = args().nth(1).zip(args().nth(2)).ok_or("generate MODEL PROMPT")?;
    println!("{}", apr::Model::open(model)?.generate(&prompt)?);
    Ok(())
}
