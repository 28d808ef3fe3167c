//! One reading of a file: as what a layout says, from the magic to the last byte.

use apr_core::{ByteSource, Error, Limits, Result, keys};
use serde_json::{Map, Value, json};

use super::cursor::Cursor;
use super::layout::{Field, GgmlLayout, Tokens};
use super::tensor::{Generation, Rules, Tensor};
use super::vocabulary::Vocabulary;

/// Name of the tensor that the mel filterbank becomes.
const FILTERBANK: &str = keys::MEL_FILTERBANK_TENSOR;
/// `ftype` is a type and this many times the version of quantized blocks (ggml's
/// `GGML_QNT_VERSION_FACTOR`).
const VERSION_FACTOR: i64 = 1000;
/// Above any number of layers.
const MAX_LAYERS: i64 = 4096;
/// Above any other hyperparameter.
const MAX_HYPERPARAMETER: i64 = 1 << 24;
/// Number above any `ftype` without its version. Vocabularies, which other families have in its
/// place, are larger.
const MAX_FTYPE: i64 = 40;
/// Above any version of quantized blocks.
const MAX_VERSION: i64 = 9;
/// Above the sides of any filterbank.
const MAX_MELS: u32 = 1 << 14;

/// Magic and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Container {
    /// `ggml`, `ggmf` or `ggjt`.
    pub(super) magic: &'static str,
    pub(super) version: Option<u32>,
}

impl Container {
    /// Reads the magic, and the version if there is one.
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        let word: [u8; 4] = cursor.take(4, "the magic")?.try_into().unwrap_or_default();

        // Magics are numbers of 32 bits, whose letters lie backwards.
        let magic = match &word {
            b"lmgg" => return Ok(Self { magic: "ggml", version: None }),
            b"fmgg" => "ggmf",
            b"tjgg" => "ggjt",
            b"ggml" | b"ggmf" | b"ggjt" => {
                return Err(Error::version(
                    "big-endian GGML files are not supported; convert the original model again",
                )
                .at(0));
            }
            _ => {
                return Err(Error::format(
                    "this is not legacy GGML: none of its magics is at the start",
                )
                .at(0));
            }
        };

        let version = cursor.i32("the version")?.cast_unsigned();
        let container = Self { magic, version: Some(version) };
        match (magic, version) {
            ("ggmf", 1 | 100 | 101) | ("ggjt", 1..=3) => Ok(container),
            _ => {
                Err(Error::version(format!("{} version {version} is unknown", container.magic))
                    .at(4))
            }
        }
    }

    pub(super) fn origin(self) -> String {
        match self.version {
            Some(version) => format!("{} v{version}", self.magic),
            None => format!("unversioned {}", self.magic),
        }
    }

    /// Bytes before the hyperparameters.
    pub(super) fn len(self) -> u64 {
        if self.version.is_some() { 8 } else { 4 }
    }

    /// Returns `true` if files of the layout use this container. RWKV has versions of its own;
    /// whisper.cpp never had any.
    pub(super) fn goes_with(self, layout: &GgmlLayout) -> bool {
        match layout.name {
            "rwkv" => matches!(self.version, Some(100..)),
            "whisper" | "silero-vad" => self.version.is_none(),
            _ => !matches!(self.version, Some(100..)),
        }
    }

    fn generation(self, layout: &GgmlLayout, ftype: Option<i64>) -> Generation {
        match (self.version, ftype.unwrap_or_default() / VERSION_FACTOR) {
            (Some(100..), _) => Generation::Unknown,
            (Some(3), _) | (None, 2) => Generation::Current,
            (Some(2), _) | (None, 1) => Generation::Halves,
            (Some(_), _) => Generation::Pairs { unclear: false },
            (None, 0) => Generation::Pairs { unclear: layout.early_quantization },
            (None, _) => Generation::Unknown,
        }
    }
}

/// Position of the mel filterbank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Filterbank {
    pub(super) mels: u32,
    pub(super) freqs: u32,
    pub(super) offset: u64,
}

