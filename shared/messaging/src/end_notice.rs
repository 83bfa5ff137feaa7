//! Tells a worker of one output that it has ended: the same notice as in [`crate::Ends`], of one output only.
//!
//! A subscription of its own for each output: a denoiser that heard of every end would wake once for each picture of the
//! whole fleet, which with eight of them on two cores was a tenth of all that a tiny picture costs (measured).

use async_nats::Subscriber;
use futures::StreamExt;
use protocol::{OutputId, Subject};
use tokio::time::sleep;

use crate::{bus::Bus, ends::SWEEP_PERIOD, error::BusError};

/// Listens for the end of one output until it is dropped.
#[derive(Debug)]
pub struct EndNotice {
    bus: Bus,
    output: OutputId,
    notices: Subscriber,
}

impl Bus {
    /// Listens for the end of `output`. Listen first, then look whether it has ended already.
    pub async fn end_notice(&self, output: OutputId) -> Result<EndNotice, BusError> {
        let subject = self.prefix().subject(&Subject::Done(output));
        let subscribed = self.client().subscribe(subject.clone()).await;
        let notices = subscribed.map_err(|source| BusError::Unavailable {
            what: subject,
            source: source.into(),
        })?;
        Ok(EndNotice {
            bus: self.clone(),
            output,
            notices,
        })
    }
}

impl EndNotice {
    /// Returns when the output has ended. A notice can be missed, so it is looked up every 5 s as well.
    pub async fn ended(&mut self) {
        loop {
            tokio::select! {
                notice = self.notices.next() => match notice {
                    Some(_) => return,
                    // The connection is closed for good, and says so elsewhere.
                    None => return std::future::pending().await,
                },
                () = sleep(SWEEP_PERIOD) => if self.is_stored().await { return },
            }
        }
    }

    async fn is_stored(&self) -> bool {
        match self.bus.ended_outputs(self.output.job).await {
            Ok(ended) => ended.contains(&self.output.index),
            // The next look asks again.
            Err(error) => {
                tracing::debug!(output = %self.output, %error, "end was not looked up");
                false
            }
        }
    }
}
