//! The topology in the server's words. Pure.

use std::time::Duration;

use async_nats::jetstream::{
    consumer::{self, AckPolicy},
    stream::{self, DiscardPolicy, PersistenceMode, Republish, RetentionPolicy, StorageType},
};
use protocol::topology::{BucketSpec, ConsumerSpec, Overflow, PersistMode, Retention, StreamSpec};

use crate::bus::{bucket_stream, bucket_subject};

pub(crate) fn stream_config(spec: &StreamSpec) -> stream::Config {
    stream::Config {
        name: spec.name.clone(),
        subjects: vec![spec.subjects.clone()],
        retention: match spec.retention {
            Retention::WorkQueue => RetentionPolicy::WorkQueue,
            Retention::Limits => RetentionPolicy::Limits,
        },
        storage: StorageType::File,
        // A full stream refuses: what was accepted is never dropped to make room.
        discard: DiscardPolicy::New,
        max_messages: spec.messages_max,
        max_bytes: spec.bytes_max,
        max_message_size: spec.message_bytes_max,
        max_age: spec.age_max,
        max_messages_per_subject: if spec.one_per_subject { 1 } else { -1 },
        discard_new_per_subject: spec.one_per_subject,
        duplicate_window: spec.duplicate_window,
        republish: spec.announce.as_ref().map(|announce| Republish {
            source: announce.source.clone(),
            destination: announce.destination.clone(),
            headers_only: true,
        }),
        allow_direct: true,
        num_replicas: usize::from(spec.replicas),
        ..stream::Config::default()
    }
}

/// The client's KV does the same; spelled out so that one comparison serves streams and buckets.
pub(crate) fn bucket_config(spec: &BucketSpec) -> stream::Config {
    /// The server's default window, or the whole life of an entry where that is shorter.
    const WINDOW: Duration = Duration::from_secs(120);
    stream::Config {
        name: bucket_stream(&spec.name),
        subjects: vec![bucket_subject(&spec.name, ">")],
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        discard: match spec.overflow {
            Overflow::Refuse => DiscardPolicy::New,
            Overflow::DropOldest => DiscardPolicy::Old,
        },
        max_messages: -1,
        max_bytes: spec.bytes_max,
        max_messages_per_subject: 1,
        max_age: spec.age_max,
        duplicate_window: WINDOW.min(spec.age_max),
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        persist_mode: match spec.persist {
            // The server has it for one copy only.
            PersistMode::Async if spec.replicas == 1 => Some(PersistenceMode::Async),
            PersistMode::Async | PersistMode::Sync => None,
        },
        num_replicas: usize::from(spec.replicas),
        ..stream::Config::default()
    }
}

pub(crate) fn consumer_config(spec: &ConsumerSpec) -> consumer::Config {
    consumer::Config {
        durable_name: Some(spec.name.clone()),
        filter_subject: spec.filter.clone().unwrap_or_default(),
        ack_policy: AckPolicy::Explicit,
        ack_wait: spec.ack_wait,
        // No limit: naks of busy workers count here too, and a message that exhausts its deliveries stays in the
        // stream unseen. What ends a job that no worker survives is its deadline.
        max_deliver: -1,
        max_ack_pending: spec.ack_pending_max,
        max_waiting: spec.waiting_max,
        // A guard: no client comfort can hoard more than it was meant to.
        max_batch: 1,
        ..consumer::Config::default()
    }
}
