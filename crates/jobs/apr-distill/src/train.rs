//! The training itself.

use std::collections::{BTreeSet, HashMap};

use apr_core::{Code, Error, Result, counted};
use apr_graph::{Graph, Intermediates, Node};
use apr_infer::{Flow, Step, Tap, Tensor, Value};
use apr_lowrank::FactorStore;
use apr_ops::graph::Runnable;
use apr_run::{Host, Prepared, RunError, RunResult, Runner};
use sha2::{Digest, Sha256};

use crate::adamw::AdamW;
use crate::batch::{self, Batch, shuffled};
use crate::encoded::Encoded;
use crate::evaluate::Sums;
use crate::graph::{LOSS, Terms, TrainingGraph};
use crate::pairs::ENCODER;
use crate::parameters::{Parameter, initial};
use crate::report::{DistillReport, Scores};
use crate::state::State;
use crate::targets::{Goal, Targets};
use crate::{DistillOptions, Row};

/// Rows beyond which some are held out.
const FEW: usize = 10;
/// Number of evaluations of a student during a training.
const EVALUATIONS: u64 = 20;

/// Progress of a training.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Progress {
    /// Run of the teacher over the rows.
    Teacher {
        /// Rows that it has been run on.
        rows: usize,
        /// Number of all rows.
        of: usize,
    },
    /// A step was made.
    Step {
        /// Number of steps so far.
        step: u64,
        /// Number of all steps.
        of: u64,
        /// The loss of this step.
        loss: f64,
        /// Tokens that were learnt from in this run so far.
        tokens: u64,
    },
    /// The student was evaluated on the rows that were held out.
    Evaluated {
        /// Number of steps so far.
        step: u64,
        /// Result of the evaluation.
        scores: Scores,
    },
}

/// Receiver of a training's progress and intermediate states.
pub trait Events {
    /// Receives a progress update.
    fn progress(&mut self, progress: &Progress);

    /// Stores a state from which the training can resume.
    ///
    /// # Errors
    /// E007 if it can't be written.
    fn save(&mut self, state: &[u8]) -> Result<()>;

    /// Returns `true` if states are to be saved.
    fn saves(&self) -> bool;
}

/// Student, teacher, data and options of a training.
pub struct Student<'s> {
    /// The teacher; both read texts as a whole.
    pub teacher: &'s Runner<'s>,
    /// The student before its training.
    pub student: &'s Runner<'s>,
    /// Layers of the teacher that the student begins with; none: all.
    pub layers: Vec<u64>,
    /// Training rows.
    pub rows: Vec<Row>,
    /// Encoder states of each row, if student and teacher are decoders of two-part models.
    pub encoded: Option<Encoded>,
    /// Rows that were cut.
    pub cut: usize,
    /// Rows whose text the teacher wrote.
    pub written: usize,
    /// The token that fills up rows.
    pub padding: i64,
    /// Training options.
    pub options: DistillOptions,
}

