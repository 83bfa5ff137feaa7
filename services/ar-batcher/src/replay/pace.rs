//! Lets batches take the time that one engine would need for all rows that it has at that moment.
//!
//! [`Flight`] says when who finishes, under a lock that nobody holds for longer than a look; one task waits for the
//! next finish, or for a batch that comes or goes and moves it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use replay::{Flight, Times};
use tokio::{
    sync::{Notify, oneshot, watch},
    time::{Instant, sleep_until},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::engine::BatchProgress;

/// How often a batch tells its progress. A real one does at every token, of which the published server writes some 60 a
/// second; nobody looks as often.
const TELL_PERIOD: Duration = Duration::from_millis(100);

/// The pace of one engine.
pub(super) struct Pace {
    shared: Arc<Shared>,
    /// The task ends with the engine.
    _ends: DropGuard,
}

impl Pace {
    pub(super) fn start(times: Times) -> Self {
        let shared = Arc::new(Shared {
            flying: Mutex::new(Flying {
                flight: Flight::new(times),
                batches: HashMap::new(),
                joined: 0,
            }),
            changed: Notify::new(),
        });
        let end = CancellationToken::new();
        let (task, ended) = (keep(shared.clone()), end.clone());
        TaskTracker::new().spawn(ended.run_until_cancelled_owned(task));
        Self {
            shared,
            _ends: end.drop_guard(),
        }
    }

    /// `rows` rows of `tokens` tokens start now.
    pub(super) fn join(
        &self,
        rows: usize,
        tokens: u32,
        progress: watch::Sender<BatchProgress>,
    ) -> Seat {
        let (done, landed) = oneshot::channel();
        let now = Instant::now();
        let mut flying = self.shared.lock();
        let batch = flying.joined;
        flying.joined += 1;
        for _ in 0..rows {
            flying.flight.join(batch, tokens, now.into_std());
        }
        let of = Batch {
            rows,
            tokens,
            progress,
            done,
        };
        flying.batches.insert(batch, of);
        // Rows of no time are done before anybody has to be woken.
        flying.land(now);
        drop(flying);
        self.shared.changed.notify_one();
        Seat {
            batch,
            landed,
            shared: self.shared.clone(),
        }
    }
}

/// A batch's place on the engine. Dropped, its rows leave.
pub(super) struct Seat {
    batch: u64,
    landed: oneshot::Receiver<()>,
    shared: Arc<Shared>,
}

impl Seat {
    /// Returns when all rows are finished.
    pub(super) async fn landed(&mut self) {
        // The sender lives as long as the batch, and the batch until it has landed or this is dropped.
        (&mut self.landed).await.ok();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut flying = self.shared.lock();
        if flying.batches.remove(&self.batch).is_some() {
            let now = Instant::now().into_std();
            flying.flight.leave(&self.batch, now);
            drop(flying);
            self.shared.changed.notify_one();
        }
    }
}

struct Shared {
    flying: Mutex<Flying>,
    /// Somebody joined or left: the next finish may be another one.
    changed: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Flying> {
        let flying = self.flying.lock();
        flying.expect("nothing that is done under the lock panics")
    }
}

struct Flying {
    /// A batch's rows have its number as their key.
    flight: Flight<u64>,
    /// Those that are not finished; as many as the driver runs.
    batches: HashMap<u64, Batch>,
    /// Number of the next batch.
    joined: u64,
}

struct Batch {
    /// Not finished.
    rows: usize,
    /// Of each row.
    tokens: u32,
    progress: watch::Sender<BatchProgress>,
    done: oneshot::Sender<()>,
}

impl Batch {
    fn tell(&self, tokens: u32) {
        self.progress.send_replace(BatchProgress {
            tokens,
            tokens_max: self.tokens,
        });
    }
}

impl Flying {
    /// Says who has finished.
    fn land(&mut self, now: Instant) {
        for batch in self.flight.finished(now.into_std()) {
            let Some(of) = self.batches.get_mut(&batch) else {
                continue;
            };
            of.rows -= 1;
            if of.rows == 0
                && let Some(of) = self.batches.remove(&batch)
            {
                of.tell(of.tokens);
                // Whoever does not wait any more needs no news.
                of.done.send(()).ok();
            }
        }
    }

    /// Says how far everybody is.
    fn tell(&self) {
        for (batch, of) in &self.batches {
            if let Some(left) = self.flight.tokens_left(batch) {
                of.tell(of.tokens.saturating_sub(left));
            }
        }
    }
}

/// Waits for each next finish.
async fn keep(shared: Arc<Shared>) {
    let mut tell_at = Instant::now();
    loop {
        let next = {
            let now = Instant::now();
            let mut flying = shared.lock();
            flying.land(now);
            if now >= tell_at {
                flying.tell();
                tell_at = now + TELL_PERIOD;
            }
            flying.flight.next_finish()
        };
        let Some(next) = next else {
            shared.changed.notified().await;
            continue;
        };
        tokio::select! {
            () = sleep_until(Instant::from_std(next).min(tell_at)) => {}
            () = shared.changed.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use replay::{ArTimes, DenoiseTimes, Table};

    use super::*;

    /// 10 s alone, 12 s in two; 100 tokens.
    fn pace(rows_ms: &'static [(u32, f64)]) -> Pace {
        let table = Table {
            ar: ArTimes::new(rows_ms, 100),
            denoise: DenoiseTimes {
                step_ms: 0.0,
                decode_ms: 0.0,
            },
        };
        Pace::start(Times::new(table, 1.0).expect("in range"))
    }

    const ROWS_MS: &[(u32, f64)] = &[(1, 10_000.0), (2, 12_000.0)];

    fn join(pace: &Pace, rows: usize) -> (Seat, watch::Receiver<BatchProgress>) {
        let (progress, told) = watch::channel(BatchProgress::default());
        (pace.join(rows, 100, progress), told)
    }

    /// Milliseconds from `start` to the end of the batch; the clock of tests rounds up to whole ones.
    async fn landed(mut seat: Seat, start: Instant) -> u128 {
        seat.landed().await;
        start.elapsed().as_millis()
    }

    #[tokio::test(start_paused = true)]
    async fn batches_that_run_at_once_slow_each_other() {
        let (pace, start) = (pace(ROWS_MS), Instant::now());
        let (first, _told) = join(&pace, 1);
        tokio::time::advance(Duration::from_secs(5)).await;
        let (second, _told) = join(&pace, 1);
        let ends = tokio::join!(landed(first, start), landed(second, start));
        assert!((11_000..11_003).contains(&ends.0), "{ends:?}");
        assert!((16_000..16_003).contains(&ends.1), "{ends:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_ends_with_its_last_row_and_tells_how_far_it_is() {
        let (pace, start) = (pace(ROWS_MS), Instant::now());
        let (seat, mut told) = join(&pace, 2);
        tokio::time::advance(Duration::from_secs(6)).await;
        let half = told.wait_for(|progress| progress.tokens >= 50).await;
        assert_eq!(half.expect("it runs").tokens_max, 100);
        let end = landed(seat, start).await;
        assert!((12_000..12_003).contains(&end), "{end}");
        let whole = BatchProgress {
            tokens: 100,
            tokens_max: 100,
        };
        assert_eq!(*told.borrow(), whole);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_is_dropped_leaves_the_engine_to_the_others() {
        let (pace, start) = (pace(ROWS_MS), Instant::now());
        let (stays, _told) = join(&pace, 1);
        let (leaves, _told) = join(&pace, 1);
        tokio::time::advance(Duration::from_secs(6)).await;
        drop(leaves);
        let end = landed(stays, start).await;
        assert!((11_000..11_003).contains(&end), "{end}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_time_is_no_time() {
        let (pace, start) = (pace(&[(1, 0.0)]), Instant::now());
        let (mut seat, _told) = join(&pace, 3);
        assert_eq!(seat.landed.try_recv(), Ok(()), "nobody was waited for");
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
