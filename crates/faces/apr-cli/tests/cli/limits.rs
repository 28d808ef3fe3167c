//! What `--max-memory` bounds (`docs/configuration.md`).

use std::fmt::Write;

use crate::support::Sandbox;

/// Tensors of one byte.
fn many(count: usize) -> Vec<u8> {
    let mut header = String::from("{");
    for at in 0..count {
        let comma = if at == 0 { "" } else { "," };
        let end = at + 1;
        write!(
            header,
            "{comma}\"layers.{at}.weight\":{{\"dtype\":\"U8\",\"shape\":[1],\
             \"data_offsets\":[{at},{end}]}}"
        )
        .expect("a text takes it");
    }
    header.push('}');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + count, 1);
    file
}

#[test]
fn a_header_that_needs_more_memory_is_refused_with_what_it_needs() {
    let sandbox = Sandbox::new().with("many.safetensors", many(12_000));
    sandbox.apr("convert many.safetensors -o many.apr").ok();
    for file in ["many.safetensors", "many.apr"] {
        let lines =
            [format!("inspect {file}"), format!("tensors {file}"), format!("diff {file} {file}")];
        for line in lines {
            let said = ["E008", file, "12000 tensors", "24576000 bytes of memory"];
            sandbox.apr(&format!("{line} --max-memory 20MB")).fails(4, &said);
            sandbox.apr(&format!("{line} --max-memory 60MB")).ok();
        }
        let said = ["E008", "--max-memory"];
        sandbox.apr(&format!("inspect {file} --max-memory 1K")).fails(4, &said);
    }
}

#[test]
fn a_training_that_needs_more_memory_ends_before_it_begins() {
    let sandbox = Sandbox::new();
    let llama = apr_testkit::locate::fixture("tiny-llama");
    sandbox.write("sums.txt", "1+1=2\n2+2=4\n3+4=7\n");
    let line = format!(
        "distill {} --distill small --data sums.txt --steps 1 -o small.safetensors",
        llama.display()
    );
    let said = ["E008", "parameters needs a memory limit of", "--max-memory"];
    sandbox.apr(&format!("{line} --max-memory 1MB")).fails(4, &said);
    assert!(!sandbox.path("small.safetensors").exists());
}
