//! What the teacher makes of each row: computed once, and kept in a store.

use apr_core::{Error, Result};
use apr_graph::{Dim, Graph, Meaning, infer};
use apr_infer::{Outcome, Tensor, Value};
use apr_lowrank::FactorStore;
use apr_run::{Prepared, RunError, RunResult};

use crate::batch::Batch;
use crate::evaluate::{log_sum_exp, teacher_scores};
use crate::graph::{
    LABEL_WEIGHTS, LABELS, MEAN_TARGET, MEANS, TARGET, TOKENS, WEIGHTS, layer_target, layer_weights,
};
use crate::{DistillOptions, Row, Student};

/// Number of predictions up to which all are kept. Otherwise only the likeliest [`KEPT`] are kept.
const WHOLE: usize = 1024;
const KEPT: usize = 128;

/// Model output that the student must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Goal {
    /// Name of the value.
    pub(crate) output: String,
    /// `true` for scores, `false` for states.
    pub(crate) is_logits: bool,
    /// `true` if the scores are for the next token.
    pub(crate) is_next: bool,
    /// `true` for one output per token, `false` for one output per row.
    pub(crate) per_token: bool,
    /// Length of the last dimension.
    pub(crate) width: usize,
    /// Numbers of each that are kept.
    pub(crate) kept: usize,
}

impl Goal {
    /// The goal of a model's graph: scores, else states, else pooled states.
    ///
    /// # Errors
    /// [`RunError::Request`] where it has none of them.
    pub(crate) fn of(graph: &Graph, generates: bool) -> RunResult<Self> {
        // Shapes of outputs follow from those of inputs.
        let mut graph = graph.clone();
        infer(&mut graph);
        let body = &graph.body;
        let meant = |meaning| {
            let outputs = body.outputs.iter().map(|id| body.value(*id));
            { outputs }.find(|value| value.meaning == meaning)
        };
        let value = meant(Meaning::Logits)
            .or_else(|| meant(Meaning::HiddenStates))
            .or_else(|| meant(Meaning::Pooled))
            .ok_or_else(|| {
                RunError::request("the model does not return scores or states to match")
            })?;
        let is_logits = value.meaning == Meaning::Logits;
        let shape = value.shape().unwrap_or_default();
        let width = shape.last().and_then(Dim::size).and_then(|size| usize::try_from(size).ok());
        let width = width.ok_or_else(|| {
            RunError::request(format!("the number of values of '{}' is unknown", value.name))
        })?;
        let kept = if is_logits && width > WHOLE { KEPT } else { width };
        Ok(Self {
            output: value.name.clone(),
            is_logits,
            is_next: is_logits && generates,
            per_token: shape.len() == 3,
            width,
            kept,
        })
    }

    /// Returns `true` for a single number for each row, as rerankers and regressors give it, which
    /// is no choice between classes.
    pub(crate) fn is_score(&self) -> bool {
        self.is_logits && self.width == 1
    }

    /// Returns `true` if only the likeliest predictions are kept.
    pub(crate) fn is_cut(&self) -> bool {
        self.kept < self.width
    }

    /// Places of a row that have an output.
    pub(crate) fn places(&self, row: &Row) -> usize {
        if self.per_token { row.tokens.len() } else { 1 }
    }

    /// Returns `true` if the output at a position is compared. Positions within a prompt are not.
    pub(crate) fn counts(&self, row: &Row, place: usize) -> bool {
        !self.is_next || place + 1 >= row.first_label
    }

    /// The label of a place: the next token.
    pub(crate) fn label(&self, row: &Row, place: usize) -> Option<i64> {
        let next = place + 1;
        let is_label = self.is_next && next >= row.first_label.max(1);
        row.tokens.get(next).copied().filter(|_| is_label)
    }

    /// Bytes of a row's record without layers.
    fn bytes(&self, row: &Row) -> usize {
        let each = if self.is_cut() { 2 * self.kept } else { self.kept };
        self.places(row) * each * size_of::<f32>()
    }
}

/// Outputs of the teacher for all rows.
pub(crate) struct Targets {
    pub(crate) goal: Goal,
    store: Box<dyn FactorStore>,
    /// Offset of each row's record in the store.
    offsets: Vec<u64>,
    /// Widths of the layer states that are also kept.
    layers: Vec<usize>,
    /// Sum of the log-probabilities of the labels and number of labels, for each row.
    pub(crate) of_labels: Vec<(f64, usize)>,
}

