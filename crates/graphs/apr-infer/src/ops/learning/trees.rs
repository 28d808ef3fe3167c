//! Ensembles of trees, which add up what their leaves say.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::forest::{Branch, Forest, Listed, ListedVotes, Mode, Next, Vote};
use super::scores::{self, Second, Transform, largest};
use super::{Labels, Rows, floats};
use crate::call::Call;
use crate::cast::from_doubles;
use crate::ops::layout::tensor_attribute;
use crate::{Tensor, Value};

/// Aggregation of the votes for a target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aggregate {
    Sum,
    Average,
    Least,
    Most,
}

impl Aggregate {
    fn add(self, score: Option<f64>, weight: f64) -> f64 {
        match (self, score) {
            (_, None) => weight,
            (Self::Least, Some(score)) => score.min(weight),
            (Self::Most, Some(score)) => score.max(weight),
            (_, Some(score)) => score + weight,
        }
    }
}

/// Aggregates the votes of a row for each target. Targets without votes stay `None`.
fn voted(
    call: &Call<'_>,
    forest: &Forest,
    row: &[f64],
    aggregate: Aggregate,
    out: &mut [Option<f64>],
) -> Result<()> {
    let mut steps = 0;
    for root in &forest.roots {
        let (votes, walked) = forest.walk(*root, row)?;
        steps += walked * STEP + votes.len() as u64;
        for vote in votes {
            out[vote.target] = Some(aggregate.add(out[vote.target], vote.weight));
        }
    }
    if aggregate == Aggregate::Average {
        let trees = forest.roots.len() as f64;
        out.iter_mut().flatten().for_each(|score| *score /= trees);
    }
    call.environment.spend(steps)
}

/// Steps of work that a step down a tree is: it reads from anywhere in memory.
const STEP: u64 = 8;

fn listed(call: &Call<'_>, votes: &str, target: &str) -> Result<Forest> {
    let ints = |name: &str| call.ints(name).unwrap_or_default();
    let vote_ints = |name: &str| ints(&format!("{votes}_{name}"));
    let votes = ListedVotes {
        trees: vote_ints("treeids"),
        nodes: vote_ints("nodeids"),
        targets: ints(target),
        weights: floats(call, &format!("{votes}_weights"))?,
    };
    let nodes = Listed {
        trees: ints("nodes_treeids"),
        nodes: ints("nodes_nodeids"),
        features: ints("nodes_featureids"),
        modes: call.texts("nodes_modes").unwrap_or_default(),
        values: floats(call, "nodes_values")?,
        yes: ints("nodes_truenodeids"),
        no: ints("nodes_falsenodeids"),
        missing: ints("nodes_missing_value_tracks_true"),
    };
    call.work(&[nodes.nodes.len() + votes.nodes.len(), STEP as usize])?;
    nodes.forest(&votes)
}

pub(super) fn regress(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let name = call.text("aggregate_function", "SUM");
    let aggregate = match name.as_str() {
        "SUM" => Aggregate::Sum,
        "AVERAGE" => Aggregate::Average,
        "MIN" => Aggregate::Least,
        "MAX" => Aggregate::Most,
        _ => return Err(Error::format(format!("unknown aggregate_function '{name}'"))),
    };
    let forest = listed(call, "target", "target_ids")?;
    let (rows, out) = targets(call, &forest, aggregate, Transform::of(call)?)?;
    Ok(vec![scores::tensor(call, rows, out)?])
}

