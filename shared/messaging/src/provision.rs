//! Streams, consumers and buckets on the server: created where missing, compared where present, never changed.
//!
//! A shorter age on a live stream, fewer messages a subject, and a smaller bucket that drops its oldest entries drop what was
//! accepted (a work queue that gets a smaller limit of messages does not), and a re-created consumer forgets who holds what,
//! so a difference is an operator's decision and here an error that names it. The client's own `get_or_create_*`
//! ignores differences and its `create_consumer` silently updates a consumer that others share.

mod compare;
mod config;
mod room;

use std::time::Duration;

use async_nats::{
    Message as NatsMessage,
    jetstream::{ErrorCode as ServerCode, consumer, response::Response, stream},
};
use bytes::Bytes;
use protocol::{
    limits::PAYLOAD_BYTES_MAX,
    topology::{ConsumerSpec, Topology},
};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use self::compare::json;
pub use self::compare::{Difference, Knob};
pub(crate) use self::{
    compare::{CONSUMER_FIELDS_FREE, differences_of, stream_fields_free},
    config::{bucket_config, consumer_config, stream_config},
    room::{Copies, Policy, Room, StreamRule, kept_as_results},
};
use crate::{bus::Bus, error::BusError, upkeep::Upkeep};

/// The server is not as the topology says.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// A stream, bucket or consumer is not there.
    #[error("{name} is missing on the message broker")]
    Missing {
        /// Such as `stream fresco-AR` or `consumer fresco-AR/standard`.
        name: String,
    },
    /// It is there with other settings.
    #[error("{name} differs on the message broker: {}", list(differences))]
    Differs {
        /// Such as `stream fresco-AR` or `consumer fresco-AR/standard`.
        name: String,
        /// What differs.
        differences: Vec<Difference>,
    },
    /// It is not there, and nobody said how many copies it is to have: with one, a node that is lost takes accepted jobs along.
    #[error(
        "{name} is missing on the message broker, a cluster: how many copies it shall have has to be said, by `fresco nats init --replicas` or `broker.replicas` of a fleet file"
    )]
    Unsaid {
        /// Such as `stream fresco-AR`.
        name: String,
    },
    /// The server could not be asked.
    #[error(transparent)]
    Bus(#[from] BusError),
}

