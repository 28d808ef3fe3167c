//! Prints the functions of Rust files whose cyclomatic complexity is above a bound.
//!
//! `apr-complexity BOUND FILE...` prints a line for each such function, fields apart by tabs:
//! complexity, how much of it is arms of `match`, file, line, name; then the number of functions
//! that were looked at.

mod count;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(bound) = arguments.next().and_then(|bound| bound.parse::<usize>().ok()) else {
        eprintln!("Usage: apr-complexity BOUND FILE...");
        return ExitCode::from(2);
    };
    let mut looked_at = 0;
    for file in arguments {
        let functions = match std::fs::read_to_string(&file)
            .map_err(|error| error.to_string())
            .and_then(|text| count::functions(&text).map_err(|error| error.to_string()))
        {
            Ok(functions) => functions,
            Err(error) => {
                eprintln!("{file}: {error}");
                return ExitCode::FAILURE;
            }
        };
        looked_at += functions.len();
        for function in functions.iter().filter(|function| function.complexity() > bound) {
            let count::Function { name, line, arms, .. } = function;
            println!("{}\t{arms}\t{file}\t{line}\t{name}", function.complexity());
        }
    }

    println!("{looked_at}");
    ExitCode::SUCCESS
}
