//! What goes into a graph, made of audio and image files: log-mel spectra, waveforms, pixels.

use apr_graph::{Body, Meaning};
use apr_infer::Value;

pub use crate::images::ImageFeatures;

use crate::error::RunResult;
use crate::runner::{Runner, meaning};
use crate::transcription::LogMelInput;

/// What goes into a graph for an audio file: its log-mel spectrum, or its waveform.
pub struct AudioFeatures<'f> {
    runner: Runner<'f>,
    body: &'f Body,
    /// `None` for a waveform.
    mel: Option<LogMelInput>,
}

impl<'f> AudioFeatures<'f> {
    /// The features of audio files for a graph.
    ///
    /// # Errors
    /// E003 where the model has no settings of its spectrum.
    pub fn of(runner: &Runner<'f>, body: &'f Body) -> RunResult<Self> {
        let mel = match meaning(body, &body.inputs, Meaning::Mel) {
            Some(_) => Some(LogMelInput::of(runner, body)?),
            None => None,
        };
        Ok(Self { runner: *runner, body, mel })
    }

    /// The inputs for an audio file; `name` is for warnings and errors.
    ///
    /// # Errors
    /// What decoding ends with; [`RunError::Request`](crate::RunError::Request) where the graph
    /// takes no audio.
    pub fn inputs(&self, name: &str, bytes: Vec<u8>) -> RunResult<Vec<(String, Value)>> {
        match &self.mel {
            Some(mel) => mel.input(&self.runner, name, bytes),
            None => {
                let (input, samples) = self.runner.waveform_input(self.body, name, bytes)?;
                Ok(vec![(input, samples.into())])
            }
        }
    }
}
