//! Legacy GGML files packed by hand, sound or broken.
//!
//! Nothing here is shared with the crate that reads the format, so the two check each other.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "files made for tests are small"
)]

/// A file to be packed.
///
/// ```
/// use apr_testkit::ggml::{GgmlBuilder, GgmlTensor};
///
/// let file =
///     GgmlBuilder::llama(*b"tjgg", Some(3)).tensor(GgmlTensor::f32("norm.weight", &[2])).build();
/// assert!(file.starts_with(b"tjgg\x03\0\0\0"));
/// ```
#[derive(Debug, Clone)]
pub struct GgmlBuilder {
    /// Magic in the byte order of the file.
    pub magic: [u8; 4],
    /// Version; not written if `None`.
    pub version: Option<i32>,
    /// Hyperparameters, fields of i32. Silero files have [`prefix`](Self::prefix) before them.
    pub hyperparameters: Vec<i32>,
    /// Bytes between magic and hyperparameters.
    pub prefix: Vec<u8>,
    /// Mels, frequencies, and the values.
    pub filterbank: Option<(i32, i32, Vec<f32>)>,
    /// Number of tokens; not written if `None`.
    pub token_count: Option<i32>,
    /// Bytes of the tokens.
    pub tokens: Vec<Vec<u8>>,
    /// `true` to write a score for each token, which is minus its id.
    pub scored: bool,
    /// `true` to start data at multiples of 32.
    pub aligned: bool,
    /// Tensors of the file.
    pub tensors: Vec<GgmlTensor>,
    /// Bytes after the last tensor.
    pub tail: Vec<u8>,
}

/// A tensor: its header and its data.
#[derive(Debug, Clone)]
pub struct GgmlTensor {
    /// Name of the tensor.
    pub name: Vec<u8>,
    /// Value that replaces the length of the name.
    pub name_len: Option<i32>,
    /// Value that replaces the number of dimensions.
    pub n_dims: Option<i32>,
    /// Type of the elements, as ggml's number.
    pub type_number: i32,
    /// Dimensions as in the file: innermost first.
    pub dims: Vec<i32>,
    /// Bytes of the tensor.
    pub bytes: Vec<u8>,
}

impl GgmlTensor {
    /// A tensor of any type.
    #[must_use]
    pub fn new(name: &str, type_number: i32, dims: &[i32], bytes: &[u8]) -> Self {
        let (name, dims, bytes) = (name.into(), dims.to_vec(), bytes.to_vec());
        Self { name, name_len: None, n_dims: None, type_number, dims, bytes }
    }

    /// A tensor of f32 that count from 0.
    #[must_use]
    pub fn f32(name: &str, dims: &[i32]) -> Self {
        let count: i32 = dims.iter().product();
        let bytes: Vec<u8> = (0..count as u16).flat_map(|at| f32::from(at).to_le_bytes()).collect();
        Self::new(name, 0, dims, &bytes)
    }

    /// A tensor of f16, all 1.
    #[must_use]
    pub fn f16(name: &str, dims: &[i32]) -> Self {
        let count: i32 = dims.iter().product();
        Self::new(name, 1, dims, &[0, 0x3c].repeat(count as usize))
    }
}

impl GgmlBuilder {
    fn new(hyperparameters: &[i32]) -> Self {
        Self {
            magic: *b"lmgg",
            version: None,
            hyperparameters: hyperparameters.to_vec(),
            prefix: Vec::new(),
            filterbank: None,
            token_count: None,
            tokens: Vec::new(),
            scored: false,
            aligned: false,
            tensors: Vec::new(),
            tail: Vec::new(),
        }
    }

    /// LLaMA with 3 tokens, 4 wide, one layer of 2 heads, f16; its container by magic and version.
    #[must_use]
    pub fn llama(magic: [u8; 4], version: Option<i32>) -> Self {
        let base = Self::new(&[3, 4, 7, 2, 1, 2, 1]).with_tokens(&[b"<unk>", b"a", b"\xf0\x9f"]);
        Self { magic, version, scored: version.is_some(), aligned: magic == *b"tjgg", ..base }
    }

