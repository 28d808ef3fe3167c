//! Transposed tensors that are read from front to back: what they are made of is read once, in long
//! pieces.
//!
//! A few rows of a transposed matrix are a few elements of every row of the matrix, so a pass that
//! takes chunk after chunk would read each row many times, some bytes at a time. Instead the rows'
//! next elements are kept, as many as there is room for, and chunks are made of those.
//!
//! ```text
//!            window            next window
//!        ┌───────────────┬───────────────┐
//! row 0  │ band          │               │   A band is some rows of a window, which some
//! row 1  │               │               │   thread reads.
//!        ├───────────────┤               │
//! row 2  │ next band     │               │   A chunk takes a part of each row of all bands.
//! row 3  │               │               │
//!        └───────────────┴───────────────┘
//! ```

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use apr_core::{CheckpointReader, Result};

use crate::strided::{Gather, usize_of};
use crate::turned::{Stripes, turn};

/// Bytes of a band, which is read at a time.
///
/// It is transposed by the thread that reads it, and both forms fit into a core's cache.
const BAND: u64 = 512 << 10;

/// Windows kept: threads that are still at the one before the last.
const KEPT: usize = 2;

/// The windows of a view.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Bytes of a window.
    room: u64,
    kept: Mutex<Vec<Arc<Window>>>,
    buffers: Buffers,
}

/// Buffers of unused bands, which are reused because allocating new ones costs as much as copying
/// into them.
#[derive(Debug, Default)]
struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    fn take(&self, len: usize) -> Vec<u8> {
        let mut buffer =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    fn give(&self, back: impl IntoIterator<Item = Vec<u8>>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(back);
    }
}

/// Columns of a matrix, which are rows of the transposed one.
#[derive(Debug)]
struct Window {
    place: WindowRange,
    /// Number of the matrix's rows in a band.
    band_rows: u64,
    /// Bands that were read, transposed: a band's rows are its columns. `None` for a failed read.
    bands: Vec<OnceLock<Option<Vec<u8>>>>,
}

/// Location of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WindowRange {
    tensor: usize,
    /// The source's element that is its first one.
    first: u64,
    /// Number of source elements in each row.
    width: u64,
    /// Rows of the source, and the distance between two rows in elements.
    rows: u64,
    apart: u64,
    element: u64,
}

impl Windows {
    /// Windows of `room` bytes each, of which two are kept.
    pub(crate) fn of(room: u64) -> Self {
        Self { room, kept: Mutex::default(), buffers: Buffers::default() }
    }

    /// Returns the first row and the number of rows of the window that contains `row`, for a
    /// transposed matrix.
    pub(crate) fn rows_around(&self, gather: &Gather, row: u64) -> (u64, u64) {
        let [_, rows, columns] = gather.dims;
        let fitting =
            (self.room / columns.saturating_mul(gather.element).max(1)).clamp(1, rows.max(1));
        let first = row / fitting * fitting;
        (first, fitting.min(rows - first))
    }

    /// Fills `out` with `(rows, columns)` from `(group, row, column)` on; all rows are in one
    /// window.
    pub(crate) fn read(
        &self,
        base: &dyn CheckpointReader,
        gather: &Gather,
        (group, row, column): (u64, u64, u64),
        columns: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let (first, width) = self.rows_around(gather, row);
        let place = WindowRange {
            tensor: gather.tensor,
            first: gather.start + group * gather.strides[0] + first,
            width,
            rows: gather.dims[2],
            apart: gather.strides[2],
            element: gather.element,
        };
        self.window(place).read(base, &self.buffers, (row - first, column), columns, out)
    }

    fn window(&self, place: WindowRange) -> Arc<Window> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(window) = kept.iter().find(|window| window.place == place) {
            return Arc::clone(window);
        }
        if kept.len() == KEPT {
            // A thread that still reads from it keeps it.
            let bands = Arc::into_inner(kept.remove(0)).into_iter().flat_map(|window| window.bands);
            self.buffers.give(bands.filter_map(|band| band.into_inner().flatten()));
        }
        let window = Arc::new(Window::at(place));
        kept.push(Arc::clone(&window));
        window
    }
}

impl Window {
    fn at(place: WindowRange) -> Self {
        let row_bytes = place.width.saturating_mul(place.element).max(1);
        let band_rows = (BAND / row_bytes).next_multiple_of(16).max(16);
        let bands = (0..place.rows.div_ceil(band_rows)).map(|_| OnceLock::new()).collect();
        Self { place, band_rows, bands }
    }

    fn read(
        &self,
        base: &dyn CheckpointReader,
        buffers: &Buffers,
        (row, column): (u64, u64),
        columns: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let end = column + columns;
        let bands = column / self.band_rows..end.div_ceil(self.band_rows);
        let count = bands.end - bands.start;

        // Threads begin at different bands, so that they share the work and seldom wait for each
        // other.
        let begin = spread(row, count);
        for band in (0..count).map(|at| bands.start + (at + begin) % count) {
            let read;
            let bytes = match self.bands[usize_of(band)?]
                .get_or_init(|| self.read_band(base, buffers, band).ok())
            {
                Some(bytes) => bytes,
                None => {
                    read = self.read_band(base, buffers, band)?;
                    &read
                }
            };
            self.copy(bytes, band, (row, column..end), out)?;
        }

        Ok(())
    }

