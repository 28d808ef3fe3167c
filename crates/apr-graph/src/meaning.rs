//! What inputs and outputs are for.

use serde::Serialize;

/// What an input or an output of a model is for. A program that runs the graph feeds and reads
/// values by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Meaning {
    /// Nothing is known.
    #[default]
    Unknown,
    /// Ids of tokens, `[batch, sequence]`.
    TokenIds,
    /// 1 where a token counts, 0 where it is padding.
    AttentionMask,
    /// Positions of tokens.
    PositionIds,
    /// Which of two texts a token belongs to.
    TokenTypes,
    /// Vectors in the place of tokens.
    Embeddings,
    /// Pixels of images, `[batch, channels, height, width]`.
    Pixels,
    /// Log-mel spectrogram, `[batch, mels, frames]`.
    Mel,
    /// Samples of sound, `[batch, samples]`.
    Waveform,
    /// Keys of earlier tokens, `[batch, heads, past, head size]`.
    PastKey,
    /// Values of earlier tokens, `[batch, heads, past, head size]`.
    PastValue,
    /// Keys of earlier tokens and these ones.
    PresentKey,
    /// Values of earlier tokens and these ones.
    PresentValue,
    /// What is kept of earlier tokens, as much however many they were, `[batch, channels, ..]`.
    PastState,
    /// The same of earlier tokens and these ones.
    PresentState,
    /// What the encoder made of its input.
    EncoderStates,
    /// Vectors after the last layer, `[batch, sequence, hidden]`.
    HiddenStates,
    /// One vector for each input, `[batch, hidden]`.
    Pooled,
    /// Scores before the softmax: of the vocabulary, of classes, of pairs.
    Logits,
}

impl Meaning {
    /// Returns `true` for keys, values and states of tokens, which are kept from run to run.
    #[must_use]
    pub fn is_kept(self) -> bool {
        use Meaning::{PastKey, PastState, PastValue, PresentKey, PresentState, PresentValue};
        matches!(self, PastKey | PastValue | PastState | PresentKey | PresentValue | PresentState)
    }
}
