//! Point 63: pruning, of a file that is made.

use apr::prune::{Amount, PruneReport, Pruning, Scope, plan};
use apr_arch::Families;
use apr_core::{CheckpointReader, Serial};
use apr_source::Source;
use apr_testkit::apr2::Apr2Builder;

use crate::bench::Bench;
use crate::judgement::{Fault, Judgement, ensure, failed, passed};
use crate::made::{floats, opened, spread};

/// Rows and columns of the made matrix.
const SIDE: u64 = 40;

/// Prunes a test matrix. Returns the number of zeros in its bytes, and the report.
fn pruned(amount: Amount) -> Result<(usize, PruneReport), Fault> {
    let values = spread(63, usize::try_from(SIDE * SIDE)?);
    let file = Apr2Builder::new().entry(floats("a.weight", &[SIDE, SIDE], &values)).build();
    let model: Box<dyn CheckpointReader> = opened(file)?;
    let families = Families::builtin();
    let planned = plan(&Source::new(&*model, &families), Pruning::new(amount))?;
    let (model, report) = planned.apply(model, &Serial, &())?;
    let mut bytes = vec![0; values.len() * 4];
    model.read_tensor(0, 0, &mut bytes)?;
    Ok((bytes.chunks(4).filter(|value| **value == [0; 4]).count(), report))
}

pub(crate) fn share(_: &Bench<'_>) -> Judgement {
    let of = |share| pruned(Amount::Share { share, scope: Scope::Tensor });
    let all = usize::try_from(SIDE * SIDE)?;
    let (half, report) = of(0.5)?;
    let told = report.tensors.first().map(|tensor| tensor.zeros);
    ensure(told == u64::try_from(half).ok(), format!("{half} zeros were reported as {told:?}"))?;
    // Another share leaves another number, and none is no share.
    let (quarter, _) = of(0.25)?;
    ensure(quarter * 4 == all, format!("a quarter of {all} weights was rounded to {quarter}"))?;
    ensure(of(1.5).is_err(), "a share of 1.5 was not rejected")?;
    let seen = format!("{half} of {all} weights of a test matrix are zero after a share of 0.5");
    if half * 2 == all { passed(seen) } else { failed(seen) }
}
