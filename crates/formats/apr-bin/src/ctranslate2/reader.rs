//! A file as a checkpoint.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use apr_core::json::{from_python, to_vec_pretty};
use apr_core::{
    ByteSource, Companion, DType, Error, Limits, Result, Shape, SharedSource, SourceSet,
    StoredRange, Table, TensorBytes, TensorDecoder, TensorInfo, counted, keys, read_vec,
};
use serde_json::{Map, Value, json};

use super::variables::{Variable, Variables};
use super::whisper::{self, Beside, Part};
use super::{FORMAT, MODEL};

/// Ending of the name of the scales of a weight of 8 or 16 bits.
const SCALE: &str = "_scale";

/// Largest variable that is a setting.
const MAX_SETTING: u64 = 1 << 12;

/// The configuration beside the file, and the tokenizer.
const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";

/// Codes of a weight of 8 or 16 bits, which are its values times a scale.
struct Codes {
    /// Type of the codes.
    dtype: DType,
    range: StoredRange,
    /// Offset of the first row's scale.
    scales: u64,
    /// `true` if all rows have one scale.
    is_common: bool,
    /// Elements of a row.
    width: u64,
}

/// Opens a file. Reads the descriptions of its variables, and its settings.
///
/// # Errors
/// E001 for a variable that two have the name of, E002 for a damaged file, E003 for another version
/// or unknown codes, E007 when reading fails.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    let table = Opened::read(Arc::new(source), name, &Beside::default(), |_| true, limits);
    table.map_err(|error| error.in_file(name))
}

