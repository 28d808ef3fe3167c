//! Writes a model of one tensor: `cargo run -p library --bin write -- OUTPUT`.

use std::env::args;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let values: Vec<f32> = (0..6_u8).map(f32::from).collect();
    let report = apr::write(args().nth(1).ok_or("write OUTPUT")?)
        .tensor("weight", [2, 3], &values)
        .metadata("license", "mit")
        .finish()?;
    println!("{} bytes", report.bytes);
    Ok(())
}
