//! What an operator may have chosen otherwise than the topology. Pure.

use async_nats::jetstream::stream;
use protocol::topology::Topology;

use super::compare::{Difference, Knob, stream_fields_free};
use crate::bus::bucket_stream;

/// What to do about something missing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    Create,
    Report,
}

/// Whether a stream's age and size have to be the topology's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Fixed,
    /// How much it may hold is a site's own.
    OwnSize,
    /// And so is for how long.
    Own,
}

/// Whether somebody said how many copies there are to be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    Said,
    Unsaid,
}

impl Copies {
    pub(crate) fn of(replicas: Option<u8>) -> Self {
        match replicas {
            Some(_) => Self::Said,
            None => Self::Unsaid,
        }
    }
}

/// How one stream is looked at.
#[derive(Clone, Copy)]
pub(crate) struct StreamRule {
    pub(super) policy: Policy,
    pub(super) room: Room,
    pub(super) copies: Copies,
}

impl StreamRule {
    pub(crate) fn of(stream: &str, topology: &Topology, policy: Policy) -> Self {
        Self {
            policy,
            room: room(stream, &kept_as_results(topology), policy),
            copies: Copies::of(topology.replicas),
        }
    }

    /// Who only looks takes the copies that there are.
    pub(super) fn free(self) -> Vec<&'static str> {
        stream_fields_free(match self.policy {
            Policy::Create => self.copies,
            Policy::Report => Copies::Unsaid,
        })
    }
}

/// The streams that are kept as results are: how large a site makes them is its own.
pub(crate) fn kept_as_results(topology: &Topology) -> [String; 3] {
    [
        topology.results.name.clone(),
        bucket_stream(&topology.idempotency.name),
        bucket_stream(&topology.priors.name),
    ]
}

/// Who makes streams makes them for as long as it was told; who looks takes those that there are.
fn room(stream: &str, chosen: &[String], policy: Policy) -> Room {
    match (chosen.iter().any(|name| name == stream), policy) {
        (false, _) => Room::Fixed,
        (true, Policy::Create) => Room::OwnSize,
        (true, Policy::Report) => Room::Own,
    }
}

impl Room {
    /// What is wanted of a stream that is there, where what a site has chosen is taken as it is found.
    pub(crate) fn fitted(self, wanted: stream::Config, found: &stream::Config) -> stream::Config {
        let sized = stream::Config {
            max_bytes: found.max_bytes,
            ..wanted.clone()
        };
        match self {
            Self::Fixed => wanted,
            Self::OwnSize => sized,
            Self::Own => stream::Config {
                max_age: found.max_age,
                duplicate_window: found.duplicate_window,
                ..sized
            },
        }
    }

    /// The differences of such a stream, with what its ages follow from.
    pub(crate) fn told(self, mut differences: Vec<Difference>) -> Vec<Difference> {
        let ages = ["duplicate_window", "max_age"];
        let ages = differences
            .iter_mut()
            .filter(|it| ages.contains(&it.field.as_str()));
        for age in ages.filter(|_| self != Self::Fixed) {
            age.knob = Some(Knob::ResultTtl);
        }
        differences
    }
}
