//! What the queues themselves say: how much waits, how much is held, who is free. And how to take something out of them.

use std::{collections::BTreeSet, time::Duration};

use async_nats::jetstream::{ErrorCode as ServerCode, consumer, stream};
use bytes::Bytes;
use protocol::{JobId, OutputIndex, Subject, topology::ConsumerSpec};
use serde::{Deserialize, de::IgnoredAny};

use crate::{
    bus::{Bus, bucket_stream, bucket_subject},
    error::BusError,
};

/// The state of one work queue, in messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueDepth {
    /// Waiting for a worker.
    pub queued: u64,
    /// With a worker: delivered and not acknowledged. One that was given back and waits counts here too.
    pub held: u64,
    /// Pull requests that wait: idle workers, for workers that take one at a time.
    pub idle: u64,
}

impl QueueDepth {
    fn and(self, other: Self) -> Self {
        Self {
            queued: self.queued + other.queued,
            held: self.held + other.held,
            idle: self.idle + other.idle,
        }
    }
}

impl From<&consumer::Info> for QueueDepth {
    fn from(info: &consumer::Info) -> Self {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        Self {
            queued: info.num_pending,
            held: count(info.num_ack_pending),
            idle: count(info.num_waiting),
        }
    }
}

/// The state of both work queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queues {
    /// Requests.
    pub ar: QueueDepth,
    /// Outputs.
    pub denoise: QueueDepth,
}

/// The stream of results, as the broker has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultsStore {
    /// How long a result can be fetched; zero for ever.
    pub age_max: Duration,
    /// What is stored.
    pub bytes: u64,
    /// What can be; `None` without a limit.
    pub bytes_max: Option<u64>,
}

impl Bus {
    /// How full the stream of results is, and how long it keeps them; `None` where it is missing.
    pub async fn results_store(&self) -> Result<Option<ResultsStore>, BusError> {
        let name = &self.topology().results.name;
        let info = self
            .api::<stream::Info>(name, format!("STREAM.INFO.{name}"), Bytes::new())
            .await?;
        Ok(info.map(|info| ResultsStore {
            age_max: info.config.max_age,
            bytes: info.state.bytes,
            // The server writes "no limit" as -1.
            bytes_max: u64::try_from(info.config.max_bytes).ok(),
        }))
    }

    /// How full the queues are.
    pub async fn queues(&self) -> Result<Queues, BusError> {
        let topology = self.topology();
        let requests = topology.ar_consumers.iter().map(|spec| self.depth(spec));
        let (ar, denoise) = futures::try_join!(
            futures::future::try_join_all(requests),
            self.depth(&topology.denoise_consumer)
        )?;
        let ar = ar.into_iter().fold(QueueDepth::default(), QueueDepth::and);
        Ok(Queues { ar, denoise })
    }

    /// How full the queue of `spec`, one of the topology's consumers, is.
    pub async fn depth(&self, spec: &ConsumerSpec) -> Result<QueueDepth, BusError> {
        let info = self.consumer_info(spec).await?;
        let info = info.ok_or_else(|| BusError::Missing {
            what: format!("consumer {}/{}", spec.stream, spec.name),
        })?;
        Ok(QueueDepth::from(&info))
    }

    /// Which outputs of `job` have a result. One small answer, whatever the pictures weigh.
    pub async fn ended_outputs(&self, job: JobId) -> Result<BTreeSet<OutputIndex>, BusError> {
        let pattern = self.prefix().result_pattern(job);
        let subjects = self.subjects(&self.topology().results.name, &pattern);
        let subjects = subjects.await?;
        let index = |subject: &String| match self.prefix().parse(subject) {
            Ok(Subject::Result(output)) => Some(output.index),
            _ => None,
        };
        Ok(subjects.keys().filter_map(index).collect())
    }

    /// Whether the AR queue has the request of `job`, waiting or held.
    pub async fn is_ar_queued(&self, job: JobId) -> Result<bool, BusError> {
        let pattern = self.prefix().ar_pattern(job);
        let subjects = self.subjects(&self.topology().ar.name, &pattern).await?;
        Ok(!subjects.is_empty())
    }

