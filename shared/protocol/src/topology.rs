//! What a deployment needs on its broker, as data: streams, consumers, buckets. `messaging` creates and verifies it.
//!
//! | name  | kind          | holds                                   | ends when                       |
//! |-------|---------------|-----------------------------------------|---------------------------------|
//! | `AR`  | work queue    | one message per request                 | its denoise messages are stored |
//! | `DN`  | work queue    | one message per output                  | its result is stored            |
//! | `RES` | limits stream | one message per output, **never two**   | [`RESULT_TTL`] after            |
//! | `DEAD`| limits stream | one message per output given up         | [`DEAD_LETTER_AGE_MAX`] after   |
//! | `jobs`| bucket        | one record per request                  | [`JOB_AGE_MAX`] after           |
//! | `outputs` | bucket    | one life per output                     | [`JOB_AGE_MAX`] after           |
//! | `idempotency` | bucket | one record per client's key            | twice [`RESULT_TTL`] after      |
//! | `priors` | bucket     | prior tokens that were sampled, for equal requests and variations | as a result, or the oldest when it is full |
//! | `workers` | bucket    | one key per live worker                 | [`PRESENCE_TTL`] after the last refresh |
//!
//! Why a key is kept for twice as long as a result: it is claimed when its job starts, and a job may take as long as its
//! result is kept (a gateway that allows for more is not ready). A key that ran out before its result would let a late
//! retry run the job again.
//!
//! Why `RES` refuses a second message per subject: acks are no fence (a frozen worker that wakes can still ack,
//! nak and extend a message that another worker is running), so the result itself has to be one. The first stored
//! result wins, on the server, without a lock.

use std::time::Duration;

use crate::{
    PriorityClass, UnixMillis,
    limits::{
        ACK_WAIT, DEAD_LETTER_AGE_MAX, JOB_AGE_MAX, PAYLOAD_BYTES_MAX, PRESENCE_TTL, RESULT_TTL,
    },
    subject::{AR, DEAD, DENOISE, DONE, Prefix, RESULT},
};

/// How a stream drops messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// A message goes when it is acked.
    WorkQueue,
    /// A message goes when it is too old.
    Limits,
}

/// One JetStream stream. Every stream is file-backed and refuses new messages when full: an accepted message is
/// never dropped to make room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSpec {
    /// Its name on the server.
    pub name: String,
    /// The subjects it stores.
    pub subjects: String,
    /// When messages go.
    pub retention: Retention,
    /// Most messages.
    pub messages_max: i64,
    /// Most bytes.
    pub bytes_max: i64,
    /// Largest message, in bytes.
    pub message_bytes_max: i32,
    /// Oldest message.
    pub age_max: Duration,
    /// At most one message per subject, a second one refused.
    pub one_per_subject: bool,
    /// How long message ids are remembered to drop repeats of a publish whose answer was lost.
    pub duplicate_window: Duration,
    /// Announce each stored message on this subject, headers only.
    pub announce: Option<Announce>,
    /// Servers that keep a copy.
    pub replicas: u8,
}

/// The server's republish rule of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announce {
    /// Which stored subjects.
    pub source: String,
    /// Where to.
    pub destination: String,
}

/// One durable pull consumer of a work queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerSpec {
    /// The stream it reads.
    pub stream: String,
    /// Its durable name.
    pub name: String,
    /// The subjects it takes; all of the stream's without one.
    pub filter: Option<String>,
    /// How long a silent worker keeps a message.
    pub ack_wait: Duration,
    /// Most messages that workers may hold at once.
    pub ack_pending_max: i64,
    /// Most pull requests that may wait at once: idle workers, with room for stale pulls after a leader change.
    pub waiting_max: i64,
}

/// One key-value bucket, file-backed as every stream: a single server forgets memory streams at a restart, the bucket
/// with them, and the workers could not come back by themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSpec {
    /// Its name on the server.
    pub name: String,
    /// Oldest entry.
    pub age_max: Duration,
    /// Most bytes.
    pub bytes_max: i64,
    /// What a full one does.
    pub overflow: Overflow,
    /// What a confirmed write has behind it.
    pub persist: PersistMode,
    /// Servers that keep a copy.
    pub replicas: u8,
}

/// What a full bucket does with a new entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// Refuses it: what is in there was accepted.
    Refuse,
    /// Drops the oldest for it: a cache.
    DropOldest,
}