fn list(differences: &[Difference]) -> String {
    differences
        .iter()
        .map(Difference::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// How long a broker that does not answer is asked to make things: as long as a publish is tried. On a busy disk one
/// stream took longer than a request may (seen); what was made all the same is found by the next try.
pub(crate) const PROVISION_RETRY_MAX: Duration = Duration::from_secs(15);

/// Between two tries.
pub(crate) const PROVISION_RETRY_DELAY: Duration = Duration::from_millis(200);

/// How one thing was found.
pub(crate) enum Found {
    AsWanted,
    /// It was missing: this one.
    Created(String),
}

/// What a difference of the server itself is told under.
pub(crate) const SERVER: &str = "the server's configuration";

impl Bus {
    /// Creates what is missing. What is there with other settings is an error, and is left as it is.
    pub async fn provision(&self, topology: &Topology) -> Result<(), ProvisionError> {
        let end = Instant::now() + PROVISION_RETRY_MAX;
        loop {
            match self.conform(topology, Policy::Create).await {
                Err(ProvisionError::Bus(error)) if is_worth_a_try(&error, end) => {
                    sleep(PROVISION_RETRY_DELAY).await;
                }
                conformed => return conformed,
            }
        }
    }

    /// As [`Bus::provision`], but goes on after a difference, and tells all there are.
    pub async fn complete(&self, topology: &Topology) -> Result<Upkeep, BusError> {
        let end = Instant::now() + PROVISION_RETRY_MAX;
        loop {
            match self.keep(topology).await {
                Err(error) if is_worth_a_try(&error, end) => sleep(PROVISION_RETRY_DELAY).await,
                kept => return kept,
            }
        }
    }

    /// Checks that everything is there as the topology says. Another ack deadline, or another age or size of
    /// results, keys and priors, is no difference: services read those in force from the broker.
    pub async fn verify(&self, topology: &Topology) -> Result<(), ProvisionError> {
        self.conform(topology, Policy::Report).await
    }

    async fn conform(&self, topology: &Topology, policy: Policy) -> Result<(), ProvisionError> {
        self.conform_server()?;
        let streams = topology.streams().into_iter().map(stream_config);
        let buckets = topology.buckets().into_iter().map(bucket_config);
        for wanted in streams.chain(buckets) {
            let rule = StreamRule::of(&wanted.name, topology, policy);
            self.conform_stream(wanted, rule).await?;
        }
        for spec in topology.consumers() {
            self.conform_consumer(spec, policy).await?;
        }
        Ok(())
    }

    /// The server's default of 1 MB would refuse the pictures after they were painted.
    fn conform_server(&self) -> Result<(), ProvisionError> {
        match self.payload_difference() {
            None => Ok(()),
            Some(difference) => Err(ProvisionError::Differs {
                name: SERVER.into(),
                differences: vec![difference],
            }),
        }
    }

    /// Whether the server is a node of a cluster, as it tells each client that connects.
    fn is_clustered(&self) -> bool {
        let server = self.client().try_server_info();
        server.is_some_and(|server| server.cluster.is_some())
    }

    pub(crate) fn payload_difference(&self) -> Option<Difference> {
        // Not connected yet: what is asked of the server next will say so.
        let found = self.client().try_server_info()?.max_payload;
        (found < PAYLOAD_BYTES_MAX).then(|| Difference {
            field: "max_payload".into(),
            wanted: PAYLOAD_BYTES_MAX.to_string(),
            found: found.to_string(),
            knob: None,
        })
    }

    pub(crate) async fn conform_stream(
        &self,
        wanted: stream::Config,
        rule: StreamRule,
    ) -> Result<Found, ProvisionError> {
        let name = format!("stream {}", wanted.name);
        let info = format!("STREAM.INFO.{}", wanted.name);
        let mut how = Found::AsWanted;
        let found = match self.api::<stream::Info>(&name, info, Bytes::new()).await? {
            Some(info) => info.config,
            None if rule.policy == Policy::Report => return Err(ProvisionError::Missing { name }),
            None if rule.copies == Copies::Unsaid && self.is_clustered() => {
                return Err(ProvisionError::Unsaid { name });
            }
            None => {
                let create = format!("STREAM.CREATE.{}", wanted.name);
                let created = self
                    .api::<stream::Info>(&name, create, json(&wanted).to_string().into())
                    .await?;
                tracing::info!(name, "created on the message broker");
                how = Found::Created(name.clone());
                created
                    .ok_or_else(|| ProvisionError::Missing { name: name.clone() })?
                    .config
            }
        };
        let wanted = rule.room.fitted(wanted, &found);
        let differences = differences_of(&wanted, &found, &rule.free());
        refuse(name, rule.room.told(differences))?;
        Ok(how)
    }

    pub(crate) async fn conform_consumer(
        &self,
        spec: &ConsumerSpec,
        policy: Policy,
    ) -> Result<Found, ProvisionError> {
        let name = format!("consumer {}/{}", spec.stream, spec.name);
        let mut wanted = consumer_config(spec);
        let mut how = Found::AsWanted;
        let found = match self.consumer_info(spec).await? {
            Some(info) => info.config,
            None if policy == Policy::Report => return Err(ProvisionError::Missing { name }),
            None => {
                let create = format!("CONSUMER.CREATE.{}.{}", spec.stream, spec.name);
                // "create" and not the default "create or update": two provisioners at once must agree.
                let request = serde_json::json!({
                    "stream_name": spec.stream, "config": wanted, "action": "create",
                });
                let created = self
                    .api::<consumer::Info>(&name, create, request.to_string().into())
                    .await?;
                tracing::info!(name, "created on the message broker");
                how = Found::Created(name.clone());
                created
                    .ok_or_else(|| ProvisionError::Missing { name: name.clone() })?
                    .config
            }
        };
        if policy == Policy::Report {
            wanted.ack_wait = found.ack_wait;
        }
        refuse(name, differences_of(&wanted, &found, &CONSUMER_FIELDS_FREE))?;
        Ok(how)
    }

    /// The consumer as the server has it; `None` where it or its stream is missing.
    pub(crate) async fn consumer_info(
        &self,
        spec: &ConsumerSpec,
    ) -> Result<Option<consumer::Info>, BusError> {
        let name = format!("consumer {}/{}", spec.stream, spec.name);
        self.api(
            &name,
            format!("CONSUMER.INFO.{}.{}", spec.stream, spec.name),
            Bytes::new(),
        )
        .await
    }

    /// One request to JetStream's API; `None` where it says that the stream or consumer does not exist.
    pub(crate) async fn api<T: for<'de> Deserialize<'de>>(
        &self,
        what: &str,
        subject: String,
        payload: Bytes,
    ) -> Result<Option<T>, BusError> {
        let answer = self
            .request(format!("$JS.API.{subject}"), None, payload)
            .await;
        read_answer(what, &answer.map_err(|failure| failure.into_bus(what))?)
    }
}

pub(crate) fn is_worth_a_try(error: &BusError, end: Instant) -> bool {
    let again = matches!(error, BusError::Unavailable { .. })
        && Instant::now() + PROVISION_RETRY_DELAY < end;
    if again {
        tracing::debug!(%error, "not everything is made yet, trying again");
    }
    again
}

fn read_answer<T: for<'de> Deserialize<'de>>(
    what: &str,
    answer: &NatsMessage,
) -> Result<Option<T>, BusError> {
    match serde_json::from_slice::<Response<T>>(&answer.payload) {
        Ok(Response::Ok(value)) => Ok(Some(value)),
        Ok(Response::Err { error }) => match error.error_code() {
            ServerCode::STREAM_NOT_FOUND | ServerCode::CONSUMER_NOT_FOUND => Ok(None),
            // No leader now: an answer, but no refusal.
            ServerCode::CLUSTER_NOT_AVAILABLE => Err(BusError::Unavailable {
                what: what.to_owned(),
                source: error.into(),
            }),
            code => Err(BusError::Refused {
                what: what.to_owned(),
                code: code.0,
                text: error.to_string(),
            }),
        },
        Err(source) => Err(BusError::Unavailable {
            what: what.to_owned(),
            source: source.into(),
        }),
    }
}

fn refuse(name: String, differences: Vec<Difference>) -> Result<(), ProvisionError> {
    if differences.is_empty() {
        Ok(())
    } else {
        Err(ProvisionError::Differs { name, differences })
    }
}
