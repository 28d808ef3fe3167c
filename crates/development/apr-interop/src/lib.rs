//! Other people's programs read what apr writes.
//!
//! There is nothing here but tests: [candle](https://github.com/huggingface/candle), a
//! machine-learning framework that shares no code with this workspace, opens the files, decodes the
//! tensors and runs the model (`tests/candle`).
