//! What the broker says of a deployment, in numbers: the truth that metrics show. Asked for at a scrape, all at once.

use async_nats::jetstream::{
    consumer,
    stream::{self, RawMessage},
};
use bytes::Bytes;
use futures::future::try_join_all;
use protocol::{
    PriorityClass, UnixMillis,
    topology::{BucketSpec, ConsumerSpec, StreamSpec},
};
use serde::Deserialize;

use crate::{
    bus::{Bus, bucket_stream},
    error::BusError,
    queues::QueueDepth,
};

/// Of one consumer of a work queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueMeasure {
    /// How full it is.
    pub depth: QueueDepth,
    /// Most messages that workers may hold at once; `None` without a limit.
    pub held_max: Option<u64>,
    /// Held messages that were delivered more than once.
    pub redelivered: u64,
    /// When the oldest message came that no worker has had; `None` where there is none.
    pub oldest_at: Option<UnixMillis>,
}

/// Of one stream, a bucket's too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamMeasure {
    /// A name that is the same in every deployment.
    pub name: &'static str,
    /// What it holds.
    pub messages: u64,
    /// What it holds.
    pub bytes: u64,
    /// What it may hold; `None` without a limit.
    pub messages_max: Option<u64>,
    /// What it may hold; `None` without a limit.
    pub bytes_max: Option<u64>,
    /// When its oldest message came; `None` for an empty one.
    pub oldest_at: Option<UnixMillis>,
}

/// Of everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measures {
    /// The AR queue by class, in the order of [`PriorityClass::ALL`].
    pub ar: Vec<(PriorityClass, QueueMeasure)>,
    /// The denoise queue, which has one consumer for all classes.
    pub denoise: QueueMeasure,
    /// Dead letters.
    pub dead: StreamMeasure,
    /// Every stream, that of dead letters too, and every bucket.
    pub streams: Vec<StreamMeasure>,
}

impl Bus {
    /// Everything, as the broker has it now.
    pub async fn measures(&self) -> Result<Measures, BusError> {
        let topology = self.topology();
        let by_class = PriorityClass::ALL.into_iter().zip(&topology.ar_consumers);
        let ar = try_join_all(by_class.map(async |(class, spec)| {
            let measure = self.queue_measure(spec, &topology.ar).await?;
            Ok((class, measure))
        }));
        let denoise = self.queue_measure(&topology.denoise_consumer, &topology.denoise);
        let dead = self.stream_measure("DEAD", &topology.dead.name);
        let streams = ["AR", "DN", "RES"].into_iter().zip([
            &topology.ar.name,
            &topology.denoise.name,
            &topology.results.name,
        ]);
        let names = ["jobs", "outputs", "idempotency", "priors", "workers"];
        let buckets = names.into_iter().zip(topology.buckets());
        let bucket = |(name, spec): (_, &BucketSpec)| (name, bucket_stream(&spec.name));
        let streams = streams.map(|(name, stream)| (name, stream.clone()));
        let streams = streams.chain(buckets.map(bucket));
        let streams = try_join_all(
            streams.map(async |(name, stream)| self.stream_measure(name, &stream).await),
        );
        let (ar, denoise, dead, mut streams) = futures::try_join!(ar, denoise, dead, streams)?;
        streams.push(dead);
        Ok(Measures {
            ar,
            denoise,
            dead,
            streams,
        })
    }

    async fn queue_measure(
        &self,
        spec: &ConsumerSpec,
        stream: &StreamSpec,
    ) -> Result<QueueMeasure, BusError> {
        let info = self.consumer_info(spec).await?;
        let info = info.ok_or_else(|| BusError::Missing {
            what: format!("consumer {}/{}", spec.stream, spec.name),
        })?;
        let subjects = spec.filter.as_ref().unwrap_or(&stream.subjects);
        Ok(QueueMeasure {
            oldest_at: self.oldest_at(&info, subjects).await?,
            depth: QueueDepth::from(&info),
            held_max: u64::try_from(info.config.max_ack_pending).ok(),
            redelivered: u64::try_from(info.num_redelivered).unwrap_or(u64::MAX),
        })
    }

    /// When the first message behind those that were delivered came. The queue may have been emptied meanwhile.
    async fn oldest_at(
        &self,
        info: &consumer::Info,
        subjects: &str,
    ) -> Result<Option<UnixMillis>, BusError> {
        #[derive(Deserialize)]
        struct Found {
            message: RawMessage,
        }
        if info.num_pending == 0 {
            return Ok(None);
        }
        let after = info.delivered.stream_sequence + 1;
        let found = self
            .next_in::<Found>(&info.stream_name, subjects, after)
            .await?;
        Ok(found.map(|found| unix_millis(found.message.time.unix_timestamp_nanos())))
    }

    async fn stream_measure(
        &self,
        name: &'static str,
        stream: &str,
    ) -> Result<StreamMeasure, BusError> {
        let subject = format!("STREAM.INFO.{stream}");
        let info = self.api::<stream::Info>(stream, subject, Bytes::new());
        let info = info.await?.ok_or_else(|| BusError::Missing {
            what: format!("stream {stream}"),
        })?;
        let oldest_at = unix_millis(info.state.first_timestamp.unix_timestamp_nanos());
        Ok(StreamMeasure {
            name,
            messages: info.state.messages,
            bytes: info.state.bytes,
            // The server writes "no limit" as -1.
            messages_max: u64::try_from(info.config.max_messages).ok(),
            bytes_max: u64::try_from(info.config.max_bytes).ok(),
            oldest_at: (info.state.messages > 0).then_some(oldest_at),
        })
    }
}

/// The broker's time in ours; 0 for one before 1970, such as that of no message.
fn unix_millis(nanos: i128) -> UnixMillis {
    UnixMillis::try_from(nanos / 1_000_000).unwrap_or(0)
}
