//! Two runs side by side.

use std::collections::{HashSet, VecDeque};

use apr_graph::{Node, WeightRef};
use apr_infer::{Flow, Outcome, Step, Tap, Value};
use apr_registry::{Code, Error, IoCause};
use apr_run::{Host, RunError, RunResult};

use super::drift::ValueDrift;
use super::meeting::{Meeting, Side};
use crate::payload::Pass;
use crate::sites::Sites;

/// Part of two models, and the pairs of its operators.
pub(crate) struct Pairing {
    pub(crate) sites: [Sites; 2],
    /// Sites of the original and of the other one.
    pub(crate) pairs: Vec<(usize, usize)>,
    /// Pairs by the sites of both.
    of_site: [Vec<Option<usize>>; 2],
}

impl Pairing {
    pub(crate) fn new(sites: [Sites; 2], pairs: Vec<(usize, usize)>) -> Self {
        let mut of_site = [&sites[0], &sites[1]].map(|sites| vec![None; sites.list().len()]);
        for (number, (one, two)) in pairs.iter().enumerate() {
            of_site[0][*one] = Some(number);
            of_site[1][*two] = Some(number);
        }
        Self { sites, pairs, of_site }
    }

    /// Returns the weights that contribute to the operator of a pair, the nearest first, up to
    /// `most`.
    ///
    /// They are the operator's own weights and the weights of preceding operators, up to the next
    /// ones that have a counterpart.
    pub(crate) fn weights_behind(&self, side: usize, pair: usize, most: usize) -> Behind<'_> {
        let (one, two) = self.pairs[pair];
        let list = self.sites[side].list();
        let first = if side == 0 { one } else { two };
        let mut open = VecDeque::from([first]);
        let mut seen: HashSet<usize> = HashSet::from([first]);
        let mut known: HashSet<&WeightRef> = HashSet::new();
        let mut behind = Behind { weights: Vec::new(), own: 0, left_out: 0 };
        while let Some(at) = open.pop_front() {
            for weight in list[at].weights.iter().filter(|weight| known.insert(weight)) {
                if behind.weights.len() < most {
                    behind.weights.push(weight);
                } else {
                    behind.left_out += 1;
                }
            }
            if at == first {
                behind.own = behind.weights.len();
            }
            let unpaired = list[at].reads.iter().filter(|at| self.of_site[side][**at].is_none());
            open.extend(unpaired.filter(|at| seen.insert(**at)));
        }
        behind
    }

    /// The pair that a site of the original belongs to.
    pub(crate) fn of_original(&self, site: usize) -> Option<usize> {
        self.of_site[0][site]
    }
}

/// Weights that a value is computed with.
pub(crate) struct Behind<'p> {
    /// The operator's own first.
    pub(crate) weights: Vec<&'p WeightRef>,
    /// Number of weights that the operator itself reads.
    pub(crate) own: usize,
    /// Number of further weights.
    pub(crate) left_out: usize,
}

/// Continuation of two runs after a pair of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Course {
    /// Each with its own: drift adds up.
    Own,
    /// Both continue with the original's values; the drift is then what each step adds.
    Original,
}

/// Result of two runs.
pub(crate) struct Met {
    /// Drift by pair; `None` if not both ran, or if they returned no floats.
    pub(crate) drifts: Vec<Option<ValueDrift>>,
    pub(crate) outcomes: [Outcome; 2],
}

/// Runs a part of two models, pair by pair.
pub(crate) fn lockstep(
    passes: [&Pass<'_>; 2],
    files: [&str; 2],
    pairing: &Pairing,
    course: Course,
    host: &dyn Host,
) -> RunResult<Met> {
    let mut drifts: Vec<Option<ValueDrift>> = vec![None; pairing.pairs.len()];
    let most = passes[0].part.runner().options().max_memory / 2;
    let mut compare = |pair: usize, one: &[Value], two: &[Value]| {
        drifts[pair] = ValueDrift::of(one, two);
    };

    let run = |side: Side, meeting: &Meeting<'_>| {
        let pass = passes[usize::from(side == Side::Other)];
        let mut walker = Walker { side, pairing, course, host, meeting };
        // Also where the run panics: the other one would wait without end.
        let _leaving = Leaving { side, meeting };
        pass.part.run_watched(pass.inputs.clone(), &pass.outputs(), &mut walker)
    };
    let mut results: [Option<RunResult<Outcome>>; 2] = [None, None];
    let [first, second] = &mut results;
    let meeting = Meeting::new(true, most, &mut compare);
    let is_parallel =
        host.side_by_side(&mut || *first = Some(run(Side::Original, &meeting)), &mut || {
            *second = Some(run(Side::Other, &meeting));
        });
    let mut failure = meeting.failure();
    drop(meeting);
    if !is_parallel {
        let meeting = Meeting::new(false, most, &mut compare);
        *first = Some(run(Side::Original, &meeting));
        *second = Some(run(Side::Other, &meeting));
        failure = meeting.failure();
    }
    if let Some(error) = failure {
        return Err(error.into());
    }

    let [first, second] = results;
    let name = |run: RunResult<Outcome>, file: &str| {
        run.map_err(|error| match error {
            RunError::Model(error) if error.code() == Code::Format => {
                RunError::Model(error.in_file(file))
            }
            error => error,
        })
    };
    let lost = || Err(RunError::from(Error::io(IoCause::Interrupted, "interrupted")));
    let first = name(first.unwrap_or_else(lost), files[0])?;
    let second = name(second.unwrap_or_else(lost), files[1])?;
    Ok(Met { drifts, outcomes: [first, second] })
}

