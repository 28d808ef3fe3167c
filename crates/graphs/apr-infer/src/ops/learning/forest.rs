//! Trees that rows of features walk down.

use std::collections::HashMap;

use apr_core::{Error, Result};

/// Comparison of a feature with a node's value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    AtMost,
    Below,
    AtLeast,
    Above,
    Equal,
    Unequal,
    /// Among the members that the node lists.
    Member,
}

impl Mode {
    /// Returns the mode with this name in versions before 5, or `None` for a leaf.
    pub(super) fn named(name: &str) -> Result<Option<Self>> {
        Ok(Some(match name {
            "LEAF" => return Ok(None),
            "BRANCH_LEQ" => Self::AtMost,
            "BRANCH_LT" => Self::Below,
            "BRANCH_GTE" => Self::AtLeast,
            "BRANCH_GT" => Self::Above,
            "BRANCH_EQ" => Self::Equal,
            "BRANCH_NEQ" => Self::Unequal,
            _ => return Err(Error::format(format!("unknown node mode '{name}'"))),
        }))
    }

    pub(super) fn numbered(number: i64) -> Result<Self> {
        let all = [
            Self::AtMost,
            Self::Below,
            Self::AtLeast,
            Self::Above,
            Self::Equal,
            Self::Unequal,
            Self::Member,
        ];
        let found = usize::try_from(number).ok().and_then(|at| all.get(at));
        found.copied().ok_or_else(|| Error::format(format!("unknown node mode {number}")))
    }
}

/// Target of a branch.
#[derive(Clone, Copy)]
pub(super) enum Next {
    Node(usize),
    /// A range of votes.
    Leaf(usize, usize),
}

pub(super) struct Branch {
    pub(super) mode: Mode,
    pub(super) feature: usize,
    pub(super) value: f64,
    /// Range of the forest's members.
    pub(super) members: (usize, usize),
    /// `true` if a missing value follows the branch for true.
    pub(super) missing_is_true: bool,
    pub(super) yes: Next,
    pub(super) no: Next,
}

/// Vote of a leaf: a target, and the weight added to it.
#[derive(Clone, Copy)]
pub(super) struct Vote {
    pub(super) target: usize,
    pub(super) weight: f64,
}

pub(super) struct Forest {
    pub(super) roots: Vec<Next>,
    pub(super) branches: Vec<Branch>,
    pub(super) votes: Vec<Vote>,
    pub(super) members: Vec<f64>,
}

impl Forest {
    /// Rejects features and targets that do not exist, and branches without a valid target.
    pub(super) fn check(&self, features: usize, targets: usize) -> Result<()> {
        let leads = |next: Next| match next {
            Next::Node(at) => at < self.branches.len(),
            Next::Leaf(from, to) => from <= to && to <= self.votes.len(),
        };
        let fits =
            |branch: &Branch| branch.feature < features && leads(branch.yes) && leads(branch.no);
        if let Some(at) = self.branches.iter().position(|branch| !fits(branch)) {
            return Err(Error::format(format!(
                "node {at} of the trees refers to a missing node, leaf or feature (of {features})"
            )));
        }
        if !self.roots.iter().all(|root| leads(*root)) {
            return Err(Error::format("a tree has no root"));
        }
        match self.votes.iter().find(|vote| vote.target >= targets) {
            Some(vote) => {
                Err(Error::format(format!("a leaf votes for target {} of {targets}", vote.target)))
            }
            None => Ok(()),
        }
    }

    /// Returns the votes at the leaf that a row reaches, and the number of steps to it.
    ///
    /// # Errors
    /// E001 if the branches form a cycle.
    pub(super) fn walk(&self, root: Next, row: &[f64]) -> Result<(&[Vote], u64)> {
        let mut next = root;
        for step in 0..=self.branches.len() as u64 {
            let at = match next {
                Next::Leaf(from, to) => return Ok((&self.votes[from..to], step + 1)),
                Next::Node(at) => at,
            };
            let branch = &self.branches[at];
            next = if self.is_true(branch, row[branch.feature]) { branch.yes } else { branch.no };
        }
        Err(Error::format("the branches of a tree lead in a circle"))
    }

    fn is_true(&self, branch: &Branch, x: f64) -> bool {
        let value = branch.value;
        (x.is_nan() && branch.missing_is_true)
            || match branch.mode {
                Mode::AtMost => x <= value,
                Mode::Below => x < value,
                Mode::AtLeast => x >= value,
                Mode::Above => x > value,
                Mode::Equal => x == value,
                Mode::Unequal => x != value,
                Mode::Member => self.members[branch.members.0..branch.members.1].contains(&x),
            }
    }
}

