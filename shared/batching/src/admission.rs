//! Who is let in, as a pure rule: what is open and how fast it ends go in, room or a time to come back come out.
//!
//! The unit is the **output**: a request for `n` outputs takes `n` places. What is open is known twice: gateways tell
//! each other what they have accepted, and the queues tell what they hold, which also counts jobs whose gateway is
//! gone. Each may miss something, so the larger one counts.
//!
//! Who finds no room is told when its turn comes, by a **virtual queue**: everybody who was refused before is taken
//! to come back at the time it was told and to take the place that is free then. A place is free each time an output
//! ends, so the k-th refused output comes `k / rate` after the queue got full. What was promised is counted in
//! outputs, not as instants, so that a rate that changes moves all promises with it.
//!
//! A promise is no reservation: a newcomer that finds room takes it. Clients have no names here, and a place kept for
//! one that never comes back is a place lost. For the same reason a client that does not wait stands in the virtual
//! queue once for each of its tries. Who is refused while promises are overdue is taken for one of those whose time
//! has come, and stands in front: a rate that was measured a little high must not send it to the back again.

use std::time::{Duration, Instant};

/// Nobody is told to come back sooner: the header counts whole seconds.
pub const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

/// Nor later: the default time a job may take, after which things look different anyway.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// Told before anything was measured: a picture takes seconds.
pub const RETRY_AFTER_UNMEASURED: Duration = Duration::from_secs(5);

/// How long the rate remembers: a fleet of 0.1 outputs a second still shows 6 of them, and a device that joined or
/// left is believed after a minute or two.
const RATE_MEMORY: Duration = Duration::from_secs(60);

/// Longest time between two looks that says anything: after a longer one nobody knows what happened in between.
const LOOK_GAP_MAX: Duration = Duration::from_secs(10);

/// What was seen of the deployment, about once a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    /// Outputs open at the other gateways.
    pub open_elsewhere: u64,
    /// Outputs that the queues hold at least, with a worker or without.
    pub in_queues: u64,
    /// Of those, the ones that no worker has.
    pub waiting: u64,
    /// Gateways, this one included.
    pub gateways: u32,
    /// Pictures that the whole deployment has finished, counted from any start.
    pub finished: u64,
}

/// Lets requests in. Deterministic: the same calls give the same answers.
#[derive(Debug)]
pub struct Admission {
    /// Most outputs that may be open in the deployment.
    outputs_max: u64,
    /// Let in here and not ended.
    open_here: u64,
    seen: Option<Seen>,
    rate: Rate,
    /// Outputs that were told to come back here and whose time has not come.
    promised: f64,
    promised_at: Instant,
    /// Outputs that were told to come back, whose time has come, and that were not let in since.
    overdue: f64,
    /// Whether somebody was refused since the last look, for whatever reason.
    refused: bool,
}

/// The last look.
#[derive(Debug, Clone, Copy)]
struct Seen {
    look: Look,
    at: Instant,
    /// Whether the workers had all the work they can do: only then is what they finish what they can finish.
    loaded: bool,
}

impl Admission {
    /// With nothing open, at `now`.
    pub const fn new(outputs_max: u64, now: Instant) -> Self {
        Self {
            outputs_max,
            open_here: 0,
            seen: None,
            rate: Rate {
                finished: 0.0,
                busy_s: 0.0,
                pending_s: 0.0,
            },
            promised: 0.0,
            promised_at: now,
            overdue: 0.0,
            refused: false,
        }
    }

    /// Takes in what was seen at `now`.
    pub fn look(&mut self, look: Look, now: Instant) {
        self.drain(now);
        let before = self.seen;
        let open = self.open_with(look);
        let refused = std::mem::take(&mut self.refused);
        if open < self.outputs_max && !refused {
            // There is room, and they did not come for it.
            self.overdue = 0.0;
        }
        let loaded = look.waiting > 0 || (open > 0 && open >= self.outputs_max);
        if let Some(before) = before
            && before.loaded
            && loaded
        {
            let finished = look.finished.saturating_sub(before.look.finished);
            self.rate
                .add(finished, now.saturating_duration_since(before.at));
        }
        self.seen = Some(Seen {
            look,
            at: now,
            loaded,
        });
    }

