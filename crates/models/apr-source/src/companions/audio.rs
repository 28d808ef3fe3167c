//! How sound becomes a speech model's input.

use apr_core::{DType, TensorInfo, keys};
use serde_json::{Map, Value, json};

use super::files::Files;
use super::learnt::{Learnt, LearntTensor};
use super::mel::{self, Filterbank};

/// Name of the filterbank's tensor.
const TENSOR: &str = keys::MEL_FILTERBANK_TENSOR;

/// Defaults of Whisper's feature extractor.
const WHISPER: [(&str, u64); 5] = [
    ("feature_size", 80),
    ("sampling_rate", 16_000),
    ("hop_length", 160),
    ("chunk_length", 30),
    ("n_fft", 400),
];

pub(super) fn learn(files: &Files<'_>, learnt: &mut Learnt) {
    let nested = || files.value("processor_config.json", "feature_extractor")?.as_object();
    let is_audio =
        |object: &&Map<String, Value>| object.contains_key("sampling_rate") || is_whisper(object);
    let found = match files.object("preprocessor_config.json").filter(is_audio) {
        Some(extractor) => Some(("preprocessor_config.json", extractor)),
        None => nested().filter(is_audio).map(|extractor| ("processor_config.json", extractor)),
    };
    let Some((file, extractor)) = found else { return };
    let extractor = Extractor { file, fields: extractor };
    let config = extractor.config(learnt);
    if let (Some(mels), Some(expected)) = (config.get("n_mels"), files.config("num_mel_bins"))
        && mels != expected
    {
        learnt.warn(
            file,
            &format!("it has {mels} mel bins, but config.json's num_mel_bins is {expected}"),
        );
    }
    match extractor.filterbank(&config, learnt) {
        Ok(Some(filterbank)) => add(&filterbank, learnt),
        Ok(None) => {}
        Err(why) => learnt.warn(file, &why),
    }

    learnt.set("audio_config", config);
}

fn is_whisper(fields: &Map<String, Value>) -> bool {
    fields.get("feature_extractor_type").and_then(Value::as_str) == Some("WhisperFeatureExtractor")
}

struct Extractor<'a> {
    file: &'static str,
    fields: &'a Map<String, Value>,
}

impl Extractor<'_> {
    /// Returns a positive integer, or Whisper's default if the key is missing.
    fn number(&self, key: &str, learnt: &mut Learnt) -> Option<u32> {
        let default = || WHISPER.iter().find(|(name, _)| is_whisper(self.fields) && *name == key);
        let Some(value) = self.fields.get(key).filter(|value| !value.is_null()) else {
            return u32::try_from(default()?.1).ok();
        };

        // Seconds are sometimes written with a point.
        let whole =
            value.as_f64().filter(|number| number.fract() == 0.0 && (1.0..4e9).contains(number));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, and in range"
        )]
        let whole = whole.map(|number| number as u32);
        if whole.is_none() {
            learnt.warn(self.file, &format!("its {key} is not a positive integer"));
        }

        whole
    }

    fn config(&self, learnt: &mut Learnt) -> Map<String, Value> {
        let mut config = Map::new();
        let keys =
            [("sampling_rate", "sample_rate"), ("n_fft", "n_fft"), ("hop_length", "hop_length")];
        for (key, name) in
            keys.into_iter().chain([("chunk_length", "chunk_length"), ("n_samples", "n_samples")])
        {
            if let Some(number) = self.number(key, learnt) {
                config.insert(name.to_owned(), number.into());
            }
        }

        // Extractors that pass the waveform on have one feature, which is not a mel.
        let mels = if config.contains_key("n_fft") { "feature_size" } else { "num_mel_bins" };
        if let Some(mels) = self.number(mels, learnt) {
            config.insert("n_mels".to_owned(), mels.into());
        }

        for key in ["do_normalize", "return_attention_mask", "feature_extractor_type"] {
            if let Some(value) =
                self.fields.get(key).filter(|value| value.is_boolean() || value.is_string())
            {
                config.insert(key.to_owned(), value.clone());
            }
        }

        config
    }

    /// Returns the filterbank in the file or, without one, the filterbank that Whisper's extractor
    /// computes.
    fn filterbank(
        &self,
        config: &Map<String, Value>,
        learnt: &mut Learnt,
    ) -> Result<Option<Filterbank>, String> {
        let number = |key: &str| {
            config.get(key).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok())
        };
        let (mels, n_fft) = (number("n_mels"), number("n_fft"));
        if let Some(written) = self.fields.get("mel_filters").filter(|value| !value.is_null()) {
            let filterbank = mel::from_json(written, mels, n_fft.map(|n_fft| n_fft / 2 + 1))?;
            if filterbank.values.iter().any(|&value| value < 0.0) {
                learnt.warn(
                    self.file,
                    "its mel_filters have negative values, which no filterbank has",
                );
            }
            return Ok(Some(filterbank));
        }

        match (mels, n_fft, number("sample_rate")) {
            (Some(mels), Some(n_fft), Some(rate)) if is_whisper(self.fields) => {
                mel::compute(mels, n_fft, rate).map(Some)
            }
            _ => Ok(None),
        }
    }
}

fn add(filterbank: &Filterbank, learnt: &mut Learnt) {
    let shape = [filterbank.mels as u64, filterbank.freqs as u64];
    learnt.set(keys::MEL_FILTERBANK, json!({ "tensor": TENSOR }));
    learnt.set(keys::MEL_FILTERBANK_SHAPE, json!(shape));
    learnt.tensors.push(LearntTensor {
        info: TensorInfo { name: TENSOR.to_owned(), dtype: DType::F32, shape: shape.into() },
        bytes: filterbank.values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    });
}