/// Nodes as versions before 5 list them: by the numbers of trees, and of nodes in them.
pub(super) struct Listed {
    pub(super) trees: Vec<i64>,
    pub(super) nodes: Vec<i64>,
    pub(super) features: Vec<i64>,
    pub(super) modes: Vec<String>,
    pub(super) values: Vec<f64>,
    pub(super) yes: Vec<i64>,
    pub(super) no: Vec<i64>,
    pub(super) missing: Vec<i64>,
}

/// Votes: numbers of tree and node, the target, and the weight.
pub(super) struct ListedVotes {
    pub(super) trees: Vec<i64>,
    pub(super) nodes: Vec<i64>,
    pub(super) targets: Vec<i64>,
    pub(super) weights: Vec<f64>,
}

impl Listed {
    /// The forest of these nodes.
    ///
    /// # Errors
    /// E001 for lists that are not as long as each other, nodes that are there twice, and branches
    /// to missing nodes.
    pub(super) fn forest(&self, votes: &ListedVotes) -> Result<Forest> {
        let len = self.nodes.len();
        let lists = [self.trees.len(), self.features.len(), self.modes.len(), self.values.len()];
        let branches = [self.yes.len(), self.no.len()];
        let all = lists.iter().chain(&branches).all(|&other| other == len);
        if !all || !(self.missing.is_empty() || self.missing.len() == len) {
            return Err(Error::format("the lists of nodes are not as long as each other"));
        }

        let places = self.places()?;
        let (votes, leaves) = votes.by_leaf(&places, len)?;
        let mut numbers = Vec::with_capacity(len);
        let mut count = 0;
        for mode in &self.modes {
            let is_leaf = Mode::named(mode)?.is_none();
            numbers.push((!is_leaf).then_some(count));
            count += usize::from(!is_leaf);
        }

        let next = |at: usize| match numbers[at] {
            Some(number) => Next::Node(number),
            None => Next::Leaf(leaves[at], leaves[at + 1]),
        };
        let to = |at: usize, node: i64| {
            let place = places.get(&(self.trees[at], node)).copied();
            place
                .map(next)
                .ok_or_else(|| Error::format(format!("tree {} has no node {node}", self.trees[at])))
        };
        let mut forest =
            Forest { roots: Vec::new(), branches: Vec::new(), votes, members: Vec::new() };
        for at in 0..len {
            // The first node of a tree is its root.
            if at == 0 || self.trees[at] != self.trees[at - 1] {
                forest.roots.push(next(at));
            }
            let Some(mode) = Mode::named(&self.modes[at])? else { continue };
            forest.branches.push(Branch {
                mode,
                feature: usize::try_from(self.features[at]).unwrap_or(usize::MAX),
                value: self.values[at],
                members: (0, 0),
                missing_is_true: self.missing.get(at).is_some_and(|&is| is != 0),
                yes: to(at, self.yes[at])?,
                no: to(at, self.no[at])?,
            });
        }
        Ok(forest)
    }

    /// Returns the position of each node in the lists. The nodes of a tree are adjacent.
    fn places(&self) -> Result<HashMap<(i64, i64), usize>> {
        let mut places = HashMap::with_capacity(self.nodes.len());
        for (at, key) in self.trees.iter().copied().zip(self.nodes.iter().copied()).enumerate() {
            if places.insert(key, at).is_some() {
                return Err(Error::format(format!("tree {} has node {} twice", key.0, key.1)));
            }
        }
        Ok(places)
    }
}

impl ListedVotes {
    /// Returns the votes in the order of the nodes, and the start of each node's votes.
    fn by_leaf(
        &self,
        places: &HashMap<(i64, i64), usize>,
        nodes: usize,
    ) -> Result<(Vec<Vote>, Vec<usize>)> {
        let len = self.nodes.len();
        if [self.trees.len(), self.targets.len(), self.weights.len()] != [len; 3] {
            return Err(Error::format("the lists of votes are not as long as each other"));
        }

        let mut found = Vec::with_capacity(len);
        for at in 0..len {
            let key = (self.trees[at], self.nodes[at]);
            let place = places.get(&key).copied();
            let place = place.ok_or_else(|| {
                Error::format(format!("a vote is for node {} of tree {}", key.1, key.0))
            })?;
            let target = usize::try_from(self.targets[at]).unwrap_or(usize::MAX);
            found.push((place, Vote { target, weight: self.weights[at] }));
        }

        // The sort is stable: votes of a leaf are added in the order of the list.
        found.sort_by_key(|(place, _)| *place);
        let mut starts = Vec::with_capacity(nodes + 1);
        let mut next = 0;
        for place in 0..=nodes {
            while next < len && found[next].0 < place {
                next += 1;
            }
            starts.push(next);
        }
        Ok((found.into_iter().map(|(_, vote)| vote).collect(), starts))
    }
}
