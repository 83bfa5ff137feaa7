//! The step-rate model of an AR engine that decodes its rows together and lets rows join and leave at any step.

use std::time::{Duration, Instant};

use crate::Times;

/// Rows that an engine decodes together.
///
/// Each of `k` rows advances at `1 / T(k)` of a reference row a second, `T` being [`Times::ar`]; a row of `n` tokens
/// is `n / reference_tokens` of a reference row. So a row that joins slows the others down and hurries nobody, and
/// every row in flight has advanced by the same amount since any moment: one running sum says how far all are. Time
/// is an argument; a call that comes late changes nothing about when rows finished.
#[derive(Debug)]
pub struct Flight<K> {
    times: Times,
    /// What a row that is in flight all the time has advanced, in reference rows; from 0 when nobody is.
    advanced: f64,
    /// When `advanced` was that.
    at: Option<Instant>,
    rows: Vec<Row<K>>,
    /// Finished, and not asked for yet.
    landed: Vec<K>,
}

#[derive(Debug)]
struct Row<K> {
    key: K,
    /// Where `advanced` is when it finishes.
    until: f64,
}

impl<K: PartialEq> Flight<K> {
    /// Nobody in flight.
    pub const fn new(times: Times) -> Self {
        Self {
            times,
            advanced: 0.0,
            at: None,
            rows: Vec::new(),
            landed: Vec::new(),
        }
    }

    /// A row of so many tokens starts. Rows may share a key.
    pub fn join(&mut self, key: K, tokens: u32, now: Instant) {
        self.advance(now);
        let work = f64::from(tokens) / f64::from(self.times.reference_tokens());
        let until = self.advanced + work;
        self.rows.push(Row { key, until });
    }

    /// All rows of this key are dropped, where they are.
    pub fn leave(&mut self, key: &K, now: Instant) {
        self.advance(now);
        self.rows.retain(|row| row.key != *key);
        self.landed.retain(|landed| landed != key);
    }

    /// Tokens that the first row of this key still has to write, as of the last call that told the time; none when it
    /// has finished.
    pub fn tokens_left(&self, key: &K) -> Option<u32> {
        let row = self.rows.iter().find(|row| row.key == *key)?;
        let left = (row.until - self.advanced) * f64::from(self.times.reference_tokens());
        // Of a row that has tokens at all: the last one is there only when it is done.
        Some(left.ceil().max(1.0) as u32)
    }

    /// When the next row finishes if nobody joins or leaves before.
    pub fn next_finish(&self) -> Option<Instant> {
        match (self.landed.is_empty(), self.at) {
            (false, at) => at,
            (true, at) => Some(at? + self.until_next()?),
        }
    }

    /// Takes out who has finished by now, first come first.
    pub fn finished(&mut self, now: Instant) -> Vec<K> {
        self.advance(now);
        std::mem::take(&mut self.landed)
    }

    /// Rows in flight, as of the last call that told the time.
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether nobody is.
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// From `at` to the first finish. The one place where work becomes time: what [`Self::next_finish`] says and what
    /// [`Self::advance`] does must round alike, or a caller that waits would find nobody and wait again.
    fn until_next(&self) -> Option<Duration> {
        let next = self.next_until()?;
        let seconds = (next - self.advanced).max(0.0) * self.times.ar_seconds(self.rows.len());
        Some(Duration::from_secs_f64(seconds))
    }

    fn next_until(&self) -> Option<f64> {
        self.rows.iter().map(|row| row.until).reduce(f64::min)
    }

    /// From finish to finish, because each of them makes the others faster, and then the rest.
    fn advance(&mut self, now: Instant) {
        let mut at = self.at.unwrap_or(now);
        let now = now.max(at);
        while let (Some(next), Some(wait)) = (self.next_until(), self.until_next())
            && at + wait <= now
        {
            at += wait;
            self.advanced = next;
            let landed = self.rows.extract_if(.., |row| row.until <= next);
            self.landed.extend(landed.map(|row| row.key));
        }
        if self.rows.is_empty() {
            self.advanced = 0.0;
        } else {
            let seconds = self.times.ar_seconds(self.rows.len());
            self.advanced += (now - at).as_secs_f64() / seconds;
        }
        self.at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ArTimes, DenoiseTimes, Table};

