//! What two models of one family are configured to compute.

use apr_arch::OptionChange;
use apr_run::RunResult;

use crate::payload::Subject;

/// What the configurations of models of one family make of its graph, where that differs.
pub(super) fn settings(subjects: [Subject<'_>; 2]) -> RunResult<Vec<OptionChange>> {
    let [one, two] = subjects.map(|subject| subject.source.family());
    let (Some(one), Some(two)) = (one?, two?) else { return Ok(Vec::new()) };
    if one.family().name() != two.family().name() {
        return Ok(Vec::new());
    }
    let both = one.graph_settings(None).zip(two.graph_settings(None));
    Ok(both.map(|(one, two)| one.changes(&two)).unwrap_or_default())
}
