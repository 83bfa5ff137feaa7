//! Lives of outputs: read, and moved on by compare-and-set.

use std::time::Duration;

use async_nats::HeaderMap;
use protocol::{LifeEvent, OutputId, OutputLife, Refusal, UnixMillis, decode, encode};
use tokio::time::{Instant, sleep};

use crate::{
    bus::{Bus, bucket_stream, bucket_subject},
    copies::Latest,
    error::{BusError, PublishError},
    publish::{Fence, Publish},
};

/// How long an event is tried: an election (4 to 8 s) and something more.
const ADVANCE_RETRY_MAX: Duration = Duration::from_secs(10);

/// Between tries. Somebody else's write is a millisecond away, a new leader some hundred.
const ADVANCE_RETRY_DELAY: Duration = Duration::from_millis(50);

impl Bus {
    /// What `output` has been through; `None` before a worker first touches it.
    pub async fn life(&self, output: OutputId) -> Result<Option<OutputLife>, BusError> {
        let stream = bucket_stream(&self.topology().outputs.name);
        let stored = self.last(&stream, &self.life_subject(output)).await?;
        stored
            .map(|stored| read(output, &stored.payload))
            .transpose()
    }

    /// Moves the life of `output` on. The inner error is the state machine's: the event cannot follow, and nothing
    /// was written.
    pub async fn advance(
        &self,
        output: OutputId,
        event: LifeEvent,
        now: UnixMillis,
    ) -> Result<Result<OutputLife, Refusal>, BusError> {
        let end = Instant::now() + ADVANCE_RETRY_MAX;
        loop {
            let failure = match self.try_advance(output, event.clone(), now).await {
                Ok(Some(advanced)) => return Ok(advanced),
                Ok(None) => None,
                Err(error) => Some(error),
            };
            if Instant::now() + ADVANCE_RETRY_DELAY >= end {
                return Err(failure.unwrap_or_else(|| BusError::Unavailable {
                    what: format!("life of {output}"),
                    source: "others change it all the time".into(),
                }));
            }
            sleep(ADVANCE_RETRY_DELAY).await;
        }
    }

    /// One read and one write; `None` when somebody else wrote in between.
    async fn try_advance(
        &self,
        output: OutputId,
        event: LifeEvent,
        now: UnixMillis,
    ) -> Result<Option<Result<OutputLife, Refusal>>, BusError> {
        let (before, revision) = self.life_to_change(output).await?;
        let start = before
            .clone()
            .unwrap_or_else(|| OutputLife::queued(output, now));
        let after = match start.apply(event, now) {
            Ok(after) => after,
            Err(refusal) => return Ok(Some(Err(refusal))),
        };
        if before.as_ref() == Some(&after) {
            return Ok(Some(Ok(after)));
        }
        let what = || format!("life of {output}");
        let unavailable = |error: PublishError| BusError::Unavailable {
            what: what(),
            source: error.into(),
        };
        let publish = Publish {
            subject: self.life_subject(output),
            id: None,
            after: Some(revision),
            headers: HeaderMap::new(),
            payload: encode(&after)
                .map_err(|error| unavailable(error.into()))?
                .into(),
        };
        match self.publish_once(&publish).await.map_err(unavailable)? {
            Fence::First => Ok(Some(Ok(after))),
            Fence::Taken => Ok(None),
        }
    }

    fn life_subject(&self, output: OutputId) -> String {
        bucket_subject(&self.topology().outputs.name, &output.to_string())
    }

    /// A life and the sequence after which it is to be written. Asked of the leader, since a copy may be behind; and a
    /// life that an operator deleted left a marker, which has the place.
    async fn life_to_change(
        &self,
        output: OutputId,
    ) -> Result<(Option<OutputLife>, u64), BusError> {
        let stream = bucket_stream(&self.topology().outputs.name);
        match self.latest(&stream, &self.life_subject(output)).await? {
            Some(Latest::Stored { sequence, payload }) => {
                Ok((Some(read(output, &payload)?), sequence))
            }
            Some(Latest::Deleted { sequence }) => Ok((None, sequence)),
            None => Ok((None, 0)),
        }
    }
}

fn read(output: OutputId, payload: &[u8]) -> Result<OutputLife, BusError> {
    decode(payload).map_err(|source| BusError::Decode {
        what: format!("life of {output}"),
        source,
    })
}
