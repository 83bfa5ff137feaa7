//! Idempotency keys: the first who writes one owns it.

use protocol::{IdempotencyKey, IdempotencyRecord, decode, encode};

use crate::{
    bus::{Bus, bucket_stream, bucket_subject},
    error::{BusError, PublishError},
    publish::Fence,
};

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
        loop {
            if self.create(subject.clone(), bytes.clone()).await? == Fence::First {
                return Ok(Claim::New);
            }
            // Gone in between: it ran out, and is free.
            if let Some(record) = self.claimed(key).await? {
                return Ok(Claim::Taken(Box::new(record)));
            }
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
        let record = decode(&stored.payload).map_err(|source| BusError::Decode {
            what: "idempotency record".to_owned(),
            source,
        })?;
        Ok(Some(record))
    }

    /// Frees `key`, whose job was not queued: the next request under it is a first one again.
    pub async fn release_key(&self, key: &IdempotencyKey) -> Result<(), BusError> {
        let bucket = &self.topology().idempotency.name;
        let subject = bucket_subject(bucket, &key.entry());
        self.purge(&bucket_stream(bucket), &subject).await?;
        Ok(())
    }
}
