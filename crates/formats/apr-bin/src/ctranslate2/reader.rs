//! A file as a checkpoint.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use apr_core::json::{from_python, to_vec_pretty};
use apr_core::{
    ByteSource, CheckpointReader, Companion, ContainerFacts, DType, Error, FileInfo, Format,
    Limits, Metadata, Result, Shape, SourceSet, Stored, StoredRange, TensorInfo, check_range,
    counted, has_own, keys, read_vec,
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

/// A model of CTranslate2 opened for reading; [`open`] makes it.
pub struct Ctranslate2Reader {
    source: Box<dyn ByteSource>,
    files: Vec<FileInfo>,
    specification: String,
    tensors: Vec<TensorInfo>,
    places: Vec<Place>,
    metadata: Metadata,
    companions: Vec<Companion>,
    contents: Vec<Vec<u8>>,
    left_out: Vec<String>,
    warnings: Vec<String>,
}

/// Where the bytes of a tensor lie.
#[derive(Debug)]
struct Place {
    range: StoredRange,
    /// Type of the codes and place of the scales, of a weight of 8 or 16 bits.
    codes: Option<Codes>,
}

/// Codes of a weight, which are its values times a scale.
#[derive(Debug)]
struct Codes {
    dtype: DType,
    /// Offset of the first row's scale.
    scales: u64,
    /// `true` if all rows have one scale.
    is_common: bool,
}

/// Opens a file. Reads the descriptions of its variables, and its settings.
///
/// # Errors
/// E001 for a variable that two have the name of, E002 for a damaged file, E003 for another version
/// or unknown codes, E007 when reading fails.
pub fn open<S: ByteSource + 'static>(
    source: S,
    name: &str,
    limits: &Limits,
) -> Result<Ctranslate2Reader> {
    let reader = Ctranslate2Reader::read(Box::new(source), name, &Beside::default(), limits);
    reader.map(|reader| reader.without_files(|_| true)).map_err(|error| error.in_file(name))
}

