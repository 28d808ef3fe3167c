//! Quantizes and compresses a model: `cargo run -p library --bin shrink -- MODEL OUTPUT.apr`.

use std::env::args;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (model, output) = args().nth(1).zip(args().nth(2)).ok_or("shrink MODEL OUTPUT.apr")?;
    let report = apr::convert(model)
        .quantize(apr::Scheme::Q4_K_M)
        .compress(apr::Compression::Auto)
        .write(output)?;
    println!("{} bytes became {}", report.conversion.bytes_in, report.conversion.bytes_out);
    Ok(())
}
