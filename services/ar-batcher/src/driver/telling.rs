//! What the fleet is told: of the worker by its presence, of outputs that wait by their lives. Neither is told of what
//! takes milliseconds.

use std::{sync::Arc, time::Duration};

use messaging::{EndWatch, KnownLife};
use protocol::{LifeEvent, OutputId, WorkerState};
use service::clock::unix_millis;
use tokio::time::{Instant, sleep};

use super::{Driver, hands::News};
use crate::request::{Doing, Held};

/// How old what is told may be. A person sees no difference, and a broker that stores hundreds of outputs a second
/// stores two messages less for each.
pub(super) const TELL_PERIOD: Duration = Duration::from_millis(100);

/// When the presence was changed last, and whether it should be since.
#[derive(Debug, Default)]
pub(super) struct Shown {
    at: Option<Instant>,
    is_old: bool,
}

impl Driver {
    pub(super) fn show(&mut self, state: WorkerState) {
        let held = self.held.values().filter_map(Held::work).collect();
        let presence = &self.bench.member.presence;
        presence.update(|now| (now.state, now.held) = (state, held));
        self.shown = Shown {
            at: Some(Instant::now()),
            is_old: false,
        };
    }

    /// What is held or runs is not what it was.
    pub(super) fn changed(&mut self) {
        let recent = |at: Instant| at.elapsed() < TELL_PERIOD;
        self.shown.is_old = true;
        self.count_held();
        if !self.shown.at.is_some_and(recent) {
            self.show_work();
        }
    }

    /// For metrics.
    pub(super) fn count_held(&self) {
        let waiting = self.former.waiting() + self.passing.waiting();
        let counters = &self.bench.counters;
        counters.holds(waiting, self.running_outputs());
        let now = unix_millis();
        let waiting = self.held.values().filter(|held| held.waits());
        let waited = waiting.map(|held| now.saturating_sub(held.request.accepted_at()));
        counters.oldest_waits(Duration::from_millis(waited.max().unwrap_or(0)));
    }

    fn show_work(&mut self) {
        // A quarantine has been told of, and holds nothing.
        if self.engines.all_down() {
            return;
        }
        self.show(if self.running.is_empty() {
            WorkerState::Idle
        } else {
            WorkerState::Busy
        });
    }

    /// Tells what has not been told yet.
    pub(super) fn tell_waiting(&mut self) {
        // What waits gets older although nothing happens.
        self.count_held();
        if self.shown.is_old {
            self.show_work();
        }
        let period_ms = u64::try_from(TELL_PERIOD.as_millis()).unwrap_or(u64::MAX);
        let held_since = unix_millis().saturating_sub(period_ms);
        let waiting = self.held.values();
        let waiting = waiting.flat_map(|held| held.waiting_unsaid(held_since));
        for output in waiting.collect::<Vec<_>>() {
            let Some(open) = self.held_of(output).and_then(|held| held.output(output)) else {
                continue;
            };
            open.waiting_is_told();
            let (known, bench) = (open.known.clone(), Arc::clone(&self.bench));
            self.hands.task(async move {
                let bus = &bench.member.bus;
                // In one try: what the row does next is written down again, and must not be overwritten by this.
                let event = LifeEvent::Admitted;
                let known = bus.advance_unchanged(&known, event, unix_millis()).await;
                let known = known
                    .inspect_err(|error| tracing::debug!(%output, %error, "life is not moved on"));
                News::Told {
                    output,
                    known: known.ok().flatten(),
                }
            });
        }
    }

    /// Tells that an output waits for a denoiser, if it still does after a while: a denoiser that starts on it tells more,
    /// and would have to write twice against this. Until then its life says that its row runs.
    pub(super) fn tell_written(&mut self, known: KnownLife, watch: EndWatch) {
        let (bench, stop) = (Arc::clone(&self.bench), self.stop.clone());
        self.hands.aside(async move {
            // At once by a batcher that stops: the next one must not take its attempt for lost.
            stop.run_until_cancelled(sleep(TELL_PERIOD)).await;
            if watch.has_ended() {
                return;
            }
            let (bus, output) = (&bench.member.bus, known.output());
            let event = LifeEvent::PriorStored;
            if let Err(error) = bus.advance_unchanged(&known, event, unix_millis()).await {
                tracing::debug!(%output, %error, "life is not moved on");
            }
        });
    }

    pub(super) fn told(&mut self, output: OutputId, known: Option<KnownLife>) {
        let open = self.held_of(output).and_then(|held| held.output(output));
        if let (Some(open), Some(known)) = (open, known)
            && open.doing() == (Doing::Waiting { told: true })
        {
            open.known = known;
        }
    }
}
