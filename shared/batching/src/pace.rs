//! How fast the two stages are, as far as one batcher sees it: what tells how many rows have to be under way so that the
//! denoisers never wait.

use std::time::{Duration, Instant};

/// Ends for each denoiser in one measurement of their rate. Denoisers that start together end together: over four rounds
/// the first and the last one blur the rate by a quarter at most, and ahead of time rather than behind.
const ENDS_PER_DENOISER: u64 = 4;

/// How much a new measurement counts beside what is known.
const NEW_SHARE: f64 = 0.25;

/// The pace of both stages.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pace {
    /// Mean time of a row at the AR stage.
    row: Option<Duration>,
    /// Outputs that the denoisers end in a second while all of them are busy.
    ends_per_s: Option<f64>,
    /// Since when they have been busy without a break, and what ended since.
    busy: Option<(Instant, u64)>,
}

impl Pace {
    /// A row ran for `took`.
    pub(crate) fn ran(&mut self, took: Duration) {
        let mixed = |known: Duration| known.mul_f64(1.0 - NEW_SHARE) + took.mul_f64(NEW_SHARE);
        self.row = Some(self.row.map_or(took, mixed));
    }

    /// `outputs` ended until `now`, while there was work for all of the `denoisers` if `busy`.
    pub(crate) fn ended(&mut self, outputs: u64, denoisers: u64, busy: bool, now: Instant) {
        if !busy {
            self.busy = None;
            return;
        }
        let (since, ended) = self
            .busy
            .map_or((now, 0), |(since, ended)| (since, ended + outputs));
        let took = now.saturating_duration_since(since);
        if ended < ENDS_PER_DENOISER * denoisers.max(1) || took.is_zero() {
            self.busy = Some((since, ended));
            return;
        }
        let found = ended as f64 / took.as_secs_f64();
        let mixed = |known: f64| known * (1.0 - NEW_SHARE) + found * NEW_SHARE;
        self.ends_per_s = Some(self.ends_per_s.map_or(found, mixed));
        self.busy = Some((now, 0));
    }

    /// Rows that are at the AR stage when it gives as much as the denoisers take: their rate times the time of a row
    /// (Little's law). `None` before both are known.
    pub(crate) fn rows_needed(&self) -> Option<u64> {
        let rows = self.ends_per_s? * self.row?.as_secs_f64();
        // As many as there are slots is all that is ever asked of it: a cast that saturates is right.
        Some(rows.round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn nothing_is_known_before_both_stages_were_seen() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.ran(SECOND);
        assert_eq!(pace.rows_needed(), None);
        for second in 0..=4 {
            pace.ended(1, 1, true, start + SECOND * second);
        }
        assert_eq!(pace.rows_needed(), Some(1));
    }

    #[test]
    fn the_published_stages_need_forty_rows() {
        // 14 denoisers of 12.2 s, each a little later than the one before, and rows of 35 s.
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.ran(SECOND * 35);
        let between = Duration::from_secs_f64(12.2 / 14.0);
        for end in 0..200 {
            pace.ended(1, 14, true, start + between * end);
        }
        assert!((40..=41).contains(&pace.rows_needed().expect("known")));
    }

    #[test]
    fn an_idle_stage_says_nothing_about_its_pace() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.ran(SECOND);
        let mut now = start;
        for end in 0..40 {
            // A second each while there is work, and long pauses without any.
            now += if end % 8 == 0 { SECOND * 100 } else { SECOND };
            pace.ended(1, 1, end % 8 != 0, now);
        }
        assert_eq!(pace.rows_needed(), Some(1));
    }

    #[test]
    fn it_follows_what_changes() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut now = start;
        for (row_s, wanted) in [(10, 10), (40, 40), (1, 1)] {
            for _ in 0..100 {
                now += SECOND;
                pace.ran(SECOND * row_s);
                pace.ended(1, 1, true, now);
            }
            assert_eq!(pace.rows_needed(), Some(wanted));
        }
    }
}
