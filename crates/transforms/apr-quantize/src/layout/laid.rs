//! A checkpoint whose weights are encoded as they are read.

use std::sync::{Arc, OnceLock};

use apr_core::json::{from_python, to_python};
use apr_core::{
    CheckpointReader, CodingPart, Companion, Container, Error, Metadata, Result, Stored,
    TensorInfo, keys, pass_on,
};
use apr_tensor::drift::Drift;
use apr_tensor::element::widen_f32;
use apr_view::{Base, Companions, module_of_mlx};
use serde_json::{Map, Value};

use super::errors::{LaidErrors, Moved};
use super::global::{at_once, global_scale, sets};
use super::row::Encoder;
use super::stated::Statement;
use super::{Chosen, Layout, Part, named};

/// Name of the configuration, which states how the weights are read.
const CONFIG: &str = "config.json";

/// A checkpoint with codes and scales in place of weights.
pub struct Laid<'a> {
    base: Base<'a>,
    /// For each tensor of the base, its layout if it is a weight in codes.
    layouts: Vec<Option<Layout>>,
    tensors: Vec<TensorInfo>,
    origins: Vec<Origin>,
    metadata: Metadata,
    companions: Companions,
    /// The tensors of the base as libraries call them.
    named: Vec<TensorInfo>,
    /// For each tensor of the base, which of [`globals`](Self::globals) it shares with others.
    sets: Vec<usize>,
    /// Factor for the scales, for each set.
    globals: Vec<OnceLock<f32>>,
    /// Importance of the columns of each tensor, as weights of their errors.
    importance: Vec<Option<Arc<[f32]>>>,
    errors: Arc<LaidErrors>,
}

#[derive(Debug, Clone, Copy)]
struct Origin {
    tensor: usize,
    /// The part of a weight in this layout; `None` for a tensor that stays as it is.
    part: Option<(Layout, Part)>,
}

