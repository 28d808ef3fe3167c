//! The tensors of a GGUF file: which there are, what they are called, and what each is made from.

use std::collections::{BTreeMap, HashSet};

use apr_arch::{
    CANONICAL, FamilyModel, GGUF, GgufLayout, HUGGING_FACE, Naming, TensorKind, is_of_others,
};
use apr_core::counted;
use apr_gguf::{Array, KeyValue, Value as Typed};
use apr_registry::{CheckpointReader, DType, Error, Loss, Result, TensorInfo, keys};
use apr_view::{Change, TensorOrigin, values};

use crate::hyperparameters::{Facts, single};
use crate::layouts;
use crate::reranker::Answers;
use crate::rope;

/// Maximum number of rotary dimensions of a head.
const MAX_HEAD: u64 = 1 << 16;

/// Canonical names of the tensors that llama.cpp reads rotary factors from.
pub(super) const LLAMA3: &str = "rope_freqs.weight";
pub(super) const LONG: &str = "rope_factors_long.weight";
const SHORT: &str = "rope_factors_short.weight";

/// Ends of the names of four-bit floats and of their exponents.
const BLOCKS: &str = "_blocks";
const SCALES: &str = "_scales";

/// The tensor with a row for each token, and the one that is multiplied with it at the end.
const TOKENS: &str = "token_embd.weight";
const HEAD: &str = "output.weight";

pub(super) struct ExportPlan<'p, 'a> {
    reader: &'a dyn CheckpointReader,
    model: &'p FamilyModel<'p>,
    pub(super) tensors: Vec<(TensorInfo, TensorOrigin)>,
    pub(super) losses: Vec<Loss>,
    /// Names that are taken.
    names: HashSet<String>,
    /// Canonical names of tensors whose values are in keys.
    lists: HashSet<String>,
    /// `true` if a classifier is made of rows of the head.
    has_answers: bool,
}

impl<'p, 'a> ExportPlan<'p, 'a> {
    pub(super) fn new(reader: &'a dyn CheckpointReader, model: &'p FamilyModel<'p>) -> Self {
        Self {
            reader,
            model,
            tensors: Vec::new(),
            losses: Vec::new(),
            names: HashSet::new(),
            lists: model.gguf_lists().into_iter().flat_map(|(_, tensors)| tensors).collect(),
            has_answers: false,
        }
    }

