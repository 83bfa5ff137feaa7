//! The pace of whoever looks after what runs: as long as there is somebody to tell.

use std::time::Duration;

use tokio::{
    sync::mpsc,
    time::{Interval, MissedTickBehavior, interval},
};

use super::supervisor::Event;

/// At once, and then every so often. After a look that took longer the next one comes at once.
#[derive(Debug)]
pub(crate) struct Ticks {
    period: Interval,
    /// To the supervisor.
    events: mpsc::Sender<Event>,
}

impl Ticks {
    /// Until the supervisor is gone.
    pub(crate) fn new(period: Duration, events: &mpsc::Sender<Event>) -> Self {
        let mut period = interval(period);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let events = events.clone();
        Self { period, events }
    }

    /// Waits for the next look; says whether there is one.
    pub(crate) async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.period.tick() => true,
            () = self.events.closed() => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_is_a_look_at_once_and_none_when_nobody_is_told() {
        let (events, told) = mpsc::channel(1);
        // Nobody waits for the second one.
        let mut ticks = Ticks::new(Duration::from_secs(1_000_000), &events);
        assert!(ticks.next().await);
        drop(told);
        assert!(!ticks.next().await);
    }
}
