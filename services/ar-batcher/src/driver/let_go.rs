//! What the batcher lets go of: what nobody wants any more, what is another batcher's, and everything at its end.

use std::sync::Arc;

use batching::Event;
use protocol::{JobId, OutputId};
use service::clock::unix_millis;
use tokio::time::timeout;

use super::{Driver, hands::News};
use crate::{
    bench::LAST_WORDS_MAX,
    request::{Doing, Held},
    settle,
};

impl Driver {
    /// Lets go of what has ended, what was lost and what is too late; stops batches that run for nobody.
    pub(super) fn look_through(&mut self) {
        let now = unix_millis();
        let jobs: Vec<JobId> = self.held.keys().copied().collect();
        let mut gone = Vec::new();
        for job in jobs {
            let Some(held) = self.held.get_mut(&job) else {
                continue;
            };
            if held.lease.is_lost() {
                let lost = self.abandon(job);
                self.withdrew(lost.len());
                gone.extend(lost);
                continue;
            }
            let ended = held.ended();
            for output in &ended {
                held.settle(*output);
            }
            let late = if held.request.in_time(now) {
                Vec::new()
            } else {
                held.untold()
            };
            for output in &late {
                self.refuse_late(*output);
            }
            self.withdrew(ended.len() + late.len());
            gone.extend(ended.into_iter().chain(late));
            self.close_if_done(job);
        }
        if gone.is_empty() {
            return;
        }
        self.apply(Event::Withdrawn(gone.clone()));
        self.pass(Event::Withdrawn(gone));
        self.stop_unneeded();
        self.changed();
    }

    fn withdrew(&self, outputs: usize) {
        self.bench.counters.withdrawn.inc_by(outputs as u64);
    }

    fn abandon(&mut self, job: JobId) -> Vec<OutputId> {
        let Some(held) = self.held.remove(&job) else {
            return Vec::new();
        };
        tracing::warn!(%job, "request is probably another batcher's by now");
        let open = held.open();
        let (bench, outputs) = (Arc::clone(&self.bench), open.clone());
        self.hands
            .aside(async move { bench.given_back(outputs).await });
        held.lease.abandon();
        open
    }

    fn refuse_late(&mut self, output: OutputId) {
        let bench = Arc::clone(&self.bench);
        self.hand_over(output, Doing::Settling, async move |request| {
            settle::refuse(&bench, &request, output, settle::too_late()).await
        });
    }

    fn stop_unneeded(&mut self) {
        for (id, running) in &mut self.running {
            let needed = |output: &OutputId| {
                let held = self.held.get(&output.job);
                held.and_then(|held| held.doing(*output)) == Some(Doing::Running(*id))
            };
            if !running.unneeded && !running.outputs.iter().any(needed) {
                tracing::info!("every output of a running batch has ended, stopping it");
                running.unneeded = true;
                running.stop.cancel();
            }
        }
    }

    /// Lets go of everything. Attempts that run are signed off first, since they are no failures; what is being stored
    /// gets a moment to be.
    pub(super) async fn give_back(&mut self) {
        // From here on nothing starts.
        self.ahead.close();
        self.see_room();
        for running in self.running.values() {
            running.stop.cancel();
        }
        let last_news = async {
            while !self.running.is_empty() || self.settling > 0 {
                match self.news.recv().await {
                    // Dropped, it goes back.
                    Some(News::Admitted { job, .. }) => drop(self.admitting.remove(&job)),
                    Some(news) => {
                        if let Err(error) = self.hear(news) {
                            tracing::error!(%error, "while everything is given back");
                        }
                    }
                    None => return,
                }
            }
        };
        // Starts are written down by then, and can be signed off.
        if timeout(LAST_WORDS_MAX / 2, last_news).await.is_err() {
            tracing::debug!("not everything has ended in time");
        }
        let held = self.held.values();
        let in_hand = held.flat_map(Held::in_hand).collect();
        let signed_off = self.bench.given_back(in_hand);
        if timeout(LAST_WORDS_MAX, signed_off).await.is_err() {
            tracing::debug!("attempts are not signed off in time");
        }
        let gone: Vec<OutputId> = self.held.values().flat_map(Held::open).collect();
        // Dropped leases go back to the queue at once.
        self.held.clear();
        self.apply(Event::Withdrawn(gone.clone()));
        self.pass(Event::Withdrawn(gone));
        self.ahead.open();
        self.see_room();
        // Nobody else does, while a quarantine lasts.
        self.count_held();
    }
}
