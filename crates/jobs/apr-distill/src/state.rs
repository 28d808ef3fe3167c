//! A training at a step, as a safetensors file: what it takes to go on to the same bits.

use std::collections::HashMap;
use std::sync::Arc;

use apr_core::{ByteSource, CheckpointReader, Error, Limits, Result, keys};
use apr_infer::Tensor;
use serde_json::{Map, json};

use crate::adamw::Moments;

/// File type, stored in the metadata of the file.
const KIND: &str = "apr-distill-state-1";

/// Name of the file in errors.
const FILE: &str = "state.safetensors";

/// A training at a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct State {
    /// Steps that were made.
    pub(crate) step: u64,
    /// Tokens that were learnt from.
    pub(crate) tokens: u64,
    pub(crate) parameters: Vec<Tensor>,
    pub(crate) moments: Vec<Moments>,
    pub(crate) best: Vec<Tensor>,
    pub(crate) best_step: u64,
    pub(crate) best_loss: f64,
    /// Evaluations since the best one.
    pub(crate) since_best: u64,
}

impl State {
    /// Before the first step.
    pub(crate) fn new(parameters: Vec<Tensor>, loss: f64) -> Self {
        let moments = parameters.iter().map(|parameter| Moments::zeros(parameter.len())).collect();
        let best = parameters.clone();
        let (step, tokens, best_step, since_best) = (0, 0, 0, 0);
        Self { step, tokens, parameters, moments, best, best_step, best_loss: loss, since_best }
    }

    /// Writes the state as a file. `run` identifies the training.
    pub(crate) fn to_bytes(&self, run: &str) -> Result<Vec<u8>> {
        let mut header = Map::new();
        header.insert(
            "__metadata__".to_owned(),
            json!({
                "kind": KIND,
                "run": run,
                "step": self.step.to_string(),
                "tokens": self.tokens.to_string(),
                "best_step": self.best_step.to_string(),
                "best_loss": self.best_loss.to_bits().to_string(),
                "since_best": self.since_best.to_string(),
            }),
        );
        let mut data = Vec::new();
        for (at, parameter) in self.parameters.iter().enumerate() {
            let (moments, best) = (&self.moments[at], &self.best[at]);
            let parts: [(&str, &[f32]); 4] = [
                ("parameter", parameter.values()?),
                ("first_moment", &moments.first),
                ("second_moment", &moments.second),
                ("best", best.values()?),
            ];
            for (what, values) in parts {
                let start = data.len();
                data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                let entry = json!({
                    "dtype": "F32",
                    "shape": parameter.shape(),
                    "data_offsets": [start, data.len()],
                });
                header.insert(format!("{what}.{at}"), entry);
            }
        }
        let mut header = apr_core::json::to_vec(&header).unwrap_or_default();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.append(&mut header);
        bytes.append(&mut data);
        Ok(bytes)
    }

    /// Reads a file of the same training, whose parameters have the shapes of `like`.
    ///
    /// # Errors
    /// E001 for a file that is none of these, or of another training; E002 where it is cut.
    pub(crate) fn from_bytes(bytes: Vec<u8>, run: &str, like: &[Tensor]) -> Result<Self> {
        let source: Arc<dyn ByteSource> = Arc::new(bytes);
        let reader = apr_safetensors::open(source, FILE, &Limits::default())?;
        let text = |key: &str| {
            let own = reader.metadata().object(keys::SAFETENSORS)?.get("metadata")?;
            own.get(key)?.as_str().map(str::to_owned)
        };
        if text("kind").as_deref() != Some(KIND) {
            return Err(Error::format("not a distillation state").in_file(FILE));
        }
        if text("run").as_deref() != Some(run) {
            let message = "it is of another distillation: other models, data or options";
            return Err(Error::format(message).in_file(FILE));
        }
        let number = |key: &str| {
            let number = text(key).and_then(|text| text.parse::<u64>().ok());
            number.ok_or_else(|| Error::format(format!("'{key}' must be a number")))
        };

        let places: HashMap<&str, usize> = reader
            .tensors()
            .iter()
            .enumerate()
            .map(|(place, info)| (info.name.as_str(), place))
            .collect();
        let values = |what: &str, at: usize| {
            let name = format!("{what}.{at}");
            let place = places.get(name.as_str()).copied();
            let place = place.ok_or_else(|| Error::format("it is missing").for_tensor(&name))?;
            if reader.tensors()[place].shape.elements() != Some(like[at].len() as u64) {
                return Err(Error::format("it has another shape").for_tensor(&name));
            }
            let mut bytes = vec![0; like[at].len() * size_of::<f32>()];
            reader.read_tensor(place, 0, &mut bytes)?;
            let (words, _) = bytes.as_chunks::<4>();
            Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect::<Vec<f32>>())
        };
        let tensors = |what: &str| {
            let one = |at: usize| Tensor::new(like[at].shape().to_vec(), values(what, at)?);
            (0..like.len()).map(one).collect::<Result<Vec<_>>>()
        };
        let moments = |at: usize| {
            Ok(Moments { first: values("first_moment", at)?, second: values("second_moment", at)? })
        };
        Ok(Self {
            step: number("step")?,
            tokens: number("tokens")?,
            parameters: tensors("parameter")?,
            moments: (0..like.len()).map(moments).collect::<Result<_>>()?,
            best: tensors("best")?,
            best_step: number("best_step")?,
            best_loss: f64::from_bits(number("best_loss")?),
            since_best: number("since_best")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let tensor = |values: &[f32]| Tensor::new(vec![1, 2], values.to_vec()).unwrap();
        let mut state = State::new(vec![tensor(&[1.0, 2.0]), tensor(&[3.0, 4.0])], 0.1);
        state.step = 7;
        state.moments[1].second = vec![5.0, 6.0];
        state.best[0] = tensor(&[7.0, 8.0]);
        state
    }

    #[test]
    fn a_state_comes_back_as_it_was() {
        let state = state();
        let bytes = state.to_bytes("a").unwrap();
        assert_eq!(State::from_bytes(bytes, "a", &state.parameters).unwrap(), state);
    }

    #[test]
    fn a_state_of_another_training_is_refused() {
        let state = state();
        let bytes = state.to_bytes("a").unwrap();
        let read = |bytes: &[u8], run: &str, like: &[Tensor]| {
            State::from_bytes(bytes.to_vec(), run, like).unwrap_err().message().to_owned()
        };
        assert!(read(&bytes, "b", &state.parameters).contains("of another distillation"));
        let other = [Tensor::row(vec![0.0_f32; 3]), Tensor::row(vec![0.0_f32; 2])];
        assert!(read(&bytes, "a", &other).contains("another shape"));
        for len in 0..bytes.len() {
            assert!(State::from_bytes(bytes[..len].to_vec(), "a", &state.parameters).is_err());
        }
    }
}
