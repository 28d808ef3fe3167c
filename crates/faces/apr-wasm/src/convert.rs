//! Conversion into files that the page keeps, a piece at a time.

use apr_core::{Error, FileInfo, IoCause, QuantizedTypes, Serial, Sink};
use apr_ops::job::Job;
use apr_quantize::{Quantization, Scheme, SchemeKind, parse_dtype};
use apr_registry::codec::Choice;
use apr_registry::{Format, PlanOptions, targets};
use serde::{Deserialize, Serialize};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::error::{JsResult, Thrown, json};
use crate::model::Model;
use crate::progress::{OnProgress, Told};

#[wasm_bindgen(typescript_custom_section)]
const HOST_OUTPUT: &str = r#"
/** Files that a conversion writes; bytes come in order, and a few are patched at the end. */
export interface HostOutput {
  /** Begins the next file. */
  begin(name: string): void;
  /** Appends to it. */
  write(bytes: Uint8Array): void;
  /** Overwrites bytes of it that were written before. */
  patch(offset: number, bytes: Uint8Array): void;
}
"#;

#[wasm_bindgen]
extern "C" {
    /// The files as JavaScript has them.
    #[wasm_bindgen(typescript_type = "HostOutput")]
    pub type HostOutput;

    #[wasm_bindgen(method, catch)]
    fn begin(this: &HostOutput, name: &str) -> Result<(), JsValue>;

    #[wasm_bindgen(method, catch)]
    fn write(this: &HostOutput, bytes: &[u8]) -> Result<(), JsValue>;

    #[wasm_bindgen(method, catch)]
    fn patch(this: &HostOutput, offset: f64, bytes: &[u8]) -> Result<(), JsValue>;
}

/// Options of a conversion.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct ConvertWishes {
    /// The format by its option: `apr`, `safetensors`, `gguf`.
    format: String,
    /// Name of the file.
    file_name: Option<String>,
    /// A type or mix of llama.cpp, such as `q4_k_m`.
    quantize: Option<String>,
    /// Floats get this dtype.
    precision: Option<String>,
    /// Quantized tensors become floats of this dtype.
    dequantize: Option<String>,
    /// Tensors of `.apr` output are compressed without loss.
    compress: bool,
    /// `true` to report errors in names, shapes and values without ending the conversion.
    relaxed: bool,
    /// Title of the model, if the model's files do not state it.
    title: Option<String>,
    /// `true` to keep names, layout and values. Encrypted data become plain.
    copy: bool,
}

/// Files in JavaScript's hands.
struct Output {
    host: HostOutput,
    position: u64,
}

impl Output {
    fn done(result: Result<(), JsValue>) -> apr_core::Result<()> {
        result.map_err(|thrown| {
            let message = js_sys::Error::from(thrown).message();
            Error::io(IoCause::Other, String::from(message))
        })
    }
}

impl Sink for Output {
    fn next_file(&mut self, name: &str) -> apr_core::Result<()> {
        self.position = 0;
        Self::done(self.host.begin(name))
    }

    fn write_all(&mut self, bytes: &[u8]) -> apr_core::Result<()> {
        self.position += bytes.len() as u64;
        Self::done(self.host.write(bytes))
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn can_patch(&self) -> bool {
        true
    }

    fn patch(&mut self, offset: u64, bytes: &[u8]) -> apr_core::Result<()> {
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.position) {
            return Err(Error::io(IoCause::Other, "a patch past what was written").at(offset));
        }
        #[allow(clippy::cast_precision_loss, reason = "files of 8 PiB are not written")]
        Self::done(self.host.patch(offset as f64, bytes))
    }
}

#[wasm_bindgen]
impl Model {
    /// What a conversion would write, tensor by tensor: the report of `apr convert --dry-run`.
    ///
    /// # Errors
    /// What contradicts the format or the model.
    pub fn plan(&self, wishes: &str) -> Result<String, JsValue> {
        let job = job(wishes)?;
        let planned = job.plan(&self.source()).map_err(Thrown::from)?;
        json(planned.report())
    }

