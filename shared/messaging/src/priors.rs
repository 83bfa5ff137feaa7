//! Stored prior tokens: a cache, so that everything here may fail or forget without harm to a picture.

use async_nats::HeaderMap;
use protocol::{PriorId, StoredPrior, decode, encode};

use crate::{
    bus::{Bus, bucket_stream, bucket_subject},
    error::{BusError, PublishError},
    publish::{Fence, Publish},
};

impl Bus {
    /// Stores `prior` under its name; `Taken` when there is one already, which stays: a name means one grid for as long
    /// as it lasts, and pictures were answered with it. The bucket drops its oldest when full. One try, of 2 s at most.
    pub async fn put_prior(&self, prior: &StoredPrior) -> Result<Fence, PublishError> {
        let publish = Publish {
            subject: self.prior_place(prior.id).1,
            id: None,
            after: Some(0),
            headers: HeaderMap::new(),
            payload: encode(prior)?.into(),
        };
        self.publish_once(&publish).await
    }

    /// The tokens stored under `id`, for who can do without: any copy answers, and a miss on one that is behind is only
    /// a miss. One try, of 2 s at most.
    pub async fn cached_prior(&self, id: PriorId) -> Result<Option<StoredPrior>, BusError> {
        let (stream, subject) = self.prior_place(id);
        let stored = self.last(&stream, &subject).await?;
        stored.map(|stored| read(id, &stored.payload)).transpose()
    }

    /// The same for who says that they are gone: the leader is asked before that.
    pub async fn prior(&self, id: PriorId) -> Result<Option<StoredPrior>, BusError> {
        let (stream, subject) = self.prior_place(id);
        let stored = self.last_or_absent(&stream, &subject).await?;
        stored.map(|stored| read(id, &stored.payload)).transpose()
    }

    /// Stream and subject.
    fn prior_place(&self, id: PriorId) -> (String, String) {
        let bucket = &self.topology().priors.name;
        (
            bucket_stream(bucket),
            bucket_subject(bucket, &id.to_string()),
        )
    }
}

fn read(id: PriorId, payload: &[u8]) -> Result<StoredPrior, BusError> {
    decode(payload).map_err(|source| BusError::Decode {
        what: format!("prior tokens {id}"),
        source,
    })
}