    /// 10 s alone, 12 s in two, 20 s in four; 100 tokens.
    fn flight() -> Flight<u32> {
        flight_of(&[(1, 10_000.0), (2, 12_000.0), (4, 20_000.0)])
    }

    fn flight_of(rows_ms: &'static [(u32, f64)]) -> Flight<u32> {
        let table = Table {
            ar: ArTimes::new(rows_ms, 100),
            denoise: DenoiseTimes {
                step_ms: 0.0,
                decode_ms: 0.0,
            },
        };
        Flight::new(Times::new(table, 1.0).expect("in range"))
    }

    /// Every finish to the end, in milliseconds since `start`.
    fn landings(flight: &mut Flight<u32>, start: Instant) -> Vec<(u32, u128)> {
        let mut landings = Vec::new();
        while let Some(at) = flight.next_finish() {
            let landed = flight.finished(at);
            assert!(!landed.is_empty(), "a finish that was foretold");
            let ms = (at - start + Duration::from_micros(500)).as_millis();
            landings.extend(landed.into_iter().map(|key| (key, ms)));
        }
        landings
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn equal_rows_that_join_together_finish_after_their_time_in_the_table() {
        for (rows, expected) in [(1, 10_000), (2, 12_000), (3, 16_000), (4, 20_000)] {
            let (mut flight, start) = (flight(), Instant::now());
            (0..rows).for_each(|row| flight.join(row, 100, start));
            assert_eq!(flight.next_finish(), Some(start + ms(expected)));
            assert!(flight.finished(start + ms(expected - 1)).is_empty());
            let landed = flight.finished(start + ms(expected));
            assert_eq!(landed, (0..rows).collect::<Vec<_>>());
            assert_eq!((flight.len(), flight.next_finish()), (0, None));
        }
    }

    #[test]
    fn a_row_that_joins_slows_the_others() {
        let (mut flight, start) = (flight(), Instant::now());
        flight.join(0, 100, start);
        // Half done; the other half takes half of 12 s, and so does the first half of the other row.
        flight.join(1, 100, start + ms(5_000));
        assert_eq!(
            landings(&mut flight, start),
            [(0, 11_000), (1, 16_000)],
            "the last one's second half is alone"
        );
    }

    #[test]
    fn a_row_that_leaves_lets_the_others_go_faster() {
        let (mut flight, start) = (flight(), Instant::now());
        flight.join(0, 100, start);
        flight.join(1, 100, start);
        flight.leave(&1, start + ms(6_000));
        assert_eq!(landings(&mut flight, start), [(0, 11_000)]);
    }

    #[test]
    fn fewer_tokens_take_less_time() {
        let (mut flight, start) = (flight(), Instant::now());
        flight.join(0, 100, start);
        flight.join(1, 50, start);
        assert_eq!(landings(&mut flight, start), [(1, 6_000), (0, 11_000)]);
    }

    #[test]
    fn a_call_that_comes_late_finds_who_finished_when() {
        let (mut flight, start) = (flight(), Instant::now());
        flight.join(0, 100, start);
        flight.join(1, 50, start);
        // At 11 s both are done and the engine is empty; a row that joins at 20 s meets nobody.
        flight.join(2, 100, start + ms(20_000));
        assert_eq!(flight.next_finish(), Some(start + ms(20_000)), "at once");
        assert_eq!(flight.finished(start + ms(20_000)), [1, 0]);
        assert_eq!(landings(&mut flight, start), [(2, 30_000)]);
    }

    #[test]
    fn tokens_are_written_one_after_the_other() {
        let (mut flight, start) = (flight(), Instant::now());
        flight.join(0, 100, start);
        for (at, left) in [
            (0, Some(100)),
            (2_550, Some(75)),
            (9_999, Some(1)),
            (10_000, None),
        ] {
            drop(flight.finished(start + ms(at)));
            assert_eq!(flight.tokens_left(&0), left, "{at}");
        }
    }

    #[test]
    fn rows_of_no_time_finish_when_they_join() {
        let (mut flight, start) = (flight_of(&[(1, 0.0)]), Instant::now());
        flight.join(0, 100, start);
        flight.join(1, 4_353, start);
        assert_eq!(flight.next_finish(), Some(start));
        assert_eq!(flight.finished(start), [0, 1]);
    }

    #[test]
    fn who_left_never_finishes() {
        let (mut flight, start) = (flight(), Instant::now());
        flight.join(0, 100, start);
        flight.leave(&0, start + ms(10_000));
        assert_eq!(flight.finished(start + ms(60_000)), [0; 0]);
        assert_eq!(flight.next_finish(), None);
    }

    /// A row: when it joins, how many tokens it has, and when it leaves if it is still there.
    fn rows() -> impl Strategy<Value = Vec<(u64, u32, Option<u64>)>> {
        let leave = prop::option::weighted(0.2, 0..80_000_u64);
        prop::collection::vec((0..60_000_u64, 1..400_u32, leave), 1..12)
    }

    proptest! {
        /// The engine's capacity with k rows is k / T(k); what is done under it is what the rows asked for.
        #[test]
        fn work_is_conserved(rows in rows()) {
            let (mut flight, start) = (flight(), Instant::now());
            let times = flight.times.clone();
            let mut joins: Vec<_> = (0..).zip(&rows).map(|(key, row)| (row.0, key, row.1)).collect();
            joins.sort_unstable();
            let (mut at, mut done, mut landed) = (start, 0.0, 0);
            let mut joins = joins.into_iter().peekable();
            loop {
                let join = joins.peek().map(|(at, ..)| start + ms(*at));
                let Some(next) = join.into_iter().chain(flight.next_finish()).min() else { break };
                if !flight.is_empty() {
                    let rows = f64::from(u32::try_from(flight.len()).expect("a dozen"));
                    done += (next - at).as_secs_f64() * rows / times.ar_seconds(flight.len());
                }
                at = next;
                landed += flight.finished(at).len();
                if let Some((_, key, tokens)) = joins.next_if(|(at, ..)| start + ms(*at) <= next) {
                    flight.join(key, tokens, at);
                }
            }
            let wanted: f64 = rows.iter().map(|row| f64::from(row.1) / 100.0).sum();
            prop_assert!((done - wanted).abs() < 1e-6 * wanted, "{done} of {wanted}");
            prop_assert_eq!(landed, rows.len());
        }

        /// Whoever stays finishes once, never before the time it takes alone, and no call in between changes when.
        #[test]
        fn looking_more_often_changes_nothing(rows in rows(), looks in prop::collection::vec(0..100_000_u64, 0..20)) {
            let start = Instant::now();
            let run = |looks: &[u64]| {
                let mut flight = flight();
                let mut events: Vec<(u64, Option<(u32, Option<u32>)>)> = looks.iter().map(|at| (*at, None)).collect();
                for (key, (at, tokens, leave)) in (0..).zip(&rows) {
                    events.push((*at, Some((key, Some(*tokens)))));
                    events.extend(leave.filter(|leave| leave > at).map(|leave| (leave, Some((key, None)))));
                }
                events.sort_by_key(|(at, _)| *at);
                let mut landed = Vec::new();
                for (at, event) in events {
                    let now = start + ms(at);
                    while let Some(due) = flight.next_finish().filter(|due| *due <= now) {
                        landed.extend(flight.finished(due).into_iter().map(|key| (key, due)));
                    }
                    match event {
                        Some((key, Some(tokens))) => flight.join(key, tokens, now),
                        Some((key, None)) => flight.leave(&key, now),
                        None => drop(flight.finished(now)),
                    }
                }
                while let Some(due) = flight.next_finish() {
                    landed.extend(flight.finished(due).into_iter().map(|key| (key, due)));
                }
                landed.sort_unstable();
                landed
            };
            let (seldom, often) = (run(&[]), run(&looks));
            prop_assert_eq!(seldom.len(), often.len());
            for ((key, at), (again, at_too)) in seldom.iter().zip(&often) {
                prop_assert_eq!(key, again);
                let apart = at.max(at_too).duration_since(*at.min(at_too));
                prop_assert!(apart < Duration::from_micros(1), "{apart:?}");
                let (joined, tokens, _) = rows[*key as usize];
                let alone = ms(joined) + ms(u64::from(tokens) * 100) - Duration::from_micros(1);
                prop_assert!(*at >= start + alone);
            }
        }
    }
}