/// Guard that informs the other run when this one ends.
struct Leaving<'l, 'c> {
    side: Side,
    meeting: &'l Meeting<'c>,
}

impl Drop for Leaving<'_, '_> {
    fn drop(&mut self) {
        self.meeting.leave(self.side);
    }
}

/// The tap of one of two runs.
struct Walker<'w, 'c> {
    side: Side,
    pairing: &'w Pairing,
    course: Course,
    host: &'w dyn Host,
    meeting: &'w Meeting<'c>,
}

impl Walker<'_, '_> {
    fn pair(&self, path: &str, node: &Node) -> Option<usize> {
        let side = usize::from(self.side == Side::Other);
        let site = self.pairing.sites[side].find(path, node)?;
        self.pairing.of_site[side][site]
    }
}

fn has_floats(values: &[Value]) -> bool {
    values.iter().any(|value| value.tensor().is_ok_and(|tensor| tensor.element().is_float()))
}

/// Converts the original's values to the types of the other model's, or returns `None` if the
/// shapes differ.
fn as_types_of(original: Vec<Value>, own: &[Value]) -> Option<Vec<Value>> {
    if original.len() != own.len() {
        return None;
    }
    let one = |(original, own): (Value, &Value)| {
        let (one, two) = (original.tensor().ok()?, own.tensor().ok()?);
        if one.shape() != two.shape() {
            return None;
        }
        if one.element() == two.element() {
            return Some(original);
        }
        one.cast(two.element()).ok().map(Value::from)
    };
    original.into_iter().zip(own).map(one).collect()
}

impl Tap for Walker<'_, '_> {
    fn wants(&mut self, path: &str, node: &Node) -> bool {
        self.pair(path, node).is_some() || self.host.is_cancelled()
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn after(&mut self, step: &Step<'_>) -> Flow {
        if self.host.is_cancelled() || self.meeting.has_failed() {
            return Flow::Stop;
        }
        if self.side == Side::Original
            && has_floats(step.outputs)
            && let Some(pair) = self.pair(step.path, step.node)
        {
            self.meeting.original(pair, step.outputs.to_vec());
        }
        Flow::Continue
    }

    fn replacement(&mut self, path: &str, node: &Node, outputs: &[Value]) -> Option<Vec<Value>> {
        if self.side == Side::Original || !has_floats(outputs) {
            return None;
        }
        let pair = self.pair(path, node)?;
        let original = self.meeting.other(pair, outputs.to_vec())?;
        match self.course {
            Course::Own => None,
            Course::Original => as_types_of(original, outputs),
        }
    }

    /// Keeps chains together unless the run is cancelled; the chain's result shows the drift that
    /// it adds.
    fn splits(&mut self, _: &str, _: &Node) -> bool {
        self.host.is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use apr_graph::{ElementType, GraphBuilder, Meaning};

    use super::*;

    /// A chain of operators, each with these weights.
    fn chain(nodes: &[(&str, &[&str])]) -> Sites {
        let mut graph = GraphBuilder::new(17);
        let body = graph.body();
        let mut value = body.input("x", ElementType::F32, [2.into()], Meaning::Unknown);
        for (name, weights) in nodes {
            let weights: Vec<_> =
                weights.iter().map(|weight| body.weight(weight, ElementType::F32, [2])).collect();
            value = body.op("Sum", [&[value], &weights[..]].concat()).output(name);
        }
        body.output("y", value, Meaning::Unknown);
        Sites::of(&graph.finish()).unwrap()
    }

    fn names<'b>(behind: &Behind<'b>) -> Vec<&'b str> {
        behind.weights.iter().map(|weight| weight.tensor.as_str()).collect()
    }

    #[test]
    fn weights_behind_a_pair_are_its_own_and_then_the_nearest_up_to_a_number() {
        let one =
            chain(&[("a", &["w0"]), ("b", &["w1", "w2"]), ("c", &["w2", "w3"]), ("d", &["w4"])]);
        let two = chain(&[("a", &["v0"]), ("d", &["v1"])]);
        let pairing = Pairing::new([one, two], vec![(0, 0), (3, 1)]);
        let all = pairing.weights_behind(0, 1, 64);
        assert_eq!((names(&all), all.own, all.left_out), (vec!["w4", "w2", "w3", "w1"], 1, 0));
        let few = pairing.weights_behind(0, 1, 2);
        assert_eq!((names(&few), few.own, few.left_out), (vec!["w4", "w2"], 1, 2));
        let other = pairing.weights_behind(1, 1, 64);
        assert_eq!((names(&other), other.own), (vec!["v1"], 1));
    }
}
