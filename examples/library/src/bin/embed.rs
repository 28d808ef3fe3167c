//! Makes a vector of each text: `cargo run -p library --bin embed -- MODEL TEXT...`.

use std::env::args;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = apr::Model::open(args().nth(1).ok_or("embed MODEL TEXT...")?)?;
    for vector in model.embed(args().skip(2))? {
        println!("{vector:?}");
    }
    Ok(())
}