/// Number of rows, and a number for each target of each.
fn targets(
    call: &Call<'_>,
    forest: &Forest,
    aggregate: Aggregate,
    transform: Transform,
) -> Result<(usize, Vec<f64>)> {
    let x = Rows::of(call)?;
    let count = usize::try_from(call.int("n_targets", 1)).unwrap_or(0);
    let base = floats(call, "base_values")?;
    if count == 0 || !(base.is_empty() || base.len() == count) {
        return Err(Error::format(format!(
            "{} base values do not fit {count} targets",
            base.len()
        )));
    }
    forest.check(x.width, count)?;

    let mut out = Vec::with_capacity(call.room(&[x.count, count], ElementType::F64)?);
    for row in 0..x.count {
        let mut scores = vec![None; count];
        voted(call, forest, x.row(row), aggregate, &mut scores)?;
        let of = |(at, score): (usize, Option<f64>)| {
            score.unwrap_or(0.0) + base.get(at).copied().unwrap_or(0.0)
        };
        let mut scores: Vec<_> = scores.into_iter().enumerate().map(of).collect();

        match scores[..] {
            [score] => out.push(transform.of_one(score)),
            _ => {
                transform.apply(&mut scores);
                out.extend(scores);
            }
        }
    }
    Ok((x.count, out))
}

pub(super) fn classify(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = Rows::of(call)?;
    let labels = Labels::of(call, "classlabels_int64s")?;
    let transform = Transform::of(call)?;
    let base = floats(call, "base_values")?;
    let forest = listed(call, "class", "class_ids")?;
    forest.check(x.width, labels.len())?;
    if base.len() > labels.len() {
        return Err(Error::format("there are more base values than labels"));
    }

    let binary = Binary::of(&forest, labels.len());
    let mut classes = Vec::with_capacity(call.room(&[x.count], ElementType::I64)?);
    let width = labels.len().max(2);
    let mut out = Vec::with_capacity(call.room(&[x.count, width], ElementType::F64)?);
    for row in 0..x.count {
        let mut scores = vec![None; labels.len()];
        voted(call, &forest, x.row(row), Aggregate::Sum, &mut scores)?;
        if labels.len() > 2 {
            let of = |(at, score): (usize, Option<f64>)| {
                score.unwrap_or(0.0) + base.get(at).copied().unwrap_or(0.0)
            };
            let mut scores: Vec<_> = scores.into_iter().enumerate().map(of).collect();
            classes.push(largest(&scores));
            transform.apply(&mut scores);
            out.extend(scores);
        } else {
            let (class, scores) = binary.scores(&scores, &base, transform);
            classes.push(class);
            out.extend(scores);
        }
    }
    Ok(vec![labels.tensor(call, &classes)?, scores::tensor(call, x.count, out)?])
}

/// Facts about an ensemble of two classes. Often, all leaves vote for only one of them.
struct Binary {
    /// `true` if there are two labels, and votes for only one of them.
    one_voted: bool,
    all_positive: bool,
}

impl Binary {
    fn of(forest: &Forest, labels: usize) -> Self {
        let first = forest.votes.first().map(|vote| vote.target);
        let same = forest.votes.iter().all(|vote| Some(vote.target) == first);
        Self {
            one_voted: labels == 2 && same,
            all_positive: forest.votes.iter().all(|vote| vote.weight >= 0.0),
        }
    }

    /// Returns the winning class and the scores, for at most two labels.
    fn scores(
        &self,
        votes: &[Option<f64>],
        base: &[f64],
        transform: Transform,
    ) -> (usize, Vec<f64>) {
        let mut scores = [votes[0], votes.get(1).copied().flatten()];
        match *base {
            [both] if scores[0].is_none() => scores[1] = Some(both + scores[1].unwrap_or(0.0)),
            _ => {
                for (score, base) in scores.iter_mut().zip(base) {
                    *score = Some(base + score.unwrap_or(0.0));
                }
            }
        }

        // Votes for the first class alone stand for the second one, and what they leave for the
        // first.
        let positive = scores[1].or(scores[0]).unwrap_or(0.0);
        let least = match (scores, self.one_voted && self.all_positive) {
            ([Some(first), Some(_)], _) => first,
            (_, true) => 0.5,
            (_, false) => 0.0,
        };
        let class = usize::from(positive > least);
        if let Some(second) = scores[1] {
            let mut both = vec![scores[0].unwrap_or(0.0), second];
            transform.apply(&mut both);
            return (class, both);
        }
        let second = match (self.one_voted, self.all_positive) {
            (true, true) => Second::Rest,
            (true, false) => Second::Opposite,
            (false, _) => Second::None,
        };
        (class, transform.both(positive, second))
    }
}