    /// Takes what the queues still have of `job` out of them, for a job whose outputs all have a result: nobody has
    /// to pull it only to find that out.
    pub async fn withdraw(&self, job: JobId) -> Result<(), BusError> {
        let topology = self.topology();
        let (ar, denoise) = (
            self.prefix().ar_pattern(job),
            self.prefix().denoise_pattern(job),
        );
        self.delete_each(&topology.ar.name, &ar).await?;
        self.delete_each(&topology.denoise.name, &denoise).await
    }

    /// Deletes the messages of a queue that match `pattern`, one by one. A purge may not touch a queue: one that takes a
    /// message that a worker holds lifts the consumer's ack floor over older held ones, and the next ack over them for
    /// good; they stay in the stream and nobody is ever given them (nats-server#5727, seen with 2.15.1).
    async fn delete_each(&self, queue: &str, pattern: &str) -> Result<(), BusError> {
        let mut from = 0;
        while let Some(sequence) = self.next_message(queue, pattern, from).await? {
            self.delete(queue, sequence).await?;
            from = sequence + 1;
        }
        Ok(())
    }

    /// The place of the first message from `from` on that matches, as the leader knows.
    async fn next_message(
        &self,
        stream: &str,
        pattern: &str,
        from: u64,
    ) -> Result<Option<u64>, BusError> {
        #[derive(Deserialize)]
        struct Found {
            message: Place,
        }
        #[derive(Deserialize)]
        struct Place {
            seq: u64,
        }
        let found = self.next_in::<Found>(stream, pattern, from).await?;
        Ok(found.map(|found| found.message.seq))
    }

    /// The first message from `from` on that matches, as the leader knows.
    pub(crate) async fn next_in<T: for<'de> Deserialize<'de>>(
        &self,
        stream: &str,
        pattern: &str,
        from: u64,
    ) -> Result<Option<T>, BusError> {
        let request = serde_json::json!({ "seq": from, "next_by_subj": pattern }).to_string();
        let subject = format!("STREAM.MSG.GET.{stream}");
        match self.api::<T>(stream, subject, request.into()).await {
            Ok(found) => Ok(found),
            Err(BusError::Refused { code, .. }) if code == ServerCode::NO_MESSAGE_FOUND.0 => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// One that is gone already, acked meanwhile, is as good as deleted.
    async fn delete(&self, stream: &str, sequence: u64) -> Result<(), BusError> {
        let request = serde_json::json!({ "seq": sequence, "no_erase": true }).to_string();
        let subject = format!("STREAM.MSG.DELETE.{stream}");
        match self
            .api::<IgnoredAny>(stream, subject, request.into())
            .await
        {
            Ok(_) => Ok(()),
            Err(BusError::Refused { code, .. })
                if code == ServerCode::STREAM_MESSAGE_DELETE_FAILED.0 =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Takes the record of a job that was not queued away again, as if it had never been accepted.
    pub async fn remove_job(&self, job: JobId) -> Result<(), BusError> {
        let bucket = &self.topology().jobs.name;
        let subject = bucket_subject(bucket, &job.to_string());
        self.purge(&bucket_stream(bucket), &subject).await?;
        Ok(())
    }

    /// Gives a message back for a worker that cannot: whoever knows the subject that acknowledges it may. Says
    /// whether the broker heard.
    pub async fn give_back(&self, ack_subject: &str) -> bool {
        let nak = Bytes::from_static(b"-NAK");
        self.request(ack_subject.to_owned(), None, nak)
            .await
            .is_ok()
    }

    /// Removes the messages of `stream` that match `pattern`; says how many.
    pub(crate) async fn purge(&self, stream: &str, pattern: &str) -> Result<u64, BusError> {
        #[derive(Deserialize)]
        struct Purged {
            purged: u64,
        }
        let request = serde_json::json!({ "filter": pattern }).to_string();
        let purged = self
            .api::<Purged>(stream, format!("STREAM.PURGE.{stream}"), request.into())
            .await?;
        Ok(purged.map_or(0, |purged| purged.purged))
    }
}
