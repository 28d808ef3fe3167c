//! A parser of GGUF files of the tests' own.

use std::collections::BTreeMap;

/// GGUF file parsed by its specification, without any of the code under test.
pub(super) struct Parsed {
    /// Number of the type and bytes of the value.
    keys: BTreeMap<String, (u32, Vec<u8>)>,
    /// Dimensions, innermost first; number of the type; offset in the data.
    pub(super) tensors: BTreeMap<String, (Vec<u64>, u32, usize)>,
    pub(super) data: Vec<u8>,
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take(&mut self, len: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken.to_vec()
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    fn len(&mut self) -> usize {
        usize::try_from(self.u64()).expect("small")
    }

    fn text(&mut self) -> String {
        let len = self.len();
        String::from_utf8(self.take(len)).expect("UTF-8")
    }

    fn value(&mut self, kind: u32) -> Vec<u8> {
        match kind {
            0 | 1 | 7 => self.take(1),
            2 | 3 => self.take(2),
            4..=6 => self.take(4),
            10..=12 => self.take(8),
            8 => self.text().into_bytes(),
            9 => {
                let (item, count) = (self.u32(), self.len());
                (0..count).flat_map(|_| [self.value(item), b"\n".to_vec()].concat()).collect()
            }
            other => panic!("no type has number {other}"),
        }
    }
}

impl Parsed {
    pub(super) fn new(file: &[u8], alignment: usize) -> Self {
        let mut cursor = Cursor(file);
        assert_eq!((cursor.take(4).as_slice(), cursor.u32()), (&b"GGUF"[..], 3));
        let (tensors, pairs) = (cursor.u64(), cursor.u64());
        let keys = (0..pairs).map(|_| {
            let (key, kind) = (cursor.text(), cursor.u32());
            let value = cursor.value(kind);
            (key, (kind, value))
        });
        let keys = keys.collect();
        let tensors = (0..tensors).map(|_| {
            let (name, count) = (cursor.text(), cursor.u32());
            let dims = (0..count).map(|_| cursor.u64()).collect();
            (name, (dims, cursor.u32(), cursor.len()))
        });
        let tensors: BTreeMap<_, (Vec<u64>, u32, usize)> = tensors.collect();
        assert!(tensors.values().all(|(.., offset)| offset % alignment == 0));
        let start = (file.len() - cursor.0.len()).next_multiple_of(alignment);
        Self { keys, tensors, data: file[start..].to_vec() }
    }

    pub(super) fn number(&self, key: &str) -> u32 {
        let (kind, value) = &self.keys[key];
        assert!(matches!(kind, 4 | 5), "{key} has type {kind}");
        u32::from_le_bytes(value[..].try_into().expect("four bytes"))
    }

    pub(super) fn text(&self, key: &str) -> &str {
        let (kind, value) = &self.keys[key];
        assert_eq!(*kind, 8, "{key}");
        std::str::from_utf8(value).expect("UTF-8")
    }

    /// The bytes of a value; each item of a list is followed by a line break.
    pub(super) fn value(&self, key: &str) -> Option<&[u8]> {
        self.keys.get(key).map(|(_, value)| &value[..])
    }

    pub(super) fn bytes(&self, name: &str, len: usize) -> &[u8] {
        let (.., offset) = self.tensors[name];
        &self.data[offset..offset + len]
    }
}
