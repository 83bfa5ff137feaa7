//! What the batcher lets go of: what nobody wants any more, what is another batcher's, and everything at its end.

use batching::{BatchFormer, Event};
use protocol::{JobId, OutputId};
use service::clock::unix_millis;
use tokio::time::timeout;

use super::{Driver, Running};
use crate::{bench::LAST_WORDS_MAX, settle};

impl Driver<'_> {
    /// Lets go of what has ended, what was lost and what is too late; stops the batch that runs for nobody.
    pub(super) async fn look_through(&mut self) {
        let now = unix_millis();
        let jobs: Vec<JobId> = self.held.keys().copied().collect();
        let mut gone = Vec::new();
        for job in jobs {
            let Some(mut held) = self.held.remove(&job) else {
                continue;
            };
            if held.lease.is_lost() {
                tracing::warn!(%job, "request is probably another batcher's by now");
                let open = held.open();
                gone.extend(open.iter().copied());
                self.parts.tracker.spawn(self.parts.bench.given_back(open));
                held.lease.abandon();
                continue;
            }
            let mut ended = held.ended();
            if !held.in_time(now) {
                for output in held.open() {
                    settle::refuse(&self.parts.bench, &held, output, settle::too_late()).await;
                }
                ended = held.open();
            }
            for output in &ended {
                held.settle(*output);
            }
            let count = u64::try_from(ended.len()).unwrap_or(u64::MAX);
            self.parts.bench.counters.withdrawn.inc_by(count);
            gone.extend(ended);
            if let Some(held) = self.parts.bench.keep(held).await {
                self.held.insert(job, held);
            }
        }
        if gone.is_empty() {
            return;
        }
        self.apply(Event::Withdrawn(gone));
        let needed = |running: &Running| running.outputs.iter().any(|output| self.needs(*output));
        let unneeded = self
            .running
            .as_ref()
            .is_some_and(|running| !needed(running));
        if let Some(running) = self.running.as_mut().filter(|_| unneeded) {
            tracing::info!("every output of the running batch has ended, stopping it");
            running.unneeded = true;
            running.stop.cancel();
        }
        self.show_work();
    }

    fn needs(&self, output: OutputId) -> bool {
        self.held
            .get(&output.job)
            .is_some_and(|held| held.needs(output))
    }

    /// Lets go of everything; the attempts that run are signed off first, since they are no failures.
    pub(super) async fn give_back(&mut self) {
        let mut outputs = std::mem::take(&mut self.unsettled);
        let running = self.running.take();
        let bench = &self.parts.bench;
        let sign_off = async {
            if let Some(running) = running {
                outputs.extend(running.outputs);
                running.stop.cancel();
                if !running.ends.is_terminated() {
                    // Its starts are written down by then, and can be signed off.
                    drop(timeout(LAST_WORDS_MAX / 2, running.ends).await);
                }
            }
            bench.given_back(outputs).await;
        };
        if timeout(LAST_WORDS_MAX, sign_off).await.is_err() {
            tracing::debug!("attempts are not signed off in time");
        }
        // Dropped leases go back to the queue at once.
        self.held.clear();
        self.former = BatchFormer::new(self.parts.limits.clone());
        self.wake_at = None;
    }
}
