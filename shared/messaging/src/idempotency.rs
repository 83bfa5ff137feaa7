//! Idempotency keys: the first who writes one owns it.

use std::time::Duration;

use protocol::{IdempotencyKey, IdempotencyRecord, decode, encode};

use tokio::time::{Instant, sleep};

use crate::{
    bus::{Bus, bucket_stream, bucket_subject},
    copies::Latest,
    error::{BusError, PublishError},
    publish::Fence,
};

/// How long a key that is neither free nor anybody's is asked for: an election (4 to 8 s) and something more.
const CLAIM_RETRY_MAX: Duration = Duration::from_secs(10);

/// Between tries: a key runs out once, so that the second try decides.
const CLAIM_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Whose a key is.
#[derive(Debug, Clone, PartialEq)]
pub enum Claim {
    /// The caller's: it was free.
    New,
    /// It stands for this already. An earlier try of the same caller reads so too.
    Taken(Box<IdempotencyRecord>),
}

/// A key could not be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// It could not be written.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// What it stands for could not be read.
    #[error(transparent)]
    Bus(#[from] BusError),
}

impl Bus {
    /// Writes what `key` stands for, unless it stands for something.
    pub async fn claim_key(
        &self,
        key: &IdempotencyKey,
        record: &IdempotencyRecord,
    ) -> Result<Claim, ClaimError> {
        let bucket = &self.topology().idempotency.name;
        let subject = bucket_subject(bucket, &key.entry());
        let bytes = encode(record).map_err(PublishError::from)?;
        let end = Instant::now() + CLAIM_RETRY_MAX;
        // A key that an operator deleted is free, and has the marker's place.
        let mut after = 0;
        loop {
            let created = self.create_after(after, subject.clone(), bytes.clone());
            if created.await? == Fence::First {
                return Ok(Claim::New);
            }
            // Asked of the leader, who has just refused: a copy may not know of the claim yet.
            after = match self.latest(&bucket_stream(bucket), &subject).await? {
                Some(Latest::Stored { payload, .. }) => {
                    return Ok(Claim::Taken(Box::new(read(&payload)?)));
                }
                Some(Latest::Deleted { sequence }) => sequence,
                // Gone in between: it ran out.
                None => 0,
            };
            if Instant::now() + CLAIM_RETRY_DELAY >= end {
                let source = "it comes and goes all the time".into();
                return Err(ClaimError::Bus(BusError::Unavailable {
                    what: subject,
                    source,
                }));
            }
            sleep(CLAIM_RETRY_DELAY).await;
        }
    }

    /// What `key` stands for. A replica may not know of a claim that is some milliseconds old.
    pub async fn claimed(
        &self,
        key: &IdempotencyKey,
    ) -> Result<Option<IdempotencyRecord>, BusError> {
        let bucket = &self.topology().idempotency.name;
        let subject = bucket_subject(bucket, &key.entry());
        let Some(stored) = self.last(&bucket_stream(bucket), &subject).await? else {
            return Ok(None);
        };
        read(&stored.payload).map(Some)
    }
}

fn read(payload: &[u8]) -> Result<IdempotencyRecord, BusError> {
    decode(payload).map_err(|source| BusError::Decode {
        what: "idempotency record".to_owned(),
        source,
    })
}