    /// Converts: the report of `apr convert`. Files are complete when it returns, and worth nothing
    /// when it throws.
    ///
    /// # Errors
    /// What contradicts the format or the model, the first tensor that is not as it should be, and
    /// what writing ends with.
    pub fn convert(
        &self,
        wishes: &str,
        output: HostOutput,
        on_progress: OnProgress,
    ) -> Result<String, JsValue> {
        let job = job(wishes)?;
        let source = self.source();
        let planned = job.plan(&source).map_err(Thrown::from)?;
        planned.check().map_err(Thrown::from)?;
        let mut output = Output { host: output, position: 0 };
        let files = &planned.report().files;
        if let ([FileInfo { name, .. }], false) = (&files[..], planned.target().folder) {
            output.next_file(name).map_err(Thrown::from)?;
        }
        let told = Told::new(on_progress);
        json(&planned.run(&mut output, &Serial, &told).map_err(Thrown::from)?)
    }
}

fn job(wishes: &str) -> JsResult<Job> {
    let wishes: ConvertWishes =
        serde_json::from_str(wishes).map_err(|error| Thrown::request(error.to_string()))?;
    let format = format_of(&wishes.format)?;
    let usual = format.target.as_ref().map_or("model", |target| target.file_name);
    let name = wishes.file_name.unwrap_or_else(|| usual.to_owned());
    let target = PlanOptions::new(format, name);
    if wishes.copy {
        return Ok(Job { opens: true, ..Job::copy(target) });
    }
    let mut job = Job::new(target);
    let dtype = |name: Option<String>| {
        let parsed = name.map(|name| parse_dtype(&name));
        parsed.transpose().map_err(|error| Thrown::request(error.to_string()))
    };
    job.weights.precision = dtype(wishes.precision)?;
    job.weights.dequantize = dtype(wishes.dequantize)?;
    if let Some(name) = wishes.quantize {
        let scheme = Scheme::parse(&name).map_err(|error| Thrown::request(error.to_string()))?;
        job.weights.quantize = Some(Quantization::to(scheme));
    }
    job.target.apr2.compression = wishes.compress.then_some(Choice::Auto);
    job.validation.stop = !wishes.relaxed;
    job.title = wishes.title;
    Ok(job)
}

/// A format that a conversion writes, as a page offers it.
#[derive(Serialize)]
struct WrittenFormat {
    /// Name of the format in the options.
    option: &'static str,
    name: &'static str,
    /// The usual extension of its files, without the dot.
    extension: &'static str,
    /// `true` if tensors can be compressed.
    compresses: bool,
    /// Types and mixes that weights can be quantized to.
    quantized: Vec<&'static str>,
}

/// Formats that are written, and what each can store.
///
/// # Errors
/// None that are known.
#[wasm_bindgen]
pub fn formats() -> Result<String, JsValue> {
    let written = |format: &'static Format| {
        let target = format.target?;
        let extension = *target.extensions.first()?;
        let schemes = Scheme::ALL.iter().filter(|scheme| match target.quantized {
            QuantizedTypes::All => scheme.kind() != SchemeKind::Cast,
            QuantizedTypes::Ggml => scheme.kind() == SchemeKind::Blocks,
            _ => false,
        });
        Some(WrittenFormat {
            option: format.option?,
            name: format.name,
            extension,
            compresses: target.seals,
            quantized: schemes.map(|scheme| scheme.name()).collect(),
        })
    };
    json(&targets().filter_map(written).collect::<Vec<_>>())
}

/// A format that is written, by the name of its option.
fn format_of(name: &str) -> JsResult<&'static Format> {
    let found = targets().find(|format| format.option == Some(name));
    found.ok_or_else(|| {
        let known: Vec<_> = targets().filter_map(|format| format.option).collect();
        Thrown::request(format!("no format '{name}' is written; there are {}", known.join(", ")))
    })
}