/// Opens a file with the configuration in its folder.
///
/// # Errors
/// Those of [`open`], and E001 for a malformed configuration.
pub fn open_in(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<Table> {
    let source = set.open(name).map_err(|error| error.in_file(name))?;
    let mut beside = Beside::default();
    if name == MODEL && set.has(CONFIG) {
        beside.config = read_json(set, CONFIG, limits)?;
    }
    if name == MODEL && set.has(TOKENIZER) {
        beside.tokens = special_tokens(&read_json(set, TOKENIZER, limits)?);
    }
    // CTranslate2's own configuration is in ours.
    let is_there = |file: &str| file != CONFIG && set.has(file);
    let table = Opened::read(source.into(), name, &beside, is_there, limits);
    table.map_err(|error| error.in_file(name))
}

fn read_json(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<Map<String, Value>> {
    let read = || {
        let file = set.open(name)?;
        limits.check_metadata(file.len())?;
        let bytes = read_vec(&*file, 0, file.len())?;
        from_python(&bytes).map_err(|error| Error::format(error.to_string()))
    };
    read().map_err(|error: Error| error.in_file(name))
}

/// Returns the ids of the special tokens of a `tokenizer.json`.
fn special_tokens(tokenizer: &Map<String, Value>) -> BTreeMap<String, u64> {
    let added = tokenizer.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
    let token = |token: &Value| {
        Some((token.get("content")?.as_str()?.to_owned(), token.get("id")?.as_u64()?))
    };
    added.filter_map(token).collect()
}

/// A model that is being opened.
struct Opened {
    table: Table,
    source: SharedSource,
    specification: String,
}

impl Opened {
    /// Reads a model. The files of transformers' that `are_there` in its folder are not offered.
    fn read(
        source: SharedSource,
        name: &str,
        beside: &Beside,
        are_there: impl Fn(&str) -> bool,
        limits: &Limits,
    ) -> Result<Table> {
        let Variables { specification, all, rest } = Variables::read(&*source, limits)?;
        let is_whisper = specification == whisper::SPECIFICATION;
        let table = Table::of_file(&FORMAT, name, Arc::clone(&source));
        let mut opened = Self { table, source, specification };
        if rest > 0 {
            let warning = format!("{} after the model are not read", counted(rest, "byte"));
            opened.table.warnings.push(warning);
        }
        let mut settings = Map::new();
        for (name, variable) in &all {
            if is_setting(name, variable) {
                settings.insert(name.clone(), opened.setting(variable)?);
                continue;
            }
            if name.strip_suffix(SCALE).is_some_and(|weight| all.contains_key(weight)) {
                continue;
            }
            if is_whisper && whisper::is_tied(name, &all) {
                continue;
            }
            let known = if is_whisper { whisper::parts(name) } else { None };
            let parts = known.unwrap_or_else(|| vec![Part::whole(name.clone())]);
            let scales = all.get(&format!("{name}{SCALE}"));
            for part in parts {
                opened
                    .add(&part, variable, scales)
                    .map_err(|error| error.for_tensor(&part.name))?;
            }
        }
        if is_whisper {
            let config = whisper::configuration(&all, &settings, beside);
            opened.describe(&config, beside, are_there);
        }
        let Self { mut table, specification, .. } = opened;
        table.show("container", FORMAT.id);
        table.show("specification", specification.as_str());
        let format = json!({ "specification": specification, "settings": settings });
        table.metadata.set("ctranslate2", format);
        Ok(table)
    }

    fn setting(&self, variable: &Variable) -> Result<Value> {
        let bytes = read_vec(&*self.source, variable.offset, variable.len)?;
        let numbers = numbers_of(variable.dtype, &bytes);
        Ok(match &numbers[..] {
            [number] if variable.shape.dims().is_empty() => number.clone(),
            _ => numbers.into(),
        })
    }

    fn add(&mut self, part: &Part, variable: &Variable, scales: Option<&Variable>) -> Result<()> {
        let mut dims = variable.shape.dims().to_vec();
        let rows = dims.first().copied().unwrap_or(1);
        if rows % part.count != 0 {
            let message = format!("{rows} rows can't be divided into {}", part.count);
            return Err(Error::corrupt(message).at(variable.offset));
        }
        if let Some(first) = dims.first_mut() {
            *first = rows / part.count;
        }
        let len = variable.len / part.count;
        let range = StoredRange { file: 0, offset: variable.offset + part.place * len, len };
        if self.specification == whisper::SPECIFICATION && whisper::is_absent(&part.name) {
            let bytes = read_vec(&*self.source, range.offset, range.len)?;
            if bytes.iter().all(|byte| *byte == 0) {
                return Ok(());
            }
        }
        let (dtype, bytes) = match scales {
            Some(scales) => {
                let codes = Codes::of((variable, range), scales, part)?;
                (DType::F32, TensorBytes::decoded(codes))
            }
            None => (variable.dtype, TensorBytes::Plain(range)),
        };
        let info = TensorInfo { name: part.name.clone(), dtype, shape: Shape::from(dims) };
        self.table.add(info, bytes)
    }

    /// Adds what transformers has in files.
    fn describe(
        &mut self,
        config: &Map<String, Value>,
        beside: &Beside,
        are_there: impl Fn(&str) -> bool,
    ) {
        let mut architecture = config.clone();
        let model_type = architecture.remove("model_type").unwrap_or_default();
        self.table.metadata.set(keys::MODEL_TYPE, model_type);
        self.table.metadata.set(keys::ARCHITECTURE, architecture);
        let generation = whisper::generation(config, beside);
        let preprocessor = whisper::preprocessor(config);
        let files = [
            (CONFIG, config),
            ("generation_config.json", &generation),
            ("preprocessor_config.json", &preprocessor),
        ];
        for (name, content) in files.into_iter().filter(|(name, _)| !are_there(name)) {
            let bytes = to_vec_pretty(content).unwrap_or_default();
            let companion = Companion { name: name.to_owned(), len: bytes.len() as u64 };
            self.table.offer(companion, move |_| Ok(bytes.clone()));
        }
    }
}

/// Returns `true` for what is no weight: numbers, and lists of a Whisper model's heads.
fn is_setting(name: &str, variable: &Variable) -> bool {
    let is_number = variable.shape.dims().is_empty();
    (is_number && !name.ends_with(SCALE) || name.ends_with("/alignment_heads"))
        && variable.len <= MAX_SETTING
}

impl Codes {
    fn of(
        (weight, range): (&Variable, StoredRange),
        scales: &Variable,
        part: &Part,
    ) -> Result<Self> {
        let dims = weight.shape.dims();
        let rows = dims.first().copied().unwrap_or(1);
        let width = dims.iter().skip(1).fold(1_u64, |width, dim| width.saturating_mul(*dim)).max(1);
        let count = scales.shape.elements().unwrap_or_default();
        let is_known = matches!(weight.dtype, DType::I8 | DType::I16)
            && scales.dtype == DType::F32
            && (count == rows || count == 1);
        if !is_known {
            return Err(Error::version(format!(
                "codes of type {} with {count} scales for {rows} rows",
                weight.dtype
            )));
        }
        let is_common = count == 1;
        let before = if is_common { 0 } else { part.place * (rows / part.count) };
        let scales = scales.offset + 4 * before;
        Ok(Self { dtype: weight.dtype, range, scales, is_common, width })
    }

    fn scales(&self, source: &dyn ByteSource, rows: Range<u64>) -> Result<Vec<f32>> {
        let (first, count) =
            if self.is_common { (0, 1) } else { (rows.start, rows.end - rows.start) };
        let bytes = read_vec(source, self.scales + 4 * first, 4 * count)?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}

impl TensorDecoder for Codes {
    fn range(&self) -> StoredRange {
        self.range
    }

    /// Fills `buf` with values of single precision: codes divided by the scale of their row.
    fn read(&self, sources: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        let (source, width) = (&*sources[0], self.width);
        let size = self.dtype.block_bytes();
        let elements = offset / 4..(offset + buf.len() as u64).div_ceil(4);
        let first = self.range.offset + elements.start * size;
        let bytes = read_vec(source, first, (elements.end - elements.start) * size)?;
        let rows = elements.start / width..(elements.end - 1) / width + 1;
        let scales = self.scales(source, rows.clone())?;
        let codes = floats_of(self.dtype, &bytes);
        let mut decoded = Vec::with_capacity(codes.len() * 4);
        for (element, code) in elements.zip(codes) {
            let scale = match self.is_common {
                true => scales[0],
                false => scales[usize::try_from(element / width - rows.start).unwrap_or_default()],
            };
            decoded.extend((code / scale).to_le_bytes());
        }
        let skipped = usize::try_from(offset % 4).unwrap_or_default();
        buf.copy_from_slice(&decoded[skipped..skipped + buf.len()]);
        Ok(())
    }
}

/// Returns codes of 8 or 16 bits as floats, from their bytes.
fn floats_of(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    if dtype == DType::I8 {
        return bytes.iter().map(|byte| f32::from(byte.cast_signed())).collect();
    }
    bytes.as_chunks().0.iter().map(|bytes| f32::from(i16::from_le_bytes(*bytes))).collect()
}

/// Returns numbers as JSON, from their bytes.
fn numbers_of(dtype: DType, bytes: &[u8]) -> Vec<Value> {
    match dtype {
        DType::I8 => bytes.iter().map(|byte| i64::from(byte.cast_signed()).into()).collect(),
        DType::I16 => {
            let numbers = bytes.as_chunks().0.iter().map(|bytes| i16::from_le_bytes(*bytes));
            numbers.map(|number| i64::from(number).into()).collect()
        }
        DType::I32 => {
            let numbers = bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
            numbers.map(|number| i64::from(number).into()).collect()
        }
        DType::F32 => {
            let numbers = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            numbers.map(|number| f64::from(number).into()).collect()
        }
        _ => Vec::new(),
    }
}