/// Trains a student.
///
/// Returns the elements of its tensors, by their names in its graph, and the report. `resumed` is a
/// saved state of the same training.
///
/// # Errors
/// [`RunError::Request`] for models of several parts, students with other outputs than the teacher,
/// and options that don't fit the model; E001 if the loss is not finite, with the step and the
/// first such value, and if no step improved the student; E003 if the graph has no gradient; E008
/// if the memory limit is exceeded; the errors of `events`.
pub fn distill(
    student: &Student<'_>,
    store: Box<dyn FactorStore>,
    resumed: Option<Vec<u8>>,
    events: &mut dyn Events,
) -> RunResult<(HashMap<String, Vec<f32>>, DistillReport)> {
    let Student { teacher, student: runner, rows, options, .. } = student;
    let (learnt, held) = split(rows.len(), options);
    let teacher_part = teacher.prepare()?;
    let part = runner.part()?;
    let generates = teacher_part.generates() || student.encoded.is_some();
    let goal = Goal::of(teacher_part.graph(), generates)?;
    let own = Goal::of(&part.graph, goal.is_next)?;
    if own != goal {
        return Err(RunError::request(format!(
            "the student's output '{}' has {} numbers, the teacher's '{}' {}",
            own.output, own.width, goal.output, goal.width
        )));
    }
    if options.alpha < 1.0 && !goal.is_next {
        return Err(RunError::request(
            "labels are the next tokens of texts, and the model continues none",
        ));
    }

    let mut terms = Terms {
        temperature: options.temperature,
        labels: options.alpha < 1.0,
        layers: student.own_layers(&part.graph)?,
        frozen: student.frozen(),
        intermediates: Intermediates::Kept,
    };
    let layers = student.teacher_layers(&terms.layers, teacher_part.graph())?;
    check_memory(student, &part.graph, &goal, &terms, events.saves() || resumed.is_some())?;
    let count = rows.len();
    let mut done = |rows: usize| events.progress(&Progress::Teacher { rows, of: count });
    let targets = Targets::new(&teacher_part, goal, student, &layers, store, &mut done)?;
    // What it keeps of its weights is room for the student.
    drop(teacher_part);

    // What does not fit shall not be found out after hours.
    if let Err(error) = try_out(student, &terms, &targets) {
        if !is_of_memory(&error) {
            return Err(error);
        }
        terms.intermediates = Intermediates::Recomputed;
        try_out(student, &terms, &targets).map_err(|error| with_batch(error, options))?;
    }
    let mut graph = TrainingGraph::new(&part.graph, &targets.goal, &terms, runner.weights())?;
    let runnable = Runnable::new(part.name.clone(), std::mem::take(&mut graph.graph));
    let prepared = runner.prepared_with(&runnable, runner.weights())?;
    let parameters = initial(&graph.parameters, runner.weights(), options.max_memory / 2)?;
    let run = run_of(student, &graph, &parameters)?;
    let mut training =
        Training { student, prepared, graph: &graph, targets: &targets, held: &held, run };
    let before = training.evaluated(&parameters)?;
    let mut state = match resumed {
        Some(bytes) => State::from_bytes(bytes, &training.run, &parameters)?,
        None => State::new(parameters, before.loss),
    };
    let steps = options.total_steps(learnt.len());
    training.run(&mut state, &learnt, steps, events).map_err(|error| with_batch(error, options))?;
    let after = training.evaluated(&state.best)?;
    if state.best_step == 0 {
        return Err(Error::format(format!(
            "{} steps did not improve the student: its loss was {:.6} before training and never \
             lower; try a lower learning rate",
            state.step, before.loss
        ))
        .into());
    }

    let mut values = HashMap::new();
    for (parameter, tensor) in graph.parameters.iter().zip(&state.best) {
        values.insert(parameter.tensor.clone(), parameter.stored(tensor.values()?));
    }
    let report = DistillReport {
        options: options.clone(),
        layers: student.layers.clone(),
        rows: learnt.len(),
        held_out: if held.len() == rows.len() { 0 } else { held.len() },
        cut: student.cut,
        written: student.written,
        steps: state.step,
        best_step: state.best_step,
        planned_steps: steps,
        tokens: state.tokens,
        parameters: state.best.iter().map(|tensor| tensor.len() as u64).sum(),
        untrained: graph.untrained.clone(),
        frozen: graph.frozen.clone(),
        recomputed: terms.intermediates == Intermediates::Recomputed,
        kept_predictions: targets.goal.is_cut().then_some(targets.goal.kept),
        teacher_perplexity: perplexity(&targets, &held),
        before,
        after,
    };
    Ok((values, report))
}

/// Counts what a training keeps of its parameters, before the teacher is run for hours. The other
/// half of the memory is for the runs.
///
/// # Errors
/// E008 where it is more than half of the memory.
fn check_memory(
    student: &Student<'_>,
    graph: &Graph,
    goal: &Goal,
    terms: &Terms,
    saves: bool,
) -> RunResult<()> {
    /// Number of copies of the parameters in memory.
    ///
    /// These are the values, the best values so far, two moments and the gradients.
    const KEPT: u64 = 5;
    /// Number of these copies in a state file, which is assembled in memory.
    const SAVED: u64 = 4;

    let graph = TrainingGraph::new(graph, goal, terms, student.student.weights())?;
    let count = graph.parameters.iter().map(Parameter::elements).fold(0, u64::saturating_add);
    let times = if saves { KEPT + SAVED } else { KEPT };
    let needed = count.saturating_mul(times).saturating_mul(size_of::<f32>() as u64);
    let most = student.options.max_memory / 2;
    if needed <= most {
        return Ok(());
    }
    Err(Error::memory(format!(
        "training {} needs a memory limit of at least {} bytes (now {}): {needed} bytes between \
         steps, and the same for the runs",
        counted(count, "parameter"),
        needed.saturating_mul(2),
        student.options.max_memory
    ))
    .into())
}

