//! The bodies of the fuzz targets over what fuzzing found, and over broken copies of small files.

use std::path::Path;

use apr_fuzz_bodies::{probe_any, read_apr2, read_pytorch, read_safetensors, roundtrip_apr2};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::{corrupt, locate};

type Body = fn(&[u8]);

const BODIES: [(&str, Body); 5] = [
    ("read_apr2", read_apr2),
    ("read_pytorch", read_pytorch),
    ("read_safetensors", read_safetensors),
    ("roundtrip_apr2", roundtrip_apr2),
    ("probe_any", probe_any),
];

#[test]
fn what_fuzzing_found_stays_fixed() {
    for (target, body) in BODIES {
        let folder = locate::fixture("regression").join(target);
        for file in files(&folder) {
            body(&std::fs::read(&file).expect("fixtures can be read"));
        }
    }
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    entries.map(|entry| entry.expect("the folder can be listed").path()).collect()
}

#[test]
fn broken_copies_of_an_apr2_file_convert_or_fail() {
    let bytes: Vec<u8> = (0..24).collect();
    let good =
        Apr2Builder::new().entry(Apr2Entry::of_bytes("a", &bytes)).entry(Apr2Entry::of_bytes("b", &bytes[..5])).build();
    read_apr2(&good);
    corrupt::truncations(&good).for_each(|broken| probe_any(&broken));
    corrupt::bit_flips(&good, 0..good.len()).for_each(|broken| read_apr2(&broken));
}

#[test]
fn broken_copies_of_a_safetensors_file_convert_or_fail() {
    let header = br#"{"__metadata__":{"k":"v"},"a":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]},"b":{"dtype":"F4","shape":[4],"data_offsets":[8,10]}}"#;
    let mut good = (header.len() as u64).to_le_bytes().to_vec();
    good.extend_from_slice(header);
    good.extend(0..10);
    read_safetensors(&good);
    corrupt::truncations(&good).for_each(|broken| probe_any(&broken));
    corrupt::bit_flips(&good, 0..good.len()).for_each(|broken| read_safetensors(&broken));
}