impl Targets {
    /// Runs the teacher on all rows.
    ///
    /// `layers` are names of values whose states are also kept. `done` receives the number of
    /// finished rows.
    ///
    /// # Errors
    /// Returns the errors of running the model and of the store; E001 for outputs that are not
    /// finite.
    pub(crate) fn new(
        teacher: &Prepared<'_>,
        goal: Goal,
        student: &Student<'_>,
        layers: &[String],
        store: Box<dyn FactorStore>,
        done: &mut dyn FnMut(usize),
    ) -> RunResult<Self> {
        let Student { rows, options, padding, encoded, .. } = student;
        let mut targets = Self {
            goal,
            store,
            offsets: vec![0; rows.len()],
            layers: Vec::new(),
            of_labels: vec![(0.0, 0); rows.len()],
        };
        // Rows of like length together, so that little is padding.
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|at| student.len(*at));
        let mut wanted = vec![targets.goal.output.as_str().to_owned()];
        wanted.extend(layers.iter().cloned());
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let mut count = 0;
        for positions in order.chunks(options.batch.max(1)) {
            let batch = Batch::of(rows, positions);
            let inputs = batch.inputs(&teacher.graph().body, *padding, encoded.as_ref())?;
            let outcome = teacher.run(inputs, &wanted)?;
            targets.record(&batch, &outcome, options.temperature)?;
            count += positions.len();
            done(count);
        }
        Ok(targets)
    }

    fn record(&mut self, batch: &Batch<'_>, outcome: &Outcome, temperature: f32) -> Result<()> {
        let tensors = outcome.outputs.iter().map(Value::tensor).collect::<Result<Vec<_>>>()?;
        let floats = tensors.iter().map(|tensor| tensor.floats()).collect::<Result<Vec<_>>>()?;
        let width_of = |tensor: &&Tensor| tensor.shape().last().copied().unwrap_or(1);
        self.layers = tensors[1..].iter().map(width_of).collect();
        let places = if self.goal.per_token { batch.width } else { 1 };
        for (at, (position, row)) in batch.rows.iter().enumerate() {
            let mut record = Vec::new();
            let here = self.goal.places(row);
            let own = &floats[0][at * places * self.goal.width..][..here * self.goal.width];
            if own.iter().any(|value| !value.is_finite()) {
                return Err(Error::format(format!(
                    "the teacher's output for row {} is not finite",
                    position + 1
                )));
            }
            match self.goal.is_logits && !self.goal.is_score() {
                true => self.record_predictions(*position, row, own, temperature, &mut record),
                false => record.extend(own.iter().flat_map(|value| value.to_le_bytes())),
            }
            for (layer, width) in floats[1..].iter().zip(&self.layers) {
                let states = &layer[at * batch.width * width..][..row.tokens.len() * width];
                record.extend(states.iter().flat_map(|value| value.to_le_bytes()));
            }
            self.offsets[*position] = self.store.append(&record)?;
        }
        Ok(())
    }

    /// Records softened probabilities and, if only the likeliest are kept, their tokens.
    fn record_predictions(
        &mut self,
        position: usize,
        row: &Row,
        logits: &[f32],
        temperature: f32,
        record: &mut Vec<u8>,
    ) {
        self.of_labels[position] = teacher_scores(&self.goal, row, logits);
        let mut softened = Vec::with_capacity(self.goal.width);
        for logits in logits.chunks(self.goal.width) {
            softened.clear();
            softened.extend(logits.iter().map(|logit| logit / temperature));
            let all = log_sum_exp(&softened);
            let probability = |logit: f32| (f64::from(logit) - all).exp();
            let mut write = |value: f64| {
                #[expect(clippy::cast_possible_truncation, reason = "a probability")]
                record.extend((value as f32).to_le_bytes());
            };
            if !self.goal.is_cut() {
                softened.iter().for_each(|logit| write(probability(*logit)));
                continue;
            }
            let mut order: Vec<u32> = (0..).take(softened.len()).collect();
            let by_logit = |a: &u32, b: &u32| {
                softened[*b as usize].total_cmp(&softened[*a as usize]).then(a.cmp(b))
            };
            order.select_nth_unstable_by(self.goal.kept - 1, by_logit);
            order.truncate(self.goal.kept);
            order.sort_unstable_by(by_logit);
            order.iter().for_each(|token| write(probability(softened[*token as usize])));
            record.extend(order.iter().flat_map(|token| token.to_le_bytes()));
        }
    }

    /// Reads the record of a row: numbers and, if only some predictions are kept, tokens.
    pub(crate) fn read(&self, position: usize, row: &Row) -> Result<Record> {
        let states: usize = self.layers.iter().sum::<usize>() * row.tokens.len();
        let mut bytes = vec![0; self.goal.bytes(row) + states * size_of::<f32>()];
        self.store.read_at(self.offsets[position], &mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        let (own, layers) = words.split_at(self.goal.bytes(row) / size_of::<f32>());
        let float = |word: &[u8; 4]| f32::from_le_bytes(*word);
        let mut record = Record::default();
        if self.goal.is_cut() {
            for place in own.chunks(2 * self.goal.kept) {
                let (numbers, tokens) = place.split_at(self.goal.kept);
                record.numbers.extend(numbers.iter().map(float));
                record
                    .tokens
                    .extend(tokens.iter().map(|word| i64::from(u32::from_le_bytes(*word))));
            }
        } else {
            record.numbers.extend(own.iter().map(float));
        }
        record.layers = layers.iter().map(float).collect();
        Ok(record)
    }

    /// Targets of a batch as inputs of the training graph, and the part of the loss that is the
    /// targets' own entropy, which no student changes.
    pub(crate) fn inputs(
        &self,
        batch: &Batch<'_>,
        options: &DistillOptions,
    ) -> Result<(Vec<(String, Value)>, f64)> {
        let records = batch.rows.iter().map(|(at, row)| self.read(*at, row));
        let records = records.collect::<Result<Vec<_>>>()?;
        let mut inputs = Vec::new();
        let entropy = match self.goal.is_logits {
            true => self.predictions(batch, &records, options, &mut inputs)?,
            false => {
                self.states(batch, &records, &mut inputs)?;
                0.0
            }
        };
        self.hidden(batch, &records, options, &mut inputs)?;
        Ok((inputs, entropy))
    }

    /// Dimensions before the last.
    fn outer(&self, batch: &Batch<'_>) -> Vec<usize> {
        if self.goal.per_token { batch.shape().to_vec() } else { vec![batch.rows.len()] }
    }

    fn predictions(
        &self,
        batch: &Batch<'_>,
        records: &[Record],
        options: &DistillOptions,
        inputs: &mut Vec<(String, Value)>,
    ) -> Result<f64> {
        let (goal, kept) = (&self.goal, self.goal.kept);
        let outer = self.outer(batch);
        let places: usize = outer.iter().product::<usize>() / batch.rows.len().max(1);
        let counting = |row: &Row| (0..goal.places(row)).filter(|at| goal.counts(row, *at)).count();
        let count: usize = batch.rows.iter().map(|(_, row)| counting(row)).sum();
        #[expect(clippy::cast_precision_loss, reason = "a batch has far fewer than 2^24 tokens")]
        let mut weight = options.alpha / count.max(1) as f32;
        if goal.is_score() {
            let target = records.iter().flat_map(|record| record.numbers.iter().copied()).collect();
            let shape = [outer, vec![1]].concat();
            let weights = vec![weight; shape.iter().product()];
            inputs.push((TARGET.to_owned(), Tensor::new::<f32>(shape.clone(), target)?.into()));
            inputs.push((WEIGHTS.to_owned(), Tensor::new(shape, weights)?.into()));
            return Ok(0.0);
        }
        weight *= options.temperature.powi(2);

        let mut target = vec![0.0_f32; outer.iter().product::<usize>() * kept];
        let mut tokens = vec![0_i64; if goal.is_cut() { target.len() } else { 0 }];
        let mut entropy = 0.0;
        for (at, ((_, row), record)) in batch.rows.iter().zip(records).enumerate() {
            for place in (0..goal.places(row)).filter(|place| goal.counts(row, *place)) {
                let from = &record.numbers[place * kept..][..kept];
                let start = (at * places + place) * kept;
                for (to, probability) in target[start..].iter_mut().zip(from) {
                    *to = probability * weight;
                    if *probability > 0.0 {
                        let probability = f64::from(*probability);
                        entropy += f64::from(weight) * probability * probability.ln();
                    }
                }
                if goal.is_cut() {
                    let from = &record.tokens[place * kept..][..kept];
                    tokens[start..][..kept].copy_from_slice(from);
                }
            }
        }
        let shape = [outer.clone(), vec![kept]].concat();
        inputs.push((TARGET.to_owned(), Tensor::new(shape.clone(), target)?.into()));
        if goal.is_cut() {
            inputs.push((TOKENS.to_owned(), Tensor::new(shape, tokens)?.into()));
        }
        if options.alpha < 1.0 {
            self.labels(batch, places, options, &outer, inputs)?;
        }
        Ok(entropy)
    }

    fn labels(
        &self,
        batch: &Batch<'_>,
        places: usize,
        options: &DistillOptions,
        outer: &[usize],
        inputs: &mut Vec<(String, Value)>,
    ) -> Result<()> {
        let mut labels = vec![0_i64; outer.iter().product()];
        let mut weights = vec![0.0_f32; labels.len()];
        for (at, (_, row)) in batch.rows.iter().enumerate() {
            for place in 0..self.goal.places(row) {
                if let Some(label) = self.goal.label(row, place) {
                    labels[at * places + place] = label;
                    weights[at * places + place] = 1.0;
                }
            }
        }
        let count: f32 = weights.iter().sum();
        let weight = (1.0 - options.alpha) / count.max(1.0);
        weights.iter_mut().for_each(|own| *own *= weight);
        let shape = [outer, &[1]].concat();
        inputs.push((LABELS.to_owned(), Tensor::new(shape.clone(), labels)?.into()));
        inputs.push((LABEL_WEIGHTS.to_owned(), Tensor::new(shape, weights)?.into()));
        Ok(())
    }

    /// Adds target states of length 1, and their mean, also scaled to length 1.
    fn states(
        &self,
        batch: &Batch<'_>,
        records: &[Record],
        inputs: &mut Vec<(String, Value)>,
    ) -> Result<()> {
        let width = self.goal.width;
        let outer = self.outer(batch);
        let places: usize = outer.iter().product::<usize>() / batch.rows.len().max(1);
        let mut target = vec![0.0_f32; outer.iter().product::<usize>() * width];
        let mut weights = vec![0.0_f32; outer.iter().product()];
        let mut means = weights.clone();
        let mut mean_target = vec![0.0_f32; batch.rows.len() * width];
        let count: usize = batch.rows.iter().map(|(_, row)| self.goal.places(row)).sum();
        for (at, ((_, row), record)) in batch.rows.iter().zip(records).enumerate() {
            let here = self.goal.places(row);
            let mean = &mut mean_target[at * width..][..width];
            for place in 0..here {
                let states = &record.numbers[place * width..][..width];
                let to = &mut target[(at * places + place) * width..][..width];
                to.copy_from_slice(states);
                normalize(to);
                mean.iter_mut().zip(states).for_each(|(mean, state)| *mean += state);
                weights[at * places + place] = reciprocal(count);
                means[at * places + place] = reciprocal(here);
            }
            normalize(mean);
        }
        let shape = |last| [outer.clone(), vec![last]].concat();
        inputs.push((TARGET.to_owned(), Tensor::new(shape(width), target)?.into()));
        inputs.push((WEIGHTS.to_owned(), Tensor::new(shape(1), weights)?.into()));
        if self.goal.per_token {
            let mean_shape = vec![batch.rows.len(), width];
            inputs.push((MEANS.to_owned(), Tensor::new(shape(1), means)?.into()));
            inputs.push((MEAN_TARGET.to_owned(), Tensor::new(mean_shape, mean_target)?.into()));
        }
        Ok(())
    }

    fn hidden(
        &self,
        batch: &Batch<'_>,
        records: &[Record],
        options: &DistillOptions,
        inputs: &mut Vec<(String, Value)>,
    ) -> Result<()> {
        let mut start = 0;
        for (number, width) in self.layers.iter().copied().enumerate() {
            let mut target = vec![0.0_f32; batch.rows.len() * batch.width * width];
            for (at, ((_, row), record)) in batch.rows.iter().zip(records).enumerate() {
                let len = row.tokens.len() * width;
                let from = &record.layers[start * row.tokens.len()..][..len];
                target[at * batch.width * width..][..len].copy_from_slice(from);
            }
            let all = batch.tokens() * width * self.layers.len();
            let weight = options.hidden_loss * reciprocal(all);
            let weights = batch.each(0.0_f32, |_, _| weight);
            let [rows, places] = batch.shape();
            let target = Tensor::new(vec![rows, places, width], target)?;
            let weights = Tensor::new(vec![rows, places, 1], weights)?;
            inputs.push((layer_target(number), target.into()));
            inputs.push((layer_weights(number), weights.into()));
            start += width;
        }
        Ok(())
    }
}

/// Output of the teacher for a row.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Softened probabilities, or states.
    pub(crate) numbers: Vec<f32>,
    /// Tokens of the probabilities, if only the likeliest are kept.
    pub(crate) tokens: Vec<i64>,
    /// States of the layers, one layer after the other.
    layers: Vec<f32>,
}

#[expect(clippy::cast_precision_loss, reason = "a weight in a mean")]
fn reciprocal(count: usize) -> f32 {
    1.0 / count.max(1) as f32
}

pub(crate) fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value /= length);
    }
}