/// Computes the gradients of the longest rows.
///
/// # Errors
/// E008 where a step with them does not fit the memory.
fn try_out(student: &Student<'_>, terms: &Terms, targets: &Targets) -> RunResult<()> {
    let (runner, rows) = (student.student, &student.rows);
    let part = runner.part()?;
    let mut graph = TrainingGraph::new(&part.graph, &targets.goal, terms, runner.weights())?;
    let runnable = Runnable::new(part.name.clone(), std::mem::take(&mut graph.graph));
    let prepared = runner.prepared_with(&runnable, runner.weights())?;
    let parameters = initial(&graph.parameters, runner.weights(), student.options.max_memory / 2)?;
    let mut longest: Vec<usize> = (0..rows.len()).collect();
    longest.sort_by_key(|row| std::cmp::Reverse(student.len(*row)));
    longest.truncate(student.options.batch);
    let training =
        Training { student, prepared, graph: &graph, targets, held: &[], run: String::new() };
    training.gradients(&parameters, &Batch::of(rows, &longest)).map(drop)
}

fn is_of_memory(error: &RunError) -> bool {
    matches!(error, RunError::Model(error) if error.code() == Code::Memory)
}

/// Adds advice to an out-of-memory error: a smaller batch.
fn with_batch(error: RunError, options: &DistillOptions) -> RunError {
    match error {
        RunError::Model(error) if error.code() == Code::Memory && options.batch > 1 => {
            let message = error.message();
            let batch = options.batch;
            Error::memory(format!("{message}; a step of fewer than {batch} rows takes less")).into()
        }
        other => other,
    }
}

/// Returns the digest of the options, the rows and the initial student, which identifies a
/// training.
fn run_of(student: &Student<'_>, graph: &TrainingGraph, values: &[Tensor]) -> RunResult<String> {
    let mut hasher = Sha256::new();
    // Memory changes no bit.
    let options = DistillOptions { max_memory: 0, ..student.options.clone() };
    hasher.update(apr_core::json::to_vec(&options).unwrap_or_default());
    for row in &student.rows {
        hasher.update((row.tokens.len() as u64).to_le_bytes());
        hasher.update((row.first_label as u64).to_le_bytes());
        row.tokens.iter().for_each(|token| hasher.update(token.to_le_bytes()));
        hasher.update(row.second_text.map_or(u64::MAX, |second| second as u64).to_le_bytes());
    }
    if let Some(encoded) = &student.encoded {
        hasher.update(encoded.digest());
    }
    for (parameter, values) in graph.parameters.iter().zip(values) {
        hasher.update(parameter.input.as_bytes());
        values.values::<f32>()?.iter().for_each(|value| hasher.update(value.to_le_bytes()));
    }
    Ok(base16ct::lower::encode_string(&hasher.finalize()))
}

/// Splits the rows into training rows and held-out rows. If there are few rows, both contain all
/// rows.
fn split(rows: usize, options: &DistillOptions) -> (Vec<usize>, Vec<usize>) {
    let all: Vec<usize> = (0..rows).collect();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a number of rows"
    )]
    let held = (rows as f64 * options.held_out).round() as usize;
    if rows < FEW || held == 0 {
        return (all.clone(), all);
    }
    let mut order = shuffled(&all, options.seed, u64::MAX);
    let mut held = order.split_off(rows - held.min(rows - 1));
    order.sort_unstable();
    held.sort_unstable();
    (order, held)
}

fn perplexity(targets: &Targets, held: &[usize]) -> Option<f64> {
    let sums = held.iter().map(|row| targets.of_labels[*row]);
    let (sum, count) = sums.fold((0.0, 0), |all, row| (all.0 + row.0, all.1 + row.1));
    (count > 0).then(|| (-sum / count as f64).exp())
}

