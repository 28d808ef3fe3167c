//! Types for a number of bytes.

use super::units::Unit;

/// Returns the choice for each unit with as little effect as possible. Together, the choices take
/// at most `budget` bytes, or as few as they can.
///
/// Steps to larger types are taken in the order of the effect that they remove per byte, along the
/// lower convex hull of a unit's choices. This is optimal if the budget is used up (Shoham and
/// Gersho 1988, "Efficient bit allocation for an arbitrary set of quantizers").
pub(crate) fn choose(units: &[Unit], budget: u64) -> Vec<usize> {
    let mut steps: Vec<Step> =
        units.iter().enumerate().flat_map(|(at, unit)| hull(at, unit)).collect();
    // Steps of one unit become less worth, so that they stay in their order.
    steps.sort_by(|one, other| other.worth.total_cmp(&one.worth));
    let smallest = |unit: &Unit| {
        let smallest = unit.choices.iter().enumerate().min_by_key(|(_, choice)| choice.bytes);
        smallest.map_or(0, |(at, _)| at)
    };
    let mut chosen: Vec<usize> = units.iter().map(smallest).collect();
    let bytes = |unit: usize, choice: usize| units[unit].choices[choice].bytes;
    let mut spent: u64 = chosen.iter().enumerate().map(|(unit, choice)| bytes(unit, *choice)).sum();
    for step in steps {
        if step.from != chosen[step.unit] {
            // A step before did not fit.
            continue;
        }
        let more = bytes(step.unit, step.to) - bytes(step.unit, step.from);
        if spent + more <= budget {
            (chosen[step.unit], spent) = (step.to, spent + more);
        }
    }
    chosen
}

/// Exchange number `at`, of the most promising first: one unit gets its next larger choice, and
/// another one its next smaller. `None` where there are no more that fit.
pub(crate) fn swapped(
    units: &[Unit],
    chosen: &[usize],
    budget: u64,
    at: usize,
) -> Option<Vec<usize>> {
    let steps: Vec<Step> = units.iter().enumerate().flat_map(|(at, unit)| hull(at, unit)).collect();
    let bytes = |unit: usize, choice: usize| units[unit].choices[choice].bytes;
    let spent: u64 = chosen.iter().enumerate().map(|(unit, choice)| bytes(unit, *choice)).sum();
    let change = |step: &Step| bytes(step.unit, step.to) - bytes(step.unit, step.from);
    let mut pairs: Vec<(f64, &Step, &Step)> = Vec::new();
    for up in steps.iter().filter(|step| chosen[step.unit] == step.from) {
        for down in steps.iter().filter(|step| chosen[step.unit] == step.to) {
            let fits = spent + change(up) <= budget + change(down);
            if up.unit != down.unit && fits {
                let gain = up.worth * change(up) as f64 - down.worth * change(down) as f64;
                pairs.push((gain, up, down));
            }
        }
    }
    pairs.sort_by(|one, other| other.0.total_cmp(&one.0));
    let (_, up, down) = pairs.get(at)?;
    let mut chosen = chosen.to_vec();
    chosen[up.unit] = up.to;
    chosen[down.unit] = down.from;
    Some(chosen)
}

/// A step from one choice of a unit to a larger one.
struct Step {
    unit: usize,
    from: usize,
    to: usize,
    /// Effect that it takes off for a byte.
    worth: f64,
}

fn hull(unit: usize, of: &Unit) -> Vec<Step> {
    let choices = &of.choices;
    let mut order: Vec<usize> = (0..choices.len()).collect();
    order.sort_by(|one, other| {
        let by_effect = choices[*one].effect.total_cmp(&choices[*other].effect);
        choices[*one].bytes.cmp(&choices[*other].bytes).then(by_effect)
    });
    let worth = |from: usize, to: usize| {
        let off = choices[from].effect - choices[to].effect;
        off / choices[to].bytes.saturating_sub(choices[from].bytes).max(1) as f64
    };
    let mut kept: Vec<usize> = Vec::new();
    for to in order {
        match kept.last() {
            None => {
                kept.push(to);
                continue;
            }
            // Larger and no better.
            Some(last) if choices[to].effect >= choices[*last].effect => continue,
            Some(_) => {}
        }
        while let [.., before, last] = kept[..]
            && worth(before, last) <= worth(last, to)
        {
            kept.pop();
        }
        kept.push(to);
    }
    let steps = kept.windows(2).map(|pair| {
        let (from, to) = (pair[0], pair[1]);
        Step { unit, from, to, worth: worth(from, to) }
    });
    steps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units() -> Vec<Unit> {
        // The second choice of the first one is above its hull, and the last one of the second one
        // is larger and no better.
        vec![
            Unit::of_choices(&[(10, 8.0), (15, 7.9), (20, 2.0), (40, 1.0)]),
            Unit::of_choices(&[(10, 3.0), (20, 1.0), (40, 1.0)]),
        ]
    }

    #[test]
    fn bytes_go_where_they_take_off_most() {
        let units = units();
        for (budget, expected) in [
            (0, [0, 0]),
            (20, [0, 0]),
            (29, [0, 0]),
            (30, [2, 0]),
            (40, [2, 1]),
            (59, [2, 1]),
            (60, [3, 1]),
            (1000, [3, 1]),
        ] {
            assert_eq!(choose(&units, budget), expected, "{budget}");
        }
    }

    /// All choices that fit, tried one by one.
    #[test]
    fn choices_are_optimal_if_the_budget_is_used_up() {
        let units = units();
        let effect = |chosen: &[usize]| -> f64 {
            units.iter().zip(chosen).map(|(unit, at)| unit.choices[*at].effect).sum()
        };
        let bytes = |chosen: &[usize]| -> u64 {
            units.iter().zip(chosen).map(|(unit, at)| unit.choices[*at].bytes).sum()
        };
        for budget in [20, 30, 40, 60] {
            let all = (0..4).flat_map(|one| (0..3).map(move |other| [one, other]));
            let within = all.filter(|chosen| bytes(chosen) <= budget);
            let best = within.map(|chosen| effect(&chosen)).fold(f64::INFINITY, f64::min);
            assert!((effect(&choose(&units, budget)) - best).abs() < 1e-12, "{budget}");
        }
    }

    #[test]
    fn an_exchange_stays_within_the_budget() {
        let units = units();
        assert_eq!(swapped(&units, &[2, 0], 30, 0), Some(vec![0, 1]));
        assert_eq!(swapped(&units, &[2, 0], 30, 1), None);
        assert_eq!(swapped(&units, &[0, 0], 20, 0), None, "nothing can get smaller");
    }
}
