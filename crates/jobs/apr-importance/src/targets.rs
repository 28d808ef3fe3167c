//! Which products of a graph say what of which weight.

use std::collections::{BTreeSet, HashMap, HashSet};

use apr_arch::{FamilyModel, GGUF, Naming};
use apr_core::CheckpointReader;
use apr_graph::{View, WeightRef};
use apr_quantize::measured_expert;
use apr_trace::{Site, Sites};

/// Operators that multiply their first input by the columns of their second.
const PRODUCTS: [&str; 2] = ["MatMul", "Gemm"];
/// Operators that also multiply by weights, but are not examined.
const OTHERS: [&str; 9] = [
    "Attention",
    "Conv",
    "ConvTranspose",
    "If",
    "Loop",
    "MatMulInteger",
    "MatMulNBits",
    "QLinearMatMul",
    "Scan",
];
/// Maximum number of experts that a configuration may declare.
const MOST_EXPERTS: usize = 4096;
/// Names of weights that llama-imatrix measures begin so.
const IN_LAYERS: &str = "blk.";
/// The head of a language model.
const OUTPUT: &str = "output.weight";

/// A weight that is measured by a product.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// Name in quantizers: the GGUF name, or the weight's own name if GGUF does not have the
    /// family.
    pub(crate) name: String,
    pub(crate) expert: usize,
    pub(crate) experts: usize,
}

impl Target {
    /// Returns the name of the matrix in [`measured_names`](apr_quantize::measured_names).
    pub(crate) fn matrix(self) -> String {
        match self.experts {
            1 => self.name,
            _ => measured_expert(&self.name, self.expert as u64),
        }
    }
}

/// The products of a part of a model.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    /// Targets by the product's position among all operators.
    pub(crate) of_site: HashMap<usize, Vec<Target>>,
    /// Weights of products that have no name in GGUF, or whose rows are inputs: an entry for each
    /// column of theirs would be for each output.
    pub(crate) nameless: BTreeSet<String>,
    /// Weights of operators that are not looked into.
    pub(crate) others: BTreeSet<String>,
}

impl Targets {
    /// Returns the targets of a graph.
    pub(crate) fn of(sites: &Sites, names: &Names<'_>) -> Self {
        let mut targets = Self::default();
        // Parts of one weight that several products read, such as those of queries and keys, meet
        // the same inputs; what layers share meets others in each.
        let mut seen: HashSet<(Target, &[usize])> = HashSet::new();
        for (at, site) in sites.list().iter().enumerate() {
            // A bias comes behind the weight.
            let Some(weight) = site.weights.first() else { continue };
            if OTHERS.contains(&site.op.as_str()) {
                targets.others.extend(site.weights.iter().map(|weight| weight.tensor.clone()));
            }
            if !PRODUCTS.contains(&site.op.as_str()) {
                continue;
            }
            let found = match names.gguf.is_none() && has_inputs_first(site, weight) {
                true => Vec::new(),
                false => names.targets(weight),
            };
            if found.is_empty() {
                targets.nameless.insert(weight.tensor.clone());
            }
            let is_new = |target: &Target| {
                names.is_measured(target) && seen.insert((target.clone(), &site.reads[..]))
            };
            let found: Vec<Target> = found.into_iter().filter(is_new).collect();
            if !found.is_empty() {
                targets.of_site.insert(at, found);
            }
        }
        targets
    }
}

/// Returns `true` if the rows of a stored weight are the inputs of a product, not its outputs.
///
/// GGUF stores all weights by outputs, so that its names need no such test.
fn has_inputs_first(site: &Site, weight: &WeightRef) -> bool {
    let turns = |view: &&View| match view {
        View::Transposed(order) => order.len() > 1 && order.last() != Some(&(order.len() - 1)),
        _ => false,
    };
    let turns = weight.views.iter().filter(turns).count() + usize::from(site.transposes);
    turns % 2 == 0
}

/// Names of a graph's weights in quantizers.
pub(crate) struct Names<'n> {
    model: Option<&'n FamilyModel<'n>>,
    gguf: Option<&'n Naming>,
    /// The file's own names, by canonical name.
    own: HashMap<&'n str, &'n str>,
    includes_output: bool,
}

impl<'n> Names<'n> {
    pub(crate) fn new(
        reader: &'n dyn CheckpointReader,
        model: Option<&'n FamilyModel<'n>>,
        gguf: Option<&'n Naming>,
        includes_output: bool,
    ) -> Self {
        let infos = reader.tensors().iter().enumerate();
        let own = infos.filter_map(|(at, info)| Some((model?.canonical(at)?, info.name.as_str())));
        Self { model, gguf, own: own.collect(), includes_output }
    }

    /// Returns `true` if llama-imatrix measures a weight.
    fn is_measured(&self, target: &Target) -> bool {
        self.gguf.is_none()
            || target.name.starts_with(IN_LAYERS)
            || self.includes_output && target.name == OUTPUT
    }

    /// The weights that a graph's weight is or is part of; none without a name.
    fn targets(&self, weight: &WeightRef) -> Vec<Target> {
        let whole = |name: String| Target { name, expert: 0, experts: 1 };
        let canonical = weight.tensor.as_str();
        let (Some(model), Some(gguf)) = (self.model, self.gguf) else {
            let own = self.own.get(canonical).copied().unwrap_or(canonical);
            return vec![whole(own.to_owned())];
        };

        let family = model.family();
        let experts = || {
            let count = model.dimension("experts").and_then(|count| usize::try_from(count).ok());
            count.unwrap_or(1).min(MOST_EXPERTS)
        };
        let of_stack = |stack: &str, expert: u64| {
            let expert = usize::try_from(expert).unwrap_or(usize::MAX);
            Some(Target { name: family.source_name(stack, gguf)?, expert, experts: experts() })
        };
        if let Some((stack, expert)) = family.stack(canonical) {
            return of_stack(&stack, expert).into_iter().collect();
        }
        let expert = weight.views.iter().find_map(|view| match view {
            View::Slice { axis: 0, start, len: 1 } => Some(*start),
            _ => None,
        });
        let cuts = family.cuts(canonical);
        let names = match (cuts.is_empty(), expert) {
            (true, _) => vec![canonical.to_owned()],
            (false, Some(_)) => cuts,
            // Keys and values that llama.cpp makes of latent ones within attention meet other
            // inputs there.
            (false, None) => Vec::new(),
        };
        let named = names.iter().filter_map(|name| match expert {
            Some(expert) => of_stack(name, expert),
            None => family.source_name(name, gguf).map(whole),
        });
        named.collect()
    }
}

/// The naming of GGUF files of a model's family.
pub(crate) fn gguf_naming(model: &FamilyModel<'_>) -> Option<Naming> {
    let family = Some(model.family()).filter(|family| family.is_in_gguf());
    family?.default_naming(GGUF)
}
