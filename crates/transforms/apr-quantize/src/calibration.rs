//! What sample data alone says about the importance of weights (`--calibration data.csv`).
//!
//! A table of samples, one a line and one feature a column, is what the first layer of a model
//! multiplies. The mean square of a column says how much an error in the weights of that column
//! costs, which is just what an [`Imatrix`](super::Imatrix) holds for that layer. No model is run:
//! the inputs of later layers stay unknown. So the importance goes to weights whose rows are as
//! long as the table is wide, and all others are quantized without. For a model of one layer that
//! is all there is to know; for a deep one whose layers happen to have the width of its input, it
//! is a guess for the later ones; for language models, measure an importance matrix instead.

use apr_core::{Error, Result};

/// Statistics of each column of a table.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ColumnStatistics {
    /// Lines of numbers.
    pub samples: u64,
    /// Numbers of a line.
    pub columns: usize,
    /// Mean of the squares, for each column.
    pub mean_squares: Vec<f32>,
    /// Least value of each column.
    pub min: Vec<f32>,
    /// Greatest value of each column.
    pub max: Vec<f32>,
}

/// Share of the average importance that a column has at least: a feature that the samples never
/// show must not let the quantizer drop its weights.
const LEAST_SHARE: f32 = 1e-3;

impl ColumnStatistics {
    /// One weight a column, for weights with rows of this length; `None` for rows of another
    /// length.
    #[must_use]
    pub fn importance(&self, row_len: u64) -> Option<Vec<f32>> {
        if row_len != self.columns as u64 {
            return None;
        }
        // Only proportions matter; the quantizers' sums of squares must not leave single precision.
        let most = self.mean_squares.iter().fold(0.0_f32, |most, &square| most.max(square));
        if most == 0.0 || !most.is_finite() {
            return Some(vec![1.0; self.columns]);
        }
        let shares: Vec<f32> = self.mean_squares.iter().map(|square| square / most).collect();
        let mean = shares.iter().sum::<f32>() / self.columns as f32;
        Some(shares.iter().map(|share| share.max(mean * LEAST_SHARE)).collect())
    }
}

/// Reads a table of numbers, separated by commas, semicolons, tabs or spaces; a first line that is
/// not all numbers is a heading, and lines that are empty or start with `#` are skipped.
///
/// ```
/// use apr_quantize::importance_from_csv;
///
/// let table = importance_from_csv(b"height,weight\n1,-2\n3,0\n")?;
/// assert_eq!((table.samples, table.mean_squares), (2, vec![5.0, 2.0]));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 with the line for a field that is not a finite number or lines of different lengths; for a
/// table without samples.
pub fn importance_from_csv(bytes: &[u8]) -> Result<ColumnStatistics> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| Error::format("the calibration data are not UTF-8 text"))?;
    let lines = text.trim_start_matches('\u{feff}').lines().zip(1_u64..);
    let lines = lines.filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#'));
    let mut columns: Vec<Column> = Vec::new();
    let mut samples = 0;
    for (position, (line, number)) in lines.enumerate() {
        let values: Option<Vec<f32>> = fields(line).map(|field| field.parse().ok()).collect();
        let Some(values) = values else {
            if position == 0 {
                continue;
            }
            return Err(Error::format(format!(
                "line {number} of the calibration data has a field that is not a number"
            )));
        };

        if values.iter().any(|value| !value.is_finite()) {
            return Err(Error::format(format!(
                "line {number} of the calibration data has a number that is not finite"
            )));
        }

        if samples == 0 {
            columns = vec![Column::EMPTY; values.len()];
        } else if values.len() != columns.len() {
            let message = format!(
                "line {number} of the calibration data has {} fields, not {}",
                values.len(),
                columns.len()
            );
            return Err(Error::format(message));
        }

        samples += 1;
        columns.iter_mut().zip(values).for_each(|(column, value)| column.add(value));
    }

    if samples == 0 {
        return Err(Error::format("the calibration data are empty"));
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "importance is f32; larger values become infinite"
    )]
    let mean = |column: &Column| ((column.squares / samples as f64) as f32).min(f32::MAX);
    Ok(ColumnStatistics {
        samples,
        columns: columns.len(),
        mean_squares: columns.iter().map(mean).collect(),
        min: columns.iter().map(|column| column.min).collect(),
        max: columns.iter().map(|column| column.max).collect(),
    })
}

/// Returns the fields of a line, split at commas, semicolons or tabs.
///
/// A line without these separators is split at spaces.
fn fields(line: &str) -> Box<dyn Iterator<Item = &str> + '_> {
    let separator = [',', ';', '\t'].into_iter().find(|&separator| line.contains(separator));
    match separator {
        Some(separator) => {
            Box::new(line.split(separator).map(|field| field.trim().trim_matches('"')))
        }
        None => Box::new(line.split_whitespace()),
    }
}

#[derive(Debug, Clone, Copy)]
struct Column {
    squares: f64,
    min: f32,
    max: f32,
}

impl Column {
    const EMPTY: Self = Self { squares: 0.0, min: f32::INFINITY, max: f32::NEG_INFINITY };

    fn add(&mut self, value: f32) {
        self.squares += f64::from(value) * f64::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_separate_numbers_gives_the_same_table() {
        let table = importance_from_csv(b"1,-2\n3,4\n").expect("a table");
        assert_eq!((table.samples, table.columns), (2, 2));
        assert_eq!(
            (&*table.mean_squares, &*table.min, &*table.max),
            (&[5.0, 10.0][..], &[1.0, -2.0][..], &[3.0, 4.0][..])
        );
        for text in [
            "1;-2\r\n3;4",
            "\u{feff}a,b\n1,-2\n\n3,4\n",
            "1\t-2\n3\t4",
            "  1   -2\n3 4 ",
            "# x\n\"1\",\"-2\"\n3, 4",
        ] {
            assert_eq!(importance_from_csv(text.as_bytes()).as_ref(), Ok(&table), "{text:?}");
        }
    }

    #[test]
    fn a_file_that_is_not_a_table_is_rejected_with_its_line_number() {
        for (text, part) in [
            ("", "are empty"),
            ("a,b\n", "are empty"),
            ("1,2\n3\n", "line 2"),
            ("1,2\nx,3\n", "line 2"),
            ("1,2\n3,\n", "line 2"),
            ("1,inf\n", "line 1"),
            ("h\n1\nNaN\n", "line 3"),
        ] {
            let error = importance_from_csv(text.as_bytes()).expect_err(text);
            assert!(error.to_string().contains(part), "{text:?}: {error}");
        }
        assert!(importance_from_csv(&[0xff, b'1']).is_err());
    }

    #[test]
    fn importance_is_for_rows_of_its_length_and_never_zero() {
        let table = importance_from_csv(b"2 0\n2 0\n").expect("a table");
        assert_eq!(table.importance(3), None);
        assert_eq!(table.importance(2), Some(vec![1.0, 0.5 * LEAST_SHARE]));
        assert_eq!(
            importance_from_csv(b"0 0").expect("a table").importance(2),
            Some(vec![1.0, 1.0])
        );
    }
}
