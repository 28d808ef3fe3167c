//! Converts a model, and stops when Enter is pressed:
//! `cargo run -p library --bin convert -- MODEL OUTPUT`.

use std::env::args;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (model, output) = args().nth(1).zip(args().nth(2)).ok_or("convert MODEL OUTPUT")?;
    let cancel = apr::Interrupt::default();
    let job = apr::convert(model).interrupt(cancel.clone());
    std::thread::spawn(move || {
        if let Ok(1..) = std::io::stdin().read_line(&mut String::new()) {
            cancel.cancel();
        }
    });
    let show = |step: apr::Step| eprint!("\r{} {:3.0} %", step.phase, 100.0 * step.fraction());
    let report = job.on_progress(show).write(output)?;
    println!("\n{} bytes, {} losses", report.conversion.bytes_out, report.conversion.losses.len());
    Ok(())
}
