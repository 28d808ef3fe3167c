//! Reading a pickle stream through a window, because a pre-ZIP file does not say where its pickles
//! end.

use apr_core::{ByteSource, Error, Limits, Result};

/// Maximum number of bytes per read. The first read is shorter, because many pickles are short.
const WINDOW: usize = 1 << 16;
const FIRST_WINDOW: usize = 1 << 9;

/// Longest line of a text opcode, in bytes.
const MAX_LINE: usize = 1 << 20;

/// A part of a source, read from front to back.
pub(crate) struct Input<'a> {
    source: &'a dyn ByteSource,
    position: u64,
    end: u64,
    /// Offset at which the limit on pickled bytes ends the stream, if the file does not end first.
    budget_end: u64,
    /// Name of the setting that raises the limit.
    setting: &'static str,
    window: Vec<u8>,
    window_start: u64,
}

impl<'a> Input<'a> {
    /// Creates an input from `start` to `end`, which must be inside the source.
    pub(crate) fn new(source: &'a dyn ByteSource, start: u64, end: u64, limits: &Limits) -> Self {
        let budget_end = start.saturating_add(limits.max_metadata);
        let (setting, window) = (limits.metadata_setting(), Vec::new());
        Self { source, position: start, end, budget_end, setting, window, window_start: start }
    }

    /// Creates an input without a limit on pickled bytes, for callers that do not keep the bytes.
    pub(crate) fn unlimited(source: &'a dyn ByteSource, start: u64, end: u64) -> Self {
        let (window, budget_end, setting) = (Vec::new(), u64::MAX, "");
        Self { source, position: start, end, budget_end, setting, window, window_start: start }
    }

    /// Returns an input of the bytes from `start` on, without a limit.
    pub(crate) fn again_from(&self, start: u64) -> Self {
        Self::unlimited(self.source, start, self.end)
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Bytes of the whole source.
    pub(crate) fn source_len(&self) -> u64 {
        self.source.len()
    }

    pub(crate) fn remaining(&self) -> u64 {
        self.end - self.position
    }

    fn check(&self, len: u64) -> Result<()> {
        let end = self.position.saturating_add(len);
        if end > self.end {
            let message = format!(
                "{len} bytes are expected here, but the pickle is cut off at byte {}",
                self.end
            );
            return Err(Error::corrupt(message).at(self.position));
        }

        if end > self.budget_end {
            let message = format!(
                "the pickle is longer than the limit on metadata; raise it with {}",
                self.setting
            );
            return Err(Error::memory(message).at(self.position));
        }

        Ok(())
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        self.check(1)?;
        let byte = match self.windowed() {
            Some(byte) => byte,
            None => {
                self.fetch()?;
                self.windowed()
                    .ok_or_else(|| Error::corrupt("the pickle is cut off").at(self.position))?
            }
        };
        self.position += 1;
        Ok(byte)
    }

    fn windowed(&self) -> Option<u8> {
        let index = usize::try_from(self.position.checked_sub(self.window_start)?).ok()?;
        self.window.get(index).copied()
    }

    fn fetch(&mut self) -> Result<()> {
        let window = (2 * self.window.len()).clamp(FIRST_WINDOW, WINDOW);
        let len = usize::try_from(self.end - self.position).map_or(window, |left| left.min(window));
        self.window.resize(len, 0);
        self.window_start = self.position;
        self.source.read_at(self.position, &mut self.window)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.check(N as u64)?;
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    /// The next `len` bytes; checked against the stream's end before anything is allocated.
    pub(crate) fn take(&mut self, len: u64) -> Result<Vec<u8>> {
        self.check(len)?;
        let len = usize::try_from(len)
            .map_err(|_| Error::memory("a string exceeds the address space"))?;
        if len <= WINDOW {
            return (0..len).map(|_| self.byte()).collect();
        }
        let mut bytes = vec![0; len];
        self.source.read_at(self.position, &mut bytes)?;
        self.position += len as u64;
        Ok(bytes)
    }

    /// Skips `len` bytes, which do not count as pickled.
    pub(crate) fn skip(&mut self, len: u64) -> Result<()> {
        if len > self.remaining() {
            let message = format!("{len} bytes are expected here, but the file ends before them");
            return Err(Error::corrupt(message).at(self.position));
        }
        self.position += len;
        self.budget_end = self.budget_end.saturating_add(len);
        Ok(())
    }

    /// The bytes up to a line feed, which is consumed and left out; without a limit, the first of
    /// them.
    ///
    /// # Errors
    /// E002 at the end of the file, E007 when reading fails, E008 for a longer line.
    pub(crate) fn line(&mut self) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            match self.byte()? {
                b'\n' => return Ok(line),
                _ if line.len() == MAX_LINE && self.budget_end == u64::MAX => {
                    self.skip_line()?;
                    return Ok(line);
                }
                _ if line.len() == MAX_LINE => {
                    return Err(Error::memory("a line of more than 1 MiB").at(self.position));
                }
                byte => line.push(byte),
            }
        }
    }

    /// Skips the rest of a line. It may be as long as the file, so it is not read byte by byte.
    fn skip_line(&mut self) -> Result<()> {
        /// Bytes of a read.
        const BLOCK: u64 = 1 << 20;

        let mut block = Vec::new();
        while self.position < self.end {
            let len = usize::try_from((self.end - self.position).min(BLOCK)).unwrap_or_default();
            block.resize(len, 0);
            self.source.read_at(self.position, &mut block)?;
            if block.contains(&b'\n') {
                let line = block.iter().take_while(|&&byte| byte != b'\n').count();
                self.position += line as u64 + 1;
                return Ok(());
            }
            self.position += len as u64;
        }
        Err(Error::corrupt("a line without an end").at(self.position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_any_length_end_at_their_line_feed() {
        for len in [0, 1, MAX_LINE - 1, MAX_LINE, MAX_LINE + 1, 2 * MAX_LINE, 5 * MAX_LINE / 2] {
            let bytes = [vec![b'1'; len], b"\nN".to_vec()].concat();
            let mut input = Input::unlimited(&bytes, 0, bytes.len() as u64);
            assert_eq!(input.line().map(|line| line.len()), Ok(len.min(MAX_LINE)));
            assert_eq!((input.position(), input.byte()), (len as u64 + 1, Ok(b'N')));
        }
        let endless = vec![b'1'; 2 * MAX_LINE];
        let mut endless = Input::unlimited(&endless, 0, 2 * MAX_LINE as u64);
        assert!(endless.line().is_err());
    }
}
