//! Compression and shards: what comes back, what is refused. With the models that other tests of
//! containers begin with.

use std::fs;
use std::sync::LazyLock;

use crate::support::{Files, Sandbox, f32s, safetensors, scrambled};

/// Long and odd enough that no report contains it by chance.
pub(crate) const PASSWORD: &str = "wholly-unlikely-Pa55phrase";

/// Two layers whose weights are worth compressing, and bytes beside them.
pub(crate) fn weights() -> Vec<u8> {
    let values = |count: u64, seed: u64| -> Vec<f32> {
        (0..count).map(|i| (scrambled(seed + i) % 2001) as f32 / 50_000.0 - 0.02).collect()
    };
    let half: Vec<u8> =
        f32s(&values(512, 7)).chunks_exact(4).flat_map(|value| value[2..].to_vec()).collect();
    let counts: Vec<u8> = (0_i64..64).flat_map(i64::to_le_bytes).collect();
    safetensors(&[
        ("layers.0.weight", "F32", &[32, 16], f32s(&values(512, 1000))),
        ("layers.1.weight", "BF16", &[16, 32], half),
        ("steps", "U8", &[512], counts),
        ("table", "U8", &[700], vec![3; 700]),
    ])
}

/// `m.safetensors`, `plain.apr` made of it, keys to sign (`signer`, `stranger`) and to decrypt with
/// (`owner`, `other`), public ones beside them as `.pub`, and the password in `password`.
pub(crate) fn workshop() -> Sandbox {
    static MADE: LazyLock<Files> = LazyLock::new(|| {
        let sandbox = Sandbox::new()
            .with("m.safetensors", weights())
            .with("password", format!("{PASSWORD}\n"));
        sandbox.apr("convert m.safetensors -o plain.apr").clean();
        for (key, purpose) in [
            ("signer", "signing"),
            ("stranger", "signing"),
            ("owner", "encryption"),
            ("other", "encryption"),
        ] {
            sandbox.apr(&format!("keygen -o {key} --for {purpose}")).clean();
        }
        sandbox.kept()
    });
    Sandbox::of(&MADE)
}

#[track_caller]
pub(crate) fn same(sandbox: &Sandbox, one: &str, other: &str) {
    assert!(sandbox.read(one) == sandbox.read(other), "{one} and {other} differ");
}

/// Bytes of a file with this one flipped.
pub(crate) fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 0x20;
    bytes
}

/// A word of the header: 8 flags, 12 and 16 metadata, 20 and 24 index, 28 data.
pub(crate) fn word(file: &[u8], at: usize) -> usize {
    u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes")) as usize
}

/// Returns the start and the length of a tensor's bytes, as stored in the index of the file.
pub(crate) fn stored(file: &[u8], name: &str) -> (usize, usize) {
    let (start, size) = (word(file, 20), word(file, 24));
    let index = &file[start..start + size];
    let wanted =
        [&u16::try_from(name.len()).expect("a short name").to_le_bytes()[..], name.as_bytes()]
            .concat();
    let at = index.windows(wanted.len()).position(|window| window == wanted).expect("in the index")
        + wanted.len();
    let fields = at + 2 + 8 * usize::from(index[at + 1]);
    let field = |at: usize| {
        let value = u64::from_le_bytes(index[at..at + 8].try_into().expect("eight bytes"));
        usize::try_from(value).expect("a small file")
    };
    (word(file, 28) + field(fields), field(fields + 8))
}

#[test]
fn every_codec_gives_back_the_bytes_it_was_given() {
    let sandbox = workshop();
    let plain = sandbox.read("plain.apr").len();
    for codec in ["", "=auto", "=lz4", "=zstd", "=zstd:1", "=zstd:19", "=best"] {
        sandbox.apr(&format!("convert plain.apr -o small.apr -f --compress{codec}")).clean();
        assert!(sandbox.read("small.apr").len() < plain, "{codec}");
        sandbox.apr("validate small.apr").clean();
        sandbox.apr("diff plain.apr small.apr --tolerance 0 --exit-code").ok();
        sandbox.apr("convert small.apr -o back.apr -f --compress=none").clean();
        same(&sandbox, "plain.apr", "back.apr");
        // Away from the native format, too.
        sandbox.apr("export small.apr -o back.safetensors -f").clean();
        same(&sandbox, "m.safetensors", "back.safetensors");
        // An import compresses as a conversion does.
        sandbox.apr(&format!("convert m.safetensors -o direct.apr -f --compress{codec}")).clean();
        same(&sandbox, "small.apr", "direct.apr");
    }
}

