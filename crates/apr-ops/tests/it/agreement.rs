//! What validation calls valid, an import takes.

use apr_arch::Families;
use apr_ops::import::{PrepareOptions, prepare};
use apr_ops::session::Session;
use apr_ops::validate::ValidateOptions;
use apr_registry::{Limits, Serial};
use apr_source::Source;
use apr_testkit::ggml::GgmlBuilder;
use apr_testkit::gguf::GgufBuilder;

/// Whether an import would take the checkpoint by its names and shapes, and whether it is called
/// valid.
fn verdicts(file: Vec<u8>) -> (bool, bool) {
    let families = Families::builtin();
    let reader = apr_registry::open(file, "model", &Limits::default()).expect("a file that opens");
    let taken = prepare(&Source::new(&*reader, &families), &PrepareOptions::default())
        .expect("it is looked at")
        .check()
        .is_ok();
    let session = Session::of(Source::new(&*reader, &families).named("model"));
    let report =
        session.validate(ValidateOptions::default(), &Serial, &()).expect("it can be read");
    (taken, report.valid)
}

#[test]
fn a_checkpoint_that_claims_to_be_what_it_is_not_is_neither_taken_nor_valid() {
    let whisper_without_weights = GgmlBuilder::whisper().build();
    assert_eq!(verdicts(whisper_without_weights), (false, false));
}

#[test]
fn a_vocabulary_without_tensors_is_taken_and_valid() {
    assert_eq!(
        verdicts(GgufBuilder::new().text("general.architecture", "llama").build()),
        (true, true)
    );
}