    /// Lets a request for `outputs` in, or says when to come back. A deployment with nothing open takes any request:
    /// one that is larger than the limit would never find room otherwise.
    pub fn admit(&mut self, outputs: u64, now: Instant) -> Result<(), Duration> {
        let open = self.open();
        if open > 0 && open.saturating_add(outputs) > self.outputs_max {
            return Err(self.refuse(outputs, now));
        }
        self.drain(now);
        self.overdue = (self.overdue - outputs as f64).max(0.0);
        self.open_here = self.open_here.saturating_add(outputs);
        Ok(())
    }

    /// When a request for `outputs` that finds no room, here or elsewhere, should come back: whole seconds.
    pub fn refuse(&mut self, outputs: u64, now: Instant) -> Duration {
        self.drain(now);
        self.refused = true;
        let Some(rate) = self.rate.per_second() else {
            return RETRY_AFTER_UNMEASURED;
        };
        let (floor, ceiling) = (RETRY_AFTER_MIN.as_secs_f64(), RETRY_AFTER_MAX.as_secs_f64());
        let short = self.open().saturating_add(outputs);
        let short = short.saturating_sub(self.outputs_max).max(1);
        // Half an output for what rounding takes.
        let before = if self.overdue + 0.5 >= outputs as f64 {
            self.overdue = (self.overdue - outputs as f64).max(0.0);
            0.0
        } else {
            // The others have promised as much as this one: who is refused goes to one of them at random.
            self.promised * self.gateways()
        };
        let wait_s = (before + short as f64) / rate;
        // Nobody is told a later time, so nothing beyond it is promised; else a client that hammers would drive it up
        // without end.
        let promised_max = ceiling * rate / self.gateways();
        self.promised = (self.promised + outputs as f64).min(promised_max);
        Duration::from_secs_f64(wait_s.ceil().clamp(floor, ceiling))
    }

    /// `outputs` that were let in have ended, or were not queued after all.
    pub fn release(&mut self, outputs: u64) {
        self.open_here = self.open_here.saturating_sub(outputs);
        // They were in the queues when somebody last looked, and are not until the next look.
        if let Some(seen) = &mut self.seen {
            seen.look.in_queues = seen.look.in_queues.saturating_sub(outputs);
        }
    }

    /// Outputs that were let in here and have not ended.
    pub const fn open_here(&self) -> u64 {
        self.open_here
    }

    /// Outputs that the deployment finishes in a second when it has work; `None` before any was seen.
    pub fn per_second(&self) -> Option<f64> {
        self.rate.per_second()
    }

    /// Outputs open in the deployment, as far as anybody knows.
    fn open(&self) -> u64 {
        self.open_with(self.seen.map(|seen| seen.look).unwrap_or_default())
    }

    fn open_with(&self, look: Look) -> u64 {
        let accepted = self.open_here.saturating_add(look.open_elsewhere);
        accepted.max(look.in_queues)
    }

    fn gateways(&self) -> f64 {
        let gateways = self.seen.map_or(1, |seen| seen.look.gateways);
        f64::from(gateways.max(1))
    }

    /// Takes the promises off whose time has come.
    fn drain(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.promised_at);
        let ended = self.rate.per_second().unwrap_or(0.0) * passed.as_secs_f64();
        let due = self.promised.min(ended / self.gateways());
        self.promised -= due;
        self.overdue += due;
        self.promised_at = self.promised_at.max(now);
    }
}

/// Endings over busy time, both of which fade with busy time: idle hours change nothing.
#[derive(Debug, Clone, Copy)]
struct Rate {
    finished: f64,
    /// Up to the last ending: a time cut off in the middle of a picture would count half of it.
    busy_s: f64,
    /// Since then.
    pending_s: f64,
}

impl Rate {
    /// `finished` outputs in a loaded `time`.
    fn add(&mut self, finished: u64, time: Duration) {
        if time > LOOK_GAP_MAX {
            return;
        }
        self.pending_s += time.as_secs_f64();
        if finished == 0 {
            return;
        }
        let kept = (-self.pending_s / RATE_MEMORY.as_secs_f64()).exp();
        self.finished = self.finished * kept + finished as f64;
        self.busy_s = self.busy_s * kept + self.pending_s;
        self.pending_s = 0.0;
    }

    fn per_second(&self) -> Option<f64> {
        if self.busy_s <= 0.0 {
            return None;
        }
        // If the next one came right now: workers that hang are noticed without an ending.
        let at_most = (self.finished + 1.0) / (self.busy_s + self.pending_s);
        Some(at_most.min(self.finished / self.busy_s))
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