#[test]
fn a_conversion_keeps_the_codecs_that_a_file_has() {
    let sandbox = workshop();
    for codec in ["lz4", "zstd", "best"] {
        sandbox.apr(&format!("convert plain.apr -o small.apr -f --compress={codec}")).clean();
        sandbox.apr("convert small.apr -o again.apr -f").clean();
        same(&sandbox, "small.apr", "again.apr");
    }
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let sandbox = workshop();
    for codec in ["auto", "lz4", "best"] {
        for threads in [1, 3] {
            let line = format!(
                "convert plain.apr -o {threads}.apr -f --compress={codec} --threads {threads}"
            );
            sandbox.apr(&line).clean();
        }
        same(&sandbox, "1.apr", "3.apr");
        for threads in [1, 3] {
            sandbox
                .apr(&format!(
                    "convert 1.apr -o back{threads}.apr -f --compress=none --threads {threads}"
                ))
                .clean();
            same(&sandbox, &format!("back{threads}.apr"), "plain.apr");
        }
    }
}

/// Chunks of quantization, compression blocks and encryption chunks have different sizes.
#[test]
fn quantized_tensors_are_compressed_and_encrypted_alike_on_any_thread_count() {
    let values: Vec<f32> =
        (0..1200 * 1024).map(|i| (scrambled(i) % 2001) as f32 / 50_000.0 - 0.02).collect();
    let model = safetensors(&[("w", "F32", &[1200, 1024], f32s(&values))]);
    let sandbox =
        Sandbox::new().with("m.safetensors", model).with("password", format!("{PASSWORD}\n"));
    let convert = "convert m.safetensors --quantize q8_0 -f -o";
    sandbox.apr(&format!("{convert} 0.apr --compress")).clean();
    for threads in [1, 3] {
        sandbox.apr(&format!("{convert} {threads}.apr --compress --threads {threads}")).clean();
        same(&sandbox, "0.apr", &format!("{threads}.apr"));
        let sealed = format!(
            "{convert} sealed.apr --compress --encrypt --password-file password --threads {threads}"
        );
        sandbox.apr(&sealed).clean();
        sandbox
            .apr(&format!(
                "decrypt sealed.apr -o open.apr -f --password-file password --threads {threads}"
            ))
            .clean();
        same(&sandbox, "0.apr", "open.apr");
    }
}

#[test]
fn unknown_codecs_and_levels_are_usage_errors_and_only_apr_is_compressed() {
    let sandbox = workshop();
    for codec in ["gzip", "zstd:0", "zstd:23", "zstd:x", "lz4:1", ""] {
        sandbox
            .apr(&format!("convert plain.apr -o x.apr --compress={codec}"))
            .fails(2, &["--compress"]);
    }
    for format in ["x.safetensors", "x.gguf"] {
        sandbox
            .apr(&format!("convert plain.apr -o {format} --compress"))
            .fails(2, &["--compress", ".apr output"]);
    }
    assert!(!sandbox.path("x.apr").exists() && !sandbox.path("x.safetensors").exists());
}

#[test]
fn compressing_into_a_pipe_reports_that_it_requires_a_file() {
    let sandbox = workshop();
    let run = sandbox
        .apr("convert plain.apr -o - --format apr --compress")
        .fails(1, &["compressed tensors need a file"]);
    assert_eq!(run.stdout, b"");
}

/// CRC-32 of IEEE 802.3, bit by bit.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
    })
}