impl<'a> Laid<'a> {
    /// Lays out the chosen weights of a checkpoint, most of which have this layout.
    ///
    /// # Errors
    /// E001 where a configuration is no JSON or the model has none, E007 when it can't be read.
    pub fn new(base: Base<'a>, layout: Layout, chosen: Chosen) -> Result<Self> {
        let Chosen { weights, left, importance, rounded, names, .. } = chosen;
        let mut layouts = weights;
        layouts.resize(base.tensors().len(), None);
        let ignored: Vec<String> = left
            .into_iter()
            .filter(|weight| weight.is_of_module)
            .map(|weight| weight.module)
            .collect();
        let mut named = named(base.tensors(), &names);
        for (tensor, rounded) in &rounded {
            if matches!(layouts[*tensor], Some(Layout::Mlx(_))) {
                named[*tensor].dtype = rounded.rounding.scales;
            }
        }
        let (mut tensors, mut origins) = (Vec::new(), Vec::new());
        let mut renamed = Map::new();
        let mut bytes = vec![0; base.tensors().len()];
        for (tensor, info) in base.tensors().iter().enumerate() {
            let Some(layout) = layouts[tensor] else {
                tensors.push(info.clone());
                origins.push(Origin { tensor, part: None });
                continue;
            };
            let own = &named[tensor].name;
            let mut parts = layout.parts(&named[tensor]);
            let names = parts
                .iter()
                .map(|(_, part)| CodingPart::of(own, tensor, &part.name).name_of(&info.name));
            match names.collect::<Option<Vec<String>>>() {
                Some(names) => parts.iter_mut().zip(names).for_each(|((_, part), name)| {
                    part.name = name;
                }),
                // The parts say nothing of the name that the weight has here.
                None => {
                    renamed.insert(own.clone(), info.name.clone().into());
                }
            }
            for (part, info) in parts {
                bytes[tensor] += info.byte_len()?;
                tensors.push(info);
                origins.push(Origin { tensor, part: Some((layout, part)) });
            }
        }

        let modules = named.iter().zip(&layouts).filter_map(|(info, layout)| {
            let module = info.name.strip_suffix(".weight").unwrap_or(&info.name);
            let layout = (*layout)?;
            let module = match layout {
                Layout::Mlx(_) => module_of_mlx(base.metadata(), module),
                _ => module.to_owned(),
            };
            Some((module, layout))
        });
        let statement = Statement::new(layout, modules, &ignored);
        let mut metadata = base.metadata().clone();
        let mut architecture = metadata.object(keys::ARCHITECTURE).cloned().unwrap_or_default();
        statement.put(&mut architecture);
        metadata.set(keys::ARCHITECTURE, architecture);
        if !renamed.is_empty() {
            metadata.set(keys::CODED, renamed);
        }
        let mut companions = Companions::of(&*base);
        let text = companions.read_named(&*base, CONFIG)?.ok_or_else(|| {
            Error::format("missing config.json, which must state how the weights are read")
        })?;
        let mut stated: Map<String, Value> = from_python(&text).map_err(|error| {
            Error::format(format!("no configuration: {}", apr_core::foreign(&error)))
                .in_file(CONFIG)
        })?;
        statement.put(&mut stated);
        companions.put(CONFIG, to_python(&stated));

        let sets = sets(&named);
        let count = sets.iter().max().map_or(0, |last| last + 1);
        let globals: Vec<OnceLock<f32>> = (0..count).map(|_| OnceLock::new()).collect();
        // Others of a set have the scale by which one was rounded.
        for (tensor, rounded) in &rounded {
            globals[sets[*tensor]].get_or_init(|| rounded.rounding.global);
        }
        let names = base.tensors().iter().map(|info| info.name.clone()).collect();
        let elements = base.tensors().iter().filter_map(|info| info.shape.elements());
        let elements = elements.fold(0, u64::saturating_add);
        Ok(Self {
            tensors,
            origins,
            metadata,
            companions,
            globals,
            sets,
            named,
            importance,
            errors: Arc::new(LaidErrors::new(layouts.clone(), rounded, names, bytes, elements)),
            layouts,
            base,
        })
    }

    /// Returns the quantization errors, which are complete after all weights were read.
    #[must_use]
    pub fn errors(&self) -> Arc<LaidErrors> {
        Arc::clone(&self.errors)
    }

    /// For each tensor, the one of the base that it is, and whether it is a part of that.
    pub fn places(&self) -> impl Iterator<Item = (usize, bool)> {
        self.origins.iter().map(|origin| (origin.tensor, origin.part.is_some()))
    }

    /// For each tensor of the base, the number of its set: weights of a set have one scale of all
    /// scales, where the layout has that.
    #[must_use]
    pub fn sets(&self) -> &[usize] {
        &self.sets
    }

    /// Values of rows of a weight.
    fn rows(&self, tensor: usize, first: u64, count: u64) -> Result<Vec<f32>> {
        finite_rows(&*self.base, tensor, first, count)
    }

    /// Returns the number of rows of a weight that are read in one step.
    fn at_once(&self, tensor: usize) -> u64 {
        at_once(&self.base.tensors()[tensor])
    }

    /// Returns the factor for the scales of a weight before they are stored.
    ///
    /// Weights that servers fuse have the same factor. In layouts without such a factor, it is 1.
    fn global(&self, tensor: usize, layout: Layout) -> Result<f32> {
        if !layout.has_global() {
            return Ok(1.0);
        }
        let set = self.sets[tensor];
        if let Some(global) = self.globals[set].get() {
            return Ok(*global);
        }
        let of_set = (0..self.sets.len()).filter(|other| self.sets[*other] == set);
        let taken = of_set.filter(|other| self.layouts[*other] == Some(layout));
        let global = global_scale(&*self.base, taken)?;
        Ok(*self.globals[set].get_or_init(|| global))
    }

