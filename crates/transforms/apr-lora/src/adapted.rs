//! A model with adapters merged in, computed as it is read.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

use apr_arch::FamilyModel;
use apr_core::{
    CheckpointReader, Companion, Container, DType, Error, Escaped, FileInfo, Format, Metadata,
    Result, Stored, TensorInfo,
};
use apr_merge::{Meter, changes};
use apr_tensor::cast::cast_values;
use apr_tensor::drift::Drift;
use apr_tensor::element::widen_f32;
use apr_view::Companions;
use apr_view::chunks::fill;
use apr_view::values::not_finite;

use crate::adapter::Adapter;
use crate::beside;
use crate::matrix::{Delta, Matrix, read};
use crate::plan::{AdapterPlan, Slot, Source, Stage};
use crate::report::{AdaptReport, MergedAdapter};
use crate::turn::Turn;

/// Elements that are computed at a time.
const BLOCK: u64 = 1 << 15;

/// Tensors whose matrices are kept: threads may be at several of them.
const KEPT: usize = 4;

/// The matrices of a stage of a tensor.
type Loaded = ((usize, usize), Arc<Matrices>);

/// What a stage needs in memory.
enum Matrices {
    Delta(Delta),
    Factors(Vec<f32>),
    Turn(Turn),
}

/// Options for merging adapters into a base.
pub struct AdaptOptions<'a> {
    /// Modules that the base lacks are left out with a warning, and values that are not finite are
    /// let pass.
    pub relaxed: bool,
    /// `true` if the result will be cast to another dtype.
    ///
    /// Sums then stay in single precision, so that only the cast rounds them.
    pub is_cast: bool,
    /// Names of the weights whose rows are inputs, from the base's family.
    ///
    /// With `None` (unknown family), the adapter's configuration and its shapes determine the
    /// orientation.
    pub inputs_first: Option<HashSet<String>>,
    /// Function that is called between blocks of a long measurement; an error ends the merge.
    pub poll: Arc<dyn Fn() -> Result<()> + Send + Sync + 'a>,
}

impl Default for AdaptOptions<'_> {
    fn default() -> Self {
        Self { relaxed: false, is_cast: false, inputs_first: None, poll: Arc::new(|| Ok(())) }
    }
}

/// Returns the names of a model's weights whose rows are inputs, or `None` if its family is
/// unknown.
#[must_use]
pub fn inputs_first(
    reader: &dyn CheckpointReader,
    family: Option<&FamilyModel<'_>>,
) -> Option<HashSet<String>> {
    let family = family?;
    let infos = reader.tensors().iter().enumerate();
    let turned = infos.filter(|(position, _)| family.has_inputs_first(*position));
    Some(turned.map(|(_, info)| info.name.clone()).collect())
}

/// A base model with adapters merged in, as PEFT's `merge_and_unload` does it: one after the other,
/// each rounded to the weight's dtype, unless the result is cast anyway.
///
/// ```
/// use std::sync::Arc;
///
/// use apr_core::{CheckpointReader, Limits, Result};
/// use apr_lora::{AdaptOptions, Adapted, Adapter};
///
/// # fn example(base: Arc<dyn CheckpointReader>, tuned: Arc<dyn CheckpointReader>) -> Result<()> {
/// let adapter = Adapter { name: "tuned".into(), reader: tuned, weight: 0.8 };
/// let adapted = Adapted::plan(base, "base", &[adapter], AdaptOptions::default())?;
/// println!("{} tensors change", adapted.report().changed);
/// # Ok(())
/// # }
/// ```
pub struct Adapted<'a> {
    base: Arc<dyn CheckpointReader + 'a>,
    base_name: String,
    adapters: Vec<Adapter<'a>>,
    merged: Vec<MergedAdapter>,
    slots: Vec<Slot>,
    tensors: Vec<TensorInfo>,
    meters: Vec<Meter<Drift>>,
    /// Magnitudes over norms (DoRA), by tensor and stage.
    factors: HashMap<(usize, usize), OnceLock<Result<Vec<f32>>>>,
    loaded: Mutex<VecDeque<Loaded>>,
    metadata: Metadata,
    companions: Companions,
    files: Vec<FileInfo>,
    warnings: Vec<String>,
    options: AdaptOptions<'a>,
}

