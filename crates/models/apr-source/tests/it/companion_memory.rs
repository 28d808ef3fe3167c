//! What a hostile companion can make `learn` hold at once.

use apr_source::companions::learn;
use apr_testkit::peak_memory;

const MIB: usize = 1 << 20;

#[test]
fn memory_is_bounded_by_the_files_size_and_not_by_its_claims() {
    let sparse = br#"{"model": {"vocab": {"a": 1099511627776}}}"#.to_vec();
    let nested = b"{\"a\":".repeat(10_000);
    // A field of 2^62 bytes, and an extractor that asks for a filterbank of gigabytes.
    let promised = b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x3f".to_vec();
    let filterbank =
        br#"{"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 65536,
            "n_fft": 4000000}"#;
    for (name, bytes) in [
        ("tokenizer.json", sparse),
        ("tokenizer.json", nested.clone()),
        ("config.json", nested.clone()),
        ("README.md", [b"---\n".as_slice(), &nested, b"\n---\n"].concat()),
        ("tokenizer.model", promised),
        ("preprocessor_config.json", filterbank.to_vec()),
        ("tokenizer.json", vec![b'['; 100 * MIB]),
        ("config.json", vec![b'['; 100 * MIB]),
        ("README.md", vec![b'\n'; 100 * MIB]),
    ] {
        let companions = [(name.to_owned(), bytes)];
        let (learnt, peak) = peak_memory(|| learn(&companions));
        assert!(!learnt.warnings.is_empty(), "{name}");
        assert!(
            learnt.metadata.len() <= 1 && learnt.tensors.is_empty(),
            "{name}: {:?}",
            learnt.metadata
        );
        assert!(peak < MIB, "{name}: {peak}");
    }
}

#[test]
fn a_list_of_empty_values_costs_a_small_multiple_of_its_file() {
    let tokens = [r#"{"model": {"vocab": ["#, &r#"["",0],"#.repeat(MIB), r#"["",0]]}}"#].concat();
    let config = ["{\"a\": [", &"0,".repeat(MIB), "0]}"].concat();
    // A value takes 72 bytes where objects keep the order of their keys, and a list that grows has
    // twice of them at most.
    for (name, text, factor) in [("tokenizer.json", tokens, 24), ("config.json", config, 76)] {
        let size = text.len();
        let companions = [(name.to_owned(), text.into_bytes())];
        let (_, peak) = peak_memory(|| learn(&companions));
        assert!(peak < factor * size, "{name}: {peak} for {size}");
    }
}