    /// Returns the importance of the columns of a weight, if there is one.
    fn weights(&self, tensor: usize) -> Option<&[f32]> {
        self.importance.get(tensor)?.as_deref()
    }

    fn encoder(&self, tensor: usize, layout: Layout) -> Result<Encoder> {
        let rounding = layout.rounding(self.named[tensor].dtype, self.global(tensor, layout)?);
        let is_rounded = self.errors.is_rounded(tensor);
        Ok(Encoder { rounding, is_rounded })
    }

    /// Fills `buf` with bytes of a part that has some for each row, from `offset` on.
    fn encode(
        &self,
        tensor: usize,
        offset: u64,
        buf: &mut [u8],
        (layout, part): (Layout, Part),
    ) -> Result<()> {
        let info = &self.base.tensors()[tensor];
        let parts = layout.parts(&self.named[tensor]);
        let own = parts.iter().find(|(of, _)| *of == part).map(|(_, info)| info);
        let rows = info.shape.dims().first().copied().unwrap_or(1).max(1);
        let width = own.map(TensorInfo::byte_len).transpose()?.unwrap_or_default() / rows;
        let (encoder, weights) = (self.encoder(tensor, layout)?, self.weights(tensor));
        let mut moved = Moved::default();
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() && width > 0 {
            let first = at / width;
            let last = (at + rest.len() as u64).div_ceil(width).min(rows);
            let count = self.at_once(tensor).min(last.saturating_sub(first)).max(1);
            let values = self.rows(tensor, first, count)?;
            let mut made = Vec::new();
            let rows_of = values.chunks_exact(usize_of(info.shape.row_len())?);
            for (number, values) in (first..).zip(rows_of) {
                if part != Part::Codes {
                    made.extend(encoder.numbers(part, values, weights));
                    continue;
                }
                let codes = encoder.codes(values, weights);
                check_held(&encoder, (values, &codes.values), &info.name)?;
                // A row that is read in two pieces counts where it begins.
                if number * width >= offset {
                    moved.add_row(values, &codes.values);
                }
                made.extend(codes.bytes);
            }
            let skipped = usize_of(at - first * width)?;
            let len = made.len().saturating_sub(skipped).min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&made[skipped..skipped + len]);
            if len == 0 {
                return Err(past_end(&info.name, offset));
            }
            at += len as u64;
            rest = later;
        }
        self.errors.note(tensor, offset, moved);
        Ok(())
    }

    /// Fills `buf` with bytes of a part that has inputs as rows, from `offset` on: groups of inputs
    /// are encoded for all outputs, and turned.
    fn encode_columns(
        &self,
        tensor: usize,
        offset: u64,
        buf: &mut [u8],
        (layout, part): (Layout, Part),
    ) -> Result<()> {
        let info = &self.base.tensors()[tensor];
        let &[outputs, columns] = info.shape.dims() else {
            return Err(past_end(&info.name, offset));
        };
        let group = layout.group().unwrap_or(columns).max(1);
        // Bytes of an output in a group: 16 words of eight codes, or a scale.
        let (words, width) = if part == Part::Codes { (group / 8, 4) } else { (1, 2) };
        let of_group = words * outputs * width;
        let mut drift = Drift::default();
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let number = at / of_group;
            if number * group >= columns {
                return Err(past_end(&info.name, at));
            }
            let (made, moved) = self.turned_group(tensor, (number, group), (layout, part))?;
            if part == Part::Codes && number * of_group >= offset {
                drift.merge(&moved);
            }
            let skipped = usize_of(at - number * of_group)?;
            let len = (made.len() - skipped).min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&made[skipped..skipped + len]);
            at += len as u64;
            rest = later;
        }
        self.errors.note(tensor, offset, drift.into());
        Ok(())
    }

    /// Fills `buf` with zero points from `offset` on. A word holds the zero points of a group of 8
    /// rows.
    fn encode_zero_points(
        &self,
        tensor: usize,
        offset: u64,
        buf: &mut [u8],
        layout: Layout,
    ) -> Result<()> {
        const ROWS: u64 = 8;
        let info = &self.base.tensors()[tensor];
        let (encoder, weights) = (self.encoder(tensor, layout)?, self.weights(tensor));
        let (columns, rows) = (info.shape.row_len(), info.shape.dims().first().copied());
        let rows = rows.unwrap_or_default();
        let groups = usize_of(columns / layout.group().unwrap_or(columns).max(1))?;
        let width = 4 * groups as u64;
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let first = at / width * ROWS;
            if first >= rows {
                return Err(past_end(&info.name, at));
            }
            let values = self.rows(tensor, first, ROWS.min(rows - first))?;
            let mut words = vec![0_u32; groups];
            for (row, values) in values.chunks_exact(usize_of(columns)?).enumerate() {
                let zeros = encoder.zero_points(values, weights);
                words.iter_mut().zip(zeros).for_each(|(word, zero)| {
                    *word |= u32::from(zero) << (4 * row);
                });
            }
            let made: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
            let skipped = usize_of(at % width)?;
            let len = (made.len() - skipped).min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&made[skipped..skipped + len]);
            at += len as u64;
            rest = later;
        }
        Ok(())
    }

    /// Encodes one group of inputs for all outputs.
    ///
    /// Returns the words or scales, output by output, and the quantization error.
    fn turned_group(
        &self,
        tensor: usize,
        (number, group): (u64, u64),
        (layout, part): (Layout, Part),
    ) -> Result<(Vec<u8>, Drift)> {
        let info = &self.base.tensors()[tensor];
        let (width, columns) = (info.dtype.block_bytes(), info.shape.row_len());
        let outputs = info.shape.dims().first().copied().unwrap_or(0);
        let encoder = self.encoder(tensor, layout)?;
        let (at, width_of) = (usize_of(number)?, usize_of(group)?);
        let weights = self.weights(tensor).and_then(|weights| weights.chunks(width_of).nth(at));
        let (mut rows, mut moved) = (Vec::new(), Drift::default());
        let (mut bytes, mut values) = (vec![0; usize_of(group * width)?], Vec::new());
        for output in 0..outputs {
            let start = (output * columns + number * group) * width;
            self.base.read_tensor(tensor, start, &mut bytes)?;
            widen_f32(info.dtype, &bytes, &mut values);
            check_finite(&values, &info.name, NOT_FINITE)?;
            if part != Part::Codes {
                rows.push(encoder.numbers(part, &values, weights));
                continue;
            }
            let codes = encoder.codes(&values, weights);
            check_held(&encoder, (&values, &codes.values), &info.name)?;
            moved.merge(&Drift::of(&values, &codes.values));
            rows.push(codes.bytes);
        }
        let width = if part == Part::Codes { 4 } else { 2 };
        let count = rows.first().map_or(0, Vec::len) / width;
        let words = (0..count).flat_map(|word| {
            rows.iter().flat_map(move |row| row[word * width..(word + 1) * width].iter().copied())
        });
        Ok((words.collect(), moved))
    }
}

