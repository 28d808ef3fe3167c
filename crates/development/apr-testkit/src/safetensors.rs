//! safetensors files packed by hand, whatever their tensors say of themselves.

use serde_json::{Map, Value, json};

/// A tensor of such a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SafeTensor {
    /// Name of the tensor.
    pub name: String,
    /// Dtype in the header's form: `F8_E4M3`.
    pub dtype: String,
    /// Shape of the tensor.
    pub shape: Vec<u64>,
    /// Bytes of the tensor.
    pub bytes: Vec<u8>,
}

impl SafeTensor {
    /// Returns the number of bytes for the shape and the dtype, or `None` beyond 64 bits.
    #[must_use]
    pub fn wanted_len(&self) -> Option<u64> {
        let width = match &*self.dtype {
            "I64" | "U64" | "F64" => 8,
            "I32" | "U32" | "F32" => 4,
            "I16" | "U16" | "F16" | "BF16" => 2,
            _ => 1,
        };
        self.shape.iter().try_fold(width, |len: u64, dim| len.checked_mul(*dim))
    }

    /// Fills the tensor to the required number of bytes by repeating its bytes.
    ///
    /// If more than `most` bytes are required, the tensor does not change.
    #[must_use]
    pub fn filled(mut self, most: u64) -> Self {
        let len = self.wanted_len().filter(|len| *len <= most);
        if let Some(len) = len.and_then(|len| usize::try_from(len).ok()) {
            let bytes: &[u8] = if self.bytes.is_empty() { &[0] } else { &self.bytes };
            self.bytes = bytes.iter().copied().cycle().take(len).collect();
        }
        self
    }
}

/// A file of these tensors, with this `__metadata__`.
#[must_use]
pub fn file(metadata: Option<&Value>, tensors: &[SafeTensor]) -> Vec<u8> {
    let mut header = Map::new();
    if let Some(metadata) = metadata {
        header.insert("__metadata__".to_owned(), metadata.clone());
    }
    let mut end = 0;
    for SafeTensor { name, dtype, shape, bytes } in tensors {
        let start = end;
        end += bytes.len();
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(tensors.iter().flat_map(|tensor| &tensor.bytes));
    file
}
