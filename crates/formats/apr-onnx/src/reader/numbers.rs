//! Elements that are written as numbers of the schema: `float_data`, `int32_data` and their like.

use std::sync::OnceLock;

use apr_core::protobuf::{Element, Run, Runs, Walker};
use apr_core::{ByteSource, Error, Limits, Result};

/// Number of elements between two remembered locations, for elements of varying length.
const STRIDE: u64 = 4096;

/// Elements as numbers, which become bytes as `raw_data` has them.
#[derive(Debug)]
pub(crate) struct Numbers {
    runs: Runs,
    element: Element,
    /// Bytes that each becomes.
    width: u64,
    count: u64,
    /// `true` if every number other than 0 becomes 1.
    is_truth: bool,
    /// Location of every [`STRIDE`]th element: run, and offset in the source.
    ///
    /// Computed by the first read.
    marks: OnceLock<Vec<Mark>>,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    run: usize,
    at: u64,
}

impl Numbers {
    /// `count` numbers of `width` bytes.
    ///
    /// # Errors
    /// E002 where the field is too short or too long for so many.
    pub(crate) fn new(
        runs: Runs,
        element: Element,
        width: u64,
        count: u64,
        is_truth: bool,
    ) -> Result<Self> {
        let numbers = Self { runs, element, width, count, is_truth, marks: OnceLock::new() };
        numbers.check_count()?;
        Ok(numbers)
    }

    fn check_count(&self) -> Result<()> {
        let bytes = |run: &Run| run.span.len;
        let (least, most) = match self.element.width() {
            Some(width) => {
                let mut count = 0;
                for run in self.runs.runs() {
                    if !run.span.len.is_multiple_of(run.key_len + width) {
                        return Err(Error::corrupt("its numbers end amid one").at(run.span.offset));
                    }
                    count += run.span.len / (run.key_len + width);
                }
                (count, count)
            }
            None => {
                // A varint has 1 to 10 bytes, as has the key that may stand before each.
                let bytes: u64 = self.runs.runs().iter().map(bytes).sum();
                (bytes.div_ceil(20), bytes)
            }
        };

        if (least..=most).contains(&self.count) {
            Ok(())
        } else {
            Err(self.miscounted(least.max(most)))
        }
    }

    fn miscounted(&self, found: u64) -> Error {
        let at = self.runs.runs().first().map_or(0, |run| run.span.offset);
        Error::corrupt(format!("its shape requires {} numbers, but there are {found}", self.count))
            .at(at)
    }

    /// Bytes of all elements.
    pub(crate) fn len(&self) -> u64 {
        self.count * self.width
    }

    /// Fills `buf` with bytes from `start` on, which must be there.
    pub(crate) fn read(&self, source: &dyn ByteSource, start: u64, buf: &mut [u8]) -> Result<()> {
        let width = usize::try_from(self.width).unwrap_or(1);
        let skip = usize::try_from(start % self.width).unwrap_or_default();
        let mut walker = Walker::new(source, &Limits::default());
        let mut place = self.place(&mut walker, start / self.width)?;
        let mut filled = 0;
        let mut skip = skip;
        while filled < buf.len() {
            let bytes = self.next(&mut walker, &mut place)?;
            let bytes = &bytes[skip..width];
            let len = bytes.len().min(buf.len() - filled);
            buf[filled..filled + len].copy_from_slice(&bytes[..len]);
            filled += len;
            skip = 0;
        }

        Ok(())
    }

    /// Returns the location of an element.
    fn place(&self, walker: &mut Walker<'_>, element: u64) -> Result<Mark> {
        if let Some(width) = self.element.width() {
            return Ok(self.place_of_fixed(element, width));
        }

        let marks = match self.marks.get() {
            Some(marks) => marks,
            None => {
                // Two threads may both look; they find the same.
                let found = self.scan(walker)?;
                self.marks.get_or_init(|| found)
            }
        };

        let mark = usize::try_from(element / STRIDE).ok().and_then(|at| marks.get(at));
        let mut place = *mark.ok_or_else(|| self.miscounted(self.count))?;
        for _ in 0..element % STRIDE {
            self.next_number(walker, &mut place)?;
        }

        Ok(place)
    }

    fn place_of_fixed(&self, element: u64, width: u64) -> Mark {
        let mut before = element;
        for (run, Run { span, key_len }) in self.runs.runs().iter().enumerate() {
            let count = span.len / (key_len + width);
            if before < count {
                return Mark { run, at: span.offset + before * (key_len + width) };
            }
            before -= count;
        }
        Mark { run: self.runs.runs().len(), at: 0 }
    }

    /// Reads all numbers once to find their locations and to check their count.
    fn scan(&self, walker: &mut Walker<'_>) -> Result<Vec<Mark>> {
        let mut marks = Vec::new();
        let mut place =
            Mark { run: 0, at: self.runs.runs().first().map_or(0, |run| run.span.offset) };
        let mut count = 0;
        while self.settle(&mut place) {
            if count % STRIDE == 0 {
                marks.push(place);
            }
            self.next_number(walker, &mut place)?;
            count += 1;
        }
        if count == self.count { Ok(marks) } else { Err(self.miscounted(count)) }
    }

    /// Advances to the next run if the current one has ended. Returns `false` after the last run.
    fn settle(&self, place: &mut Mark) -> bool {
        while let Some(run) = self.runs.runs().get(place.run) {
            if place.at < run.span.end() {
                return true;
            }
            place.run += 1;
            place.at = self.runs.runs().get(place.run).map_or(0, |next| next.span.offset);
        }
        false
    }

    /// Reads the number at a location, as it is stored, and advances to the next one.
    fn next_number(&self, walker: &mut Walker<'_>, place: &mut Mark) -> Result<u64> {
        if !self.settle(place) {
            return Err(self.miscounted(self.count));
        }

        let run = self.runs.runs()[place.run];
        let (end, mut at) = (run.span.end(), place.at);
        if run.key_len > 0 {
            (_, at) = walker.varint(at, end)?;
        }

        let value = match self.element {
            Element::Varint => {
                let (value, next) = walker.varint(at, end)?;
                at = next;
                value
            }
            Element::Fixed32 => {
                let value = u32::from_le_bytes(walker.fixed(at, end)?);
                at += 4;
                value.into()
            }
            Element::Fixed64 => {
                let value = u64::from_le_bytes(walker.fixed(at, end)?);
                at += 8;
                value
            }
        };

        place.at = at;
        Ok(value)
    }

    /// Reads the bytes of the element at a location and advances to the next one.
    fn next(&self, walker: &mut Walker<'_>, place: &mut Mark) -> Result<[u8; 8]> {
        let at = place.at;
        let value = self.next_number(walker, place)?;
        if self.is_truth {
            return Ok(u64::from(value != 0).to_le_bytes());
        }

        if self.element == Element::Varint && self.width < 8 {
            let bits = 8 * self.width;
            let signed = value.cast_signed();
            // Signed and unsigned numbers of so many bits, and the bits of floats.
            if signed < -(1 << (bits - 1)) || signed >= 1 << bits {
                let message =
                    format!("the number {signed} does not fit the {bits} bits of its type");
                return Err(Error::corrupt(message).at(at));
            }
        }

        Ok(value.to_le_bytes())
    }
}
