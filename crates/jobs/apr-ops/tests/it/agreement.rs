//! What validation calls valid, an import takes.

use apr_arch::Families;
use apr_ops::import::{PrepareOptions, prepare};
use apr_ops::session::Session;
use apr_ops::validate::ValidateOptions;
use apr_registry::{Limits, Serial};
use apr_source::Source;
use apr_testkit::ggml::GgmlBuilder;
use apr_testkit::gguf::GgufBuilder;

/// Returns whether an import accepts the names and shapes of the checkpoint, and whether it is
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
fn a_checkpoint_with_a_false_claim_is_rejected_and_invalid() {
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
