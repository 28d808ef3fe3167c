//! Huffman codes and the bits that they are read from.

/// Bits of a code that a table is looked up by.
const FAST: u32 = 9;
/// Bits that may be read past the end of the data, which libjpeg takes for zeros: a code and what
/// follows it.
const BEYOND: u32 = 64;

/// The codes of a table (T.81, annex C).
#[derive(Debug, Clone)]
pub(super) struct Huffman {
    /// Length and symbol by the first bits; length 0 for longer codes.
    fast: Vec<(u8, u8)>,
    /// For each length, the first code after the codes of this length, shifted to 16 bits, and the
    /// difference from a code to the index of its symbol.
    limits: [(u32, i32); 17],
    symbols: Vec<u8>,
}

impl Huffman {
    pub(super) fn new(counts: [u8; 16], symbols: &[u8]) -> Option<Self> {
        let mut table =
            Self { fast: vec![(0, 0); 1 << FAST], limits: [(0, 0); 17], symbols: symbols.to_vec() };
        let (mut code, mut place) = (0_u32, 0_usize);
        for (len, count) in (1_u32..).zip(counts) {
            let first = i32::try_from(place).ok()? - i32::try_from(code).ok()?;
            for _ in 0..count {
                if len <= FAST {
                    let from = usize::try_from(code << (FAST - len)).ok()?;
                    let entries = table.fast.get_mut(from..from + (1 << (FAST - len)))?;
                    entries.fill((u8::try_from(len).ok()?, *symbols.get(place)?));
                }
                code += 1;
                place += 1;
            }
            if code > 1 << len {
                return None;
            }
            table.limits[len as usize] = (code << (16 - len), first);
            code <<= 1;
        }
        Some(table)
    }
}

/// Reads the bits of a scan.
#[derive(Debug)]
pub(super) struct Bits<'b> {
    bytes: &'b [u8],
    at: usize,
    buffer: u64,
    /// Bits in the buffer.
    count: u32,
    /// Bits that were not there.
    beyond: u32,
}

impl<'b> Bits<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, at: 0, buffer: 0, count: 0, beyond: 0 }
    }

    fn fill(&mut self) -> Option<()> {
        while self.count <= 48 {
            let byte = match (self.bytes.get(self.at), self.bytes.get(self.at + 1)) {
                (Some(0xff), Some(0x00)) => {
                    self.at += 2;
                    0xff
                }
                // A marker ends the data.
                (Some(0xff), _) | (None, _) => {
                    self.beyond += 8;
                    0
                }
                (Some(byte), _) => {
                    self.at += 1;
                    *byte
                }
            };
            self.buffer = self.buffer << 8 | u64::from(byte);
            self.count += 8;
        }

        // What is in the buffer beyond the end may stay there.
        (self.beyond < self.count + BEYOND).then_some(())
    }

    /// The next bits, 16 at most.
    pub(super) fn take(&mut self, len: u32) -> Option<u32> {
        if self.count < len {
            self.fill()?;
        }
        self.count -= len;
        let mask = (1_u64 << len) - 1;
        u32::try_from(self.buffer >> self.count & mask).ok()
    }

    /// Reads a number of `len` bits, in which the lower half of the values is negative (T.81,
    /// figure F.12).
    pub(super) fn number(&mut self, len: u32) -> Option<i32> {
        if len == 0 {
            return Some(0);
        }
        if len > 16 {
            return None;
        }
        let value = i32::try_from(self.take(len)?).ok()?;
        Some(if value < 1 << (len - 1) { value - (1 << len) + 1 } else { value })
    }

    pub(super) fn symbol(&mut self, table: &Huffman) -> Option<u8> {
        if self.count < 16 {
            self.fill()?;
        }
        let next = u32::try_from(self.buffer >> (self.count - 16) & 0xffff).ok()?;
        let (len, symbol) = table.fast[(next >> (16 - FAST)) as usize];
        if len > 0 {
            self.count -= u32::from(len);
            return Some(symbol);
        }
        for len in FAST + 1..=16 {
            let (limit, first) = table.limits[len as usize];
            if next < limit {
                self.count -= len;
                let place = i32::try_from(next >> (16 - len)).ok()? + first;
                return table.symbols.get(usize::try_from(place).ok()?).copied();
            }
        }
        None
    }

    /// Continues after the next restart marker.
    pub(super) fn restart(&mut self) -> Option<()> {
        (self.buffer, self.count, self.beyond) = (0, 0, 0);
        loop {
            match self.bytes.get(self.at..self.at + 2)? {
                [0xff, 0xd0..=0xd7] => break,
                [0xff, 0x00 | 0xff] => self.at += 1,
                [0xff, _] => return None,
                _ => self.at += 1,
            }
        }
        self.at += 2;
        Some(())
    }

    /// Bytes up to the marker that ends the data.
    pub(super) fn read(&self) -> usize {
        self.at
    }
}
