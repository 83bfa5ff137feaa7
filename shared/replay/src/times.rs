//! How long each stage takes: a table, a scale, and durations that follow from them.

use std::{path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use crate::ReplayError;

/// Longest time in a table: an hour. No job lives that long, and no sum of these overflows a [`Duration`].
const MS_MAX: f64 = 3_600_000.0;
/// Largest scale: a table in seconds read as one in milliseconds.
const SCALE_MAX: f64 = 1_000.0;

/// The file: milliseconds, fractions allowed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Of the AR stage.
    pub ar: ArTimes,
    /// Of the denoiser.
    pub denoise: DenoiseTimes,
}

/// An AR batch takes `batch_ms + rows * row_ms`: its cost hardly grows with its rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArTimes {
    /// Of any batch.
    pub batch_ms: f64,
    /// Of each row more.
    pub row_ms: f64,
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
#[derive(Debug, Clone, Copy, PartialEq)]
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
        let times = [
            ("ar.batch_ms", table.ar.batch_ms),
            ("ar.row_ms", table.ar.row_ms),
            ("denoise.step_ms", table.denoise.step_ms),
            ("denoise.decode_ms", table.denoise.decode_ms),
        ];
        // NaN is in no range.
        if let Some((what, found)) = times
            .into_iter()
            .find(|(_, ms)| !(0.0..=MS_MAX).contains(ms))
        {
            let need = "from 0 to 3600000";
            return Err(ReplayError::OutOfRange { what, found, need });
        }
        if !(scale > 0.0 && scale <= SCALE_MAX) {
            return Err(ReplayError::OutOfRange {
                what: "the time scale",
                found: scale,
                need: "above 0 and at most 1000",
            });
        }
        Ok(Self { table, scale })
    }

    /// An AR batch of `rows` rows.
    pub fn ar_batch(&self, rows: usize) -> Duration {
        // A batch has hundreds of rows at most; a number that is none of a batch is not worth an error.
        let rows = f64::from(u32::try_from(rows).unwrap_or(u32::MAX));
        self.duration(self.table.ar.batch_ms + rows * self.table.ar.row_ms)
    }

    /// One denoising step.
    pub fn step(&self) -> Duration {
        self.duration(self.table.denoise.step_ms)
    }

    /// Decoding and encoding a picture.
    pub fn decode(&self) -> Duration {
        self.duration(self.table.denoise.decode_ms)
    }

    fn duration(&self, ms: f64) -> Duration {
        Duration::from_secs_f64(ms * self.scale / 1_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Table = Table {
        ar: ArTimes {
            batch_ms: 20.0,
            row_ms: 2.5,
        },
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

    #[test]
    fn durations_follow_from_the_table_and_the_scale() {
        let us = Duration::from_micros;
        for (scale, batch_of_0, batch_of_4, step, decode) in [
            (1.0, us(20_000), us(30_000), us(5_000), us(500)),
            (0.1, us(2_000), us(3_000), us(500), us(50)),
            (2.0, us(40_000), us(60_000), us(10_000), us(1_000)),
        ] {
            let times = Times::new(TABLE, scale).expect("in range");
            let found = (
                times.ar_batch(0),
                times.ar_batch(4),
                times.step(),
                times.decode(),
            );
            assert_eq!(found, (batch_of_0, batch_of_4, step, decode), "{scale}");
        }
    }

    #[test]
    fn the_largest_times_still_make_a_duration() {
        let [batch_ms, row_ms, step_ms, decode_ms] = [MS_MAX; 4];
        let table = Table {
            ar: ArTimes { batch_ms, row_ms },
            denoise: DenoiseTimes { step_ms, decode_ms },
        };
        let times = Times::new(table, SCALE_MAX).expect("in range");
        assert!(times.ar_batch(usize::MAX) > times.step());
    }

    #[test]
    fn a_table_reads_back_from_its_file() {
        let text = serde_json::to_string(&TABLE).expect("a table is JSON");
        let times = read(&text).expect("its own text");
        assert_eq!(times, Times::new(TABLE, 1.0).expect("in range"));
    }

    #[test]
    fn a_file_that_is_no_table_is_refused() {
        let ar = r#""ar": {"batch_ms": 1, "row_ms": 1}"#;
        for text in [
            String::new(),
            "{}".to_owned(),
            format!("{{{ar}}}"),
            format!(r#"{{{ar}, "denoise": {{"step_ms": 1}}}}"#),
            format!(r#"{{{ar}, "denoise": {{"step_ms": "1", "decode_ms": 1}}}}"#),
            format!(r#"{{{ar}, "denoise": {{"step_ms": 1, "decode_ms": 1, "encode_ms": 1}}}}"#),
            format!(r#"{{{ar}, "denoise": {{"step_ms": 1, "decode_ms": 1}}, "vae": {{}}}}"#),
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
            table.ar.row_ms = ms;
            let refused = Times::new(table, 1.0);
            assert!(
                matches!(
                    refused,
                    Err(ReplayError::OutOfRange {
                        what: "ar.row_ms",
                        ..
                    })
                ),
                "{ms}"
            );
        }
        for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, SCALE_MAX + 1.0] {
            let refused = Times::new(TABLE, scale);
            assert!(
                matches!(refused, Err(ReplayError::OutOfRange { .. })),
                "{scale}"
            );
        }
    }
}
