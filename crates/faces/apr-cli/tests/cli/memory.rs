//! Where the system gives little memory (`ulimit -v`), commands end with E008 or do their work:
//! never by a signal.

use std::process::Command;

use crate::support::{Run, Sandbox};

const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

/// Runs a command with an address space of at most `kib` KiB.
#[cfg(unix)]
fn limited(sandbox: &Sandbox, kib: u64, line: &str) -> Run {
    let words: Vec<&str> = line.split_whitespace().collect();
    let plain = sandbox.command(&words);
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -c 0; ulimit -v {kib}; exec \"$0\" \"$@\""));
    command.arg(plain.get_program()).args(plain.get_args()).current_dir(sandbox.path(""));
    Run::of(command)
}

#[cfg(unix)]
#[test]
fn little_memory_ends_with_an_error_and_no_signal() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("import {LLAMA} -o m.apr")).ok();

    // Below some limit the system does not even load the program.
    let loads = |kib: u64| matches!(limited(&sandbox, kib, "--version").code, Some(0 | 1));
    let (mut too_little, mut enough) = (1_u64 << 10, 1_u64 << 20);
    while enough - too_little > 1 << 10 {
        let middle = too_little.midpoint(enough);
        if loads(middle) { enough = middle } else { too_little = middle }
    }

    let mut refused = 0;
    for line in [
        "inspect m.apr",
        "run m.apr --prompt 12+34= --threads 3",
        "run m.apr --tokens 49,50 --max-tokens 2 --json",
        "validate m.apr",
        "convert m.apr -o out.apr -f",
        "export m.apr -o out.gguf -f",
    ] {
        for more in [1, 2, 3, 4, 6, 8, 12, 20, 40] {
            let run = limited(&sandbox, enough + (more << 10), line);
            match run.code {
                Some(0) => {}
                Some(4) => {
                    refused += 1;
                    assert!(run.stderr.contains("E008"), "{line}: {run}");
                }
                _ => panic!("{line}, {more} MiB: {run}"),
            }
        }
    }
    assert!(refused > 0, "no limit was met");
}