/// What a confirmed write has behind it, in a bucket of one copy; several copies are always written through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PersistMode {
    /// The disk: it outlives the broker, whatever ends it.
    Sync,
    /// The broker's memory, and the disk some milliseconds later: a broker that is killed may forget the last of them.
    /// For what is told again, found out again or only counted: it costs no sync, and a request had eight.
    Async,
}

/// What an operator chooses when the streams are made. Services read the values in force from the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopologyOptions {
    /// How long a silent worker keeps a message.
    pub ack_wait: Duration,
    /// How long a finished result can be fetched. An idempotency key is remembered for twice as long.
    pub result_ttl: Duration,
    /// Servers that keep a copy of everything: 1, or 3 or 5 in a cluster. `None` where nobody said: one, and nothing is made in a
    /// cluster then, where one copy would be lost with its server.
    pub replicas: Option<u8>,
}

impl Default for TopologyOptions {
    fn default() -> Self {
        Self {
            ack_wait: ACK_WAIT,
            result_ttl: RESULT_TTL,
            replicas: None,
        }
    }
}

/// Everything one deployment needs on its broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The work queue of requests.
    pub ar: StreamSpec,
    /// The work queue of outputs.
    pub denoise: StreamSpec,
    /// The results.
    pub results: StreamSpec,
    /// The outputs that were given up.
    pub dead: StreamSpec,
    /// Take requests, for AR-batchers: one per class in the order of [`PriorityClass::ALL`], because that is where jobs
    /// wait and priority acts.
    pub ar_consumers: [ConsumerSpec; 3],
    /// Takes outputs of every class, for denoisers: the AR stage runs ahead only as far as keeps them fed.
    pub denoise_consumer: ConsumerSpec,
    /// Job records.
    pub jobs: BucketSpec,
    /// Lives of outputs.
    pub outputs: BucketSpec,
    /// What idempotency keys stand for.
    pub idempotency: BucketSpec,
    /// Prior tokens that were sampled.
    pub priors: BucketSpec,
    /// Worker presence.
    pub workers: BucketSpec,
    /// How many copies somebody said there are to be, if anybody did: read by who makes and keeps all this.
    pub replicas: Option<u8>,
}

const MINUTE: Duration = Duration::from_secs(60);
const MIB: i64 = 1024 * 1024;

/// A consumer of the work queue `stream`.
fn consumer(
    prefix: &Prefix,
    stream: &str,
    name: &str,
    filter: Option<String>,
    ack_wait: Duration,
) -> ConsumerSpec {
    ConsumerSpec {
        stream: prefix.name(stream),
        name: name.to_owned(),
        filter,
        ack_wait,
        // The server's default of 1000 would stall the 1001st busy worker without a word.
        ack_pending_max: 4_096,
        waiting_max: 4_096,
    }
}

impl Topology {
    /// The deployment called `prefix`, with the default options.
    pub fn new(prefix: &Prefix) -> Self {
        Self::with(prefix, TopologyOptions::default())
    }

    /// The same with another ack deadline.
    pub fn with_ack_wait(prefix: &Prefix, ack_wait: Duration) -> Self {
        let options = TopologyOptions {
            ack_wait,
            ..TopologyOptions::default()
        };
        Self::with(prefix, options)
    }

