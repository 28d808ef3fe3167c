//! Numbers, texts and bytes.

use apr_core::Result;

use super::Vm;
use crate::pickle::opcode as op;
use crate::pickle::text;
use crate::pickle::value::{Bytes, Lying, Node};

/// Maximum length in bytes of a string that is kept if arrays are read: no name is longer.
const MAX_STRING: u64 = 65_535;

/// Python 2's string: text in every checkpoint, unless it is the bytes of a value.
fn string_of(bytes: Vec<u8>) -> Node {
    match String::from_utf8(bytes) {
        Ok(text) => Node::Str(text.into()),
        Err(error) => Node::Bytes(error.as_bytes().into()),
    }
}

impl Vm<'_> {
    pub(super) fn number(&mut self) -> Result<()> {
        let node = match self.opcode {
            op::BININT => Node::Int(i32::from_le_bytes(self.input.array()?).into()),
            op::BININT1 => Node::Int(self.input.byte()?.into()),
            op::BININT2 => Node::Int(u16::from_le_bytes(self.input.array()?).into()),
            op::LONG1 | op::LONG4 => {
                let len = if self.opcode == op::LONG1 {
                    self.input.byte()?.into()
                } else {
                    self.len32()?
                };
                text::long(&self.input.take(len)?)
            }
            _ => {
                let line = self.input.line()?;
                if !line.iter().any(u8::is_ascii_digit) {
                    self.stop();
                }
                self.literal(text::integer(&line))?
            }
        };

        self.push_node(node)
    }

    pub(super) fn float(&mut self) -> Result<()> {
        let node = match self.opcode {
            // The one number of pickle that is big-endian.
            op::BINFLOAT => Node::Float(f64::from_be_bytes(self.input.array()?)),
            _ => {
                let line = self.input.line()?;
                let words = ["inf", "nan"].map(str::as_bytes);
                let lower = line.to_ascii_lowercase();
                let is_word = words.iter().any(|word| lower.windows(3).any(|part| part == *word));
                if !is_word && !line.iter().any(u8::is_ascii_digit) {
                    self.stop();
                }
                self.literal(text::float(&line))?
            }
        };
        self.push_node(node)
    }

    /// Replaces an invalid literal with an opaque value in a scan.
    ///
    /// Python may accept forms such as `0x1f` or `1_000`.
    fn literal(&self, node: Result<Node>) -> Result<Node> {
        if self.policy.lenient { Ok(node.unwrap_or(Node::Opaque)) } else { node }
    }

    /// A four-byte length. Python reads some of them as signed and refuses a negative one; so does
    /// the end of the file.
    fn len32(&mut self) -> Result<u64> {
        Ok(u32::from_le_bytes(self.input.array()?).into())
    }

    fn len64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.input.array()?))
    }

    /// Python 2's strings, which are text in every checkpoint.
    pub(super) fn byte_string(&mut self) -> Result<()> {
        let bytes = match self.opcode {
            op::STRING => {
                let line = self.input.line()?;
                if !matches!(line.trim_ascii(), [b'\'', .., b'\''] | [b'"', .., b'"']) {
                    self.stop();
                }
                match text::quoted(&line) {
                    Err(_) if self.policy.lenient => return self.push_node(Node::Opaque),
                    bytes => bytes?,
                }
            }
            op::SHORT_BINSTRING => {
                let len = self.input.byte()?.into();
                return self.lying_string(len, false);
            }
            _ => {
                let len = self.len32()?;
                return self.lying_string(len, false);
            }
        };

        self.look_inside(&bytes, false);
        self.push_node(string_of(bytes))
    }

    /// Reads a string that is stored unescaped in the source and may be the bytes of an array.
    fn lying_string(&mut self, len: u64, is_text: bool) -> Result<()> {
        let at = Lying { offset: self.input.position(), len, is_text };
        if self.policy.arrays && len > MAX_STRING {
            self.input.skip(len)?;
            return self.push_node(Node::Bytes(Bytes::lying(&[], at)));
        }

        let bytes = self.input.take(len)?;
        self.look_inside(&bytes, true);
        let node = match string_of(bytes) {
            // Python lets lone surrogates through; no name has them.
            Node::Bytes(_) if is_text => {
                self.refuse("holds text that is not UTF-8")?;
                Node::Opaque
            }
            Node::Bytes(bytes) => Node::Bytes(bytes.with_place(Some(at))),
            node => node,
        };
        let id = self.heap.add(node)?;
        if self.policy.arrays {
            self.strings.insert(id, at);
        }
        self.push(id)
    }

    pub(super) fn string(&mut self) -> Result<()> {
        let len = match self.opcode {
            op::UNICODE => {
                let text = match text::raw_unicode(&self.input.line()?) {
                    Err(_) if self.policy.lenient => return self.push_node(Node::Opaque),
                    text => text?,
                };
                self.look_inside(text.as_bytes(), false);
                return self.push_node(Node::Str(text.into()));
            }
            op::SHORT_BINUNICODE => self.input.byte()?.into(),
            op::BINUNICODE => self.len32()?,
            _ => self.len64()?,
        };

        self.lying_string(len, true)
    }

    pub(super) fn bytes(&mut self) -> Result<()> {
        let len = match self.opcode {
            op::SHORT_BINBYTES => self.input.byte()?.into(),
            op::BINBYTES => self.len32()?,
            _ => self.len64()?,
        };
        if self.policy.arrays {
            // All of a model's weights may be in one pickle.
            let at = Lying { offset: self.input.position(), len, is_text: false };
            let first = self.input.take(len.min(8))?;
            self.input.skip(len - first.len() as u64)?;
            return self.push_node(Node::Bytes(Bytes::lying(&first, at)));
        }
        let bytes = self.input.take(len)?;
        self.look_inside(&bytes, true);
        self.push_node(Node::Bytes(bytes[..].into()))
    }
}
