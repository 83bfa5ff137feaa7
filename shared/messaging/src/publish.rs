//! The one way a message gets into a stream: with an id, with trace context, and waiting for the server's word.
//!
//! A publish that timed out may still have been stored (the client sends its buffer after a reconnect). So every
//! message has an id under which the server drops a repeat, and every failure but "full" and "too large" is tried
//! again.

use std::time::Duration;

use async_nats::{
    HeaderMap,
    jetstream::{ErrorCode as ServerCode, publish::PublishAck, response::Response},
};
use bytes::Bytes;
use protocol::{
    ArJob, DenoiseJob, JobRecord, OutputResult, PriorityClass, Subject, Tenant, encode,
};
use tokio::time::{Instant, sleep};

use crate::{
    bus::{Bus, RequestFailure, bucket_subject},
    error::{PublishError, Source},
    span::publishing,
    trace,
};

/// How long a publish is tried: twice the longest election measured (8 s).
const PUBLISH_RETRY_MAX: Duration = Duration::from_secs(15);

/// Pauses between tries: the first is short, for a broker that only restarts.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(100);
const RETRY_DELAY_MAX: Duration = Duration::from_millis(250);

/// What the server drops repeats by.
pub(crate) const MESSAGE_ID_HEADER: &str = "Nats-Msg-Id";

/// Says whether a result holds a picture, so that a notice need not be followed by its bytes.
const STATUS_HEADER: &str = "Fresco-Status";
const STATUS_OK: &str = "ok";

/// Who won the one place a result has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// This result is the result.
    First,
    /// Another one was there before; this one is dropped.
    Taken,
}

/// A message on its way into a stream.
pub(crate) struct Publish {
    pub(crate) subject: String,
    /// Under which the server drops repeats; `None` where a repeat overwrites.
    pub(crate) id: Option<String>,
    /// The sequence that the last message of this subject must have, 0 for none: the server's compare-and-set.
    pub(crate) after: Option<u64>,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
}

/// The server's word on one try.
enum Answer {
    Stored {
        sequence: u64,
    },
    /// There is another last message than the one expected.
    Conflict,
    Full,
    TooLarge {
        bytes_max: usize,
    },
    Retry(Source),
}

impl Bus {
    /// Queues a request of `tenant` for the AR stage, unless its message is in the queue already.
    pub async fn publish_ar_job(
        &self,
        class: PriorityClass,
        tenant: Option<&Tenant>,
        job: &ArJob,
    ) -> Result<(), PublishError> {
        let subject = Subject::Ar(class, job.job);
        let id = job.job.to_string();
        self.enqueue(subject, id, tenant, encode(job)?).await
    }

    /// Queues an output of `tenant` for a denoiser, unless its message is in the queue already.
    pub async fn publish_denoise_job(
        &self,
        class: PriorityClass,
        tenant: Option<&Tenant>,
        job: &DenoiseJob,
    ) -> Result<(), PublishError> {
        let subject = Subject::Denoise(class, job.output);
        let id = format!("{}.{}", job.output.job, job.output.index);
        self.enqueue(subject, id, tenant, encode(job)?).await
    }

    /// Stores the record of an accepted job; `Taken` when it is there already, by an earlier try or another gateway.
    pub async fn create_job(&self, record: &JobRecord) -> Result<Fence, PublishError> {
        let subject = bucket_subject(&self.topology().jobs.name, &record.job.to_string());
        self.create(subject, encode(record)?).await
    }

    /// Stores a message where there is none yet. A repeat of a try whose answer was lost reads `Taken`.
    pub(crate) async fn create(
        &self,
        subject: String,
        bytes: Vec<u8>,
    ) -> Result<Fence, PublishError> {
        self.create_after(0, subject, bytes).await
    }

    /// The same where the last message, of sequence `after`, is a marker.
    pub(crate) async fn create_after(
        &self,
        after: u64,
        subject: String,
        bytes: Vec<u8>,
    ) -> Result<Fence, PublishError> {
        let publish = Publish {
            subject,
            id: None,
            after: Some(after),
            headers: HeaderMap::new(),
            payload: bytes.into(),
        };
        self.publish(&publish).await
    }

    /// Stores a result, if its output has none yet. A full results stream is waited for like a missing one: the
    /// picture exists, and its worker keeps its message meanwhile.
    pub async fn put_result(&self, result: &OutputResult) -> Result<Fence, PublishError> {
        let mut headers = HeaderMap::new();
        headers.insert(
            STATUS_HEADER,
            if result.outcome.is_ok() {
                STATUS_OK
            } else {
                "error"
            },
        );
        // One id per call, not per output: "duplicate" then means that an earlier try of this very call is stored.
        let id = self.client().new_inbox();
        let subject = self.prefix().subject(&Subject::Result(result.output));
        let publish = Publish {
            subject,
            id: Some(id.clone()),
            after: None,
            headers,
            payload: encode(result)?.into(),
        };
        let end = Instant::now() + PUBLISH_RETRY_MAX;
        let mut delay = RETRY_DELAY_MIN;
        loop {
            let source = match self.try_publish(&publish).await {
                Answer::Stored { .. } => return Ok(Fence::First),
                Answer::TooLarge { bytes_max } => return Err(too_large(&publish, bytes_max)),
                // The server has one code for every limit and only its text tells which. What is stored tells too.
                Answer::Full | Answer::Conflict => match self.stored_result(result.output).await {
                    Ok(Some(stored)) => return Ok(winner(stored.headers.as_ref(), &id)),
                    Ok(None) => "the results stream is full".into(),
                    Err(error) => error.into(),
                },
                Answer::Retry(source) => source,
            };
            wait_or_give_up(&publish, end, &mut delay, source).await?;
        }
    }

