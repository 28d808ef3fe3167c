//! Inputs of a graph from audio and image files: log-mel spectra, waveforms, pixels.

use apr_graph::{Body, Meaning};
use apr_infer::Value;

pub use crate::images::ImageFeatures;

use crate::audio::AudioFile;
use crate::error::RunResult;
use crate::runner::{Runner, meaning};
use crate::transcription::LogMelInput;

/// An audio file as the inputs of a graph.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AudioInput {
    /// Inputs by their names.
    pub inputs: Vec<(String, Value)>,
    /// Audio file and its properties.
    pub file: AudioFile,
    /// Samples of the file at the model's sample rate, from -1 to 1.
    pub samples: Vec<f32>,
}

/// Conversion of an audio file to the input of a graph: its log-mel spectrum, or its waveform.
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
        Ok(self.read(name, bytes)?.inputs)
    }

    /// Reads an audio file, and returns the inputs with the samples that they are made of.
    ///
    /// # Errors
    /// Those of [`inputs`](Self::inputs).
    pub fn read(&self, name: &str, bytes: Vec<u8>) -> RunResult<AudioInput> {
        match &self.mel {
            Some(mel) => mel.read(&self.runner, name, bytes),
            None => self.runner.waveform_input(self.body, name, bytes),
        }
    }
}