    /// Whisper with 3 tokens in the file, 4 wide, one layer each of 2 heads, 2 mels of 3
    /// frequencies, f16.
    #[must_use]
    pub fn whisper() -> Self {
        let filterbank = (2, 3, vec![0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
        let base = Self::new(&[5, 6, 4, 2, 1, 7, 4, 2, 1, 2, 1]).with_tokens(&[b"!", b" the", b""]);
        Self { filterbank: Some(filterbank), token_count: Some(3), ..base }
    }

    /// GPT-2 with 50 tokens, 4 wide, one layer of 2 heads, f16. With fewer, their number could be
    /// an `ftype`.
    #[must_use]
    pub fn gpt2() -> Self {
        Self::new(&[50, 8, 4, 2, 1, 1]).with_tokens(&[b"x", b"\xc4y"]).counted_up_to(50)
    }

    /// GPT-J with 50 tokens, 4 wide, one layer of 2 heads, f16.
    #[must_use]
    pub fn gptj() -> Self {
        Self::new(&[50, 8, 4, 2, 1, 2, 1]).with_tokens(&[b"x", b"y"]).counted_up_to(50)
    }

    /// GPT-NeoX with 2 tokens, 16 wide, one layer of 2 heads, a quarter of them rotated, f16.
    #[must_use]
    pub fn gptneox() -> Self {
        Self::new(&[2, 8, 16, 2, 1, 2, 1, 1]).with_tokens(&[b"x", b"y"])
    }

    /// Silero's voice activity detector with one layer.
    #[must_use]
    pub fn silero() -> Self {
        let prefix = [&10_i32.to_le_bytes()[..], b"silero-16k"].concat();
        Self { prefix, ..Self::new(&[6, 2, 0, 512, 64, 1, 129, 128, 3, 128, 128, 128, 1]) }
    }

    /// Creates an RWKV file, which does not contain its tokens: 2 tokens, 4 wide, one layer, f16.
    #[must_use]
    pub fn rwkv(version: i32) -> Self {
        Self { magic: *b"fmgg", version: Some(version), ..Self::new(&[2, 4, 1, 1]) }
    }

    /// BERT with 2 tokens, 4 wide, one layer of 2 heads, f16.
    #[must_use]
    pub fn bert() -> Self {
        Self::new(&[2, 16, 4, 8, 2, 1, 1]).with_tokens(&[b"[PAD]", b"##s"])
    }

    /// MPT with 2 tokens, 4 wide, one layer of 2 heads, f16.
    #[must_use]
    pub fn mpt() -> Self {
        let alibi = 8_f32.to_bits().cast_signed();
        Self::new(&[4, 16, 2, 1, 2, alibi, 0, 1]).with_tokens(&[b"x", b"y"])
    }

    /// Falcon with 2 tokens, 4 wide, one layer of 2 heads, f16.
    #[must_use]
    pub fn falcon() -> Self {
        Self::new(&[2, 4, 2, 1, 1]).with_tokens(&[b"x", b"y"])
    }

    /// The last hyperparameter.
    #[must_use]
    pub fn ftype(mut self, ftype: i32) -> Self {
        self.hyperparameters.pop();
        self.hyperparameters.push(ftype);
        self
    }

    /// Adds a tensor to the file.
    #[must_use]
    pub fn tensor(mut self, tensor: GgmlTensor) -> Self {
        self.tensors.push(tensor);
        self
    }

    fn with_tokens(mut self, tokens: &[&[u8]]) -> Self {
        self.tokens = tokens.iter().map(|token| token.to_vec()).collect();
        self
    }

    fn counted_up_to(mut self, count: u8) -> Self {
        self.tokens.resize(count.into(), Vec::new());
        Self { token_count: Some(count.into()), ..self }
    }

    /// The file's bytes before the first tensor.
    #[must_use]
    pub fn header(&self) -> Vec<u8> {
        let mut file = self.magic.to_vec();
        put(&mut file, self.version);
        file.extend(&self.prefix);
        put(&mut file, self.hyperparameters.iter().copied());
        if let Some((mels, freqs, values)) = &self.filterbank {
            put(&mut file, [*mels, *freqs]);
            file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }

        put(&mut file, self.token_count);
        for (id, token) in self.tokens.iter().enumerate() {
            put(&mut file, [token.len() as i32]);
            file.extend(token);
            if self.scored {
                file.extend((-f32::from(id as u16)).to_le_bytes());
            }
        }

        file
    }

    /// Builds the bytes of the file.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let mut file = self.header();
        for tensor in &self.tensors {
            let n_dims = tensor.n_dims.unwrap_or(tensor.dims.len() as i32);
            put(
                &mut file,
                [n_dims, tensor.name_len.unwrap_or(tensor.name.len() as i32), tensor.type_number],
            );
            put(&mut file, tensor.dims.iter().copied());
            file.extend(&tensor.name);
            if self.aligned {
                file.resize(file.len().next_multiple_of(32), 0);
            }
            file.extend(&tensor.bytes);
        }

        file.extend(&self.tail);
        file
    }
}

fn put(file: &mut Vec<u8>, words: impl IntoIterator<Item = i32>) {
    file.extend(words.into_iter().flat_map(i32::to_le_bytes));
}