    /// Tensors that Hugging Face's models compute from their configuration.
    ///
    /// # Errors
    /// E001 when the factors of positions are not as many as the rotated dimensions need, or can't
    /// be computed with.
    pub(super) fn add_computed(&mut self, facts: &Facts, keys: &[KeyValue]) -> Result<()> {
        let has = |name: &str| {
            self.model.family().source_name(name, &Naming::new(CANONICAL, "")).is_some()
        };

        // A configuration may say any size, and there is a factor for each pair of dimensions.
        let head = self.model.dimension("head_dim").filter(|&head| head <= MAX_HEAD);
        let mut computed = Vec::new();
        if let (true, Some(head)) = (has(LLAMA3), head) {
            // Heads of Gemma 4 that are turned in part are wider than the others.
            let wide = self.model.dimension("full_head_dim").filter(|&head| head <= MAX_HEAD);
            let factors = rope::llama3_factors(&facts.config, head)
                .or_else(|| rope::proportional_factors(&facts.config, wide.unwrap_or(head)));
            computed.extend(factors.map(|factors| (LLAMA3, factors)));
        }

        if let (true, Some([long, short])) = (has(LONG), rope::long_and_short(&facts.config)) {
            let rotated = keys.iter().find(|pair| pair.key.ends_with(".rope.dimension_count"));
            let rotated = rotated.and_then(|pair| pair.value.as_u64());
            if let Some(rotated) = rotated.filter(|&rotated| rotated != 2 * long.len() as u64) {
                let has = counted(long.len() as u64, "factor");
                let why = format!(
                    "config.json's 'rope_scaling' has {has}, but {rotated} dimensions need half as \
                     many"
                );
                return Err(Error::format(why));
            }
            computed.extend([(LONG, long), (SHORT, short)]);
        }

        for (name, factors) in computed {
            if let Some(wrong) =
                factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0))
            {
                let why = format!(
                    "config.json's 'rope_scaling' leads to the factor {wrong}, not a finite one \
                     above 0"
                );
                return Err(Error::format(why).for_tensor(name));
            }
            let info = TensorInfo {
                name: name.to_owned(),
                dtype: DType::F32,
                shape: [factors.len() as u64].into(),
            };
            let bytes = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
            self.add(info, TensorOrigin::Own(bytes));
        }

        Ok(())
    }

    /// Adds a classifier of the rows of yes and no of a language model's head, or of the table that
    /// is also its head.
    ///
    /// # Errors
    /// E001 when there is neither, or no such row; E002 and E007 when a row can't be read.
    pub(super) fn add_answers(&mut self, answers: Answers) -> Result<()> {
        let family = self.model.family();
        let named = |name: &str| {
            (0..self.reader.tensors().len()).find(|position| {
                let canonical = self.model.canonical(*position);
                let source = |it| family.source_name(it, &Naming::new(GGUF, ""));
                canonical.and_then(source).as_deref() == Some(name)
            })
        };
        let position = named(HEAD).or_else(|| named(TOKENS));
        let position = position.ok_or_else(|| Error::format("the model has no head"))?;
        let info = &self.reader.tensors()[position];
        let [rows, width] = info.shape.dims()[..] else {
            return Err(Error::format("the head must be a matrix").for_tensor(&info.name));
        };
        let mut bytes = Vec::new();
        for token in [answers.yes, answers.no] {
            if token >= rows {
                let why = format!("it has {rows} rows, and none for the token {token}");
                return Err(Error::format(why).for_tensor(&info.name));
            }
            let row = values::read(self.reader, position, token * width..(token + 1) * width)?;
            bytes.extend(row.iter().flat_map(|value| single(*value).to_le_bytes()));
        }
        let name = "cls.output.weight".to_owned();
        let info = TensorInfo { name, dtype: DType::F32, shape: [2, width].into() };
        self.add(info, TensorOrigin::Own(bytes));
        self.has_answers = true;
        Ok(())
    }

    fn add(&mut self, info: TensorInfo, origin: TensorOrigin) {
        self.names.insert(info.name.clone());
        self.tensors.push((info, origin));
    }

    fn lose(&mut self, name: &str, why: &str) {
        self.losses.push(Loss {
            name: name.to_owned(),
            what: "left out".to_owned(),
            why: why.to_owned(),
        });
    }

    pub(super) fn add_all(&mut self) -> Result<()> {
        let stacks = self.stacks();
        let model = self.model;
        let is_extra = model.is_extra();
        for (position, info) in self.reader.tensors().iter().enumerate() {
            // The mel filterbank that an import adds is no weight.
            if self.reader.metadata().auxiliary_tensor() == Some(&info.name) {
                continue;
            }

            let Some(canonical) = self.model.canonical(position) else {
                self.lose_stranger(&info.name, is_extra(&info.name))?;
                continue;
            };

            if let Some((stack, _)) = self.model.family().stack(canonical) {
                // All of them are there once the last one has come.
                if let Some(parts) =
                    stacks.get(&stack).filter(|parts| parts.values().max() == Some(&position))
                {
                    self.add_stack(&stack, parts)?;
                }
                continue;
            }

            self.add_known(position, canonical)?;
        }

        self.check_needs()
    }

    /// # Errors
    /// E001 when a tensor is missing that llama.cpp reads in every layer.
    fn check_needs(&self) -> Result<()> {
        let is_missing =
            |name: &String| self.model.gguf_name(name).is_some_and(|it| !self.names.contains(&it));
        match self.model.gguf_needs().into_iter().find(is_missing) {
            Some(name) => {
                let family = self.model.family();
                let naming = family.default_naming(HUGGING_FACE);
                let source = naming.and_then(|naming| family.source_name(&name, &naming));
                let name = source.unwrap_or(name);
                let why = "missing tensor: the model does without it, but llama.cpp reads it in \
                           every layer";
                Err(Error::format(why).for_tensor(name))
            }
            None => Ok(()),
        }
    }

    /// Returns the keys that have the values of tensors, a list with one for each layer.
    ///
    /// # Errors
    /// E001 when such a tensor is missing or has several values, E002 and E007 when it can't be
    /// read.
    pub(super) fn lists(&self) -> Result<Vec<KeyValue>> {
        let mut positions = BTreeMap::new();
        for position in 0..self.reader.tensors().len() {
            positions.extend(self.model.canonical(position).map(|name| (name, position)));
        }
        let value = |key: &str, name: &str| -> Result<f32> {
            let missing =
                || Error::format(format!("missing tensor, which llama.cpp needs as {key}"));
            let position = *positions.get(name).ok_or_else(|| missing().for_tensor(name))?;
            let info = &self.reader.tensors()[position];
            if info.shape.elements() != Some(1) {
                let why = format!("its shape is {}, but llama.cpp has one value of it", info.shape);
                return Err(Error::format(why).for_tensor(&info.name));
            }
            let values = values::read(self.reader, position, 0..1)?;
            Ok(values.first().copied().map_or(0.0, single))
        };
        let lists = self.model.gguf_lists();
        let list = |(key, names): &(&str, Vec<String>)| {
            let values: Result<Vec<f32>> = names.iter().map(|name| value(key, name)).collect();
            Ok(KeyValue::new(*key, values?))
        };
        lists.iter().map(list).collect()
    }

    /// Adds a tensor that stays one tensor or is split.
    fn add_known(&mut self, position: usize, canonical: &str) -> Result<()> {
        if self.model.is_without(canonical) {
            let why = "a layer that predicts further tokens, which generating text does not need";
            self.lose(&self.reader.tensors()[position].name, why);
            return Ok(());
        }

        if let Some(whole) = canonical.strip_suffix(BLOCKS) {
            return self.add_four_bits(position, whole);
        }
        // Exponents go along with their elements.
        if canonical.ends_with(SCALES) {
            return Ok(());
        }

        let cuts = self.model.family().cuts(canonical);
        if !cuts.is_empty() {
            return cuts.iter().try_for_each(|part| self.add_cut(position, part));
        }

        // Its value is in a key.
        if self.lists.contains(canonical) {
            return Ok(());
        }

        // Masks and frequencies, for example.
        if self.model.family().kind(canonical) == Some(TensorKind::Buffer) {
            let reader = self.reader;
            self.lose(&reader.tensors()[position].name, "llama.cpp computes it");
            return Ok(());
        }

        match self.model.gguf_name(canonical) {
            Some(name) => self.add_named(position, canonical, name),
            None => self.lose_unnamed(position, canonical),
        }
    }

    /// Adds a tensor that llama.cpp has a name for, unless it is there already or of no use to it.
    fn add_named(&mut self, position: usize, canonical: &str, name: String) -> Result<()> {
        let own = &self.reader.tensors()[position].name;
        let tied = self.reader.metadata().object(keys::TIED);
        // The tensor that has these bytes goes into the file itself.
        if tied.is_some_and(|tied| tied.contains_key(own)) {
            return Ok(());
        }

        if name == HEAD && self.has_answers {
            self.lose(own, "a reranker takes its rows of yes and no alone");
            return Ok(());
        }

        if name.starts_with("cls.") && !self.classifies_texts() {
            self.lose(own, "llama.cpp classifies whole texts only");
            return Ok(());
        }

        if self.names.contains(&name) {
            self.lose(own, &format!("another tensor maps to llama.cpp's {name}"));
            return Ok(());
        }

        self.add_one(position, canonical, name)
    }

    /// Leaves out a tensor that the family does not know. One of an `extra` part belongs to another
    /// task.
    ///
    /// # Errors
    /// E001 when it is of one of the family's layers.
    fn lose_stranger(&mut self, name: &str, extra: bool) -> Result<()> {
        if is_of_others(name) {
            self.lose(name, OF_ANOTHER_PART);
            return Ok(());
        }
        self.lose_unless_of_layer(name, if extra { "" } else { name })
    }

    /// Omits a tensor that has no name in llama.cpp.
    ///
    /// # Errors
    /// E001 if the tensor belongs to a layer, which can't run without it.
    fn lose_unnamed(&mut self, position: usize, canonical: &str) -> Result<()> {
        let reader = self.reader;
        self.lose_unless_of_layer(&reader.tensors()[position].name, canonical)
    }

    /// Omits the tensor `own`, unless a layer needs it. `place` is the name of its place.
    fn lose_unless_of_layer(&mut self, own: &str, place: &str) -> Result<()> {
        if is_of_layer(place) {
            let architecture = self.model.gguf_architecture().unwrap_or_default();
            let why =
                format!("llama.cpp's {architecture} has no such tensor, and the layer needs it");
            return Err(Error::format(why).for_tensor(own));
        }
        self.lose(own, "llama.cpp has no such tensor");
        Ok(())
    }

    /// Returns `true` if a classifier is for whole texts, as far as the configuration shows.
    fn classifies_texts(&self) -> bool {
        let architecture = self.reader.metadata().object(keys::ARCHITECTURE);
        let class = architecture.and_then(|config| config.get("architectures")?.get(0)?.as_str());
        class.is_none_or(|class| class.ends_with("ForSequenceClassification"))
    }

    fn add_one(&mut self, position: usize, canonical: &str, name: String) -> Result<()> {
        let source = &self.reader.tensors()[position];
        let mut info = source.clone();
        let origin = match self.model.gguf_layout(canonical)? {
            GgufLayout::Same => TensorOrigin::Base(position),
            GgufLayout::Swap(order) => {
                TensorOrigin::Changed(Change::rows(source, position, order)?)
            }
            GgufLayout::Add(constant) => {
                TensorOrigin::Changed(Change::sum(&mut info, position, constant)?)
            }
            GgufLayout::Groups(order) => {
                TensorOrigin::Changed(Change::grouped(source, position, order, false)?)
            }
            GgufLayout::Transposed => {
                TensorOrigin::Changed(Change::transposed(&mut info, position)?)
            }
            GgufLayout::SkipRows(skipped) => {
                let (rows, first) = rows_after(source, skipped)?;
                TensorOrigin::Changed(Change::some_rows(&mut info, position, first, rows)?)
            }
            GgufLayout::Rows(rows) => {
                TensorOrigin::Changed(Change::with_rows(&mut info, position, rows)?)
            }
            GgufLayout::Arranged(arranged) => {
                TensorOrigin::Changed(layouts::arranged(&mut info, position, arranged)?)
            }
            GgufLayout::Scaled(factors) => {
                TensorOrigin::Changed(layouts::scaled(&mut info, position, factors)?)
            }
            _ => {
                return Err(Error::format("its layout is not known to this version")
                    .for_tensor(&source.name));
            }
        };

        info.name = name;
        self.add(info, origin);
        Ok(())
    }

    /// Adds what GGUF has of the tensor at this position under another name.
    fn add_cut(&mut self, position: usize, part: &str) -> Result<()> {
        let name = self.model.gguf_name(part);
        let (Some(name), Some(cut)) = (name, self.model.gguf_cut(part)?) else { return Ok(()) };
        let source = &self.reader.tensors()[position];
        let (info, change) = match cut.flat {
            true => layouts::dealt(source, position, &cut, &name)?,
            false => Change::cut(source, position, layouts::rows_of(&cut)?, &name)?,
        };
        self.add(info, TensorOrigin::Changed(change));
        Ok(())
    }

    /// Adds what GGUF has of four-bit floats whose elements are at this position, and their
    /// exponents beside them.
    fn add_four_bits(&mut self, position: usize, whole: &str) -> Result<()> {
        let (tensors, scales) = (self.reader.tensors(), format!("{whole}{SCALES}"));
        let at = (0..tensors.len())
            .find(|&at| self.model.canonical(at) == Some(&scales))
            .ok_or_else(|| {
                Error::format("the exponents of its four-bit floats are missing")
                    .for_tensor(&tensors[position].name)
            })?;
        for part in self.model.family().cuts(whole) {
            let name = self.model.gguf_name(&part);
            let (Some(name), Some(cut)) = (name, self.model.gguf_cut(&part)?) else { continue };
            let (blocks, scales) = ((&tensors[position], position), (&tensors[at], at));
            let (info, change) = Change::four_bits(blocks, scales, layouts::rows_of(&cut)?, &name)?;
            self.add(info, TensorOrigin::Changed(change));
        }

        Ok(())
    }

    /// Parts of the tensors that GGUF stacks, by their place.
    fn stacks(&self) -> BTreeMap<String, BTreeMap<u64, usize>> {
        let mut stacks: BTreeMap<String, BTreeMap<u64, usize>> = BTreeMap::new();
        for position in 0..self.reader.tensors().len() {
            let stack = self
                .model
                .canonical(position)
                .and_then(|canonical| self.model.family().stack(canonical));
            if let Some((stack, place)) = stack {
                stacks.entry(stack).or_default().insert(place, position);
            }
        }
        stacks
    }

    fn add_stack(&mut self, stack: &str, parts: &BTreeMap<u64, usize>) -> Result<()> {
        let tensors = self.reader.tensors();
        let count = self.model.parts_of(stack).unwrap_or(parts.len() as u64);
        let positions: Vec<usize> = parts.values().copied().collect();
        let is_whole = count == parts.len() as u64 && parts.keys().copied().eq(0..count);
        if let (false, Some(&first)) = (is_whole, positions.first()) {
            let what = match stack {
                experts if experts.contains("experts") => "expert",
                streams if streams.starts_with("streams") => "matrix",
                _ => "head",
            };
            let has = counted(parts.len() as u64, what);
            let why = format!("its layer has {has}, but llama.cpp needs all {count} in one tensor");
            return Err(Error::format(why).for_tensor(&tensors[first].name));
        }

        let name = self.model.gguf_name(stack).unwrap_or_else(|| stack.to_owned());
        let (info, change) = Change::stack(tensors, &positions, &name)?;
        self.add(info, TensorOrigin::Changed(change));
        Ok(())
    }

    /// Cuts tensors to the number of tokens, which llama.cpp requires. Rows without a token are
    /// padding.
    pub(super) fn cut_to_vocabulary(&mut self, tokenizer: &[KeyValue]) -> Result<()> {
        let tokens = tokenizer.iter().find(|pair| pair.key == "tokenizer.ggml.tokens");
        let Some(Typed::Array(Array::String(tokens))) = tokens.map(|pair| &pair.value) else {
            return Ok(());
        };
        let tokens = tokens.len() as u64;
        for (info, origin) in &mut self.tensors {
            let is_by_token =
                [TOKENS, "output.weight", "output.bias"].contains(&info.name.as_str());
            let rows = info.shape.dims().first().copied().unwrap_or_default();
            let (true, TensorOrigin::Base(position)) = (is_by_token && rows != tokens, &*origin)
            else {
                continue;
            };
            let position = *position;
            let [has, takes] = [counted(tokens, "token"), counted(rows, "row")];
            if rows < tokens {
                let why = format!(
                    "the tokenizer has {has}, but it has {takes}: llama.cpp needs a row for each"
                );
                return Err(Error::format(why).for_tensor(&self.reader.tensors()[position].name));
            }

            *origin = TensorOrigin::Changed(Change::some_rows(info, position, 0, tokens)?);
            self.losses.push(Loss {
                name: self.reader.tensors()[position].name.clone(),
                what: format!("the last {} dropped", counted(rows - tokens, "row")),
                why: format!("the tokenizer has {has}, and llama.cpp takes a row for each"),
            });
        }

        Ok(())
    }
}

/// Returns the number of rows after the skipped ones, and the first of them.
fn rows_after(info: &TensorInfo, skipped: u64) -> Result<(u64, i64)> {
    let rows = info.shape.dims().first().and_then(|rows| rows.checked_sub(skipped));
    rows.zip(i64::try_from(skipped).ok()).ok_or_else(|| {
        let has = format!(
            "its shape is {}, but llama.cpp leaves out its first {skipped} rows",
            info.shape
        );
        Error::format(has).for_tensor(&info.name)
    })
}

/// Reason why tensors of other parts than the language model are not in the file.
const OF_ANOTHER_PART: &str = "llama.cpp reads vision and audio parts from separate files; \
                               `mmproj` selects the vision part";

fn is_of_layer(canonical: &str) -> bool {
    canonical
        .split('.')
        .any(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}
