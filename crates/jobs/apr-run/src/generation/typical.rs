//! Locally typical sampling (Meister et al. 2022).

use super::processors::{Scratch, entropy, is_allowed, keep, largest};

/// Keeps the tokens whose surprise is nearest to the entropy, until their probabilities reach
/// `mass`.
///
/// The distance of the last one is selected, as the median of a list is, rather than sorted for: a
/// vocabulary takes long to sort.
pub(super) fn typical_p(logits: &mut [f32], mass: f64, scratch: &mut Scratch) {
    let Scratch { shares, distances, order, .. } = scratch;
    let largest = largest(logits);
    shares.clear();
    shares.extend(logits.iter().map(|logit| f64::from(logit - largest).exp()));
    let total: f64 = shares.iter().sum();
    shares.iter_mut().for_each(|share| *share /= total);
    let entropy = entropy(shares);
    distances.clear();
    distances.extend(shares.iter().map(|share| (-share.ln() - entropy).abs()));
    order.clear();
    order.extend((0..logits.len()).filter(|at| is_allowed(logits[*at])));

    let (mut rest, mut left) = (&mut order[..], mass);
    while rest.len() > 1 {
        let middle = rest.len() / 2;
        rest.select_nth_unstable_by(middle, |&a, &b| distances[a].total_cmp(&distances[b]));
        let (nearer, further) = rest.split_at_mut(middle);
        let sum: f64 = nearer.iter().map(|&at| shares[at]).sum();
        if sum >= left {
            rest = nearer;
        } else {
            left -= sum;
            rest = further;
        }
    }
    let Some(bound) = rest.first().map(|&at| distances[at]).filter(|bound| !bound.is_nan()) else {
        return;
    };
    keep(logits, |_, at| distances[at] <= bound);
}
