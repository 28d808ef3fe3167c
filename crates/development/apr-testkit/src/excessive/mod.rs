//! Files that ask for more work than their size justifies, or try to: one construct of a format,
//! repeated until the file has a size that is wanted.
//!
//! A reader that is safe from them takes time in proportion to the file, or ends with an error of
//! memory or work (E008).
//!
//! ```
//! use apr_testkit::excessive;
//!
//! for construct in excessive::all() {
//!     assert!(construct.of_size(100_000).len() <= 100_000, "{}", construct.name);
//! }
//! ```

mod apr;
mod beside;
mod onnx;
mod pickle;
mod protobuf;
mod run;
mod scan;
mod text;
mod weights;

/// A construct that a file can repeat.
#[derive(Debug, Clone, Copy)]
pub struct Construct {
    /// Name of the repeated construct.
    pub name: &'static str,
    /// Name of the file, by which it is opened.
    pub file: &'static str,
    /// Function that makes the file with this number of repetitions.
    pub make: fn(usize) -> Vec<u8>,
}

impl Construct {
    /// Returns the names and contents of files that a loader needs next to a file that is not a
    /// model.
    #[must_use]
    pub fn beside(&self) -> Vec<(&'static str, Vec<u8>)> {
        let header = br#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        let weights = [&(header.len() as u64).to_le_bytes()[..], header, &[1]].concat();
        let weights = ("model.safetensors", weights);
        match self.file {
            "tokenizer.json" => {
                vec![weights, ("config.json", br#"{"model_type":"llama"}"#.to_vec())]
            }
            "config.json" | "model.safetensors.index.json" => vec![weights],
            "adapter_config.json" => vec![("model.safetensors", adapted())],
            _ => Vec::new(),
        }
    }

    /// Returns the file with the most repetitions, among powers of two, of at most `most` bytes.
    #[must_use]
    pub fn of_size(&self, most: usize) -> Vec<u8> {
        let mut file = (self.make)(1);
        let mut count = 2;
        loop {
            let larger = (self.make)(count);
            if larger.len() > most || larger.len() <= file.len() {
                return file;
            }
            file = larger;
            count *= 2;
        }
    }
}

/// A matrix, and the pair of matrices that an adapter adds to it: a model that is its own adapter.
fn adapted() -> Vec<u8> {
    let header = br#"{"w.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},
"w.lora_A.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]},
"w.lora_B.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]}}"#;
    [&(header.len() as u64).to_le_bytes()[..], header, &[0; 12]].concat()
}

/// All constructs, format by format.
pub fn all() -> impl Iterator<Item = Construct> {
    [onnx::ALL, run::ALL, pickle::ALL, text::ALL, weights::ALL, scan::ALL, apr::ALL, beside::ALL]
        .into_iter()
        .flatten()
        .copied()
}
