//! What the key-value pairs of a GGUF file take in memory: a small multiple of the file, however
//! many there are and however large the vocabulary.

use apr_arch::Families;
use apr_core::Sink;
use apr_llama::describe;
use apr_ops::convert::{ConvertOptions, plan};
use apr_ops::session::Session;
use apr_registry::{CheckpointReader, Limits, PlanOptions, Result, Serial};
use apr_source::{Architecture, Source};
use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use apr_testkit::peak_memory;
use apr_view::View;

/// A sink that only counts, so that what is written is not in memory.
#[derive(Default)]
struct Nowhere(u64);

impl Sink for Nowhere {
    fn next_file(&mut self, _: &str) -> Result<()> {
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.0 += bytes.len() as u64;
        Ok(())
    }

    fn position(&self) -> u64 {
        self.0
    }

    fn can_patch(&self) -> bool {
        true
    }

    fn patch(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

fn open(file: Vec<u8>) -> Box<dyn CheckpointReader> {
    let reader = apr_registry::open(file, "model", &Limits::default()).expect("a model");
    describe(reader, &Families::builtin(), &Architecture::Auto)
}

fn convert(
    reader: &dyn CheckpointReader,
    format: &'static apr_registry::Format,
    sink: &mut dyn Sink,
) {
    let target = PlanOptions::new(format, "model");
    let conversion = plan(reader, &ConvertOptions::default(), &target).expect("it can be written");
    conversion.run(reader, sink, &Serial, &()).expect("it is written");
}

/// Returns a file with `count` pairs of 21 bytes, which is about the smallest pair.
fn many_pairs(count: usize) -> Vec<u8> {
    let named = GgufBuilder::new().text("general.architecture", "llama");
    let builder = (0..count).fold(named, |builder, at| builder.pair(&format!("k{at:07}"), 0, &[7]));
    builder.entry(GgufEntry::i8("x", &[1, 2, 3])).build()
}

#[test]
fn many_pairs_take_four_times_their_file_to_read_and_to_convert() {
    // The tables of families are read once, whatever is opened.
    drop(open(many_pairs(1)));
    let file = many_pairs(50_000);
    let most = 4 * file.len();
    let again = file.clone();
    let families = Families::builtin();
    let (report, peak) = peak_memory(move || {
        let reader = open(again);
        Session::of(Source::new(&*reader, &families)).inspect().expect("a sound file")
    });
    assert!(peak < most, "inspect: {peak} for {}", file.len());
    assert_eq!(
        report.metadata.key_values().map(|pairs| pairs.map(|pairs| pairs.len())),
        Ok(Some(50_001))
    );
    let (text, peak) = peak_memory(|| serde_json::to_string(&report).expect("JSON").len());
    assert!(peak < 2 * text + most, "a report of {text} bytes: {peak}");
    drop(report);

    let again = file.clone();
    let ((), peak) = peak_memory(move || {
        convert(&*open(again), &apr_registry::apr2::FORMAT, &mut Nowhere::default());
    });
    assert!(peak < 2 * most, "to .apr: {peak} for {}", file.len());

    let mut native = Vec::new();
    convert(&*open(file.clone()), &apr_registry::apr2::FORMAT, &mut native);
    let largest = file.len().max(native.len());
    let ((), peak) = peak_memory(move || {
        convert(&*open(native), &apr_registry::gguf::FORMAT, &mut Nowhere::default());
    });
    assert!(peak < 4 * largest, "and back: {peak} for {largest}");
}

#[test]
fn a_vocabulary_is_held_once_and_packed() {
    drop(open(many_pairs(1)));
    let tokens: Vec<String> = (0..400_000).map(|at| format!("token{at:06}")).collect();
    let texts: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let file = GgufBuilder::new()
        .text("general.architecture", "llama")
        .texts("tokenizer.ggml.tokens", &texts)
        .entry(GgufEntry::i8("x", &[1, 2, 3]))
        .build();
    drop(texts);
    drop(tokens);
    let most = 3 * file.len();
    let again = file.clone();
    let ((), peak) = peak_memory(move || {
        let reader = open(again);
        // Views and changes of other metadata share the pairs.
        let mut view = View::new(&*reader);
        view.metadata_mut().set("note", "changed");
        convert(&view, &apr_registry::gguf::FORMAT, &mut Nowhere::default());
    });
    assert!(peak < most, "{peak} for {}", file.len());
}
