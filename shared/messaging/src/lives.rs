//! Lives of outputs: read, and moved on by compare-and-set.

use std::time::Duration;

use async_nats::HeaderMap;
use protocol::{LifeEvent, OutputId, OutputLife, Refusal, StoredLife, UnixMillis, decode, encode};
use tokio::time::{Instant, sleep};

use crate::{
    bus::{Bus, bucket_stream, bucket_subject, is_gone, stored_sequence},
    copies::Latest,
    error::{BusError, PublishError},
    publish::Publish,
};

/// How long an event is tried: an election (4 to 8 s) and something more.
const ADVANCE_RETRY_MAX: Duration = Duration::from_secs(10);

/// Between tries. Somebody else's write is a millisecond away, a new leader some hundred.
const ADVANCE_RETRY_DELAY: Duration = Duration::from_millis(50);

/// A life and its place in the bucket: what the next event is written after. Of one process's own writes, of the message
/// about the output, or of any copy of the bucket: it may be out of date, which the server tells when it is written after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownLife {
    output: OutputId,
    /// `None` before a worker first touches the output.
    life: Option<OutputLife>,
    /// The sequence of its message, or of the marker that an operator's deletion left; 0 for none.
    sequence: u64,
}

impl KnownLife {
    /// That of an output that nobody has touched yet, as far as its message tells: who is wrong is told when it writes.
    pub const fn untouched(output: OutputId) -> Self {
        Self {
            output,
            life: None,
            sequence: 0,
        }
    }

    /// What a message takes along; `None` for an output that nobody has touched.
    pub fn stored(&self) -> Option<StoredLife> {
        let life = self.life.clone()?;
        Some(StoredLife {
            life,
            sequence: self.sequence,
        })
    }

    /// Whose.
    pub const fn output(&self) -> OutputId {
        self.output
    }

    /// The life; that of an output that nobody has touched since `accepted_at`, if there is none.
    pub fn life(&self, accepted_at: UnixMillis) -> OutputLife {
        let untouched = || OutputLife::queued(self.output, accepted_at);
        self.life.clone().unwrap_or_else(untouched)
    }
}

/// As a message brought it.
impl From<StoredLife> for KnownLife {
    fn from(stored: StoredLife) -> Self {
        let StoredLife { life, sequence } = stored;
        Self {
            output: life.output,
            life: Some(life),
            sequence,
        }
    }
}

impl Bus {
    /// What `output` has been through; `None` before a worker first touches it.
    pub async fn life(&self, output: OutputId) -> Result<Option<OutputLife>, BusError> {
        Ok(self.known_life(output).await?.life)
    }

    /// The same with its place, for [`Bus::advance_known`].
    pub async fn known_life(&self, output: OutputId) -> Result<KnownLife, BusError> {
        let stream = bucket_stream(&self.topology().outputs.name);
        let stored = self
            .last_with_marker(&stream, &self.life_subject(output))
            .await?;
        let Some(stored) = stored else {
            return Ok(KnownLife::untouched(output));
        };
        let life = if is_gone(&stored) {
            None
        } else {
            Some(read(output, &stored.payload)?)
        };
        Ok(KnownLife {
            output,
            life,
            // 0 is refused by the server, and the leader is asked.
            sequence: stored_sequence(&stored).unwrap_or_default(),
        })
    }

    /// Moves the life of `output` on. The inner error is the state machine's: the event cannot follow, and nothing
    /// was written.
    pub async fn advance(
        &self,
        output: OutputId,
        event: LifeEvent,
        now: UnixMillis,
    ) -> Result<Result<OutputLife, Refusal>, BusError> {
        let advanced = self.advance_as_leader_knows(output, event, now).await?;
        Ok(advanced.map(|known| known.life(now)))
    }

    /// The same for a life that is known: one write, and more only when it was out of date.
    pub async fn advance_known(
        &self,
        known: &KnownLife,
        event: LifeEvent,
        now: UnixMillis,
    ) -> Result<Result<KnownLife, Refusal>, BusError> {
        if let Ok(Some(Ok(advanced))) = self.write_after(known, event.clone(), now).await {
            return Ok(Ok(advanced));
        }
        self.advance_as_leader_knows(known.output, event, now).await
    }

    /// The same in one try, for what is not worth a second one: `None` when the event cannot follow, or when somebody
    /// else has written meanwhile.
    pub async fn advance_unchanged(
        &self,
        known: &KnownLife,
        event: LifeEvent,
        now: UnixMillis,
    ) -> Result<Option<KnownLife>, BusError> {
        let advanced = self.write_after(known, event, now).await?;
        Ok(advanced.and_then(Result::ok))
    }

    async fn advance_as_leader_knows(
        &self,
        output: OutputId,
        event: LifeEvent,
        now: UnixMillis,
    ) -> Result<Result<KnownLife, Refusal>, BusError> {
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
    ) -> Result<Option<Result<KnownLife, Refusal>>, BusError> {
        let known = self.life_to_change(output).await?;
        self.write_after(&known, event, now).await
    }

    /// One write; `None` when `known` is out of date.
    async fn write_after(
        &self,
        known: &KnownLife,
        event: LifeEvent,
        now: UnixMillis,
    ) -> Result<Option<Result<KnownLife, Refusal>>, BusError> {
        let output = known.output;
        let after = match known.life(now).apply(event, now) {
            Ok(after) => after,
            Err(refusal) => return Ok(Some(Err(refusal))),
        };
        if known.life.as_ref() == Some(&after) {
            return Ok(Some(Ok(known.clone())));
        }
        let unavailable = |error: PublishError| BusError::Unavailable {
            what: format!("life of {output}"),
            source: error.into(),
        };
        let publish = Publish {
            subject: self.life_subject(output),
            id: None,
            after: Some(known.sequence),
            headers: HeaderMap::new(),
            payload: encode(&after)
                .map_err(|error| unavailable(error.into()))?
                .into(),
        };
        let stored = self.store_once(&publish).await.map_err(unavailable)?;
        Ok(stored.map(|sequence| {
            Ok(KnownLife {
                output,
                life: Some(after),
                sequence,
            })
        }))
    }

    fn life_subject(&self, output: OutputId) -> String {
        bucket_subject(&self.topology().outputs.name, &output.to_string())
    }

    /// A life as the leader knows it, since a copy may be behind.
    async fn life_to_change(&self, output: OutputId) -> Result<KnownLife, BusError> {
        let stream = bucket_stream(&self.topology().outputs.name);
        let (life, sequence) = match self.latest(&stream, &self.life_subject(output)).await? {
            Some(Latest::Stored { sequence, payload }) => (Some(read(output, &payload)?), sequence),
            Some(Latest::Deleted { sequence }) => (None, sequence),
            None => (None, 0),
        };
        Ok(KnownLife {
            output,
            life,
            sequence,
        })
    }
}

fn read(output: OutputId, payload: &[u8]) -> Result<OutputLife, BusError> {
    decode(payload).map_err(|source| BusError::Decode {
        what: format!("life of {output}"),
        source,
    })
}