impl<'a> Adapted<'a> {
    /// Plans a base with adapters, in their order. None of their tensors is read.
    ///
    /// # Errors
    /// E001 for what is no adapter or of a kind that can't be merged, for a module that the base
    /// lacks and matrices that do not make its shape; E007 and E008 when a configuration can't be
    /// read.
    pub fn plan(
        base: Arc<dyn CheckpointReader + 'a>,
        base_name: &str,
        adapters: &[Adapter<'a>],
        options: AdaptOptions<'a>,
    ) -> Result<Self> {
        let AdapterPlan { slots, merged, warnings, is_untied } =
            AdapterPlan::new(&*base, adapters, &options)?;
        let tensors: Vec<TensorInfo> = slots.iter().map(|slot| slot.info.clone()).collect();
        let mut factors = HashMap::new();
        for (tensor, slot) in slots.iter().enumerate() {
            for (stage, change) in slot.stages.iter().enumerate() {
                if matches!(change, Stage::Delta { magnitude: Some(_), .. }) {
                    factors.insert((tensor, stage), OnceLock::new());
                }
            }
        }
        let readers = adapters.iter().map(|adapter| &*adapter.reader);
        let readers: Vec<&(dyn CheckpointReader + 'a)> =
            std::iter::once(&*base).chain(readers).collect();
        let files = readers.iter().flat_map(|reader| reader.files()).cloned().collect();
        let mut all_warnings = warnings;
        all_warnings.extend(base.warnings().iter().cloned());
        let mut adapted = Self {
            base_name: base_name.to_owned(),
            adapters: adapters.to_vec(),
            merged,
            meters: slots.iter().map(|_| Meter::default()).collect(),
            slots,
            tensors,
            factors,
            loaded: Mutex::default(),
            metadata: base.metadata().clone(),
            companions: Companions::of(&*base),
            base,
            files,
            warnings: all_warnings,
            options,
        };
        adapted.fit_configuration(is_untied)?;
        Ok(adapted)
    }

    /// Fits configuration and metadata to tensors that were untied, or have another number of rows
    /// than the base's.
    fn fit_configuration(&mut self, is_untied: bool) -> Result<()> {
        let rows = beside::vocabulary(self.base.tensors(), &self.tensors);
        if !is_untied && rows.is_none() {
            return Ok(());
        }
        beside::fit_metadata(&mut self.metadata, is_untied, rows);
        let config = self.companions.read_named(&*self.base, beside::CONFIG)?;
        if let Some(bytes) = config.and_then(|bytes| beside::fit(&bytes, is_untied, rows)) {
            self.companions.put(beside::CONFIG, bytes);
        }
        if rows.is_some() {
            self.take_tokenizer()?;
        }
        Ok(())
    }

    /// Takes the tokenizer of the last adapter that has one, as the number of tokens is another.
    fn take_tokenizer(&mut self) -> Result<()> {
        let has_one = |adapter: &&Adapter<'_>| {
            adapter.reader.companions().iter().any(|file| beside::is_of_tokenizer(&file.name))
        };
        let Some(Adapter { name, reader, .. }) = self.adapters.iter().rev().find(has_one).cloned()
        else {
            let message = "the number of tokens differs from the base's, and the adapters have \
                           no tokenizer: the base's tokenizer is kept";
            self.warnings.push(message.to_owned());
            return Ok(());
        };
        for (position, file) in reader.companions().iter().enumerate() {
            if beside::is_of_tokenizer(&file.name) {
                self.companions.put(&file.name, reader.read_companion(position)?);
            }
        }
        self.warnings.push(format!("the tokenizer is taken from {}", Escaped::short(&name)));
        Ok(())
    }

    /// Replaces the base's card by a model card that describes the merge.
    ///
    /// # Errors
    /// E007 and E008 when the base's card can't be read.
    pub fn with_card(mut self, title: &str) -> Result<Self> {
        let card = self.companions.read_named(&*self.base, beside::CARD)?;
        let bytes = beside::card(&self.report(), title, card.as_deref());
        self.companions.put(beside::CARD, bytes.into_bytes());
        Ok(self)
    }

    /// Adds a record of the merge to the metadata if the output's format can store it.
    #[must_use]
    pub fn with_record(mut self, format: &'static Format) -> Self {
        let report = self.report();
        beside::record(&mut self.metadata, &report, format);
        self
    }

    /// Returns the report on the merge, with the change of the tensors that were read.
    #[must_use]
    pub fn report(&self) -> AdaptReport {
        let changed = self.slots.iter().filter(|slot| slot.is_changed());
        let names = self.tensors.iter().zip(&self.meters).zip(&self.slots);
        let measured = names
            .filter(|(_, slot)| slot.is_changed())
            .map(|((info, meter), _)| (info.name.as_str(), meter));
        let (tensors, worst, total) = changes(measured);
        AdaptReport {
            base: self.base_name.clone(),
            adapters: self.merged.clone(),
            changed: changed.count(),
            copied: self.slots.iter().filter(|slot| !slot.is_changed()).count(),
            total,
            tensors,
            worst,
        }
    }

    fn reader(&self, source: Source) -> (&(dyn CheckpointReader + 'a), usize) {
        match source {
            Source::Base(tensor) => (&*self.base, tensor),
            Source::Adapter { adapter, tensor } => (&*self.adapters[adapter].reader, tensor),
        }
    }

    /// The first file of a source's reader among [`files`](CheckpointReader::files).
    fn first_file(&self, adapter: Option<usize>) -> usize {
        let Some(adapter) = adapter else { return 0 };
        let before = self.adapters[..adapter].iter().map(|before| before.reader.files().len());
        self.base.files().len() + before.sum::<usize>()
    }

    /// The matrices of a stage, which are kept for a while.
    fn matrices(&self, tensor: usize, stage: usize) -> Result<Arc<Matrices>> {
        let key = (tensor, stage);
        let poisoned = || Error::corrupt("another thread ended while it read an adapter");
        // Whoever comes second waits for the first to read them.
        let mut loaded = self.loaded.lock().map_err(|_| poisoned())?;
        if let Some((_, matrices)) = loaded.iter().find(|(known, _)| *known == key) {
            return Ok(Arc::clone(matrices));
        }
        let stage = &self.slots[tensor].stages[stage];
        let Adapter { reader, name, .. } = &self.adapters[stage.adapter()];
        let matrices = match stage {
            Stage::Delta { form, .. } => form.load(&**reader).map(Matrices::Delta),
            Stage::Turn { tensor, method, .. } => {
                Turn::load(&**reader, *tensor, *method).map(Matrices::Turn)
            }
            Stage::Factors { tensor, .. }
            | Stage::Bias { tensor, .. }
            | Stage::Rows { tensor, .. } => {
                Matrix::read(&**reader, *tensor).map(|matrix| Matrices::Factors(matrix.values))
            }
        };
        let matrices = Arc::new(matrices.map_err(|error| error.in_file(name))?);
        if loaded.len() == KEPT {
            loaded.pop_front();
        }
        loaded.push_back((key, Arc::clone(&matrices)));
        Ok(matrices)
    }

    /// Elements of a tensor after some of its stages; `original` gets those before the first.
    fn values(
        &self,
        tensor: usize,
        stages: usize,
        range: Range<u64>,
        original: Option<&mut Vec<f32>>,
    ) -> Result<Vec<f32>> {
        let slot = &self.slots[tensor];
        if slot.stages[..stages].iter().any(Stage::takes_rows) {
            let rows =
                range.start / slot.columns * slot.columns..range.end.next_multiple_of(slot.columns);
            if rows != range {
                return self.cut(tensor, stages, (range, rows), original);
            }
        }
        let (reader, position) = self.reader(slot.source);
        let mut values = read(reader, position, range.clone())?;
        if let (false, Some(at)) =
            (self.options.relaxed, values.iter().position(|value| !value.is_finite()))
        {
            let file = slot.source.adapter().map(|adapter| &self.adapters[adapter].name);
            let file = file.unwrap_or(&self.base_name);
            let first = range.start + at as u64;
            return Err(not_finite(reader, position, first).in_file(file));
        }
        if let Some(original) = original {
            original.clone_from(&values);
        }
        for (at, stage) in slot.stages[..stages].iter().enumerate() {
            self.apply(tensor, at, stage, range.start, &mut values)?;
            round(slot.info.dtype, &mut values);
        }
        Ok(values)
    }

    /// Elements of a tensor by its whole rows.
    fn cut(
        &self,
        tensor: usize,
        stages: usize,
        (range, rows): (Range<u64>, Range<u64>),
        original: Option<&mut Vec<f32>>,
    ) -> Result<Vec<f32>> {
        let within = |at: u64| usize::try_from(at - rows.start).unwrap_or(usize::MAX);
        let piece = within(range.start)..within(range.end);
        let mut before = Vec::new();
        let values = self.values(tensor, stages, rows.clone(), Some(&mut before))?;
        if let Some(original) = original {
            original.clear();
            original.extend_from_slice(&before[piece.clone()]);
        }
        Ok(values[piece].to_vec())
    }

    /// Changes elements from `start` on by a stage.
    fn apply(
        &self,
        tensor: usize,
        at: usize,
        stage: &Stage,
        start: u64,
        values: &mut [f32],
    ) -> Result<()> {
        match stage {
            Stage::Turn { .. } => {
                let matrices = self.matrices(tensor, at)?;
                let Matrices::Turn(turn) = &*matrices else { return Err(mixed_up()) };
                let width = self.slots[tensor].columns;
                each_row(width, start, values, |row, _, values, _| turn.apply(row, values));
            }
            Stage::Factors { by_column, each, .. } => {
                let matrices = self.matrices(tensor, at)?;
                let Matrices::Factors(factors) = &*matrices else { return Err(mixed_up()) };
                let each = usize::try_from(*each).unwrap_or(1).max(1);
                let width = self.slots[tensor].columns;
                each_row(width, start, values, |row, columns, values, _| {
                    if *by_column {
                        let factors = columns.map(|column| factors[column / each]);
                        values.iter_mut().zip(factors).for_each(|(value, f)| *value *= f);
                    } else {
                        values.iter_mut().for_each(|value| *value *= factors[row]);
                    }
                });
            }
            Stage::Delta { form, scale, .. } => {
                let matrices = self.matrices(tensor, at)?;
                let Matrices::Delta(delta) = &*matrices else { return Err(mixed_up()) };
                let factors = self.factors(tensor, at)?;
                each_row(form.columns, start, values, |row, columns, values, buffer| {
                    delta.row(row, columns.clone(), buffer);
                    for (value, change) in values.iter_mut().zip(buffer.iter()) {
                        *value += change * scale;
                    }
                    match factors {
                        Some(factors) if form.by_column => {
                            let factors = &factors[columns];
                            values.iter_mut().zip(factors).for_each(|(value, f)| *value *= f);
                        }
                        Some(factors) => values.iter_mut().for_each(|v| *v *= factors[row]),
                        None => {}
                    }
                });
            }
            Stage::Bias { adapter, tensor: bias, scale } => {
                let reader = &*self.adapters[*adapter].reader;
                let bias = read(reader, *bias, start..start + values.len() as u64)?;
                values.iter_mut().zip(&bias).for_each(|(value, change)| *value += change * scale);
            }
            Stage::Rows { adapter, tensor: rows, of } => {
                let reader = &*self.adapters[*adapter].reader;
                let mut failed = None;
                each_row(self.slots[tensor].columns, start, values, |row, columns, values, _| {
                    let Some(trained) = of.get(&(row as u64)) else { return };
                    let width = reader.tensors()[*rows].shape.row_len();
                    let first = trained * width + columns.start as u64;
                    match read(reader, *rows, first..first + values.len() as u64) {
                        Ok(trained) => values.copy_from_slice(&trained),
                        Err(error) => failed = Some(error),
                    }
                });
                if let Some(error) = failed {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Returns the factors for rows or columns after a stage. Computing them needs a pass over the
    /// tensor.
    fn factors(&self, tensor: usize, stage: usize) -> Result<Option<&[f32]>> {
        let Some(cell) = self.factors.get(&(tensor, stage)) else { return Ok(None) };
        let found = cell.get_or_init(|| self.measure(tensor, stage));
        found.as_deref().map(Some).map_err(Clone::clone)
    }

    /// Magnitudes over the norms of rows or columns (DoRA, arXiv 2402.09353).
    fn measure(&self, tensor: usize, stage: usize) -> Result<Vec<f32>> {
        let slot = &self.slots[tensor];
        let Stage::Delta { adapter, form, scale, magnitude: Some(magnitude) } = &slot.stages[stage]
        else {
            return Err(Error::corrupt("missing magnitudes"));
        };
        let Adapter { reader, name, .. } = &self.adapters[*adapter];
        let magnitudes =
            Matrix::read(&**reader, *magnitude).map_err(|error| error.in_file(name))?;
        let matrices = self.matrices(tensor, stage)?;
        let Matrices::Delta(delta) = &*matrices else { return Err(mixed_up()) };
        let mut squares = vec![0.0_f64; magnitudes.values.len()];
        let count = slot.info.shape.elements().unwrap_or_default();
        let mut start = 0;
        while start < count {
            (self.options.poll)()?;
            let end = (start + BLOCK).min(count);
            let mut values = self.values(tensor, stage, start..end, None)?;
            each_row(form.columns, start, &mut values, |row, columns, values, buffer| {
                delta.row(row, columns.clone(), buffer);
                let sums = values.iter().zip(buffer.iter()).map(|(value, change)| {
                    let value = f64::from(value + change * scale);
                    value * value
                });
                if form.by_column {
                    squares[columns].iter_mut().zip(sums).for_each(|(sum, more)| *sum += more);
                } else {
                    squares[row] += sums.sum::<f64>();
                }
            });
            start = end;
        }
        let of = |(magnitude, squares): (&f32, &f64)| {
            #[expect(clippy::cast_possible_truncation, reason = "PEFT's norm is of this precision")]
            let norm = libm::sqrt(*squares) as f32;
            if *magnitude == 0.0 { 0.0 } else { magnitude / norm }
        };
        Ok(magnitudes.values.iter().zip(&squares).map(of).collect())
    }

    fn read_changed(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let Slot { info, stages, .. } = &self.slots[tensor];
        let count = info.shape.elements().unwrap_or_default();
        let mut before = Vec::new();
        fill(info, (offset, buf), BLOCK, |range, out| {
            let values = self.values(tensor, stages.len(), range.clone(), Some(&mut before))?;
            self.meters[tensor].add(range, count, Drift::of(&before, &values));
            cast_values(&values, info.dtype, out);
            Ok(())
        })
    }
}

fn mixed_up() -> Error {
    Error::corrupt("the matrices of an adapter are of another change")
}

/// Calls `change` with the parts of rows of `width` elements that those from `start` on are, and a
/// buffer.
fn each_row(
    width: u64,
    start: u64,
    values: &mut [f32],
    mut change: impl FnMut(usize, Range<usize>, &mut [f32], &mut Vec<f32>),
) {
    let mut buffer = Vec::new();
    let (mut at, mut position) = (0, start);
    while at < values.len() {
        let (row, column) = (position / width, position % width);
        let len = (width - column).min((values.len() - at) as u64);
        // They are smaller than the tensor's elements, which are addressed by bytes.
        let [row, column, count] =
            [row, column, len].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        change(row, column..column + count, &mut values[at..at + count], &mut buffer);
        at += count;
        position += len;
    }
}

/// Rounds values to a dtype.
fn round(dtype: DType, values: &mut Vec<f32>) {
    if dtype != DType::F32 {
        let (mut bytes, wide) = (Vec::new(), std::mem::take(values));
        cast_values(&wide, dtype, &mut bytes);
        widen_f32(dtype, &bytes, values);
    }
}

impl CheckpointReader for Adapted<'_> {
    fn format(&self) -> &'static Format {
        self.base.format()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let slot = &self.slots[tensor];
        let (reader, position) = self.reader(slot.source);
        let own = self.first_file(slot.source.adapter());
        if !slot.is_changed() && own == 0 {
            return reader.stored(position);
        }
        let stages = slot.stages.iter().flat_map(|stage| {
            let reader: &dyn CheckpointReader = &*self.adapters[stage.adapter()].reader;
            let first = self.first_file(Some(stage.adapter()));
            stage.tensors().into_iter().map(move |tensor| (reader, tensor, first))
        });
        Stored::derived_from_all(std::iter::once((reader, position, own)).chain(stages))
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let slot = &self.slots[tensor];
        if slot.stages.is_empty() && slot.is_as_stored {
            let (reader, position) = self.reader(slot.source);
            return reader.read_tensor(position, offset, buf);
        }
        let read = self.read_changed(tensor, offset, buf);
        read.map_err(|error| error.for_tensor(&slot.info.name))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let slot = &self.slots[tensor];
        let (reader, position) = self.reader(slot.source);
        (slot.stages.is_empty() && slot.is_as_stored).then(|| reader.tensor_slice(position))?
    }

    fn container(&self) -> Container<'_> {
        self.base.container().altered()
    }

    fn files(&self) -> &[FileInfo] {
        &self.files
    }

    fn companions(&self) -> &[Companion] {
        self.companions.list()
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.companions.read(&*self.base, companion)
    }

    fn left_out(&self) -> &[String] {
        self.base.left_out()
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}