impl Filterbank {
    pub(super) fn len(self) -> u64 {
        u64::from(self.mels) * u64::from(self.freqs) * 4
    }
}

/// Contents of a file.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) container: Container,
    pub(super) layout: &'static GgmlLayout,
    pub(super) hyperparameters: Map<String, Value>,
    pub(super) ftype: Option<i64>,
    pub(super) filterbank: Option<Filterbank>,
    pub(super) vocabulary: Vocabulary,
    pub(super) tensors: Vec<Tensor>,
    /// Bytes before the first tensor's header.
    pub(super) header_len: u64,
}

impl Reading {
    /// Returns an integer hyperparameter, or 0 if there is none of that name.
    pub(super) fn hyperparameter(&self, name: &str) -> i64 {
        number(&self.hyperparameters, name)
    }

    pub(super) fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.info.name == name)
    }

    /// The type of most tensors as ggml numbers files, without the version of quantized blocks;
    /// Silero's have none.
    pub(super) fn file_type(&self) -> Option<i64> {
        self.ftype.map(|ftype| ftype % VERSION_FACTOR)
    }

    /// The version of quantized blocks.
    pub(super) fn quantization_version(&self) -> Option<u8> {
        self.ftype?;
        match self.container.generation(self.layout, self.ftype) {
            Generation::Pairs { .. } => Some(0),
            Generation::Halves => Some(1),
            Generation::Current => Some(2),
            Generation::Unknown => None,
        }
    }
}

/// Error of a reading, and the position that it reached.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Error,
    pub(super) reached: Reached,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reached {
    /// The hyperparameters are not valid.
    Start,
    /// The hyperparameters fit together, but the vocabulary is not valid.
    Vocabulary,
    /// Tensors were read; the next header is at this byte.
    Tensors(u64),
    /// The last header leads to the end of the file.
    End,
}

/// Parameters of an attempt to read a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub(super) container: Container,
    pub(super) layout: &'static GgmlLayout,
    /// `true` if tokens have scores.
    pub(super) scored: bool,
    /// `true` if the hyperparameters must fit together.
    pub(super) plausible: bool,
    /// `true` if the tensors must have the family's names.
    pub(super) named: bool,
    pub(super) limits: &'a Limits,
}

