//! Texts as counts of runs of words, and patterns of texts.

use std::collections::HashMap;

use apr_core::{Error, Result};
use apr_graph::ElementType;
use regex_automata::nfa::thompson;
use regex_automata::nfa::thompson::pikevm::PikeVM;

use crate::call::Call;
use crate::operator::{Operator, moves};
use crate::shape::sizes;
use crate::tensor::Data;
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] =
    &[moves("TfIdfVectorizer", count_runs), moves("RegexFullMatch", matches)];

/// Runs of words that are counted.
struct Pool {
    /// Places in the output by the words of a run, which are numbers here.
    runs: HashMap<Vec<u32>, usize>,
    width: usize,
    /// Number of each run's place among the weights, by place in the output.
    weights: Vec<f64>,
}

/// Numbers of the words in a pool.
enum Words {
    Ints(HashMap<i64, u32>),
    Texts(HashMap<String, u32>),
}

impl Words {
    /// Returns the number of each element, or `None` for an element that is not in the pool.
    fn numbers(&self, x: &Tensor) -> Result<Vec<Option<u32>>> {
        Ok(match (self, x.data()) {
            (Self::Texts(words), Data::Text(texts)) => {
                texts.iter().map(|text| words.get(text).copied()).collect()
            }
            (Self::Ints(words), _) => {
                x.integers()?.iter().map(|int| words.get(int).copied()).collect()
            }
            _ => return Err(Error::format("words and pool are not of one type")),
        })
    }
}

/// Each word once, with a number, and the pool by these numbers.
fn numbered<T: std::hash::Hash + Eq + Clone>(pool: Vec<T>) -> (HashMap<T, u32>, Vec<u32>) {
    let mut words = HashMap::new();
    let mut numbers = Vec::with_capacity(pool.len());
    for word in pool {
        let next = words.len() as u32;
        numbers.push(*words.entry(word).or_insert(next));
    }
    (words, numbers)
}

impl Pool {
    fn of(call: &Call<'_>) -> Result<(Self, Words)> {
        let (words, numbers) = match call.texts("pool_strings").filter(|pool| !pool.is_empty()) {
            Some(pool) => {
                let (words, numbers) = numbered(pool);
                (Words::Texts(words), numbers)
            }
            None => {
                let (words, numbers) = numbered(call.ints("pool_int64s").unwrap_or_default());
                (Words::Ints(words), numbers)
            }
        };
        let starts = sizes(&call.ints("ngram_counts").unwrap_or_default())?;
        let places = sizes(&call.ints("ngram_indexes").unwrap_or_default())?;
        let given = call.floats("weights").unwrap_or_default();
        call.work(&[numbers.len(), 20])?;

        let wrong = || Error::format("ngram_counts do not cut the pool into runs of words");
        let mut runs = HashMap::new();
        for (at, &start) in starts.iter().enumerate() {
            let end = starts.get(at + 1).copied().unwrap_or(numbers.len());
            let part = numbers.get(start..end).ok_or_else(wrong)?;
            if !part.len().is_multiple_of(at + 1) {
                return Err(wrong());
            }
            for run in part.chunks(at + 1) {
                let number = runs.len();
                let place = *places.get(number).ok_or_else(|| {
                    Error::format(format!("{} ngram_indexes are too few", places.len()))
                })?;
                if runs.insert(run.to_vec(), place).is_some() {
                    return Err(Error::format("a run of words is in the pool twice"));
                }
            }
        }

        let width = places.iter().max().map_or(0, |last| last.saturating_add(1));
        let mut weights = vec![1.0; call.room(&[width], ElementType::F64)?];
        if !given.is_empty() && given.len() != places.len() {
            return Err(Error::format(format!("{} weights do not fit the runs", given.len())));
        }
        for (place, weight) in places.iter().zip(&given) {
            weights[*place] = f64::from(*weight);
        }
        Ok((Self { runs, width, weights }, words))
    }
}

fn count_runs(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (pool, words) = Pool::of(call)?;
    let x = call.tensor(0)?;
    let (rows, len, front) = match *x.shape() {
        [len] => (1, len, vec![]),
        [rows, len] => (rows, len, vec![rows]),
        _ => return Err(Error::format("words have one or two dimensions")),
    };
    let shape = [front, vec![pool.width]].concat();
    let mut counts = vec![0.0_f64; call.room(&shape, ElementType::F64)?];
    call.work(&[x.bytes() as usize])?;
    let found = words.numbers(x)?;

    let number = |name: &str| usize::try_from(call.int(name, 0)).unwrap_or(0);
    let longest = pool.runs.keys().map(Vec::len).max().unwrap_or(0);
    let lengths = number("min_gram_length").max(1)..=number("max_gram_length").min(longest);
    let skips = number("max_skip_count").min(len);
    let mut run = Vec::new();
    for row in 0..rows {
        let words = &found[row * len..][..len];
        for length in lengths.clone() {
            // Words of a run of one have nothing between them.
            for step in 1..=if length == 1 { 1 } else { skips + 1 } {
                let Some(starts) = len.checked_sub((length - 1).saturating_mul(step)) else {
                    break;
                };
                call.work(&[starts, length + 20])?;
                for start in 0..starts {
                    run.clear();
                    run.extend((0..length).map_while(|at| words[start + at * step]));
                    if let Some(place) = pool.runs.get(&run).filter(|_| run.len() == length) {
                        counts[row * pool.width + place] += 1.0;
                    }
                }
            }
        }
    }

    let mode = call.text("mode", "TF");
    for (at, count) in counts.iter_mut().enumerate() {
        let weight = pool.weights[at % pool.width];
        *count = match mode.as_str() {
            "TF" => *count,
            "IDF" if *count > 0.0 => weight,
            "IDF" => 0.0,
            "TFIDF" => *count * weight,
            _ => return Err(Error::format(format!("unknown mode '{mode}'"))),
        };
    }
    let counts = counts.into_iter().map(|count| count as f32).collect();
    Ok(vec![Tensor::new(shape, counts)?.into()])
}

/// Matches each whole text against a pattern. The time is bounded by the length of the text times
/// the size of the pattern.
fn matches(call: &mut Call<'_>) -> Result<Vec<Value>> {
    /// Bytes of a pattern's automaton.
    const LARGEST: usize = 1 << 20;
    /// Bytes of it for each state, about.
    const STATE: usize = 16;

    let pattern = call.text("pattern", "");
    let wrong = |error: &dyn std::fmt::Display| {
        Error::format(format!("'{pattern}' is not a valid pattern: {error}"))
    };
    let compiler = thompson::Config::new().nfa_size_limit(Some(LARGEST));

    // Patterns are cut off before they are read: reading takes memory by their length.
    if pattern.len() > LARGEST / STATE {
        return Err(Error::memory("the pattern is too large"));
    }
    regex_automata::util::syntax::parse(&pattern).map_err(|error| wrong(&error))?;
    let machine = PikeVM::builder()
        .thompson(compiler)
        .build(&format!(r"\A(?:{pattern})\z"))
        .map_err(|error| wrong(&error))?;
    let x = call.tensor(0)?;
    call.work(&[x.bytes() as usize, machine.get_nfa().states().len()])?;
    let mut cache = machine.create_cache();
    let found =
        x.values::<String>()?.iter().map(|text| machine.is_match(&mut cache, text.as_str()));
    let found = found.map(u8::from).collect();
    Ok(vec![Tensor::truths(x.shape().to_vec(), found)?.into()])
}