/// Opens a file with the configuration in its folder.
///
/// # Errors
/// Those of [`open`], and E001 for a malformed configuration.
pub fn open_in(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<Ctranslate2Reader> {
    let source = set.open(name).map_err(|error| error.in_file(name))?;
    let mut beside = Beside::default();
    if name == MODEL && set.has(CONFIG) {
        beside.config = read_json(set, CONFIG, limits)?;
    }
    if name == MODEL && set.has(TOKENIZER) {
        beside.tokens = special_tokens(&read_json(set, TOKENIZER, limits)?);
    }
    let reader = Ctranslate2Reader::read(source, name, &beside, limits);
    // CTranslate2's own configuration is in ours.
    let is_there = |file: &str| file != CONFIG && set.has(file);
    reader.map(|reader| reader.without_files(is_there)).map_err(|error| error.in_file(name))
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

impl Ctranslate2Reader {
    fn read(
        source: Box<dyn ByteSource>,
        name: &str,
        beside: &Beside,
        limits: &Limits,
    ) -> Result<Self> {
        let Variables { specification, all, rest } = Variables::read(&*source, limits)?;
        let is_whisper = specification == whisper::SPECIFICATION;
        let mut reader = Self {
            files: vec![FileInfo { name: name.to_owned(), len: source.len() }],
            source,
            tensors: Vec::new(),
            places: Vec::new(),
            metadata: Metadata::new(),
            companions: Vec::new(),
            contents: Vec::new(),
            left_out: Vec::new(),
            warnings: Vec::new(),
            specification,
        };
        if rest > 0 {
            reader.warnings.push(format!("{} after the model are not read", counted(rest, "byte")));
        }
        let mut settings = Map::new();
        for (name, variable) in &all {
            if reader.is_setting(name, variable) {
                settings.insert(name.clone(), reader.setting(variable)?);
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
                reader
                    .add(&part, variable, scales)
                    .map_err(|error| error.for_tensor(&part.name))?;
            }
        }
        if is_whisper {
            reader.describe(&whisper::configuration(&all, &settings, beside), beside);
        }
        let format = json!({ "specification": reader.specification, "settings": settings });
        reader.metadata.set("ctranslate2", format);
        Ok(reader)
    }

    /// Returns `true` for what is no weight: numbers, and lists of a Whisper model's heads.
    fn is_setting(&self, name: &str, variable: &Variable) -> bool {
        let is_number = variable.shape.dims().is_empty();
        (is_number && !name.ends_with(SCALE) || name.ends_with("/alignment_heads"))
            && variable.len <= MAX_SETTING
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
        let codes = scales.map(|scales| Codes::of(variable, scales, part)).transpose()?;
        let dtype = if codes.is_some() { DType::F32 } else { variable.dtype };
        self.tensors.push(TensorInfo { name: part.name.clone(), dtype, shape: Shape::from(dims) });
        self.places.push(Place { range, codes });
        Ok(())
    }

    /// Adds what transformers has in files.
    fn describe(&mut self, config: &Map<String, Value>, beside: &Beside) {
        let mut architecture = config.clone();
        let model_type = architecture.remove("model_type").unwrap_or_default();
        self.metadata.set(keys::MODEL_TYPE, model_type);
        self.metadata.set(keys::ARCHITECTURE, architecture);
        let generation = whisper::generation(config, beside);
        let preprocessor = whisper::preprocessor(config);
        let files = [
            (CONFIG, config),
            ("generation_config.json", &generation),
            ("preprocessor_config.json", &preprocessor),
        ];
        for (name, content) in files {
            let bytes = to_vec_pretty(content).unwrap_or_default();
            self.companions.push(Companion { name: name.to_owned(), len: bytes.len() as u64 });
            self.contents.push(bytes);
        }
    }

    /// Removes files, in whose place those beside the model are its companions.
    fn without_files(self, are_there: impl Fn(&str) -> bool) -> Self {
        let files = self.companions.into_iter().zip(self.contents);
        let kept = files.filter(|(file, _)| !are_there(&file.name));
        let (companions, contents) = kept.unzip();
        Self { companions, contents, ..self }
    }

    fn read_plain(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let Place { range, codes } = &self.places[tensor];
        match codes {
            None => self.source.read_at(range.offset + offset, buf),
            Some(codes) => self.read_codes(tensor, codes, offset, buf),
        }
    }

    /// Fills `buf` with values of single precision: codes divided by the scale of their row.
    fn read_codes(&self, tensor: usize, codes: &Codes, offset: u64, buf: &mut [u8]) -> Result<()> {
        let width = self.tensors[tensor].shape.dims().iter().skip(1).product::<u64>().max(1);
        let size = codes.dtype.block_bytes();
        let elements = offset / 4..(offset + buf.len() as u64).div_ceil(4);
        if elements.is_empty() {
            return Ok(());
        }
        let first = self.places[tensor].range.offset + elements.start * size;
        let bytes = read_vec(&*self.source, first, (elements.end - elements.start) * size)?;
        let rows = elements.start / width..(elements.end - 1) / width + 1;
        let scales = codes.scales(&*self.source, rows.clone())?;
        let codes_read = floats_of(codes.dtype, &bytes);
        let mut decoded = Vec::with_capacity(codes_read.len() * 4);
        for (element, code) in elements.zip(codes_read) {
            let scale = match codes.is_common {
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

impl Codes {
    fn of(weight: &Variable, scales: &Variable, part: &Part) -> Result<Self> {
        let rows = weight.shape.dims().first().copied().unwrap_or(1);
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
        Ok(Self { dtype: weight.dtype, scales: scales.offset + 4 * before, is_common })
    }

    fn scales(&self, source: &dyn ByteSource, rows: Range<u64>) -> Result<Vec<f32>> {
        let (first, count) =
            if self.is_common { (0, 1) } else { (rows.start, rows.end - rows.start) };
        let bytes = read_vec(source, self.scales + 4 * first, 4 * count)?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
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

impl ContainerFacts for Ctranslate2Reader {
    fn header_fields(&self) -> Value {
        json!({ "container": FORMAT.id, "specification": self.specification })
    }
}

impl CheckpointReader for Ctranslate2Reader {
    has_own!(metadata, tensors, container, files, left_out, warnings);

    fn format(&self) -> &'static Format {
        &FORMAT
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let Place { range, codes } = &self.places[tensor];
        if codes.is_some() { Stored::derived(*range) } else { Stored::plain(*range) }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let info = &self.tensors[tensor];
        check_range(offset, buf.len(), info.byte_len()?)
            .and_then(|()| self.read_plain(tensor, offset, buf))
            .map_err(|error| error.for_tensor(&info.name).in_file(&self.files[0].name))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let Place { range, codes: None } = self.places.get(tensor)? else { return None };
        self.source.slice_at(range.offset, range.len)
    }

    fn companions(&self) -> &[Companion] {
        &self.companions
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.contents.get(companion).cloned().ok_or_else(|| Companion::absent(companion))
    }
}

impl fmt::Debug for Ctranslate2Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ctranslate2Reader")
            .field("files", &self.files)
            .field("tensors", &self.tensors)
            .finish_non_exhaustive()
    }
}
