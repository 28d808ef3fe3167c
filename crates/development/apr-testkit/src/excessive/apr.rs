//! Constructs of our own files, of the older ones with their name, and of legacy GGML files.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "what is packed here is small"
)]

use apr_core::DType;

use super::Construct;
use crate::apr2::{Apr2Block, Apr2Builder, Apr2Entry};
use crate::ggml::{GgmlBuilder, GgmlTensor};
use crate::older::{Apr1Builder, OlderTensor, apr1_json, dialect_a, dialect_d};

const fn of(name: &'static str, file: &'static str, make: fn(usize) -> Vec<u8>) -> Construct {
    Construct { name, file, make }
}

/// All constructs of this module.
pub(super) const ALL: &[Construct] = &[
    of("apr: tensors", "model.apr", |n| with_tensors(n, |at| entry(&format!("w{at}")))),
    of("apr: tensors at one place", "model.apr", |n| {
        with_tensors(n, |at| Apr2Entry { offset: Some(0), ..entry(&format!("w{at}")) })
    }),
    of("apr: tensors of one name", "model.apr", |n| with_tensors(n, |_| entry("w"))),
    of("apr: layers", "model.apr", |n| {
        with_tensors(n, |at| entry(&format!("layers.{at}.attn.q_proj.weight")))
    }),
    of("apr: dimensions", "model.apr", |n| {
        with_tensors(n, |at| Apr2Entry::new(&format!("w{at}"), DType::U8, &[1; 255], &[0]))
    }),
    of("apr: long names", "model.apr", |n| {
        let name = "a.".repeat(20_000);
        with_tensors(n, |at| entry(&format!("{name}{at}")))
    }),
    of("apr: metadata", "model.apr", |n| {
        with_metadata(&(0..n).map(|at| format!(r#""k{at}":1"#)).collect::<Vec<_>>().join(","))
    }),
    of("apr: lists in each other", "model.apr", |n| {
        with_metadata(&format!(r#""k":{}{}"#, "[".repeat(n), "]".repeat(n)))
    }),
    of("apr: a list of lists", "model.apr", |n| {
        with_metadata(&format!(r#""k":[{}[]]"#, "[[]],".repeat(n)))
    }),
    of("apr: blocks", "model.apr", |n| {
        let block = Apr2Block::new(*b"XTRA", b"");
        Apr2Builder { blocks: vec![block; n], ..Apr2Builder::new().entry(entry("w")) }.build()
    }),
    of("apr: blocks of signatures", "model.apr", |n| {
        let block = Apr2Block::new(*b"SIGN", &[0; 96].repeat(n));
        Apr2Builder { blocks: vec![block], ..Apr2Builder::new().entry(entry("w")) }.build()
    }),
    of("aprn: metadata", "model.apr", |n| {
        let mut map = vec![0xdf];
        map.extend((n as u32).to_be_bytes());
        map.extend(
            (0..n).flat_map(|at| [&[0xa7][..], format!("{at:07}").as_bytes(), &[1]].concat()),
        );
        typed(&map)
    }),
    of("aprn: lists in each other", "model.apr", |n| {
        typed(&[&b"\x81\xa1k"[..], &vec![0x91; n], b"\xc0"].concat())
    }),
    of("ggml: tensors", "model.bin", |n| {
        let tensor = |at| GgmlTensor::f32(&format!("w{at}"), &[1]);
        (0..n)
            .fold(GgmlBuilder::llama(*b"tjgg", Some(3)), |file, at| file.tensor(tensor(at)))
            .build()
    }),
    of("ggml: tensors of one name", "model.bin", |n| {
        let model = GgmlBuilder::llama(*b"tjgg", Some(3));
        (0..n).fold(model, |file, _| file.tensor(GgmlTensor::f32("norm.weight", &[1]))).build()
    }),
    of("ggml: tokens", "model.bin", |n| {
        let mut model = GgmlBuilder::llama(*b"tjgg", Some(3));
        model.hyperparameters[0] = n as i32;
        model.tokens = (0..n).map(|at| format!("t{at}").into_bytes()).collect();
        model.build()
    }),
    of("older: tensors", "model.apr", |n| older(n, |names| dialect_a(*b"APR\0", 0, "{}", names))),
    of("older: tensors of whisper-apr 0.3", "model.apr", |n| {
        older(n, |names| dialect_d(0, &[0; 64], names))
    }),
    of("older: tensors of whisper-apr 0.1", "model.apr", |n| {
        older(n.min(65_535), |names| {
            Apr1Builder { tensors: names.to_vec(), ..Apr1Builder::default() }.build()
        })
    }),
    of("older: a JSON index", "model.apr", |n| {
        let entry =
            |at| format!(r#"{{"name":"w{at}","shape":[1],"dtype":"f32","offset":0,"size":4}}"#);
        apr1_json("{}", n as u32, &format!("[{}]", joined(n, entry)), &[0; 4])
    }),
];

fn joined(count: usize, piece: impl Fn(usize) -> String) -> String {
    (0..count).map(piece).collect::<Vec<_>>().join(",")
}

fn entry(name: &str) -> Apr2Entry {
    Apr2Entry::of_bytes(name, &[1])
}

fn with_tensors(count: usize, entry: impl Fn(usize) -> Apr2Entry) -> Vec<u8> {
    (0..count).fold(Apr2Builder::new(), |file, at| file.entry(entry(at))).build()
}

fn with_metadata(pairs: &str) -> Vec<u8> {
    let known = r#""apr_version":"2.0.0","architecture":{},"model_type":"unknown""#;
    Apr2Builder::new().metadata(format!("{{{known},{pairs}}}")).entry(entry("w")).build()
}

/// A linear regression whose metadata are these.
fn typed(metadata: &[u8]) -> Vec<u8> {
    // No coefficients, intercept 0, fitted with one.
    let payload = [0, 0, 0, 0, 0, 1];
    let mut file = b"APRN\x01\0\x01\0".to_vec();
    file.extend((metadata.len() as u32).to_le_bytes());
    file.extend([payload.len() as u32; 2].into_iter().flat_map(u32::to_le_bytes));
    file.resize(32, 0);
    file.extend(metadata);
    file.extend(payload);
    let sum = crc32fast::hash(&file);
    file.extend(sum.to_le_bytes());
    file
}

fn older(count: usize, make: impl Fn(&[OlderTensor<'_>]) -> Vec<u8>) -> Vec<u8> {
    let names: Vec<String> = (0..count).map(|at| format!("w{at:06}")).collect();
    let tensors: Vec<OlderTensor<'_>> =
        names.iter().map(|name| (name.as_str(), 0, &[1_u32][..], vec![0; 4])).collect();
    make(&tensors)
}
