//! What is read from the broker by name: results, job records, workers.

use async_nats::Message as NatsMessage;
use protocol::{
    ErrorCode, JobError, JobId, JobRecord, OutputId, OutputResult, OutputTimings, Subject,
    WorkerPresence, decode,
};

use crate::{
    bus::{Bus, bucket_stream, bucket_subject},
    error::BusError,
};

/// Most workers that [`Bus::workers`] lists; the broker answers at most this many keys at once.
const WORKERS_MAX: u32 = 1_024;

impl Bus {
    /// The stored result of `output`. One that cannot be read is an error of its own: it is the output's one result and
    /// stays it, so that whoever waits or asks again would learn no more.
    pub async fn result(&self, output: OutputId) -> Result<Option<OutputResult>, BusError> {
        let Some(stored) = self.stored_result(output).await? else {
            return Ok(None);
        };
        Ok(Some(decode(&stored.payload).unwrap_or_else(|error| {
            tracing::error!(%output, %error, "stored result cannot be read");
            unreadable(output)
        })))
    }

    /// Whether `output` has a result, as far as the copy that answers knows: the cheapest question there is, for a worker
    /// about to start, which is told of an end that the copy has not heard of yet by its watch.
    pub async fn has_result(&self, output: OutputId) -> Result<bool, BusError> {
        let subject = self.prefix().subject(&Subject::Result(output));
        let stored = self.last(&self.topology().results.name, &subject).await?;
        Ok(stored.is_some())
    }

    /// The record of `job`.
    pub async fn job(&self, job: JobId) -> Result<Option<JobRecord>, BusError> {
        let bucket = &self.topology().jobs.name;
        let (stream, subject) = (
            bucket_stream(bucket),
            bucket_subject(bucket, &job.to_string()),
        );
        let Some(stored) = self.last_or_absent(&stream, &subject).await? else {
            return Ok(None);
        };
        let what = || format!("record of {job}");
        decode(&stored.payload)
            .map(Some)
            .map_err(|source| BusError::Decode {
                what: what(),
                source,
            })
    }

    /// The workers that are alive, at most 1024, in the order of their names.
    pub async fn workers(&self) -> Result<Vec<WorkerPresence>, BusError> {
        let bucket = &self.topology().workers.name;
        let entries = self
            .last_of_all(
                &bucket_stream(bucket),
                &bucket_subject(bucket, ">"),
                WORKERS_MAX,
            )
            .await?;
        let mut workers = Vec::with_capacity(entries.len());
        for entry in entries {
            match decode::<WorkerPresence>(&entry.payload) {
                Ok(worker) => workers.push(worker),
                // A worker of another version is no reason to hide the others.
                Err(error) => {
                    tracing::warn!(%error, subject = %entry.subject, "presence of a worker cannot be read")
                }
            }
        }
        workers.sort_by(|a, b| a.worker.cmp(&b.worker));
        Ok(workers)
    }

    pub(crate) async fn stored_result(
        &self,
        output: OutputId,
    ) -> Result<Option<NatsMessage>, BusError> {
        let subject = self.prefix().subject(&Subject::Result(output));
        self.last_or_absent(&self.topology().results.name, &subject)
            .await
    }
}

fn unreadable(output: OutputId) -> OutputResult {
    OutputResult {
        output,
        outcome: Err(JobError::new(
            ErrorCode::MessageInvalid,
            "the stored result cannot be read",
        )),
        seed: None,
        usage: None,
        prior_id: None,
        timings: OutputTimings::default(),
        worker: None,
    }
}