/// Version 5: leaves apart from nodes, and lists of members.
pub(super) fn ensemble(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let aggregate = match call.int("aggregate_function", 1) {
        0 => Aggregate::Average,
        1 => Aggregate::Sum,
        2 => Aggregate::Least,
        3 => Aggregate::Most,
        other => return Err(Error::format(format!("unknown aggregate_function {other}"))),
    };
    let element = call.tensor(0)?.element();
    let forest = apart(call)?;
    let transform = Transform::numbered(call.int("post_transform", 0))?;
    let (rows, out) = targets(call, &forest, aggregate, transform)?;
    let shape = vec![rows, out.len().checked_div(rows).unwrap_or(0)];
    Ok(vec![from_doubles(out, shape, element)?.into()])
}

fn apart(call: &Call<'_>) -> Result<Forest> {
    let tensor = |name: &str| -> Result<Tensor> {
        tensor_attribute(call, name)?.ok_or_else(|| Error::format(format!("{name} is missing")))
    };
    let ints = |name: &str| call.ints(name).unwrap_or_default();
    let (modes, splits) = (tensor("nodes_modes")?.integers()?, tensor("nodes_splits")?.doubles()?);
    let lists = ["featureids", "truenodeids", "trueleafs", "falsenodeids", "falseleafs"]
        .map(|name| ints(&format!("nodes_{name}")));
    let [features, yes, yes_leaves, no, no_leaves] = &lists;
    let missing = ints("nodes_missing_value_tracks_true");
    let len = modes.len();
    let (leaf_targets, weights) = (ints("leaf_targetids"), tensor("leaf_weights")?.doubles()?);
    if lists.iter().any(|list| list.len() != len)
        || splits.len() != len
        || leaf_targets.len() != weights.len()
        || !(missing.is_empty() || missing.len() == len)
    {
        return Err(Error::format("the lists of nodes or leaves are not as long as each other"));
    }
    call.work(&[len + weights.len(), STEP as usize])?;

    let members = match tensor_attribute(call, "membership_values")? {
        Some(values) => values.doubles()?,
        None => Vec::new(),
    };
    let mut ranges = ranges(&members).into_iter();
    let place = |at: i64| usize::try_from(at).unwrap_or(usize::MAX);
    let next = |at: i64, is_leaf: i64| match is_leaf {
        0 => Next::Node(place(at)),
        _ => Next::Leaf(place(at), place(at).saturating_add(1)),
    };
    let mut branches = Vec::with_capacity(len);
    for at in 0..len {
        let mode = Mode::numbered(modes[at])?;
        let none = || Error::format("a node has no members");
        branches.push(Branch {
            mode,
            feature: place(features[at]),
            value: splits[at],
            members: if mode == Mode::Member { ranges.next().ok_or_else(none)? } else { (0, 0) },
            missing_is_true: missing.get(at).is_some_and(|&is| is != 0),
            yes: next(yes[at], yes_leaves[at]),
            no: next(no[at], no_leaves[at]),
        });
    }

    let vote = |(&target, weight): (&i64, f64)| Vote { target: place(target), weight };
    let votes = leaf_targets.iter().zip(weights).map(vote).collect();
    let roots = ints("tree_roots").into_iter().map(|root| Next::Node(place(root))).collect();
    Ok(Forest { roots, branches, votes, members })
}

/// The range of each node among the members of all nodes: NaN ends one.
fn ranges(values: &[f64]) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    let mut start = 0;
    for (at, value) in values.iter().enumerate() {
        if value.is_nan() {
            ranges.push((start, at));
            start = at + 1;
        }
    }
    if start < values.len() {
        ranges.push((start, values.len()));
    }
    ranges
}
