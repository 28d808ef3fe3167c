//! The variables of a file, and where they lie in it.

use std::collections::BTreeMap;

use apr_core::{ByteSource, DType, Error, Limits, Result, Shape, read_vec};

/// Most dimensions of a variable.
const MAX_RANK: u8 = 8;

/// Bytes that are read for the description of a variable.
const DESCRIPTION: u64 = 512;

/// Name that the specifications of models end with.
const SPECIFICATION: &[u8] = b"Spec\0";

/// A variable of a file.
#[derive(Debug, Clone)]
pub(super) struct Variable {
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    /// Offset of its bytes in the file.
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Contents of a file, without the bytes of its variables.
#[derive(Debug)]
pub(super) struct Variables {
    /// Name of the specification, such as `WhisperSpec`.
    pub(super) specification: String,
    /// Variables and aliases, by name.
    pub(super) all: BTreeMap<String, Variable>,
    /// Number of bytes behind the last alias.
    pub(super) rest: u64,
}

/// Returns `true` if the first bytes of a file are those of a model of CTranslate2.
pub(super) fn recognises(head: &[u8]) -> bool {
    let Some((version, head)) = head.split_first_chunk() else { return false };
    let Some((len, head)) = head.split_first_chunk() else { return false };
    let (version, len) = (u32::from_le_bytes(*version), usize::from(u16::from_le_bytes(*len)));
    let name = head.get(..len);
    (1..=16).contains(&version)
        && name.is_some_and(|name| {
            name.ends_with(SPECIFICATION) && name[..len - 1].iter().all(u8::is_ascii_alphanumeric)
        })
}

/// Reads descriptions one after the other.
struct Cursor<'s> {
    source: &'s dyn ByteSource,
    at: u64,
    /// Bytes of the file from `start` on.
    bytes: Vec<u8>,
    start: u64,
}

impl Cursor<'_> {
    fn take(&mut self, len: u64) -> Result<&[u8]> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.source.len());
        let end =
            end.ok_or_else(|| Error::corrupt("the file ends within a variable").at(self.at))?;
        if self.at < self.start || end > self.start + self.bytes.len() as u64 {
            let wanted = len.max(DESCRIPTION).min(self.source.len() - self.at);
            self.bytes = read_vec(self.source, self.at, wanted)?;
            self.start = self.at;
        }
        let first = usize::try_from(self.at - self.start).unwrap_or_default();
        let last = usize::try_from(end - self.start).unwrap_or_default();
        self.at = end;
        Ok(&self.bytes[first..last])
    }

    fn number<const LEN: usize>(&mut self) -> Result<[u8; LEN]> {
        let bytes = self.take(LEN as u64)?;
        Ok(bytes.try_into().unwrap_or([0; LEN]))
    }

    fn u32(&mut self) -> Result<u32> {
        self.number().map(u32::from_le_bytes)
    }

    fn text(&mut self) -> Result<String> {
        let at = self.at;
        let len = u16::from_le_bytes(self.number()?);
        let bytes = self.take(len.into())?;
        let text = bytes.strip_suffix(b"\0").and_then(|text| core::str::from_utf8(text).ok());
        let text = text.filter(|text| !text.is_empty() && !text.contains('\0'));
        text.map(str::to_owned).ok_or_else(|| Error::corrupt("a name is malformed").at(at))
    }
}

impl Variables {
    /// Reads the descriptions of all variables.
    ///
    /// # Errors
    /// E001 for two variables of one name, E002 for a damaged file, E003 for another version, E007
    /// when reading fails, E008 for more variables than fit in memory.
    pub(super) fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Self> {
        let mut cursor = Cursor { source, at: 0, bytes: Vec::new(), start: 0 };
        let version = cursor.u32()?;
        if !(4..=6).contains(&version) {
            return Err(Error::version(format!(
                "version {version} of CTranslate2's format; 4 to 6 are known"
            )));
        }
        let specification = cursor.text()?;
        cursor.u32()?;
        let mut all = BTreeMap::new();
        let count = cursor.u32()?;
        limits.check_tensors(count.into())?;
        for _ in 0..count {
            let at = cursor.at;
            let name = cursor.text()?;
            let variable = Variable::read(&mut cursor).map_err(|error| error.for_tensor(&name))?;
            cursor.at = variable.offset + variable.len;
            if all.insert(name.clone(), variable).is_some() {
                return Err(Error::format("two variables have this name").for_tensor(name).at(at));
            }
        }
        let count = cursor.u32()?;
        limits.check_tensors(count.into())?;
        for _ in 0..count {
            let at = cursor.at;
            let (alias, name) = (cursor.text()?, cursor.text()?);
            let Some(variable) = all.get(&name).cloned() else {
                let message = "an alias of a variable that the file does not have";
                return Err(Error::corrupt(message).for_tensor(alias).at(at));
            };
            if all.insert(alias.clone(), variable).is_some() {
                return Err(Error::format("two variables have this name").for_tensor(alias).at(at));
            }
        }
        Ok(Self { specification, all, rest: source.len() - cursor.at })
    }
}

impl Variable {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        let at = cursor.at;
        let [rank] = cursor.number()?;
        if rank > MAX_RANK {
            return Err(Error::corrupt(format!("{rank} dimensions are too many")).at(at));
        }
        let dims = (0..rank).map(|_| cursor.u32().map(u64::from)).collect::<Result<Vec<_>>>()?;
        let [number] = cursor.number()?;
        let dtype = match number {
            0 => DType::F32,
            1 => DType::I8,
            2 => DType::I16,
            3 => DType::I32,
            4 => DType::F16,
            5 => DType::BF16,
            other => return Err(Error::corrupt(format!("no type has the number {other}")).at(at)),
        };
        let len = u64::from(cursor.u32()?);
        let shape = Shape::from(dims);
        if dtype.stored_len(&shape) != Some(len) {
            let message = format!("{len} bytes for the shape {shape} and the dtype {dtype}");
            return Err(Error::corrupt(message).at(at));
        }
        let offset = cursor.at;
        if offset + len > cursor.source.len() {
            return Err(Error::corrupt("the file ends within the variable").at(offset));
        }
        Ok(Self { dtype, shape, offset, len })
    }
}
