//! How fast the two stages are, as far as one batcher sees it: what tells how many rows have to be under way so that the
//! denoisers never wait.

use std::time::{Duration, Instant};

/// Ends for each denoiser in one measurement of their rate. Denoisers that start together end together: over four rounds
/// the first and the last one blur the rate by a quarter at most, and ahead of time rather than behind.
const ENDS_PER_DENOISER: u64 = 4;

/// How much a new measurement counts beside what is known.
const NEW_SHARE: f64 = 0.25;

/// After so many times of a row without work for every denoiser, what was measured is forgotten: too few rows may be under
/// way because of it, and then nothing else would ever say so.
const ROWS_STARVED_MAX: u32 = 2;

/// The pace of both stages.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pace {
    /// Mean time of a row at the AR stage.
    row: Option<Duration>,
    /// Pictures that one denoiser paints in a second. Not of all together: their number changes.
    paints_per_s: Option<f64>,
    /// How many denoisers have all been busy without a break, since when, and what they painted since.
    busy: Option<(u64, Instant, u64)>,
    /// Since when some had nothing to do.
    starved: Option<Instant>,
}

impl Pace {
    /// A row ran for `took`.
    pub(crate) fn ran(&mut self, took: Duration) {
        let mixed = |known: Duration| known.mul_f64(1.0 - NEW_SHARE) + took.mul_f64(NEW_SHARE);
        self.row = Some(self.row.map_or(took, mixed));
    }

    /// `pictures` were painted until `now` by `denoisers`, with work for all of them if `busy`.
    pub(crate) fn painted(&mut self, pictures: u64, denoisers: u64, busy: bool, now: Instant) {
        if !busy || denoisers == 0 {
            self.busy = None;
            return self.starved(now);
        }
        self.starved = None;
        let (since, painted) = match self.busy {
            Some((before, since, painted)) if before == denoisers => (since, painted + pictures),
            _ => (now, 0),
        };
        let took = now.saturating_duration_since(since);
        if painted < ENDS_PER_DENOISER * denoisers || took.is_zero() {
            self.busy = Some((denoisers, since, painted));
            return;
        }
        let found = painted as f64 / denoisers as f64 / took.as_secs_f64();
        let mixed = |known: f64| known * (1.0 - NEW_SHARE) + found * NEW_SHARE;
        self.paints_per_s = Some(self.paints_per_s.map_or(found, mixed));
        self.busy = Some((denoisers, now, 0));
    }

    fn starved(&mut self, now: Instant) {
        let since = *self.starved.get_or_insert(now);
        let row = self.row.unwrap_or_default();
        if now.saturating_duration_since(since) > row * ROWS_STARVED_MAX {
            self.paints_per_s = None;
        }
    }

    /// Rows that are at the AR stage when it gives as much as this many denoisers take: their rate times the time of a
    /// row (Little's law). `None` before both are known.
    pub(crate) fn rows_needed(&self, denoisers: u64) -> Option<u64> {
        let rows = self.paints_per_s? * denoisers as f64 * self.row?.as_secs_f64();
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
        assert_eq!(pace.rows_needed(1), None);
        for second in 0..=4 {
            pace.painted(1, 1, true, start + SECOND * second);
        }
        assert_eq!(pace.rows_needed(1), Some(1));
    }

    #[test]
    fn the_published_stages_need_forty_rows() {
        // 14 denoisers of 12.2 s, each a little later than the one before, and rows of 35 s.
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.ran(SECOND * 35);
        let between = Duration::from_secs_f64(12.2 / 14.0);
        for end in 0..200 {
            pace.painted(1, 14, true, start + between * end);
        }
        assert!((40..=41).contains(&pace.rows_needed(14).expect("known")));
        // Fewer denoisers need fewer.
        assert_eq!(pace.rows_needed(7), Some(20));
    }

    #[test]
    fn an_idle_stage_says_nothing_about_its_pace() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        pace.ran(SECOND);
        for end in 0..40 {
            now += SECOND;
            pace.painted(1, 1, end % 8 != 0, now);
        }
        assert_eq!(pace.rows_needed(1), Some(1));
        // Neither does one whose denoisers come and go.
        for end in 0..40 {
            now += SECOND;
            pace.painted(1, 1 + end % 4 / 3, true, now);
        }
        assert_eq!(pace.rows_needed(1), Some(1));
    }

    #[test]
    fn a_stage_that_starves_is_measured_anew() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.ran(SECOND * 10);
        for second in 0..=4 {
            pace.painted(1, 1, true, start + SECOND * second);
        }
        for (second, needed) in [(5, Some(10)), (25, Some(10)), (26, None)] {
            pace.painted(0, 1, false, start + SECOND * second);
            assert_eq!(pace.rows_needed(1), needed, "{second}");
        }
    }

    #[test]
    fn it_follows_what_changes() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut now = start;
        for (row_s, wanted) in [(10, 10), (40, 40), (1, 1)] {
            for _ in 0..100 {
                now += SECOND;
                pace.ran(SECOND * row_s);
                pace.painted(1, 1, true, now);
            }
            assert_eq!(pace.rows_needed(1), Some(wanted));
        }
    }
}
