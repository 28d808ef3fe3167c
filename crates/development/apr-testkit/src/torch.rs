//! ZIP archives and PyTorch checkpoints packed by hand, so that a test can get any part of one
//! wrong.

/// Archive entry. The fields with `local` are for the entry's own header.
#[derive(Clone)]
pub struct Entry {
    /// Name in the directory.
    pub name: String,
    /// Name in front of the content.
    pub local_name: String,
    /// Stored bytes of the entry.
    pub data: Vec<u8>,
    /// Flags in the directory.
    pub flags: u16,
    /// Flags in front of the content.
    pub local_flags: u16,
    /// Method of compression; the bytes are not compressed here.
    pub method: u16,
    /// CRC-32 in both.
    pub crc32: u32,
    /// Added to the size in the directory.
    pub longer: u32,
    /// Taken off the place in the directory.
    pub earlier: u32,
    /// Sizes and place in ZIP64 extra fields.
    pub wide: bool,
}

impl Entry {
    /// Creates a valid stored entry.
    #[must_use]
    pub fn new(name: &str, data: &[u8]) -> Self {
        Self {
            name: name.into(),
            local_name: name.into(),
            data: data.to_vec(),
            flags: 0,
            local_flags: 0,
            method: 0,
            crc32: crc32fast::hash(data),
            longer: 0,
            earlier: 0,
            wide: false,
        }
    }
}

fn small(len: usize) -> [u8; 2] {
    u16::try_from(len).expect("a short name").to_le_bytes()
}

fn place(at: usize) -> u32 {
    u32::try_from(at).expect("a small archive")
}

/// The fields of 32 bits, and the extra field that holds their values if they are wide.
fn fields<const N: usize>(values: [u32; N], wide: bool) -> ([u32; N], Vec<u8>) {
    if !wide {
        return (values, Vec::new());
    }
    let extra = values.map(|value| u64::from(value).to_le_bytes());
    ([u32::MAX; N], [&[9, 0, 2, 0, 7, 7, 1, 0][..], &small(8 * N), extra.as_flattened()].concat())
}

/// An archive of these entries.
#[must_use]
pub fn zip(entries: &[Entry]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for entry in entries {
        let at = place(file.len()) - entry.earlier;
        let size = place(entry.data.len());
        file.extend(b"PK\x03\x04\x00\x00");
        file.extend(entry.local_flags.to_le_bytes());
        file.extend(entry.method.to_le_bytes());
        file.extend([0; 4]);
        let size = size + entry.longer;
        let ([len, compressed], extra) = fields([size, size], entry.wide);
        file.extend([entry.crc32, compressed, len].map(u32::to_le_bytes).as_flattened());
        file.extend(small(entry.local_name.len()));
        file.extend(small(extra.len()));
        file.extend(entry.local_name.as_bytes());
        file.extend(extra);
        file.extend(&entry.data);

        directory.extend(b"PK\x01\x02\x00\x00\x00\x00");
        directory.extend(entry.flags.to_le_bytes());
        directory.extend(entry.method.to_le_bytes());
        directory.extend([0; 4]);
        let ([len, compressed, at], extra) = fields([size, size, at], entry.wide);
        directory.extend([entry.crc32, compressed, len].map(u32::to_le_bytes).as_flattened());
        directory.extend(small(entry.name.len()));
        directory.extend(small(extra.len()));
        directory.extend([0; 10]);
        directory.extend(at.to_le_bytes());
        directory.extend(entry.name.as_bytes());
        directory.extend(extra);
    }
    let count = small(entries.len());
    let (at, len) = (place(file.len()), place(directory.len()));
    file.extend(directory);
    file.extend(b"PK\x05\x06\x00\x00\x00\x00");
    file.extend([count, count].as_flattened());
    file.extend([len, at].map(u32::to_le_bytes).as_flattened());
    file.extend([0; 2]);
    file
}

/// A checkpoint whose pickle is this, with one storage of eight bytes.
#[must_use]
pub fn checkpoint(pickle: &[u8]) -> Vec<u8> {
    zip(&entries(pickle))
}

/// The entries of that.
#[must_use]
pub fn entries(pickle: &[u8]) -> Vec<Entry> {
    vec![Entry::new("m/data.pkl", pickle), Entry::new("m/data/0", &[1, 2, 3, 4, 5, 6, 7, 8])]
}

/// A pickle of `{"w": tensor}`, with these arguments between the function and the call.
#[must_use]
pub fn tensor(class: &str, len: u64, offset: u64, shape: &[u64], strides: &[u64]) -> Vec<u8> {
    let tuple = |numbers: &[u64]| {
        format!("({}t", numbers.iter().map(|n| format!("L{n}L\n")).collect::<String>())
    };
    let text = format!(
        "}}S'w'\nctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\n{class}\nS'0'\nS'cpu'\n\
         L{len}L\ntQL{offset}L\n{}{}I00\nNtRs.",
        tuple(shape),
        tuple(strides)
    );
    [b"\x80\x02", text.as_bytes()].concat()
}