impl Attempt<'_> {
    pub(super) fn run(self, source: &dyn ByteSource, len: u64) -> Result<Reading, Failure> {
        let mut cursor = Cursor::new(source, len);
        let mut reached = Reached::Start;
        self.read(&mut cursor, &mut reached).map_err(|error| Failure { error, reached })
    }

    fn read(self, cursor: &mut Cursor<'_>, reached: &mut Reached) -> Result<Reading> {
        let Self { container, layout, limits, .. } = self;
        cursor.skip(container.len(), "the magic")?;
        let (hyperparameters, filterbank) = self.hyperparameters(cursor)?;
        *reached = Reached::Vocabulary;
        let vocabulary = self.vocabulary(cursor, &hyperparameters)?;
        let header_len = cursor.at();
        *reached = Reached::Tensors(header_len);
        let ftype = hyperparameters.get("ftype").and_then(Value::as_i64);
        let origin = container.origin();
        let generation = container.generation(layout, ftype);
        let rules =
            Rules { generation, aligned: container.magic == "ggjt", origin: &origin, limits };
        let tensors = rules.read_all(cursor, &mut |next| *reached = Reached::Tensors(next))?;
        *reached = Reached::End;
        self.check_names(&tensors, filterbank.is_some(), header_len)?;
        Ok(Reading {
            container,
            layout,
            hyperparameters,
            ftype,
            filterbank,
            vocabulary,
            tensors,
            header_len,
        })
    }

    /// Reads the hyperparameters, and the filterbank that speech models have after them.
    fn hyperparameters(
        self,
        cursor: &mut Cursor<'_>,
    ) -> Result<(Map<String, Value>, Option<Filterbank>)> {
        let layout = self.layout;
        let hyperparameters =
            if layout.fields.is_empty() { silero(cursor)? } else { fields(cursor, layout.fields)? };
        if self.plausible && !plausible(layout, &hyperparameters) {
            return Err(
                Error::format("the hyperparameters contradict each other").at(self.container.len())
            );
        }

        let filterbank = if layout.mel_filterbank { Some(filterbank(cursor)?) } else { None };
        let mels = filterbank.map_or(0, |filterbank| i64::from(filterbank.mels));
        if self.plausible && mels != number(&hyperparameters, "n_mels") {
            return Err(Error::format("the filterbank has another number of mels than n_mels")
                .at(cursor.at()));
        }

        Ok((hyperparameters, filterbank))
    }

    /// Rejects tensors of another family, and a second filterbank.
    fn check_names(self, tensors: &[Tensor], has_filterbank: bool, header_len: u64) -> Result<()> {
        if let Some(twin) =
            tensors.iter().find(|tensor| has_filterbank && tensor.info.name == FILTERBANK)
        {
            let message = "it has the name that is the mel filterbank's here";
            return Err(Error::format(message).for_tensor(FILTERBANK).at(twin.offset));
        }
        if self.named && !tensors.is_empty() && !has_names_of(self.layout, tensors) {
            let message = format!("the names of the tensors differ from {}", self.layout.name);
            return Err(Error::format(message).at(header_len));
        }
        Ok(())
    }

    fn vocabulary(
        self,
        cursor: &mut Cursor<'_>,
        hyperparameters: &Map<String, Value>,
    ) -> Result<Vocabulary> {
        let count = match self.layout.tokens {
            Tokens::Absent => return Ok(Vocabulary::default()),
            Tokens::Counted => cursor.i32("the number of tokens")?,
            Tokens::Given => i32::try_from(number(hyperparameters, "n_vocab")).unwrap_or(-1),
        };
        Vocabulary::read(cursor, count, self.scored, self.limits)
    }
}

fn number(hyperparameters: &Map<String, Value>, name: &str) -> i64 {
    hyperparameters.get(name).and_then(Value::as_i64).unwrap_or(0)
}

fn fields(cursor: &mut Cursor<'_>, fields: &[Field]) -> Result<Map<String, Value>> {
    let mut read = |field: &Field| -> Result<Value> {
        Ok(if field.float {
            cursor.f32(field.name)?.into()
        } else {
            cursor.i32(field.name)?.into()
        })
    };
    fields.iter().map(|field| Ok((field.name.to_owned(), read(field)?))).collect()
}

/// Reads the hyperparameters of whisper.cpp's voice activity detector: a name, a version, then as
/// many as there are layers.
fn silero(cursor: &mut Cursor<'_>) -> Result<Map<String, Value>> {
    let at = cursor.at();
    let no_model = || Error::format("no name of a Silero model follows the magic").at(at);
    let len =
        usize::try_from(cursor.i32("the model's name")?).ok().filter(|len| (1..=64).contains(len));
    let name = cursor.take(len.ok_or_else(no_model)?, "the model's name")?;
    let name = str::from_utf8(name)
        .ok()
        .filter(|name| name.starts_with("silero"))
        .ok_or_else(no_model)?
        .to_owned();
    let mut next = |what: &str| cursor.i32(what);
    let version = [next("the version")?, next("the version")?, next("the version")?];
    let (window, context, layers) =
        (next("n_window")?, next("n_context")?, next("n_encoder_layers")?);
    if !(1..=64).contains(&layers) {
        return Err(Error::format(format!("n_encoder_layers is {layers}")).at(at));
    }

    let convolutions = (0..layers)
        .map(|_| Ok([next("in channels")?, next("out channels")?, next("kernel size")?]));
    let convolutions = convolutions.collect::<Result<Vec<_>>>()?;
    let column = |at: usize| convolutions.iter().map(|sizes| sizes[at]).collect::<Vec<_>>();
    let fields = json!({
        "model_type": name,
        "version": version,
        "n_window": window,
        "n_context": context,
        "n_encoder_layers": layers,
        "encoder_in_channels": column(0),
        "encoder_out_channels": column(1),
        "kernel_sizes": column(2),
        "lstm_input_size": next("lstm_input_size")?,
        "lstm_hidden_size": next("lstm_hidden_size")?,
        "final_conv_in": next("final_conv_in")?,
        "final_conv_out": next("final_conv_out")?,
    });

    Ok(if let Value::Object(fields) = fields { fields } else { Map::new() })
}

