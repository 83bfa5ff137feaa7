//! How long each stage takes: a table, a scale, and durations that follow from them.

use std::{borrow::Cow, path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use crate::ReplayError;

/// Longest time in a table: an hour. No job lives that long, and no sum of these overflows a [`Duration`].
const MS_MAX: f64 = 3_600_000.0;
/// Largest scale: a table in seconds read as one in milliseconds.
const SCALE_MAX: f64 = 1_000.0;

/// The file: milliseconds, fractions allowed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Of the AR stage.
    pub ar: ArTimes,
    /// Of the denoiser.
    pub denoise: DenoiseTimes,
}

/// How long rows of `tokens` generated tokens take that an AR engine decodes together, for some numbers of rows.
/// Between two of them the time is on the line through both, below the first it is the first's, beyond the last it
/// goes on at the last slope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArTimes {
    /// Pairs of a number of rows and milliseconds. Rows rise, milliseconds do not fall.
    pub rows_ms: Cow<'static, [(u32, f64)]>,
    /// Generated tokens of the rows that were measured. A row of half as many takes half the time.
    pub tokens: u32,
}

impl ArTimes {
    /// A table that is written down in the code.
    pub const fn new(rows_ms: &'static [(u32, f64)], tokens: u32) -> Self {
        Self {
            rows_ms: Cow::Borrowed(rows_ms),
            tokens,
        }
    }

    /// What has to be a duration, or in order, and is not.
    fn check(&self) -> Result<(), ReplayError> {
        let out_of_range = |what, found, need| ReplayError::OutOfRange { what, found, need };
        if self.tokens == 0 {
            return Err(out_of_range("ar.tokens", 0.0, "above 0"));
        }
        let Some((first, _)) = self.rows_ms.first() else {
            return Err(out_of_range("the length of ar.rows_ms", 0.0, "above 0"));
        };
        if *first == 0 {
            return Err(out_of_range("ar.rows_ms: a number of rows", 0.0, "above 0"));
        }
        for (_, ms) in self.rows_ms.iter() {
            check_ms("ar.rows_ms: a time", *ms)?;
        }
        let is_step = |pair: &&[(u32, f64)]| pair[0].0 >= pair[1].0 || pair[0].1 > pair[1].1;
        match self.rows_ms.windows(2).find(is_step) {
            None => Ok(()),
            Some(pair) => Err(out_of_range(
                "ar.rows_ms: an entry",
                pair[1].0.into(),
                "of more rows than the entry before, and of no less time",
            )),
        }
    }

    /// Milliseconds for `rows` rows.
    fn ms(&self, rows: usize) -> f64 {
        // An engine has hundreds of rows at most; a number that is none of an engine is not worth an error.
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let entries = &self.rows_ms;
        let after = entries.partition_point(|(of, _)| *of < rows);
        let (from, to) = match (after, entries.len()) {
            (0, _) | (_, 1) => return entries[0].1,
            (after, len) => {
                let to = after.min(len - 1);
                (entries[to - 1], entries[to])
            }
        };
        let slope = (to.1 - from.1) / f64::from(to.0 - from.0);
        from.1 + slope * (f64::from(rows) - f64::from(from.0))
    }
}

/// A picture takes `steps * step_ms + decode_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenoiseTimes {
    /// Of one step.
    pub step_ms: f64,
    /// From the last latents to the picture's file.
    pub decode_ms: f64,
}

/// A checked table with its scale.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    table: Table,
    scale: f64,
}

impl Times {
    /// Reads a table from a JSON file; every time in it is multiplied by `scale`.
    pub fn read(file: &Path, scale: f64) -> Result<Self, ReplayError> {
        let bytes = std::fs::read(file).map_err(|source| ReplayError::Io {
            file: file.to_owned(),
            source,
        })?;
        let table = serde_json::from_slice(&bytes).map_err(|source| ReplayError::Json {
            file: file.to_owned(),
            source,
        })?;
        Self::new(table, scale)
    }

    /// Checks that every number makes a duration.
    pub fn new(table: Table, scale: f64) -> Result<Self, ReplayError> {
        table.ar.check()?;
        check_ms("denoise.step_ms", table.denoise.step_ms)?;
        check_ms("denoise.decode_ms", table.denoise.decode_ms)?;
        if !(scale > 0.0 && scale <= SCALE_MAX) {
            return Err(ReplayError::OutOfRange {
                what: "the time scale",
                found: scale,
                need: "a number above 0 and at most 1000",
            });
        }
        Ok(Self { table, scale })
    }

    /// `rows` rows of [`Self::reference_tokens`] tokens, decoded together from their start to their end.
    pub fn ar(&self, rows: usize) -> Duration {
        Duration::from_secs_f64(self.ar_seconds(rows))
    }

    /// [`Self::ar`] in seconds, before it is rounded to nanoseconds.
    pub(crate) fn ar_seconds(&self, rows: usize) -> f64 {
        self.table.ar.ms(rows) * self.scale / 1_000.0
    }

    /// Generated tokens of the rows that the AR times are of.
    pub const fn reference_tokens(&self) -> u32 {
        self.table.ar.tokens
    }

    /// One denoising step.
    pub fn step(&self) -> Duration {
        self.duration(self.table.denoise.step_ms)
    }

    /// Decoding and encoding a picture.
    pub fn decode(&self) -> Duration {
        self.duration(self.table.denoise.decode_ms)
    }

    /// A whole picture of so many steps.
    pub fn picture(&self, steps: u16) -> Duration {
        self.step() * u32::from(steps) + self.decode()
    }

    fn duration(&self, ms: f64) -> Duration {
        Duration::from_secs_f64(ms * self.scale / 1_000.0)
    }
}

