//! Linear models.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::scores::{self, Second, Transform, largest};
use super::{Labels, Rows, floats};
use crate::Value;
use crate::call::Call;

/// Products of rows with as many rows of coefficients as there are `targets`, each with an
/// intercept.
fn products(call: &Call<'_>, x: &Rows, targets: usize) -> Result<Vec<f64>> {
    let (coefficients, intercepts) = (floats(call, "coefficients")?, floats(call, "intercepts")?);
    let fits = targets.checked_mul(x.width) == Some(coefficients.len());
    if !fits || (!intercepts.is_empty() && intercepts.len() != targets) {
        return Err(Error::format(format!(
            "{} coefficients and {} intercepts do not fit {targets} targets of {} features",
            coefficients.len(),
            intercepts.len(),
            x.width
        )));
    }

    let mut out = Vec::with_capacity(call.room(&[x.count, targets], ElementType::F64)?);
    call.work(&[x.count, targets, x.width])?;
    for row in 0..x.count {
        for target in 0..targets {
            let weights = &coefficients[target * x.width..][..x.width];
            let sum: f64 = x.row(row).iter().zip(weights).map(|(x, weight)| x * weight).sum();
            out.push(sum + intercepts.get(target).copied().unwrap_or(0.0));
        }
    }
    Ok(out)
}

pub(super) fn regress(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = Rows::of(call)?;
    let targets = usize::try_from(call.int("targets", 1)).unwrap_or(0);
    if targets == 0 {
        return Err(Error::format("missing targets"));
    }
    let transform = Transform::of(call)?;
    let mut out = products(call, &x, targets)?;
    if targets == 1 {
        out.iter_mut().for_each(|score| *score = transform.of_one(*score));
    } else {
        out.chunks_mut(targets).for_each(|row| transform.apply(row));
    }
    Ok(vec![scores::tensor(call, x.count, out)?])
}

pub(super) fn classify(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = Rows::of(call)?;
    let labels = Labels::of(call, "classlabels_ints")?;
    let transform = Transform::of(call)?;
    let given = call.floats("coefficients").unwrap_or_default().len();
    let targets = match call.floats("intercepts").map_or(0, |list| list.len()) {
        0 => given.checked_div(x.width).unwrap_or(0),
        count => count,
    };
    if targets == 0 {
        return Err(Error::format("missing coefficients"));
    }

    let products = products(call, &x, targets)?;
    let second = if targets == 1 && labels.len() == 2 { Second::Rest } else { Second::None };
    let mut classes = Vec::with_capacity(call.room(&[x.count], ElementType::I64)?);
    let mut out = Vec::with_capacity(call.room(&[x.count, targets + 1], ElementType::F64)?);
    for row in products.chunks(targets) {
        match *row {
            [score] => {
                classes.push(usize::from(score > 0.0));
                out.extend(transform.both(score, second));
            }
            _ => {
                classes.push(largest(row));
                let mut row = row.to_vec();
                transform.apply(&mut row);
                out.extend(row);
            }
        }
    }
    Ok(vec![labels.tensor(call, &classes)?, scores::tensor(call, x.count, out)?])
}
