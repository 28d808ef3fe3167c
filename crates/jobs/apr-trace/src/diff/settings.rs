//! What two models of one family are configured to compute.

use apr_arch::OptionChange;
use apr_run::RunResult;

use crate::payload::Subject;

/// Returns the graph settings that differ between two models of one family.
pub(super) fn settings(subjects: [Subject<'_>; 2]) -> RunResult<Vec<OptionChange>> {
    let [one, two] = subjects.map(|subject| subject.source.family());
    let (Some(one), Some(two)) = (one?, two?) else { return Ok(Vec::new()) };
    if one.family().name() != two.family().name() {
        return Ok(Vec::new());
    }
    let both = one.graph_settings(None).zip(two.graph_settings(None));
    Ok(both.map(|(one, two)| one.changes(&two)).unwrap_or_default())
}
