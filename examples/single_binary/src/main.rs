//! Says in which language each argument is.

use std::process::ExitCode;

fn main() -> ExitCode {
    let model = match single_binary::embedded() {
        Ok(model) => model,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    for text in std::env::args().skip(1) {
        let prediction = model.predict(&text);
        println!("{}\t{:.3}\t{text}", prediction.language, prediction.confidence);
    }
    ExitCode::SUCCESS
}
