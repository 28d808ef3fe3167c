//! Machines of support vectors.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::scores::{self, Second, Transform, largest, logistic};
use super::{Labels, Rows};
use crate::Value;
use crate::call::Call;

/// Similarity of two rows.
enum Kernel {
    Linear,
    Poly { gamma: f64, shift: f64, degree: f64 },
    Rbf { gamma: f64 },
    Sigmoid { gamma: f64, shift: f64 },
}

impl Kernel {
    fn of(call: &Call<'_>) -> Result<Self> {
        let params = doubles(call, "kernel_params");
        let [gamma, shift, degree] =
            [0, 1, 2].map(|at: usize| params.get(at).copied().unwrap_or(0.0));
        let name = call.text("kernel_type", "LINEAR");
        Ok(match name.as_str() {
            "LINEAR" => Self::Linear,
            "POLY" => Self::Poly { gamma, shift, degree },
            "RBF" => Self::Rbf { gamma },
            "SIGMOID" => Self::Sigmoid { gamma, shift },
            _ => return Err(Error::format(format!("unknown kernel '{name}'"))),
        })
    }

    fn compute(&self, a: &[f64], b: &[f64]) -> f64 {
        let dot = || a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        match *self {
            Self::Linear => dot(),
            Self::Poly { gamma, shift, degree } => libm::pow(gamma * dot() + shift, degree),
            Self::Rbf { gamma } => {
                let squares: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
                libm::exp(-gamma * squares)
            }
            Self::Sigmoid { gamma, shift } => libm::tanh(gamma * dot() + shift),
        }
    }
}

fn doubles(call: &Call<'_>, name: &str) -> Vec<f64> {
    call.floats(name).unwrap_or_default().into_iter().map(f64::from).collect()
}

/// Returns the similarity of a row to each of the vectors, which are stored one after the other.
fn kernels(call: &Call<'_>, kernel: &Kernel, vectors: &[f64], row: &[f64]) -> Result<Vec<f64>> {
    const POWER: usize = 20;

    call.work(&[vectors.len()])?;
    call.work(&[vectors.len() / row.len().max(1), POWER])?;
    Ok(vectors.chunks_exact(row.len().max(1)).map(|vector| kernel.compute(row, vector)).collect())
}

pub(super) fn regress(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = Rows::of(call)?;
    let (coefficients, rho) = (doubles(call, "coefficients"), doubles(call, "rho"));
    let shift = rho.first().copied().unwrap_or(0.0);
    let supports = usize::try_from(call.int("n_supports", 0)).unwrap_or(0);
    let one_class = call.flag("one_class", false);

    // Without vectors, the coefficients are those of a linear model.
    let vectors = if supports > 0 { doubles(call, "support_vectors") } else { Vec::new() };
    let kernel = Kernel::of(call)?;
    let fits = match supports {
        0 => coefficients.len() == x.width,
        _ => coefficients.len() == supports && supports.checked_mul(x.width) == Some(vectors.len()),
    };
    if !fits || x.width == 0 {
        return Err(Error::format(format!(
            "{} coefficients and {supports} vectors do not fit {} features",
            coefficients.len(),
            x.width
        )));
    }

    let mut out = Vec::with_capacity(call.room(&[x.count, 1], ElementType::F64)?);
    for row in 0..x.count {
        let row = x.row(row);
        let alike = match supports {
            0 => row.to_vec(),
            _ => kernels(call, &kernel, &vectors, row)?,
        };
        let sum = shift + alike.iter().zip(&coefficients).map(|(a, b)| a * b).sum::<f64>();
        out.push(match (one_class, sum > 0.0) {
            (false, _) => sum,
            (true, true) => 1.0,
            (true, false) => -1.0,
        });
    }
    Ok(vec![scores::tensor(call, x.count, out)?])
}

