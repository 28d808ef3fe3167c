//! Lists the tensors of a model: `cargo run -p library --bin list -- MODEL`.

use std::env::args;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for tensor in apr::Model::open(args().nth(1).ok_or("list MODEL")?)?.tensors() {
        println!("{} {} {}", tensor.name, tensor.dtype, tensor.shape);
    }
    Ok(())
}