    /// Copies what a band has of some columns, from a row on.
    fn copy(
        &self,
        bytes: &[u8],
        band: u64,
        (row, columns): (u64, Range<u64>),
        out: &mut [u8],
    ) -> Result<()> {
        let first = band * self.band_rows;
        let in_band = self.columns_of(band);
        let (from, to) = (columns.start.max(first), columns.end.min(first + in_band));
        let bytes_of = |elements: u64| usize_of(elements * self.place.element);
        let (len, before) = (bytes_of(to - from)?, bytes_of(from - columns.start)?);
        let rows = bytes[bytes_of(row * in_band + from - first)?..].chunks(bytes_of(in_band)?);
        for (line, row) in out.chunks_exact_mut(bytes_of(columns.end - columns.start)?).zip(rows) {
            line[before..before + len].copy_from_slice(&row[..len]);
        }
        Ok(())
    }

    /// Returns the number of the matrix's rows in a band, which are its columns.
    fn columns_of(&self, band: u64) -> u64 {
        self.band_rows.min(self.place.rows - band * self.band_rows)
    }

    fn read_band(
        &self,
        base: &dyn CheckpointReader,
        buffers: &Buffers,
        band: u64,
    ) -> Result<Vec<u8>> {
        let WindowRange { tensor, first, width, apart, element, .. } = self.place;
        let (row, count) = (band * self.band_rows, self.columns_of(band));
        let mut bytes = buffers.take(usize_of(count * width * element)?);
        let at = |row: u64| (first + row * apart) * element;
        if width == apart {
            base.read_tensor(tensor, at(row), &mut bytes)?;
        } else {
            for (row, bytes) in (row..).zip(bytes.chunks_exact_mut(usize_of(width * element)?)) {
                base.read_tensor(tensor, at(row), bytes)?;
            }
        }

        let mut turned = buffers.take(bytes.len());
        let count = usize_of(count)?;
        turn(
            element,
            Stripes { bytes: &bytes, count, apart: usize_of(width)?, step: 1 },
            &mut turned,
            count,
            0,
        );
        buffers.give([bytes]);
        Ok(turned)
    }
}

/// Returns a position in `0..count` far from the positions of nearby rows.
fn spread(row: u64, count: u64) -> u64 {
    // Multiples of the golden ratio's fraction lie far apart, whatever the distance of the rows.
    let fraction = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (fraction * count.min(1 << 31)) >> 32
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use apr_core::{Strided, TensorInfo, pass_on};
    use apr_registry::Limits;

    use super::*;
    use crate::{Change, TensorOrigin, View};

    /// Checkpoint that does not lend slices, like a file, and counts the bytes read.
    pub(crate) struct Counted<'a> {
        base: &'a dyn CheckpointReader,
        calls: AtomicU64,
        bytes: AtomicU64,
    }

    impl<'a> Counted<'a> {
        pub(crate) fn new(base: &'a dyn CheckpointReader) -> Self {
            Self { base, calls: AtomicU64::new(0), bytes: AtomicU64::new(0) }
        }
    }

    impl CheckpointReader for Counted<'_> {
        pass_on!(base: format, metadata, tensors, stored, files, left_out, warnings, container,
            companions, read_companion);

        fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
            self.base.read_tensor(tensor, offset, buf)
        }

        fn tensor_slice(&self, _: usize) -> Option<&[u8]> {
            None
        }
    }

    #[test]
    fn a_matrix_that_is_read_from_front_to_back_is_read_once() {
        const DIMS: [u64; 3] = [2, 700, 300];
        let [groups, rows, columns] = DIMS;
        let values: Vec<u32> =
            (0..groups * rows * columns).map(|at| u32::try_from(at).unwrap()).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let header = format!(
            r#"{{"t":{{"dtype":"F32","shape":{DIMS:?},"data_offsets":[0,{}]}}}}"#,
            bytes.len()
        );
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.into_bytes());
        file.extend(&bytes);
        let model = apr_registry::open(file, "model.safetensors", &Limits::default()).unwrap();
        let info =
            TensorInfo { shape: [groups, columns, rows].into(), ..model.tensors()[0].clone() };
        let mut elements = Strided::contiguous(&[groups, rows, columns]);
        elements.transpose(&[0, 2, 1]).unwrap();
        let change = Change::gathered(&model.tensors()[0], 0, &elements).unwrap();
        let of = |group: u64, row: u64, column: u64| {
            values[usize_of(group * rows * columns + column * columns + row).unwrap()]
        };
        let places = (0..groups).flat_map(|group| (0..columns).map(move |row| (group, row)));
        let expected =
            places.flat_map(|(group, row)| (0..rows).map(move |column| (group, row, column)));
        let expected: Vec<u8> = expected
            .flat_map(|(group, row, column)| of(group, row, column).to_le_bytes())
            .collect();

        for room in [1, 70_000, 1 << 20, 1 << 30] {
            let counted = Counted::new(&*model);
            let view =
                View::of(&counted, vec![(info.clone(), TensorOrigin::Changed(change.clone()))])
                    .read_in_order(room);
            let mut found = vec![0; expected.len()];
            for (at, chunk) in found.chunks_mut(5001).enumerate() {
                view.read_tensor(0, 5001 * at as u64, chunk).unwrap();
            }
            assert!(found == expected, "{room}");
            drop(view);
            if room > 70_000 {
                assert_eq!(counted.bytes.into_inner(), bytes.len() as u64, "{room}");
            }
            if room > 1 << 20 {
                let bands = rows.div_ceil((512 << 10) / (4 * columns) / 16 * 16 + 16);
                assert_eq!(counted.calls.into_inner(), groups * bands, "{room}");
            }
        }
    }
}
