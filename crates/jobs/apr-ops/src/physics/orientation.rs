//! Square weights of attention beside their partners: a transposed weight has the statistics of the
//! original, and many models compute almost the same with it. Its rows and columns do not fit those
//! of the weight that it is multiplied by.

use std::collections::HashMap;

use apr_arch::FamilyModel;
use apr_core::{CheckpointReader, Result, TensorInfo};
use apr_view::values::read;

/// Ends of the names of weights that are partners, without `.weight`.
///
/// Each component of a head's scores is the product of a row of the first and a row of the second
/// weight, and both read the same columns.
const QUERIES: [[&str; 2]; 4] =
    [["q_proj", "k_proj"], ["query", "key"], ["attn.q", "attn.k"], ["q_lin", "k_lin"]];

/// Partners of which the second weight multiplies its columns by the results of the rows of the
/// first.
const VALUES: [[&str; 2]; 6] = [
    ["v_proj", "o_proj"],
    ["v_proj", "out_proj"],
    ["self.value", "output.dense"],
    ["attention.value", "output.dense"],
    ["attn.v", "attn.o"],
    ["v_lin", "out_lin"],
];

/// Minimum number of rows. The correlation of fewer unrelated numbers can be large by chance: the
/// deviation of the sum of two is 0.14 for 96.
const FEWEST_ROWS: u64 = 96;

/// Minimum fit of a pair with one weight transposed, and its minimum distance from the fit of the
/// pair as it is.
const FITS_TURNED: f64 = 0.6;

/// Values that are read at a time.
const CHUNK: u64 = 1 << 20;

/// A pair of weights that fit each other better if one of them is transposed.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TurnedPair {
    /// Names of both in the checkpoint.
    pub tensors: [String; 2],
    /// Fit of both, from -2 to 2: the sum of the rank correlations of the sizes of their rows and
    /// of their columns.
    pub fit: f64,
    /// Fit of both if one is transposed.
    pub turned: f64,
}

/// Pairs of square weights of attention.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Orientation {
    /// Number of pairs that were compared.
    pub compared: usize,
    /// Number of pairs in the model.
    pub of: usize,
    /// Pairs that fit better if one weight is transposed.
    pub turned: Vec<TurnedPair>,
}

/// Compares the sizes of rows and columns of the pairs in a model, in at most `most` values.
///
/// A larger model gets some of its pairs, which are spread over its layers.
///
/// # Errors
/// Those of [`read`].
pub fn orientation(
    model: &FamilyModel<'_>,
    reader: &dyn CheckpointReader,
    most: u64,
) -> Result<Orientation> {
    let pairs = pairs(model, reader.tensors());
    let values = |pair: &Pair| reader.tensors()[pair.at[0]].shape.elements().unwrap_or(u64::MAX);
    let largest = pairs.iter().map(values).max().unwrap_or(1).max(1);
    let affordable = usize::try_from(most / largest / 2).unwrap_or(usize::MAX);
    let compared = affordable.min(pairs.len());
    let mut found = Orientation { compared, of: pairs.len(), turned: Vec::new() };
    for number in 0..compared {
        let pair = &pairs[number * pairs.len() / compared];
        let [one, other] = [Sizes::of(reader, pair.at[0])?, Sizes::of(reader, pair.at[1])?];
        let fit = one.fit(&other, pair.is_crossed);
        let turned = one.fit(&other, !pair.is_crossed);
        if turned >= FITS_TURNED && turned - fit >= FITS_TURNED {
            let tensors = pair.at.map(|at| reader.tensors()[at].name.clone());
            found.turned.push(TurnedPair { tensors, fit, turned });
        }
    }
    Ok(found)
}

/// Two square weights of one size.
struct Pair {
    /// Positions in the checkpoint.
    at: [usize; 2],
    /// `true` if the rows of one meet the columns of the other.
    is_crossed: bool,
}

