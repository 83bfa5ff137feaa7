//! Everything that is not on the broker as it should be, at one look. Changes nothing.

use std::time::Duration;

use async_nats::jetstream::{consumer, stream};
use bytes::Bytes;
use protocol::{
    Prefix,
    topology::{Topology, TopologyOptions},
};

use crate::{
    bus::Bus,
    error::BusError,
    provision::{
        CONSUMER_FIELDS_FREE, Copies, Difference, Room, SERVER, bucket_config, consumer_config,
        differences_of, kept_as_results, stream_config, stream_fields_free,
    },
};

/// What somebody wants of the streams; what is `None` may be as it is, because services read it from the broker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The ack deadline.
    pub ack_wait: Option<Duration>,
    /// How long results are kept, and what follows from that.
    pub result_ttl: Option<Duration>,
    /// Servers that keep a copy.
    pub replicas: Option<u8>,
}

/// One thing on the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Such as `stream fresco-AR`, `consumer fresco-AR/standard` or `bucket fresco-jobs`.
    pub name: String,
    /// How it is.
    pub state: State,
}

/// How something is on the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// As it should be.
    AsWanted,
    /// Not at all.
    Missing,
    /// There, and other than it should be.
    Differs(Vec<Difference>),
}

impl State {
    fn from(differences: Vec<Difference>) -> Self {
        if differences.is_empty() {
            Self::AsWanted
        } else {
            Self::Differs(differences)
        }
    }
}

impl Bus {
    /// The server, every stream, bucket and consumer, in the order in which they are made.
    pub async fn inspect(&self, wanted: Wanted) -> Result<Vec<Finding>, BusError> {
        let topology = topology_of(self.prefix(), wanted);
        let mut findings = vec![Finding {
            name: SERVER.to_owned(),
            state: State::from(self.payload_difference().into_iter().collect()),
        }];
        for spec in topology.streams() {
            let name = format!("stream {}", spec.name);
            findings.push(
                self.look_at_stream(name, stream_config(spec), &topology, wanted)
                    .await?,
            );
        }
        for spec in topology.buckets() {
            let name = format!("bucket {}", spec.name);
            findings.push(
                self.look_at_stream(name, bucket_config(spec), &topology, wanted)
                    .await?,
            );
        }
        for spec in topology.consumers() {
            let name = format!("consumer {}/{}", spec.stream, spec.name);
            let state = match self.consumer_info(spec).await? {
                None => State::Missing,
                Some(consumer::Info { config: found, .. }) => {
                    let mut config = consumer_config(spec);
                    if wanted.ack_wait.is_none() {
                        config.ack_wait = found.ack_wait;
                    }
                    State::from(differences_of(&config, &found, &CONSUMER_FIELDS_FREE))
                }
            };
            findings.push(Finding { name, state });
        }
        Ok(findings)
    }

    async fn look_at_stream(
        &self,
        name: String,
        config: stream::Config,
        topology: &Topology,
        wanted: Wanted,
    ) -> Result<Finding, BusError> {
        let info = format!("STREAM.INFO.{}", config.name);
        let Some(info) = self.api::<stream::Info>(&name, info, Bytes::new()).await? else {
            return Ok(Finding {
                name,
                state: State::Missing,
            });
        };
        let found = info.config;
        let room = room_of(&config, topology, wanted);
        let config = room.fitted(config, &found);
        let differences = differences_of(&config, &found, &free_of(wanted));
        let state = State::from(room.told(differences));
        Ok(Finding { name, state })
    }
}

/// What is wanted, with the defaults for what may be as it is.
pub(crate) fn topology_of(prefix: &Prefix, wanted: Wanted) -> Topology {
    let defaults = TopologyOptions::default();
    let options = TopologyOptions {
        ack_wait: wanted.ack_wait.unwrap_or(defaults.ack_wait),
        result_ttl: wanted.result_ttl.unwrap_or(defaults.result_ttl),
        replicas: wanted.replicas,
    };
    Topology::with(prefix, options)
}

/// A stream's configuration, with what is there for what may be as it is.
pub(crate) fn as_far_as_wanted(
    config: stream::Config,
    found: &stream::Config,
    topology: &Topology,
    wanted: Wanted,
) -> stream::Config {
    room_of(&config, topology, wanted).fitted(config, found)
}

/// As it is for services, unless somebody asks for an age.
fn room_of(config: &stream::Config, topology: &Topology, wanted: Wanted) -> Room {
    match kept_as_results(topology).contains(&config.name) {
        false => Room::Fixed,
        true if wanted.result_ttl.is_some() => Room::OwnSize,
        true => Room::Own,
    }
}

/// The settings of a stream that are not compared.
pub(crate) fn free_of(wanted: Wanted) -> Vec<&'static str> {
    stream_fields_free(Copies::of(wanted.replicas))
}
