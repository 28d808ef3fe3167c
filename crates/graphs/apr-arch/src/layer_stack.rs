//! Layers in a row of which a model can have fewer.

/// The index of layers, in families that have one stack of them.
const LAYER: &str = "layer";
/// The index of a decoder's layers, in families that have an encoder beside it.
const DECODER_LAYER: &str = "decoder_layer";

/// Layers in a row of which a model can have fewer, and be one of its family still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerStack {
    /// The only one that the model has.
    Only,
    /// The decoder's, which follows an encoder.
    Decoder,
}

impl LayerStack {
    /// The index of its layers in the names of tensors.
    pub(crate) fn index(self) -> &'static str {
        match self {
            Self::Only => LAYER,
            Self::Decoder => DECODER_LAYER,
        }
    }

    /// The dimension that counts its layers.
    #[must_use]
    pub fn dimension(self) -> &'static str {
        match self {
            Self::Only => "layers",
            Self::Decoder => "decoder_layers",
        }
    }
}
