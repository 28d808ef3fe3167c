//! Shows the first values of a tensor: `cargo run -p library --bin read -- MODEL TENSOR`.

use std::env::args;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (model, name) = args().nth(1).zip(args().nth(2)).ok_or("read MODEL TENSOR")?;
    let model = apr::Model::open(model)?;
    println!("{:?}", model.values(&name, 0..8)?);
    Ok(())
}
