//! The command against libraries that others wrote, and on a model that others trained.

use std::path::Path;
use std::process::Command;

use apr_testkit::locate;

use crate::support::{Run, Sandbox, safetensors, scrambled};

/// Runs a script of `tests/reference`.
fn python(interpreter: &Path, script: &str, args: &[&Path]) -> Run {
    let mut command = Command::new(interpreter);
    command
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(script))
        .args(args);
    Run::of(command).ok()
}

/// Every f16 and bf16, and wider values around and between them.
fn inputs() -> [(&'static str, usize, Vec<u8>); 4] {
    let all = || 0..=u16::MAX;
    let narrow: Vec<u8> = all().flat_map(u16::to_le_bytes).collect();
    let around = |bits: u32| [bits.wrapping_sub(1), bits, bits + 1];
    // Halfway points of bf16, then of f16: the bit below its last one, at exponents that it has.
    let bf16_ties = all().flat_map(|high| around(u32::from(high) << 16 | 0x8000));
    let f16_ties = (0x6600..0x8f80_u32).flat_map(|high| around(high << 15 & 0x7fff_ffff | 0x1000));
    let random = (0..1 << 15).map(|i| (scrambled(i) >> 32) as u32);
    let f32s: Vec<u32> = bf16_ties.chain(f16_ties).chain(random).collect();
    let wide = |bits: u32| f64::from(f32::from_bits(bits)).to_bits();
    let f64s = f32s
        .iter()
        .flat_map(|&bits| [wide(bits).wrapping_sub(1), wide(bits), wide(bits).wrapping_add(1)]);
    let f64s = f64s.chain((0..1 << 15).map(scrambled));
    [
        ("f16", 2, narrow.clone()),
        ("bf16", 2, narrow),
        ("f64", 8, f64s.flat_map(u64::to_le_bytes).collect()),
        ("f32", 4, f32s.iter().flat_map(|bits| bits.to_le_bytes()).collect()),
    ]
}

/// The value's bits, with every NaN alike.
fn bits(dtype: &str, bytes: &[u8]) -> u32 {
    let (bits, magnitude, infinity) = match dtype {
        "f32" => {
            (u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]), 0x7fff_ffff, 0x7f80_0000)
        }
        "f16" => (u16::from_le_bytes([bytes[0], bytes[1]]).into(), 0x7fff, 0x7c00),
        _ => (u16::from_le_bytes([bytes[0], bytes[1]]).into(), 0x7fff, 0x7f80),
    };
    if bits & magnitude > infinity { u32::MAX } else { bits }
}

/// Returns `true` if the element is NaN.
fn is_nan(dtype: &str, bytes: &[u8]) -> bool {
    match bytes.try_into() {
        Ok(wide) if dtype == "f64" => f64::from_le_bytes(wide).is_nan(),
        _ => bits(dtype, bytes) == u32::MAX,
    }
}

#[test]
fn casts_round_as_numpy_does() {
    let Some(interpreter) = locate::reference_python() else { return };
    let sandbox = Sandbox::new();
    for (name, width, bytes) in inputs() {
        sandbox.write(name, &bytes);
        let model =
            safetensors(&[("x", &name.to_uppercase(), &[(bytes.len() / width) as u64], bytes)]);
        sandbox.write(&format!("{name}.safetensors"), model);
    }
    python(&interpreter, "casts.py", &[&sandbox.path("")]);

    for (from, from_width, input) in inputs() {
        for (to, to_width) in [("f32", 4), ("f16", 2), ("bf16", 2)] {
            if from == to {
                continue;
            }
            let precision = to.replace('f', "fp").replace("bfp", "bf");
            sandbox
                .apr(&format!(
                    "convert {from}.safetensors --precision {precision} -o \
                    cast.safetensors -f --relaxed"
                ))
                .ok();
            let count = input.len() / from_width;
            let file = sandbox.read("cast.safetensors");
            let found = &file[file.len() - count * to_width..];
            let expected = sandbox.read(&format!("{from}.{to}"));
            let triples = input
                .chunks_exact(from_width)
                .zip(found.chunks_exact(to_width))
                .zip(expected.chunks_exact(to_width));
            for ((value, found), expected) in triples {
                let expected = if is_nan(from, value) { u32::MAX } else { bits(to, expected) };
                assert_eq!(bits(to, found), expected, "{from} {value:02x?} as {to}");
            }
        }
    }
}

#[test]
fn minilm_survives_import_and_export_byte_for_byte() {
    let (Some(folder), Some(interpreter)) = (locate::minilm(), locate::reference_python()) else {
        return;
    };
    let sandbox = Sandbox::new();
    sandbox.run(&["import", folder.to_str().expect("a plain path"), "-o", "m.apr"]).ok();
    let report = sandbox.apr("inspect m.apr --json --vocab").clean().json();
    assert_eq!((&report["model_type"], &report["vocab_size"]), (&"bert".into(), &30_522.into()));
    assert_eq!(report["vocabulary"]["tokens"][0]["text"], "[PAD]");
    sandbox.apr("validate m.apr --strict").clean().says(&["VALID"]);

    sandbox.apr("export m.apr -o out").clean();
    let written: Vec<_> =
        sandbox.files().into_iter().filter(|name| name.starts_with("out/")).collect();
    for name in
        ["config.json", "tokenizer.json", "vocab.txt", "1_Pooling/config.json", "model.safetensors"]
    {
        assert!(written.contains(&format!("out/{name}")), "{name} in {written:?}");
    }
    for name in &written {
        let expected =
            std::fs::read(folder.join(&name["out/".len()..])).expect("it came from there");
        assert!(sandbox.read(name) == expected, "{name}");
    }
    let files = [&*folder.join("model.safetensors"), &sandbox.path("out/model.safetensors")];
    python(&interpreter, "same_tensors.py", &files).says(&["tensors"]);
}

#[test]
fn the_reference_library_reads_what_is_written_in_another_order() {
    let Some(interpreter) = locate::reference_python() else { return };
    let sandbox = Sandbox::new().with("m.safetensors", crate::support::small_safetensors());
    sandbox.apr("export m.safetensors -o cut --shard-size 100").clean();
    sandbox.apr("convert cut -o joined.safetensors").clean();
    let files = [&*sandbox.path("m.safetensors"), &sandbox.path("joined.safetensors")];
    python(&interpreter, "same_tensors.py", &files).says(&["5 tensors"]);
}