impl Student<'_> {
    /// Returns the length of a row in a step: its tokens plus the positions of the encoder's
    /// states.
    pub(crate) fn len(&self, row: usize) -> usize {
        let encoded = self.encoded.as_ref().map_or(0, |encoded| encoded.len(row));
        self.rows[row].tokens.len() + encoded
    }

    /// Returns the tensors that the encoder also uses.
    ///
    /// Training them would change the encoder's states, which must be those of the teacher.
    fn frozen(&self) -> BTreeSet<String> {
        if self.encoded.is_none() {
            return BTreeSet::new();
        }
        let encoders = self.student.parts().iter().filter(|part| part.name == ENCODER);
        let weights = encoders.flat_map(|part| part.graph.body.weights());
        weights.map(|(_, weight)| weight.tensor.clone()).collect()
    }

    /// Returns the values of the student's layers, if their states are compared.
    fn own_layers(&self, graph: &apr_graph::Graph) -> RunResult<Vec<String>> {
        if self.options.hidden_loss == 0.0 {
            return Ok(Vec::new());
        }
        let layers: Vec<String> = graph
            .body
            .nodes
            .iter()
            .filter(|node| layer_number(&node.name).is_some())
            .map(|node| node.name.clone())
            .collect();
        match layers.is_empty() {
            true => Err(RunError::request(
                "the model's graph does not have layers whose states \
                                           can be compared",
            )),
            false => Ok(layers),
        }
    }

    /// The teacher's layers in their places.
    fn teacher_layers(&self, own: &[String], teacher: &apr_graph::Graph) -> RunResult<Vec<String>> {
        let of = |name: &String| {
            let number = layer_number(name).unwrap_or(0);
            let layer = usize::try_from(number).ok().and_then(|at| self.layers.get(at));
            let name = format!("layers.{}", layer.copied().unwrap_or(number));
            let is_there = teacher.body.nodes.iter().any(|node| node.name == name);
            is_there.then_some(name.clone()).ok_or_else(|| {
                RunError::request(format!(
                    "the teacher does not have a layer '{name}' to compare \
                                           with"
                ))
            })
        };
        own.iter().map(of).collect()
    }
}

fn layer_number(name: &str) -> Option<u64> {
    name.strip_prefix("layers.")?.parse().ok()
}

struct Training<'t> {
    student: &'t Student<'t>,
    prepared: Prepared<'t>,
    graph: &'t TrainingGraph,
    targets: &'t Targets,
    held: &'t [usize],
    run: String,
}

