//! Streams, consumers and buckets on the server: created where missing, compared where present, never changed.
//!
//! A changed limit on a live stream can drop accepted messages and a re-created consumer forgets who holds what,
//! so a difference is an operator's decision and here an error that names it. The client's own `get_or_create_*`
//! ignores differences and its `create_consumer` silently updates a consumer that others share.

mod config;

use std::{fmt, time::Duration};

use async_nats::{
    Message as NatsMessage,
    jetstream::{ErrorCode as ServerCode, consumer, response::Response, stream},
};
use bytes::Bytes;
use protocol::{
    limits::PAYLOAD_BYTES_MAX,
    topology::{ConsumerSpec, Topology},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};

pub(crate) use self::config::{bucket_config, consumer_config, stream_config};
use crate::{
    bus::{Bus, bucket_stream},
    error::BusError,
    upkeep::Upkeep,
};

/// One setting that is not as the topology says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The server's name of it.
    pub field: String,
    /// What the topology says; `null` for the server's default.
    pub wanted: String,
    /// What the server has.
    pub found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, not {}", self.field, self.found, self.wanted)
    }
}

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
const PROVISION_RETRY_MAX: Duration = Duration::from_secs(15);

/// Between two tries.
const PROVISION_RETRY_DELAY: Duration = Duration::from_millis(200);

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

/// The streams that are kept as results are: how large a site makes them is its own.
pub(crate) fn kept_as_results(topology: &Topology) -> [String; 3] {
    [
        topology.results.name.clone(),
        bucket_stream(&topology.idempotency.name),
        bucket_stream(&topology.priors.name),
    ]
}

/// How one thing was found.
pub(crate) enum Found {
    AsWanted,
    /// It was missing: this one.
    Created(String),
}

/// What a difference of the server itself is told under.
pub(crate) const SERVER: &str = "the server's configuration";

/// Settings that do not belong to the topology: the server's own notes, and what an operator chooses per site.
pub(crate) const STREAM_FIELDS_FREE: [&str; 7] = [
    "metadata",
    "num_replicas",
    // Follows from the number of replicas.
    "persist_mode",
    "placement",
    "compression",
    "consumer_limits",
    "description",
];
pub(crate) const CONSUMER_FIELDS_FREE: [&str; 4] =
    ["metadata", "num_replicas", "description", "name"];

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
        let chosen = kept_as_results(topology);
        for wanted in streams.chain(buckets) {
            let room = room(&wanted.name, &chosen, policy);
            self.conform_stream(wanted, policy, room).await?;
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

    pub(crate) fn payload_difference(&self) -> Option<Difference> {
        // Not connected yet: what is asked of the server next will say so.
        let found = self.client().try_server_info()?.max_payload;
        (found < PAYLOAD_BYTES_MAX).then(|| Difference {
            field: "max_payload".into(),
            wanted: PAYLOAD_BYTES_MAX.to_string(),
            found: found.to_string(),
        })
    }

    pub(crate) async fn conform_stream(
        &self,
        mut wanted: stream::Config,
        policy: Policy,
        room: Room,
    ) -> Result<Found, ProvisionError> {
        let name = format!("stream {}", wanted.name);
        let info = format!("STREAM.INFO.{}", wanted.name);
        let mut how = Found::AsWanted;
        let found = match self.api::<stream::Info>(&name, info, Bytes::new()).await? {
            Some(info) => info.config,
            None if policy == Policy::Report => return Err(ProvisionError::Missing { name }),
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
        if room != Room::Fixed {
            wanted.max_bytes = found.max_bytes;
        }
        if room == Room::Own {
            wanted.max_age = found.max_age;
            wanted.duplicate_window = found.duplicate_window;
        }
        refuse_difference(name, &wanted, &found, &STREAM_FIELDS_FREE)?;
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
        refuse_difference(name, &wanted, &found, &CONSUMER_FIELDS_FREE)?;
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

/// Who makes streams makes them for as long as it was told; who looks takes those that there are.
pub(crate) fn room(stream: &str, chosen: &[String], policy: Policy) -> Room {
    match (chosen.iter().any(|name| name == stream), policy) {
        (false, _) => Room::Fixed,
        (true, Policy::Create) => Room::OwnSize,
        (true, Policy::Report) => Room::Own,
    }
}

fn is_worth_a_try(error: &BusError, end: Instant) -> bool {
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

fn refuse_difference(
    name: String,
    wanted: &impl Serialize,
    found: &impl Serialize,
    free: &[&str],
) -> Result<(), ProvisionError> {
    let differences = differences_of(wanted, found, free);
    if differences.is_empty() {
        Ok(())
    } else {
        Err(ProvisionError::Differs { name, differences })
    }
}

pub(crate) fn differences_of(
    wanted: &impl Serialize,
    found: &impl Serialize,
    free: &[&str],
) -> Vec<Difference> {
    differences(&fields(wanted), &fields(found), free)
}

fn json(config: &impl Serialize) -> Value {
    serde_json::to_value(config).expect("a configuration is a JSON object")
}

fn fields(config: &impl Serialize) -> Map<String, Value> {
    match json(config) {
        Value::Object(fields) => fields,
        _ => unreachable!("a configuration is a JSON object"),
    }
}

/// A field that is absent on one side has its default there, which JSON writes as null, false, 0, "" or not at all.
fn differences(
    wanted: &Map<String, Value>,
    found: &Map<String, Value>,
    free: &[&str],
) -> Vec<Difference> {
    let names = wanted
        .keys()
        .chain(found.keys().filter(|name| !wanted.contains_key(*name)));
    let value = |side: &Map<String, Value>, name: &str| side.get(name).cloned().unwrap_or_default();
    names
        .filter(|name| !free.contains(&name.as_str()))
        .map(|name| (name, value(wanted, name), value(found, name)))
        .filter(|(_, wanted, found)| wanted != found && !(is_default(wanted) && is_default(found)))
        .map(|(name, wanted, found)| Difference {
            field: name.clone(),
            wanted: wanted.to_string(),
            found: found.to_string(),
        })
        .collect()
}

fn is_default(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        // The server writes "no limit" as -1 where 0 was asked for.
        Value::Number(value) => matches!(value.as_i64(), Some(0 | -1)),
        Value::String(value) => value.is_empty(),
        Value::Array(value) => value.is_empty(),
        Value::Object(value) => value.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: &Value) -> Map<String, Value> {
        fields(value)
    }

    #[test]
    fn only_settings_of_the_topology_are_compared() {
        let table = [
            (json!({"max_msgs": 5}), json!({"max_msgs": 5}), vec![]),
            (
                json!({"max_msgs": 5}),
                json!({"max_msgs": 6}),
                vec!["max_msgs"],
            ),
            (json!({"max_msgs": 5}), json!({}), vec!["max_msgs"]),
            (json!({}), json!({"sealed": true}), vec!["sealed"]),
            (
                json!({"max_consumers": 0}),
                json!({"max_consumers": -1, "sealed": false}),
                vec![],
            ),
            (
                json!({}),
                json!({"metadata": {"_nats.ver": "2.15.1"}, "num_replicas": 3}),
                vec![],
            ),
        ];
        for (wanted, found, expected) in table {
            let differences = differences(&object(&wanted), &object(&found), &STREAM_FIELDS_FREE);
            let fields: Vec<&str> = differences
                .iter()
                .map(|difference| difference.field.as_str())
                .collect();
            assert_eq!(fields, expected);
        }
    }
}
