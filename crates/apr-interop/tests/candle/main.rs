//! candle opens the GGUF, safetensors and PyTorch files that come out of tiny-llama, and adds
//! numbers with them.

mod gguf;
mod state_dict;
mod sums;
mod written;

/// Of a test: the first error ends it.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