    /// The deployment called `prefix` with an operator's options.
    pub fn with(prefix: &Prefix, options: TopologyOptions) -> Self {
        let TopologyOptions {
            ack_wait,
            result_ttl,
            replicas: said,
        } = options;
        let replicas = said.unwrap_or(1);
        let of_class = |class: PriorityClass| {
            let filter = format!("{prefix}.{AR}.{class}.>");
            consumer(prefix, "AR", &class.to_string(), Some(filter), ack_wait)
        };
        let bucket = |name: &str, age_max, mib: i64| BucketSpec {
            name: prefix.name(name),
            age_max,
            bytes_max: mib * MIB,
            overflow: Overflow::Refuse,
            persist: PersistMode::Sync,
            replicas,
        };
        let queue = |name: &str, family: &str, mib: i64| StreamSpec {
            name: prefix.name(name),
            subjects: prefix.all(family),
            retention: Retention::WorkQueue,
            messages_max: QUEUE_MESSAGES_MAX,
            bytes_max: mib * MIB,
            message_bytes_max: 256 * 1024,
            age_max: JOB_AGE_MAX,
            one_per_subject: false,
            duplicate_window: 10 * MINUTE,
            announce: None,
            replicas,
        };
        Self {
            ar: queue("AR", AR, 256),
            denoise: queue("DN", DENOISE, 1024),
            results: results(prefix, result_ttl, replicas),
            dead: StreamSpec {
                retention: Retention::Limits,
                age_max: DEAD_LETTER_AGE_MAX,
                one_per_subject: true,
                ..queue("DEAD", DEAD, 256)
            },
            ar_consumers: PriorityClass::ALL.map(of_class),
            denoise_consumer: consumer(prefix, "DN", "all", None, ack_wait),
            jobs: bucket("jobs", JOB_AGE_MAX, 1024),
            // A life says who tried, and is no lock: an attempt that a killed broker forgets is one more try.
            outputs: BucketSpec {
                persist: PersistMode::Async,
                ..bucket("outputs", JOB_AGE_MAX, 2048)
            },
            idempotency: bucket("idempotency", 2 * result_ttl, 512),
            priors: BucketSpec {
                overflow: Overflow::DropOldest,
                persist: PersistMode::Async,
                ..bucket("priors", result_ttl, PRIORS_MIB)
            },
            // The age is the bucket's and no entry's own (`Nats-TTL`). A server that was killed makes its index anew from files that
            // still have what newer entries took the place of, and only what it decides anew is gone again: too many under a name,
            // too old for the bucket. Where the newest had gone by a time to live of its own, the one before it was back and stayed:
            // a dead worker was on the list for ever (nats-server 2.15.1).
            workers: BucketSpec {
                persist: PersistMode::Async,
                ..bucket("workers", PRESENCE_TTL, 16)
            },
            replicas: said,
        }
    }

    /// Every stream that is no bucket.
    pub fn streams(&self) -> [&StreamSpec; 4] {
        [&self.ar, &self.denoise, &self.results, &self.dead]
    }

    /// Every bucket.
    pub fn buckets(&self) -> [&BucketSpec; 5] {
        [
            &self.jobs,
            &self.outputs,
            &self.idempotency,
            &self.priors,
            &self.workers,
        ]
    }

    /// Every consumer.
    pub fn consumers(&self) -> [&ConsumerSpec; 4] {
        let [high, standard, low] = &self.ar_consumers;
        [high, standard, low, &self.denoise_consumer]
    }
}

/// Most bytes of the bucket of prior tokens, in MiB: 2 KB each at 1024x1024, so some 100,000 pictures.
const PRIORS_MIB: i64 = 256;

/// Most messages in a work queue: hours of work for a fleet of a hundred devices.
pub const QUEUE_MESSAGES_MAX: i64 = 20_000;

fn results(prefix: &Prefix, result_ttl: Duration, replicas: u8) -> StreamSpec {
    StreamSpec {
        name: prefix.name("RES"),
        subjects: prefix.all(RESULT),
        retention: Retention::Limits,
        messages_max: -1,
        // The results of an hour at one 1024x1024 picture (2 MB) each 0.3 s.
        bytes_max: 24 * 1024 * MIB,
        message_bytes_max: i32::try_from(PAYLOAD_BYTES_MAX).expect("16 MB fits an i32"),
        age_max: result_ttl,
        one_per_subject: true,
        // The server refuses a window that is longer than the messages' age.
        duplicate_window: result_ttl.min(2 * MINUTE),
        announce: Some(Announce {
            source: prefix.all(RESULT),
            destination: prefix.all(DONE),
        }),
        replicas,
    }
}

/// Whether a message may still be started at `now`.
pub const fn in_time(deadline_at: UnixMillis, now: UnixMillis) -> bool {
    now < deadline_at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_outlives_the_result_of_the_longest_job_under_it() {
        let options = TopologyOptions {
            result_ttl: 90 * MINUTE,
            ..TopologyOptions::default()
        };
        let topology = Topology::with(&"t".parse().expect("a prefix"), options);
        let job_time_max = options.result_ttl;
        assert_eq!(topology.results.age_max, options.result_ttl);
        assert_eq!(
            topology.idempotency.age_max,
            job_time_max + options.result_ttl
        );
    }
}