impl Training<'_> {
    fn run(
        &mut self,
        state: &mut State,
        learnt: &[usize],
        steps: u64,
        events: &mut dyn Events,
    ) -> RunResult<()> {
        let options = &self.student.options;
        let each = learnt.len().div_ceil(options.batch) as u64;
        let interval = (steps / EVALUATIONS).max(1);
        let (mut epoch, mut batches) = (u64::MAX, Vec::new());
        let mut tokens = 0;
        while state.step < steps && state.since_best < options.patience {
            if state.step / each != epoch {
                epoch = state.step / each;
                let len = |row| self.student.len(row);
                batches = batch::batches(learnt, len, options.batch, options.seed, epoch);
            }
            let place = usize::try_from(state.step % each).unwrap_or(0);
            let batch = Batch::of(&self.student.rows, &batches[place]);
            let loss = self.step(state, steps, &batch)?;
            state.step += 1;
            state.tokens += batch.tokens() as u64;
            tokens += batch.tokens() as u64;
            events.progress(&Progress::Step { step: state.step, of: steps, loss, tokens });

            if state.step.is_multiple_of(interval) || state.step == steps {
                let scores = self.evaluated(&state.parameters)?;
                events.progress(&Progress::Evaluated { step: state.step, scores: scores.clone() });
                state.since_best += 1;
                if scores.loss < state.best_loss {
                    state.best_loss = scores.loss;
                    state.best_step = state.step;
                    state.best.clone_from(&state.parameters);
                    state.since_best = 0;
                }
                if events.saves() {
                    events.save(&state.to_bytes(&self.run)?)?;
                }
            }
        }
        Ok(())
    }

    /// Inputs of a batch, with the parameters, and the entropy of the targets.
    fn inputs(
        &self,
        parameters: &[Tensor],
        batch: &Batch<'_>,
    ) -> RunResult<(Vec<(String, Value)>, f64)> {
        let body = &self.student.student.part()?.graph.body;
        let encoded = self.student.encoded.as_ref();
        let mut inputs = batch.inputs(body, self.student.padding, encoded)?;
        let (targets, entropy) = self.targets.inputs(batch, &self.student.options)?;
        inputs.extend(targets);
        for (parameter, tensor) in self.graph.parameters.iter().zip(parameters) {
            inputs.push((parameter.input.clone(), Value::Tensor(tensor.clone())));
        }
        Ok((inputs, entropy))
    }

    /// Makes one step; the loss before it.
    fn step(&self, state: &mut State, steps: u64, batch: &Batch<'_>) -> RunResult<f64> {
        let (loss, gradients) = self.gradients(&state.parameters, batch)?;
        let norm = norm(&gradients)?;
        if !loss.is_finite() || !norm.is_finite() {
            return Err(self.blame(state, batch)?.into());
        }
        let adamw = AdamW::new(&self.student.options, state.step, steps, norm);
        let workers = self.student.student.host().workers();
        adamw.apply(&mut state.parameters, &mut state.moments, &gradients, workers)?;
        Ok(loss)
    }

    /// The loss of a batch, and the gradients of the parameters.
    fn gradients(&self, parameters: &[Tensor], batch: &Batch<'_>) -> RunResult<(f64, Vec<Tensor>)> {
        let (inputs, entropy) = self.inputs(parameters, batch)?;
        let mut wanted = vec![LOSS];
        wanted.extend(self.graph.gradients.iter().map(String::as_str));
        let outcome = self.prepared.run(inputs, &wanted)?;
        let mut outputs = outcome.outputs.into_iter();
        let loss = self.loss(outputs.next(), entropy)?;
        let gradients = outputs.map(|value| value.tensor().cloned()).collect::<Result<_>>()?;
        Ok((loss, gradients))
    }

    fn loss(&self, value: Option<Value>, entropy: f64) -> RunResult<f64> {
        let missing = || Error::format("the training graph has no loss");
        let value = value.ok_or_else(missing)?;
        let loss = value.tensor()?.values::<f32>()?.first().copied().ok_or_else(missing)?;
        Ok(f64::from(loss) + entropy)
    }

    fn evaluated(&self, parameters: &[Tensor]) -> RunResult<Scores> {
        let mut order = self.held.to_vec();
        order.sort_by_key(|row| self.student.len(*row));
        let mut sums = Sums::default();
        for rows in order.chunks(self.student.options.batch) {
            let batch = Batch::of(&self.student.rows, rows);
            let (inputs, entropy) = self.inputs(parameters, &batch)?;
            let outcome = self.prepared.run(inputs, &[LOSS, &self.graph.output])?;
            let loss = self.loss(outcome.outputs.first().cloned(), entropy)?;
            sums.add(self.targets, &batch, loss, outcome.outputs[1].tensor()?)?;
        }
        Ok(sums.scores())
    }

    /// Returns the error of a step with a loss or gradient that is not finite, with its origin.
    fn blame(&self, state: &State, batch: &Batch<'_>) -> RunResult<Error> {
        let (inputs, _) = self.inputs(&state.parameters, batch)?;
        let mut wanted = vec![LOSS];
        wanted.extend(self.graph.gradients.iter().map(String::as_str));
        let mut first = FirstOdd { host: self.student.student.host(), path: None };
        let ran = self.prepared.run_watched(inputs, &wanted, &mut first);
        let place = match first.path {
            Some(path) => format!("the first value that is not finite is '{path}'"),
            None => {
                ran?;
                "a gradient is not finite".to_owned()
            }
        };
        Ok(Error::format(format!("step {}: {place}; try a lower learning rate", state.step + 1)))
    }
}

fn norm(gradients: &[Tensor]) -> Result<f64> {
    let mut sum = 0.0;
    for gradient in gradients {
        let square = |value: &f32| f64::from(*value) * f64::from(*value);
        sum += gradient.values::<f32>()?.iter().map(square).sum::<f64>();
    }
    Ok(sum.sqrt())
}

/// Finds the first value of a run that is not finite. Masks are infinite in valid runs.
struct FirstOdd<'h> {
    host: &'h dyn Host,
    path: Option<String>,
}

impl Tap for FirstOdd<'_> {
    fn wants(&mut self, _: &str, _: &Node) -> bool {
        true
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn after(&mut self, step: &Step<'_>) -> Flow {
        let is_odd = |value: &Value| {
            let tensor = value.tensor().ok();
            let values = tensor.and_then(|tensor| tensor.values::<f32>().ok());
            values.is_some_and(|values| {
                values.iter().any(|value| value.is_nan() || *value == f32::INFINITY)
            })
        };
        if step.outputs.iter().any(is_odd) {
            self.path = Some(step.path.to_owned());
        }
        match self.path.is_some() || self.host.is_cancelled() {
            true => Flow::Stop,
            false => Flow::Continue,
        }
    }
}
