//! The best throughput that any policy could reach, from the stage times alone.

use std::time::Duration;

use crate::{Times, times::count};

/// Halvings of an interval of rows: exact to a millionth of one.
const HALVINGS: u32 = 40;

/// What there is to work with.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// Rows that may be in flight on the AR engine.
    pub ar_slots: usize,
    /// Each of them paints one picture at a time.
    pub denoisers: usize,
    /// What one of them takes for a picture.
    pub picture: Duration,
    /// Generated tokens of a row, on average.
    pub tokens_mean: f64,
    /// Outputs in the system when a fixed number of clients each wait for theirs. None when they come whatever happens.
    pub outputs_max: Option<usize>,
}

/// Outputs a second, at most: the greatest `X` that some mean number of rows in flight `k` up to the slots allows.
///
/// - The AR stage: `X <= k / T(k)`.
/// - The denoisers: `X <= denoisers / picture`.
/// - Who waits for a picture asks for no other: `k + X * picture <= outputs_max` (Little's law for both stages).
///
/// Infinite when no stage takes time.
pub fn throughput_max(times: &Times, capacity: &Capacity) -> f64 {
    let picture = capacity.picture.as_secs_f64();
    let row = capacity.tokens_mean / f64::from(times.reference_tokens());
    let ar = |rows: f64| per_second(rows, times.ar_seconds(rows) * row);
    let clients = |rows: f64| {
        let outputs_max = capacity.outputs_max.map_or(f64::INFINITY, count);
        per_second((outputs_max - rows).max(0.0), picture)
    };
    let both = |rows: f64| ar(rows).min(clients(rows));

    // Between two corners the AR stage's rate only rises or only falls, and the clients' only falls: the best is at a
    // corner or where the two meet.
    let slots = count(capacity.ar_slots);
    let corners = times.ar_corners().map(f64::from);
    let mut corners: Vec<f64> = corners.filter(|rows| *rows < slots).collect();
    corners.insert(0, 0.0);
    corners.push(slots);
    let best = corners.windows(2).map(|pair| {
        let (mut below, mut above) = (pair[0], pair[1]);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(below, above);
            if ar(middle) < clients(middle) {
                below = middle;
            } else {
                above = middle;
            }
        }
        // `above` too: where nothing takes time, one row more than none is infinitely many a second.
        both(above).max(both(below)).max(both(pair[1]))
    });
    let denoisers = per_second(count(capacity.denoisers), picture);
    best.fold(0.0, f64::max).min(denoisers)
}

/// Nothing takes no time, also where it would take none.
fn per_second(number: f64, seconds: f64) -> f64 {
    if number == 0.0 { 0.0 } else { number / seconds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ArTimes, DenoiseTimes, Table};

    /// Published for Ascend, 30 steps.
    fn ascend() -> Times {
        let rows_ms = &[
            (1, 20_400.0),
            (2, 21_300.0),
            (4, 22_800.0),
            (8, 25_900.0),
            (16, 29_400.0),
            (32, 33_200.0),
        ];
        times(ArTimes::new(rows_ms, 1281))
    }

    fn times(ar: ArTimes) -> Times {
        let denoise = DenoiseTimes {
            step_ms: 403.0,
            decode_ms: 110.0,
        };
        Times::new(Table { ar, denoise }, 1.0).expect("in range")
    }

    fn bound(times: &Times, ar_slots: usize, denoisers: usize, outputs_max: Option<usize>) -> f64 {
        let capacity = Capacity {
            ar_slots,
            denoisers,
            picture: Duration::from_millis(12_200),
            tokens_mean: 1281.0,
            outputs_max,
        };
        throughput_max(times, &capacity)
    }

    #[test]
    fn the_bound_is_that_of_the_narrowest_place() {
        let ascend = ascend();
        for (slots, denoisers, outputs, expected, narrowest) in [
            (28, 14, Some(28), 0.6581, "clients: 20 rows and 8 pictures"),
            (56, 14, Some(112), 14.0 / 12.2, "denoisers"),
            (28, 14, None, 28.0 / 32.25, "slots"),
            (28, 4, None, 4.0 / 12.2, "denoisers"),
            (1, 14, None, 1.0 / 20.4, "one row"),
            (28, 14, Some(1), 1.0 / 32.6, "one client"),
            (64, 99, None, 64.0 / 40.8, "slots beyond the table"),
        ] {
            let found = bound(&ascend, slots, denoisers, outputs);
            assert!((found - expected).abs() < 1e-4, "{narrowest}: {found}");
        }
    }

    #[test]
    fn more_rows_than_serve_are_not_used() {
        // Twice the rows in four times the time.
        let times = times(ArTimes::new(
            &[(1, 1_000.0), (8, 2_000.0), (16, 8_000.0)],
            1281,
        ));
        let found = bound(&times, 16, 99, None);
        assert!((found - 4.0).abs() < 1e-9, "{found}");
    }

    #[test]
    fn longer_rows_take_longer() {
        let times = times(ArTimes::new(&[(1, 1_000.0)], 1281));
        let capacity = Capacity {
            ar_slots: 4,
            denoisers: 99,
            picture: Duration::from_millis(12_200),
            tokens_mean: 2562.0,
            outputs_max: None,
        };
        let found = throughput_max(&times, &capacity);
        assert!((found - 2.0).abs() < 1e-9, "{found}");
    }

    #[test]
    fn where_nothing_takes_time_there_is_no_bound() {
        let times = times(ArTimes::new(&[(1, 0.0)], 1281));
        let capacity = Capacity {
            ar_slots: 4,
            denoisers: 2,
            picture: Duration::ZERO,
            tokens_mean: 261.0,
            outputs_max: Some(1),
        };
        assert!(throughput_max(&times, &capacity).is_infinite());
    }
}