/// Values of rows of a weight, which are finite.
pub(super) fn finite_rows(
    reader: &dyn CheckpointReader,
    tensor: usize,
    first: u64,
    count: u64,
) -> Result<Vec<f32>> {
    let info = &reader.tensors()[tensor];
    let row = info.shape.row_len() * info.dtype.block_bytes();
    let mut bytes = vec![0; usize_of(row * count)?];
    reader.read_tensor(tensor, first * row, &mut bytes)?;
    let mut values = Vec::new();
    widen_f32(info.dtype, &bytes, &mut values);
    check_finite(&values, &info.name, NOT_FINITE)?;
    Ok(values)
}

fn usize_of(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Error::memory("a row is larger than memory can be"))
}

fn past_end(name: &str, offset: u64) -> Error {
    Error::corrupt("the read ends past the tensor").for_tensor(name).at(offset)
}

/// Checks that all values are finite; otherwise the error text is `message`.
fn check_finite(values: &[f32], name: &str, message: &str) -> Result<()> {
    if values.iter().all(|value| value.is_finite()) {
        return Ok(());
    }
    Err(Error::format(message.to_owned()).for_tensor(name))
}

/// Checks that codes represent finite values and, for rounded weights, exactly the rounded values.
fn check_held(encoder: &Encoder, (values, held): (&[f32], &[f32]), name: &str) -> Result<()> {
    check_finite(held, name, NOT_HELD)?;
    match encoder.is_rounded && values != held {
        true => Err(Error::format(NOT_KEPT).for_tensor(name)),
        false => Ok(()),
    }
}