/// A support vector machine that separates classes in pairs.
struct Machine {
    kernel: Kernel,
    vectors: Vec<f64>,
    /// Start of each class's vectors, and the end of the last class's.
    starts: Vec<usize>,
    /// A row of coefficients for all vectors, for each other class.
    coefficients: Vec<f64>,
    rho: Vec<f64>,
    /// Slope and shift of the probability that each pair's score represents.
    slopes: Vec<f64>,
    shifts: Vec<f64>,
}

impl Machine {
    fn of(call: &Call<'_>, counts: &[i64], width: usize) -> Result<Self> {
        let wrong = || Error::format("vectors, coefficients and classes do not match");
        let mut starts = vec![0_usize];
        for &count in counts {
            let last = starts.last().copied().unwrap_or(0);
            let count = usize::try_from(count).map_err(|_| wrong())?;
            starts.push(last.checked_add(count).ok_or_else(wrong)?);
        }
        let machine = Self {
            kernel: Kernel::of(call)?,
            vectors: doubles(call, "support_vectors"),
            coefficients: doubles(call, "coefficients"),
            rho: doubles(call, "rho"),
            slopes: doubles(call, "prob_a"),
            shifts: doubles(call, "prob_b"),
            starts,
        };
        let (classes, total) = (counts.len(), machine.total());
        let pairs = classes * classes.saturating_sub(1) / 2;
        let fits = total.checked_mul(width) == Some(machine.vectors.len())
            && classes.saturating_sub(1).checked_mul(total) == Some(machine.coefficients.len())
            && machine.rho.len() == pairs
            && [0, pairs].contains(&machine.slopes.len())
            && machine.slopes.len() == machine.shifts.len()
            && classes > 1
            && width > 0;
        if fits { Ok(machine) } else { Err(wrong()) }
    }

    fn classes(&self) -> usize {
        self.starts.len() - 1
    }

