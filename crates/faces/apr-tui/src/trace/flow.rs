//! What flows between the stops of a trace: which of them read what another one made.

use std::collections::HashMap;

use apr_trace::Trace;

use super::stops::Stop;

/// Stops that each stop reads, and stops that read it, in their order.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    reads: Vec<Vec<usize>>,
    readers: Vec<Vec<usize>>,
}

impl Flow {
    pub(super) fn new(trace: &Trace, stops: &[Stop]) -> Self {
        let mut flow =
            Self { reads: vec![Vec::new(); stops.len()], readers: vec![Vec::new(); stops.len()] };
        // Paths are unique within a part of the model.
        let mut makers: HashMap<(usize, &str), usize> = HashMap::new();
        for (at, stop) in stops.iter().enumerate() {
            if let Some((pass, path)) = stop.path(trace) {
                makers.insert((pass, path), at);
            }
        }
        for (at, stop) in stops.iter().enumerate() {
            let mut makes = match (stop.path(trace), stop.step(trace)) {
                (Some((pass, _)), Some(step)) => {
                    let inputs = step.inputs.iter();
                    inputs.filter_map(|input| maker(&makers, pass, &input.path)).collect()
                }
                // Predictions are of what ran before them.
                (None, _) => at.checked_sub(1).into_iter().collect(),
                _ => Vec::new(),
            };
            makes.sort_unstable();
            makes.dedup();
            makes.retain(|maker| *maker != at);
            for &maker in &makes {
                flow.readers[maker].push(at);
            }
            flow.reads[at] = makes;
        }
        flow
    }

    pub(super) fn reads(&self, at: usize) -> &[usize] {
        self.reads.get(at).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn readers(&self, at: usize) -> &[usize] {
        self.readers.get(at).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns `true` if a stop reads what another one made.
    pub(super) fn is_between(&self, from: usize, to: usize) -> bool {
        self.reads(to).binary_search(&from).is_ok()
    }
}

/// The stop that made a value: the one of its path, or of a path that it is below.
fn maker(makers: &HashMap<(usize, &str), usize>, pass: usize, path: &str) -> Option<usize> {
    let mut rest = path;
    loop {
        if let Some(&at) = makers.get(&(pass, rest)) {
            return Some(at);
        }
        rest = rest.rsplit_once('/')?.0;
    }
}
