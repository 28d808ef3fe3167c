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
//!     assert!(construct.of_size(10_000).len() <= 10_000, "{}", construct.name);
//! }
//! ```

mod onnx;
mod pickle;
mod protobuf;
mod text;
mod weights;

/// A construct that a file can repeat.
#[derive(Debug, Clone, Copy)]
pub struct Construct {
    /// What is repeated.
    pub name: &'static str,
    /// Name of the file, by which it is opened.
    pub file: &'static str,
    /// The file with so many repetitions.
    pub make: fn(usize) -> Vec<u8>,
}

impl Construct {
    /// The file with the most repetitions, among powers of two, that has no more than so many
    /// bytes.
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

/// All constructs, format by format.
pub fn all() -> impl Iterator<Item = Construct> {
    [onnx::ALL, pickle::ALL, text::ALL, weights::ALL].into_iter().flatten().copied()
}
