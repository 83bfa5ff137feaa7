//! Tells a worker of one output that it has ended: the same notice as in [`crate::Ends`], of one output only.
//!
//! A subscription of its own for each output: a denoiser that heard of every end would wake once for each picture of the
//! whole fleet, which with eight of them on two cores was a tenth of all that a tiny picture costs (measured).

use std::time::Duration;

use async_nats::Subscriber;
use futures::StreamExt;
use protocol::{OutputId, Subject};
use tokio::time::{sleep, timeout};

use crate::{bus::Bus, ends::SWEEP_PERIOD};

/// How long nobody listens: what is done by then could not have been stopped in time, and costs the broker no
/// subscription.
const LISTEN_AFTER: Duration = Duration::from_millis(100);

impl Bus {
    /// Returns when `output` has ended, at the earliest after a tenth of a second. A notice can be missed, so the end is
    /// looked up every 5 s as well.
    pub async fn ended(&self, output: OutputId) {
        sleep(LISTEN_AFTER).await;
        let mut notices = None;
        loop {
            if notices.is_none() {
                notices = self.end_notices(output).await;
            }
            // Listened first, then looked up: an end in between is not missed.
            if self.is_stored(output).await {
                return;
            }
            let Some(subscriber) = &mut notices else {
                sleep(SWEEP_PERIOD).await;
                continue;
            };
            match timeout(SWEEP_PERIOD, subscriber.next()).await {
                Ok(Some(_)) => return,
                // The connection is closed for good, and says so elsewhere.
                Ok(None) => return std::future::pending().await,
                Err(_) => {}
            }
        }
    }

    async fn end_notices(&self, output: OutputId) -> Option<Subscriber> {
        let subject = self.prefix().subject(&Subject::Done(output));
        let subscribed = self.client().subscribe(subject).await;
        subscribed
            .inspect_err(|error| tracing::debug!(%output, %error, "end is not listened for yet"))
            .ok()
    }

    async fn is_stored(&self, output: OutputId) -> bool {
        match self.ended_outputs(output.job).await {
            Ok(ended) => ended.contains(&output.index),
            // The next look asks again.
            Err(error) => {
                tracing::debug!(%output, %error, "end was not looked up");
                false
            }
        }
    }
}
