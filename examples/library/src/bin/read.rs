//! Shows the values of a tensor: `cargo run -p library --bin read -- MODEL TENSOR`.

use std::env::args;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (model, name) = args().nth(1).zip(args().nth(2)).ok_or("read MODEL TENSOR")?;
    let model = apr::Model::open(model)?;
    let tensor = model.tensor(&name)?;
    println!("{} {:?} {:?}", tensor.dtype(), tensor.shape(), tensor.to_vec::<f32>()?);
    Ok(())
}