fn check_ms(what: &'static str, found: f64) -> Result<(), ReplayError> {
    // NaN is in no range.
    if (0.0..=MS_MAX).contains(&found) {
        return Ok(());
    }
    let need = "a number from 0 to 3600000";
    Err(ReplayError::OutOfRange { what, found, need })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Table = Table {
        ar: ArTimes::new(&[(1, 20.0), (2, 21.0), (4, 25.0)], 100),
        denoise: DenoiseTimes {
            step_ms: 5.0,
            decode_ms: 0.5,
        },
    };

    fn read(text: &str) -> Result<Times, ReplayError> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("times.json");
        std::fs::write(&file, text).expect("a writable folder");
        Times::read(&file, 1.0)
    }

    fn refused(table: Table) -> &'static str {
        match Times::new(table, 1.0) {
            Err(ReplayError::OutOfRange { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn durations_follow_from_the_table_and_the_scale() {
        let us = Duration::from_micros;
        for (scale, row, step, decode) in [
            (1.0, us(20_000), us(5_000), us(500)),
            (0.1, us(2_000), us(500), us(50)),
            (2.0, us(40_000), us(10_000), us(1_000)),
        ] {
            let times = Times::new(TABLE, scale).expect("in range");
            let found = (times.ar(1), times.step(), times.decode());
            assert_eq!(found, (row, step, decode), "{scale}");
            assert_eq!(times.picture(3), step * 3 + decode, "{scale}");
        }
    }

    #[test]
    fn rows_between_entries_are_on_their_line_and_beyond_them_on_the_last() {
        let times = Times::new(TABLE, 1.0).expect("in range");
        for (rows, ms) in [(0, 20), (1, 20), (2, 21), (3, 23), (4, 25), (6, 29)] {
            assert_eq!(times.ar(rows), Duration::from_millis(ms), "{rows}");
        }
    }

    #[test]
    fn a_single_entry_is_of_any_number_of_rows() {
        let ar = ArTimes::new(&[(4, 7.0)], 1);
        let times = Times::new(Table { ar, ..TABLE }, 1.0).expect("in range");
        for rows in [1, 4, 400] {
            assert_eq!(times.ar(rows), Duration::from_millis(7), "{rows}");
        }
    }

    #[test]
    fn the_largest_times_still_make_a_duration() {
        let table = Table {
            ar: ArTimes::new(&[(1, 0.0), (2, MS_MAX)], 1),
            denoise: DenoiseTimes {
                step_ms: MS_MAX,
                decode_ms: MS_MAX,
            },
        };
        let times = Times::new(table, SCALE_MAX).expect("in range");
        assert!(times.ar(usize::MAX) > times.picture(u16::MAX));
    }

    #[test]
    fn a_table_reads_back_from_its_file() {
        let text = serde_json::to_string(&TABLE).expect("a table is JSON");
        let times = read(&text).expect("its own text");
        assert_eq!(times, Times::new(TABLE, 1.0).expect("in range"));
    }

    #[test]
    fn a_file_that_is_no_table_is_refused() {
        let ar = r#""ar": {"rows_ms": [[1, 1], [2, 1.5]], "tokens": 9}"#;
        for text in [
            String::new(),
            "{}".to_owned(),
            format!("{{{ar}}}"),
            format!(r#"{{{ar}, "denoise": {{"step_ms": 1}}}}"#),
            format!(r#"{{{ar}, "denoise": {{"step_ms": "1", "decode_ms": 1}}}}"#),
            format!(r#"{{{ar}, "denoise": {{"step_ms": 1, "decode_ms": 1, "encode_ms": 1}}}}"#),
            format!(r#"{{{ar}, "denoise": {{"step_ms": 1, "decode_ms": 1}}, "vae": {{}}}}"#),
            r#"{"ar": {"batch_ms": 1, "row_ms": 1}, "denoise": {"step_ms": 1, "decode_ms": 1}}"#
                .to_owned(),
        ] {
            let refused = read(&text);
            assert!(matches!(refused, Err(ReplayError::Json { .. })), "{text}");
        }
        let missing = Times::read(Path::new("/nowhere/times.json"), 1.0);
        assert!(matches!(missing, Err(ReplayError::Io { .. })));
    }

    #[test]
    fn a_number_that_makes_no_duration_is_named() {
        for ms in [-1.0, f64::NAN, f64::INFINITY, MS_MAX + 1.0] {
            let mut table = TABLE;
            table.ar.rows_ms = vec![(1, ms)].into();
            assert_eq!(refused(table), "ar.rows_ms: a time", "{ms}");
            let mut table = TABLE;
            table.denoise.step_ms = ms;
            assert_eq!(refused(table), "denoise.step_ms", "{ms}");
        }
        for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, SCALE_MAX + 1.0] {
            let refused = Times::new(TABLE, scale);
            assert!(
                matches!(refused, Err(ReplayError::OutOfRange { .. })),
                "{scale}"
            );
        }
    }

    #[test]
    fn entries_that_are_none_or_out_of_order_are_named() {
        let of = |rows_ms: &'static [(u32, f64)], tokens| Table {
            ar: ArTimes::new(rows_ms, tokens),
            ..TABLE
        };
        for (table, what) in [
            (of(&[(1, 1.0)], 0), "ar.tokens"),
            (of(&[], 1), "the length of ar.rows_ms"),
            (of(&[(0, 1.0)], 1), "ar.rows_ms: a number of rows"),
            (of(&[(2, 1.0), (2, 1.0)], 1), "ar.rows_ms: an entry"),
            (of(&[(2, 1.0), (1, 1.0)], 1), "ar.rows_ms: an entry"),
            (of(&[(1, 1.0), (2, 0.9)], 1), "ar.rows_ms: an entry"),
        ] {
            assert_eq!(refused(table), what);
        }
    }
}
