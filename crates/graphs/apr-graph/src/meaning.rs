//! What inputs and outputs are for.

use serde::Serialize;

/// Purpose of an input or an output of a model. Programs that run the graph use it to pass and read
/// values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Meaning {
    /// Purpose not known.
    #[default]
    Unknown,
    /// Ids of tokens, `[batch, sequence]`.
    TokenIds,
    /// 1 for tokens that count, 0 for padding.
    AttentionMask,
    /// Positions of tokens.
    PositionIds,
    /// Index of the text that a token belongs to, for pairs of texts.
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
    /// State of earlier tokens with a size that does not depend on their number, `[batch, channels,
    /// ..]`.
    PastState,
    /// State of earlier tokens and these ones, of a size that does not depend on their number.
    PresentState,
    /// Output of the encoder.
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