    fn total(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The score of each pair of classes: above 0 for the first.
    fn pairs(&self, alike: &[f64]) -> Vec<f64> {
        let part = |row: usize, class: usize| -> f64 {
            let range = self.starts[class]..self.starts[class + 1];
            let coefficients = &self.coefficients[row * self.total()..][range.clone()];
            alike[range].iter().zip(coefficients).map(|(a, b)| a * b).sum()
        };
        let mut scores = Vec::with_capacity(self.rho.len());
        for (first, second) in self.each_pair() {
            let rho = self.rho[scores.len()];
            scores.push(part(second - 1, first) + part(first, second) + rho);
        }
        scores
    }

    fn each_pair(&self) -> impl Iterator<Item = (usize, usize)> {
        let classes = self.classes();
        (0..classes).flat_map(move |first| (first + 1..classes).map(move |second| (first, second)))
    }

    /// Votes of the pairs for each class.
    fn votes(&self, scores: &[f64]) -> Vec<f64> {
        let mut votes = vec![0.0; self.classes()];
        for ((first, second), score) in self.each_pair().zip(scores) {
            votes[if *score > 0.0 { first } else { second }] += 1.0;
        }
        votes
    }

    /// Returns the probability of each class, from the scores of the pairs.
    fn probabilities(&self, scores: &[f64]) -> Vec<f64> {
        const LEAST: f64 = 1e-7;

        let classes = self.classes();
        let mut shares = vec![0.0; classes * classes];
        for (at, (first, second)) in self.each_pair().enumerate() {
            let share = 1.0 - logistic(scores[at] * self.slopes[at] + self.shifts[at]);
            let share = share.clamp(LEAST, 1.0 - LEAST);
            shares[first * classes + second] = share;
            shares[second * classes + first] = 1.0 - share;
        }
        coupled(&shares, classes)
    }
}

/// Returns the class probabilities that fit the pairwise probabilities best. It uses the second
/// method of Wu, Lin and Weng (2004), as in libsvm.
fn coupled(pairs: &[f64], classes: usize) -> Vec<f64> {
    const ROUNDS: usize = 100;

    let at = |row: usize, column: usize| pairs[row * classes + column];
    let mut matrix = vec![0.0; classes * classes];
    for row in 0..classes {
        for column in 0..classes {
            matrix[row * classes + column] = if row == column {
                (0..classes).filter(|&j| j != row).map(|j| at(j, row) * at(j, row)).sum()
            } else {
                -at(column, row) * at(row, column)
            };
        }
    }

    let mut p = vec![1.0 / classes as f64; classes];
    let enough = 0.005 / classes as f64;
    for _ in 0..ROUNDS {
        let product = |p: &[f64], row: usize| -> f64 {
            matrix[row * classes..][..classes].iter().zip(p).map(|(a, b)| a * b).sum()
        };
        let mut products: Vec<f64> = (0..classes).map(|row| product(&p, row)).collect();
        let mut whole: f64 = p.iter().zip(&products).map(|(a, b)| a * b).sum();
        if products.iter().all(|product| (product - whole).abs() < enough) {
            break;
        }

        for row in 0..classes {
            let own = matrix[row * classes + row];
            let step = (whole - products[row]) / own;
            p[row] += step;
            whole =
                (whole + step * (step * own + 2.0 * products[row])) / ((1.0 + step) * (1.0 + step));
            for column in 0..classes {
                products[column] =
                    (products[column] + step * matrix[row * classes + column]) / (1.0 + step);
                p[column] /= 1.0 + step;
            }
        }
    }
    p
}

pub(super) fn classify(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = Rows::of(call)?;
    let labels = Labels::of(call, "classlabels_ints")?;
    let transform = Transform::of(call)?;
    let counts = call.ints("vectors_per_class").unwrap_or_default();
    if counts.is_empty() {
        return linear(call, &x, &labels, transform);
    }

    let machine = Machine::of(call, &counts, x.width)?;
    let has_probabilities = !machine.slopes.is_empty();
    let width = if has_probabilities { machine.classes() } else { machine.rho.len().max(2) };
    let mut classes = Vec::with_capacity(call.room(&[x.count], ElementType::I64)?);
    let mut out = Vec::with_capacity(call.room(&[x.count, width], ElementType::F64)?);
    for row in 0..x.count {
        let alike = kernels(call, &machine.kernel, &machine.vectors, x.row(row))?;
        call.work(&[machine.classes(), machine.total().saturating_add(machine.classes() * 300)])?;
        let scores = machine.pairs(&alike);
        classes.push(largest(&machine.votes(&scores)));
        if has_probabilities {
            let mut shares = machine.probabilities(&scores);
            transform.apply(&mut shares);
            out.extend(shares);
        } else if let [score] = scores[..] {
            // The score is above 0 for the first class.
            out.extend(transform.both(score, Second::Opposite));
        } else {
            let mut scores = scores;
            transform.apply(&mut scores);
            out.extend(scores);
        }
    }
    Ok(vec![labels.tensor(call, &classes)?, scores::tensor(call, x.count, out)?])
}

/// A row of coefficients for each class.
fn linear(call: &Call<'_>, x: &Rows, labels: &Labels, transform: Transform) -> Result<Vec<Value>> {
    let (coefficients, rho) = (doubles(call, "coefficients"), doubles(call, "rho"));
    let count = labels.len();
    if x.width == 0 || count.checked_mul(x.width) != Some(coefficients.len()) {
        return Err(Error::format(format!(
            "{} coefficients do not fit {count} classes of {} features",
            coefficients.len(),
            x.width
        )));
    }

    let shift = rho.first().copied().unwrap_or(0.0);
    let mut classes = Vec::with_capacity(call.room(&[x.count], ElementType::I64)?);
    let mut out = Vec::with_capacity(call.room(&[x.count, count], ElementType::F64)?);
    for row in 0..x.count {
        let mut scores = kernels(call, &Kernel::Linear, &coefficients, x.row(row))?;
        scores.iter_mut().for_each(|score| *score += shift);
        classes.push(largest(&scores));
        transform.apply(&mut scores);
        out.extend(scores);
    }
    Ok(vec![labels.tensor(call, &classes)?, scores::tensor(call, x.count, out)?])
}