    async fn enqueue(
        &self,
        subject: Subject,
        id: String,
        tenant: Option<&Tenant>,
        bytes: Vec<u8>,
    ) -> Result<(), PublishError> {
        let (prefix, of) = (self.prefix(), subject);
        let mut headers = HeaderMap::new();
        if let Some(tenant) = tenant {
            headers.insert(Tenant::HEADER, tenant.as_str());
        }
        let subject = prefix.subject(&of);
        // The id alone is not enough: the server forgets ids at a restart. While the message is in the queue, its
        // subject is not free; after that, results and lives tell that it was there.
        let publish = Publish {
            subject,
            id: Some(id),
            after: Some(0),
            headers,
            payload: bytes.into(),
        };
        publishing(self, &of, &publish).await
    }

    /// Until the server says it is stored, or that it will not be.
    async fn publish(&self, publish: &Publish) -> Result<Fence, PublishError> {
        let stored = self.publish_at(publish).await?;
        Ok(stored.map_or(Fence::Taken, |_| Fence::First))
    }

    /// The same, with the sequence under which it is stored; `None` where another message is there before it.
    pub(crate) async fn publish_at(&self, publish: &Publish) -> Result<Option<u64>, PublishError> {
        let end = Instant::now() + PUBLISH_RETRY_MAX;
        let mut delay = RETRY_DELAY_MIN;
        loop {
            let source = match self.try_publish(publish).await {
                Answer::Stored { sequence } => return Ok(Some(sequence)),
                Answer::Conflict => return Ok(None),
                Answer::Full => {
                    return Err(PublishError::Full {
                        subject: publish.subject.clone(),
                    });
                }
                Answer::TooLarge { bytes_max } => return Err(too_large(publish, bytes_max)),
                Answer::Retry(source) => source,
            };
            wait_or_give_up(publish, end, &mut delay, source).await?;
        }
    }

    /// One try, without the retries: for what is soon published again anyway.
    pub(crate) async fn publish_once(&self, publish: &Publish) -> Result<Fence, PublishError> {
        let stored = self.store_once(publish).await?;
        Ok(stored.map_or(Fence::Taken, |_| Fence::First))
    }

    /// The same, with the sequence under which it is stored; `None` for one that was not, because there is another last
    /// message than the one expected.
    pub(crate) async fn store_once(&self, publish: &Publish) -> Result<Option<u64>, PublishError> {
        match self.try_publish(publish).await {
            Answer::Stored { sequence } => Ok(Some(sequence)),
            Answer::Conflict => Ok(None),
            Answer::Full => Err(PublishError::Full {
                subject: publish.subject.clone(),
            }),
            Answer::TooLarge { bytes_max } => Err(too_large(publish, bytes_max)),
            Answer::Retry(source) => Err(PublishError::Unavailable {
                subject: publish.subject.clone(),
                source,
            }),
        }
    }

    async fn try_publish(&self, publish: &Publish) -> Answer {
        let mut headers = publish.headers.clone();
        trace::inject(&mut headers);
        if let Some(id) = &publish.id {
            headers.insert(MESSAGE_ID_HEADER, id.as_str());
        }
        if let Some(after) = publish.after {
            headers.insert("Nats-Expected-Last-Subject-Sequence", after.to_string());
        }
        let answer = match self
            .request(
                publish.subject.clone(),
                Some(headers),
                publish.payload.clone(),
            )
            .await
        {
            Ok(answer) => answer,
            // Before the first connection the client goes by a default limit, which says nothing about the server's.
            Err(RequestFailure::TooLarge(_)) if self.client().try_server_info().is_some() => {
                return Answer::TooLarge {
                    bytes_max: self.client().max_payload(),
                };
            }
            Err(RequestFailure::TooLarge(source) | RequestFailure::Unavailable(source)) => {
                return Answer::Retry(source);
            }
        };
        match serde_json::from_slice::<Response<PublishAck>>(&answer.payload) {
            Ok(Response::Ok(PublishAck { sequence, .. })) => Answer::Stored { sequence },
            Ok(Response::Err { error }) => match error.error_code() {
                ServerCode::STREAM_STORE_FAILED => Answer::Full,
                ServerCode::STREAM_WRONG_LAST_SEQUENCE => Answer::Conflict,
                ServerCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => Answer::TooLarge {
                    bytes_max: self.client().max_payload(),
                },
                _ => Answer::Retry(error.into()),
            },
            Err(error) => Answer::Retry(error.into()),
        }
    }
}

async fn wait_or_give_up(
    publish: &Publish,
    end: Instant,
    delay: &mut Duration,
    source: Source,
) -> Result<(), PublishError> {
    if Instant::now() + *delay >= end {
        return Err(PublishError::Unavailable {
            subject: publish.subject.clone(),
            source,
        });
    }
    tracing::debug!(subject = publish.subject, %source, "message is not confirmed yet");
    sleep(*delay).await;
    *delay = (*delay * 3 / 2).min(RETRY_DELAY_MAX);
    Ok(())
}

fn too_large(publish: &Publish, bytes_max: usize) -> PublishError {
    PublishError::TooLarge {
        bytes: publish.payload.len(),
        bytes_max,
    }
}

/// Whether these headers of a result, or of its notice, tell of a picture.
pub(crate) fn tells_of_picture(headers: &HeaderMap) -> bool {
    let status = headers.get(STATUS_HEADER);
    status.is_some_and(|status| status.as_str() == STATUS_OK)
}

/// Whether the stored result came from the call that published under `id`.
fn winner(headers: Option<&HeaderMap>, id: &str) -> Fence {
    let stored = headers.and_then(|headers| headers.get("Nats-Msg-Id"));
    if stored.is_some_and(|stored| stored.as_str() == id) {
        Fence::First
    } else {
        Fence::Taken
    }
}