fn filterbank(cursor: &mut Cursor<'_>) -> Result<Filterbank> {
    let at = cursor.at();
    let mut side = |what: &str| -> Result<u32> {
        let side = cursor.i32(what)?;
        let plausible = u32::try_from(side).ok().filter(|side| (1..=MAX_MELS).contains(side));
        plausible.ok_or_else(|| Error::format(format!("{what} is {side}")).at(at))
    };
    let (mels, freqs) = (side("the mel filterbank's n_mel")?, side("the mel filterbank's n_fft")?);
    let filterbank = Filterbank { mels, freqs, offset: cursor.at() };
    cursor.skip(filterbank.len(), "the mel filterbank")?;
    Ok(filterbank)
}

/// Returns `true` if the hyperparameters fit together for this family.
fn plausible(layout: &GgmlLayout, hyperparameters: &Map<String, Value>) -> bool {
    layout.fields.iter().all(|field| is_in_range(field, hyperparameters))
        && agree(layout, hyperparameters)
}

/// Returns `true` if a hyperparameter has a value that is possible for some model.
fn is_in_range(field: &Field, hyperparameters: &Map<String, Value>) -> bool {
    let value = number(hyperparameters, field.name);
    match field.name {
        name if field.float => {
            hyperparameters.get(name).and_then(Value::as_f64).is_some_and(|value| value >= 0.0)
        }
        "ftype" => {
            let (version, number) = (value / VERSION_FACTOR, value % VERSION_FACTOR);
            (0..=MAX_FTYPE).contains(&number) && (0..=MAX_VERSION).contains(&version)
        }
        "par_res" => matches!(value, 0 | 1),
        "n_rot" => (0..=MAX_HYPERPARAMETER).contains(&value),
        "n_layer" | "n_layers" | "n_audio_layer" | "n_text_layer" => {
            (1..=MAX_LAYERS).contains(&value)
        }
        _ => (1..=MAX_HYPERPARAMETER).contains(&value),
    }
}

/// Returns `true` if hyperparameters that are in range can belong to one network. For example, the
/// number of heads must divide the width.
fn agree(layout: &GgmlLayout, hyperparameters: &Map<String, Value>) -> bool {
    let value = |name: &str| number(hyperparameters, name);

    // Hyperparameters that are in range divide: none of these is 0.
    let divides = |heads: &str, width: &str| value(width) % value(heads) == 0;

    // Pairs of a head's elements are rotated.
    let rotates = |rotary: i64| rotary % 2 == 0 && rotary <= value("n_embd") / value("n_head");
    match layout.name {
        "llama" => value("n_rot") * value("n_head") == value("n_embd"),
        "whisper" => [("n_audio_head", "n_audio_state"), ("n_text_head", "n_text_state")]
            .iter()
            .all(|(heads, width)| divides(heads, width)),
        "gptj" | "gptneox" => divides("n_head", "n_embd") && rotates(value("n_rot")),
        "mpt" => divides("n_heads", "d_model"),
        "bert" => divides("n_head", "n_embd") && value("n_intermediate") >= value("n_embd"),
        "gpt2" | "falcon" => divides("n_head", "n_embd"),
        _ => true,
    }
}

/// Returns `true` if the tensors are the family's. ggml's BLOOM has the fields of GPT-2 and most of
/// its names.
fn has_names_of(layout: &GgmlLayout, tensors: &[Tensor]) -> bool {
    let names = || tensors.iter().map(|tensor| tensor.info.name.as_str());
    let is_bloom = layout.name == "gpt2" && names().any(|name| name.starts_with("model/ln_wte/"));
    names().any(|name| layout.has_tensor(name)) && !is_bloom
}