#[test]
fn shards_of_compressed_models_join_to_the_same_bytes_and_can_be_encrypted() {
    let sandbox = workshop();
    sandbox.apr("convert m.safetensors -o small.apr --compress").clean();
    sandbox.apr("shard small.apr --size 1KB -o cut.apr").clean();
    sandbox.apr("join cut.apr -o joined.apr").clean();
    same(&sandbox, "joined.apr", "small.apr");
    sandbox
        .apr(
            "convert m.safetensors -o sealed.apr --compress --shard-size 1KB --recipient owner.pub",
        )
        .clean();
    sandbox.apr("export sealed.apr -o x.safetensors").fails(4, &["E005"]);
    sandbox.apr("export sealed.apr -o x.safetensors --key owner").ok();
    same(&sandbox, "x.safetensors", "m.safetensors");
    sandbox.apr("validate sealed.apr --key owner").clean();
    // Keys are asked for before parts are written that would be open.
    sandbox.apr("join sealed.apr -o y.apr --key owner").fails(1, &["encrypted", "apr decrypt"]);
    assert!(!sandbox.path("y.apr").exists());
    sandbox.apr("decrypt sealed.apr -o y.apr --key owner").clean();
    sandbox.apr("export y.apr -o y.safetensors").ok();
    same(&sandbox, "y.safetensors", "m.safetensors");
}

#[test]
fn deleted_swapped_and_truncated_shards_are_reported() {
    let sandbox = workshop();
    sandbox.apr("convert m.safetensors -o cut.apr --compress --shard-size 1KB").clean();
    let names: Vec<String> =
        sandbox.files().into_iter().filter(|name| name.contains("-of-")).collect();
    let (first, second) = (names[0].as_str(), names[1].as_str());
    let (one, two) = (sandbox.read(first), sandbox.read(second));
    sandbox.write(first, &one[..one.len() - 20]);
    let run = sandbox.apr("validate cut.apr");
    assert!(matches!(run.code, Some(4 | 5)), "{run}");
    run.says(&[first]);
    let run = sandbox.apr("convert cut.apr -o x.safetensors").says(&[first]);
    assert_eq!(run.code, Some(4), "{run}");
    sandbox.write(first, &two);
    sandbox.write(second, &one);
    let run = sandbox.apr("convert cut.apr -o x.safetensors").says(&[first]);
    assert_eq!(run.code, Some(4), "{run}");
    sandbox.write(second, &two);
    fs::remove_file(sandbox.path(first)).expect("it is there");
    sandbox.apr("convert cut.apr -o x.safetensors").fails(3, &["E007", first]);
    assert!(!sandbox.path("x.safetensors").exists());
}

#[cfg(unix)]
#[test]
fn sizes_declared_by_a_tiny_compressed_file_do_not_allocate_memory() {
    let sandbox = workshop();
    for codec in ["lz4", "zstd", "best"] {
        sandbox.apr(&format!("convert m.safetensors -o m.apr -f --compress={codec}")).clean();
        let file = sandbox.read("m.apr");
        // The entry of `steps`: name, dtype and number of dimensions, one dimension, offset, size,
        // size when decoded.
        let at = file.windows(5).position(|window| window == b"steps").expect("in the index") + 7;
        for len in [1_u64 << 33, 1 << 42, 1 << 62] {
            let mut broken = file.clone();
            broken[at..at + 8].copy_from_slice(&len.to_le_bytes());
            broken[at + 24..at + 32].copy_from_slice(&len.to_le_bytes());
            sandbox.write("m.apr", broken);
            for command in [
                "convert m.apr -o x.safetensors",
                "tensors m.apr --stats",
                "convert m.apr -o x.apr --compress",
            ] {
                let run = sandbox.shell(&format!(
                    r#"ulimit -v 1000000; ulimit -f 20000; exec "$APR" {command}"#
                ));
                assert_eq!(run.code, Some(4), "{run}");
                run.says(&["E002", "steps"]);
            }
        }
    }
    assert!(!sandbox.path("x.apr").exists() && !sandbox.path("x.safetensors").exists());
}
