//! Inputs for a model of which nothing is given.

use apr_graph::Meaning;
use apr_run::{Given, Runner};

use crate::media::{bmp, wav};

/// One input, in each form that a model may take.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Sample {
    /// Name in reports.
    pub name: String,
    /// Text of the input.
    pub text: Option<String>,
    /// Token ids, if there is no text or no tokenizer.
    pub tokens: Vec<i64>,
    /// Bytes of an audio file.
    pub audio: Option<Vec<u8>>,
    /// Bytes of an image file.
    pub image: Option<Vec<u8>>,
    /// Arrays by the names of inputs; one without a name is for the only input.
    pub arrays: Vec<(Option<String>, Given)>,
}

impl Sample {
    /// Returns a second of silence.
    pub(crate) fn silence() -> Self {
        let samples = [0; RATE as usize];
        Self { name: "silence".to_owned(), audio: Some(wav(RATE, &samples)), ..Self::default() }
    }
}

/// Number of built-in samples.
pub const SAMPLES: usize = 10;

/// Sentences of several registers, with numbers, code and other scripts.
const TEXTS: [&str; SAMPLES] = [
    "The committee will publish its findings on the first Monday of next month.",
    "Once upon a time there was a little girl who lived at the edge of a forest.",
    "Water boils at 100 degrees Celsius at sea level, and at 93 in the mountains.",
    "def add(left, right):\n    return left + right\n",
    "I ordered the blue one, but the parcel that arrived was green. Can I exchange it?",
    "Die Brücke wurde 1894 gebaut und im letzten Jahr erneuert.",
    "12 + 34 = 46, and 46 * 2 = 92.",
    "She said nothing, closed the book, and looked out of the window for a long while.",
    "El tren sale a las ocho y llega antes del mediodía.",
    "The film was far too long; the music alone was worth the ticket.",
];

/// Samples per second of the built-in sounds.
const RATE: u32 = 16_000;

/// Pixels of a side of the built-in images.
const SIDE: u32 = 64;

/// The built-in samples, in the forms that this model takes.
///
/// Texts are sentences, sounds are tones, sweeps and noise, images are gradients and patterns. They
/// are the same for every model, so that two models are given the same. Ids of tokens stand in for
/// texts where no model has a tokenizer. A model without inputs has one sample: it says the same
/// each time.
#[must_use]
pub fn built_in(runner: &Runner<'_>) -> Vec<Sample> {
    let has_inputs = runner.parts().iter().any(|part| !part.graph.body.inputs.is_empty());
    let count = if has_inputs { SAMPLES } else { 1 };
    let takes = |what: Meaning| {
        let mut bodies = runner.parts().iter().map(|part| &part.graph.body);
        bodies.any(|body| body.inputs.iter().any(|id| body.value(*id).meaning == what))
    };
    let vocabulary = runner.facts().vocabulary().unwrap_or(256) as u64;
    let sample = |at: usize| Sample {
        name: format!("built-in {}", at + 1),
        text: takes(Meaning::TokenIds).then(|| TEXTS[at].to_owned()),
        tokens: random_tokens(at as u64, vocabulary),
        audio: Some(sound(at)),
        image: takes(Meaning::Pixels).then(|| picture(at)).flatten(),
        arrays: Vec::new(),
    };
    (0..count).map(sample).collect()
}

/// Steps of a generator of random numbers (Numerical Recipes' 64-bit congruences).
pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn random_tokens(seed: u64, vocabulary: u64) -> Vec<i64> {
    let mut state = seed.wrapping_add(1);
    let token = |_| i64::try_from(random(&mut state) % vocabulary.max(1)).unwrap_or(0);
    (0..24).map(token).collect()
}

/// A WAV file of a second: tones of several heights, sweeps, beats and noise.
fn sound(at: usize) -> Vec<u8> {
    let mut state = at as u64 + 1;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let sample = |position: u32| {
        let time = f64::from(position) / f64::from(RATE);
        let pitch = 110.0 * (1.0 + at as f64);
        let tone = |pitch: f64| (std::f64::consts::TAU * pitch * time).sin();
        let noise = random(&mut state) as f64 / f64::from(1_u32 << 31) * 2.0 - 1.0;
        0.5 * match at % 4 {
            0 => tone(pitch),
            1 => tone(pitch * (1.0 + time)),
            2 => tone(pitch) * tone(3.0),
            _ => 0.5 * noise,
        }
    };
    #[expect(clippy::cast_possible_truncation, reason = "samples lie between -1 and 1")]
    let samples: Vec<i16> = (0..RATE).map(sample).map(|value| (value * 32767.0) as i16).collect();
    wav(RATE, &samples)
}

/// A BMP file of 24 bits: gradients, stripes, boards and noise.
fn picture(at: usize) -> Option<Vec<u8>> {
    let mut state = at as u64 + 1;
    let width = 2 + u32::try_from(at).unwrap_or(0);
    bmp(SIDE, SIDE, |x, y| {
        let level = match at % 4 {
            0 => 4 * x,
            1 => 255 * (x / width % 2),
            2 => 255 * ((x / width + y / width) % 2),
            _ => u32::try_from(random(&mut state) % 256).unwrap_or(0),
        };
        let color = [level, 4 * y, 255 - level.min(255)];
        color.map(|part| u8::try_from(part).unwrap_or(255))
    })
}