fn pairs(model: &FamilyModel<'_>, tensors: &[TensorInfo]) -> Vec<Pair> {
    let canonical = |at: usize| model.canonical(at)?.strip_suffix(".weight");
    let named: HashMap<&str, usize> =
        (0..tensors.len()).filter_map(|at| Some((canonical(at)?, at))).collect();
    let partner = |at: usize, name: &str, [one, other]: &[&str; 2]| {
        let rest = name.strip_suffix(one).filter(|rest| rest.ends_with('.'))?;
        // The output of BERT's attention is beside the module that has the values.
        let names = [format!("{rest}{other}"), format!("{}{other}", outer(rest))];
        let found = names.iter().find_map(|name| named.get(name.as_str()))?;
        let shapes = [at, *found].map(|at| tensors[at].shape.dims());
        let is_square = matches!(shapes[0], [rows, columns] if rows == columns);
        let is_pair = is_square && shapes[0] == shapes[1] && shapes[0][0] >= FEWEST_ROWS;
        is_pair.then_some([at, *found])
    };
    let of_weight = |at: usize| {
        let name = canonical(at)?;
        let found = |ends: &[[&str; 2]]| ends.iter().find_map(|ends| partner(at, name, ends));
        let same = found(&QUERIES).map(|at| Pair { at, is_crossed: false });
        same.or_else(|| found(&VALUES).map(|at| Pair { at, is_crossed: true }))
    };
    (0..tensors.len()).filter_map(of_weight).collect()
}

/// Returns the name of the module around a module; both end with a dot.
fn outer(module: &str) -> &str {
    let inner = module.trim_end_matches('.');
    inner.rfind('.').map_or("", |dot| &module[..=dot])
}

/// Ranks of the sizes of a matrix's rows and columns.
struct Sizes {
    rows: Vec<f64>,
    columns: Vec<f64>,
}

impl Sizes {
    fn of(reader: &dyn CheckpointReader, at: usize) -> Result<Self> {
        let total = reader.tensors()[at].shape.elements().unwrap_or_default();
        let side = usize::try_from(total.isqrt()).unwrap_or(usize::MAX).max(1);
        let (mut rows, mut columns) = (vec![0.0; side], vec![0.0; side]);
        for start in (0..total).step_by(1 << 20) {
            let values = read(reader, at, start..(start + CHUNK).min(total))?;
            let first = usize::try_from(start).unwrap_or(usize::MAX);
            for (position, value) in (first..).zip(values) {
                let square = value * value;
                rows[position / side] += square;
                columns[position % side] += square;
            }
        }
        Ok(Self { rows: ranks(&rows), columns: ranks(&columns) })
    }

    fn fit(&self, other: &Self, is_crossed: bool) -> f64 {
        match is_crossed {
            false => {
                correlation(&self.rows, &other.rows) + correlation(&self.columns, &other.columns)
            }
            true => {
                correlation(&self.rows, &other.columns) + correlation(&self.columns, &other.rows)
            }
        }
    }
}

/// Returns the position of each value among the sorted values.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|one, other| values[*one].total_cmp(&values[*other]));
    let mut ranks = vec![0.0; values.len()];
    let numbers = std::iter::successors(Some(0.0), |number| Some(number + 1.0));
    order.into_iter().zip(numbers).for_each(|(at, number)| ranks[at] = number);
    ranks
}

/// Returns Pearson's correlation of two lists of the same ranks.
fn correlation(one: &[f64], other: &[f64]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a number of rows")]
    let mean = (one.len() as f64 - 1.0) / 2.0;
    let product: f64 = one.iter().zip(other).map(|(a, b)| (a - mean) * (b - mean)).sum();
    let square: f64 = one.iter().map(|a| (a - mean).powi(2)).sum();
    if square > 0.0 { product / square } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_correlate_as_spearmans() {
        // scipy.stats.spearmanr([3, 1, 4, 1.5, 9], [2, 7, 1, 8, 2.8]).statistic == -0.6
        let found =
            correlation(&ranks(&[3.0, 1.0, 4.0, 1.5, 9.0]), &ranks(&[2.0, 7.0, 1.0, 8.0, 2.8]));
        assert!((found + 0.6).abs() < 1e-12, "{found}");
    }

    #[test]
    fn a_module_is_within_another() {
        assert_eq!(outer("encoder.layer.0.attention.self."), "encoder.layer.0.attention.");
        assert_eq!(outer("attention."), "");
    }
}