/// Message for weights with values that are not finite.
const NOT_FINITE: &str = "NaN or infinite values, which codes can't represent";
const NOT_KEPT: &str = "values that were not rounded for this layout";
const NOT_HELD: &str = "values so large that codes and scales would make them infinite";

/// Copies a part of `bytes`.
fn copy(bytes: &[u8], offset: u64, buf: &mut [u8], name: &str) -> Result<()> {
    let from = usize::try_from(offset).ok().and_then(|start| bytes.get(start..)?.get(..buf.len()));
    let from = from.ok_or_else(|| past_end(name, offset))?;
    buf.copy_from_slice(from);
    Ok(())
}

impl CheckpointReader for Laid<'_> {
    pass_on!(base: format, files, left_out, warnings);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let origin = self.origins[tensor];
        let Some((_, part)) = origin.part else { return self.base.stored(origin.tensor) };
        let stored = Stored::derived_from(&*self.base, &[origin.tensor]);
        // The weight is read once, for its codes.
        stored.converted_from(&*self.base, origin.tensor, part == Part::Codes)
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (origin, name) = (self.origins[tensor], &self.tensors[tensor].name);
        match origin.part {
            None => self.base.read_tensor(origin.tensor, offset, buf),
            Some((_, Part::Shape)) => {
                let dims = self.base.tensors()[origin.tensor].shape.dims().iter();
                let bytes: Vec<u8> = dims.flat_map(|dim| dim.to_le_bytes()).collect();
                copy(&bytes, offset, buf, name)
            }
            Some((layout, Part::Global)) => {
                copy(&self.global(origin.tensor, layout)?.to_le_bytes(), offset, buf, name)
            }
            Some((_, Part::Zeros)) => {
                // 8, which version 1 stores less one.
                let len = self.tensors[tensor].byte_len()?;
                if offset.checked_add(buf.len() as u64).is_none_or(|end| end > len) {
                    return Err(past_end(name, offset));
                }
                buf.fill(0x77);
                Ok(())
            }
            Some((layout, Part::Groups)) => {
                let columns = self.base.tensors()[origin.tensor].shape.row_len();
                let groups = (0..columns).map(|column| column / layout.group().unwrap_or(1));
                let number = |group: u64| u32::try_from(group).unwrap_or(u32::MAX).to_le_bytes();
                let numbers = groups.flat_map(number);
                copy(&numbers.collect::<Vec<u8>>(), offset, buf, name)
            }
            Some((layout, Part::ZeroPoints)) => {
                self.encode_zero_points(origin.tensor, offset, buf, layout)
            }
            Some((Layout::Gptq4, part)) => {
                self.encode_columns(origin.tensor, offset, buf, (Layout::Gptq4, part))
            }
            Some(part) => self.encode(origin.tensor, offset, buf, part),
        }
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let origin = self.origins[tensor];
        if origin.part.is_some() { None } else { self.base.tensor_slice(origin.tensor) }
    }

    fn container(&self) -> Container<'_> {
        self.base.container().altered()
    }

    fn companions(&self) -> &[Companion] {
        self.companions.list()
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.companions.read(&*self.base, companion)
    }
}
