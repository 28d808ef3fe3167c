//! candle opens the GGUF, safetensors and PyTorch files that come out of tiny-llama, and adds
//! numbers with them.

mod gguf;
mod state_dict;
mod sums;
mod written;

/// Result of a test. The first error ends the test.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
