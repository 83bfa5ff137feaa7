//! Brings what differs on the broker to what is wanted: a person's step, while the deployment stands still. What a change drops, a
//! shorter age for one, is gone.

use async_nats::{
    datetime::{DateTime, parse_rfc3339},
    jetstream::{
        consumer,
        stream::{self, PersistenceMode},
    },
};
use bytes::Bytes;
use protocol::{
    limits::PRESENCE_TTL,
    topology::{ConsumerSpec, Topology},
};
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny},
};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    bus::Bus,
    error::BusError,
    inspect::{Wanted, as_far_as_wanted, free_of, topology_of},
    provision::{
        CONSUMER_FIELDS_FREE, PROVISION_RETRY_DELAY, PROVISION_RETRY_MAX, bucket_config,
        consumer_config, differences_of, is_worth_a_try, stream_config,
    },
};

/// What was done about something that differed. It is noted before it is asked for: the answer may be late, and then the next look
/// finds nothing that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It was to get the wanted settings, and the server has not said whether it has.
    Unanswered(String),
    /// It has the wanted settings, and holds what it held.
    Changed(String),
    /// It has been, or may have been, taken away to be made anew, because the server cannot change it, and is not back:
    /// [`Bus::complete`] makes it. Only what is told again, or found out again, is kept so (`PersistMode::Async`).
    Removed(String),
    /// It was made anew, has the wanted settings, and is empty.
    Emptied(String),
}

impl Change {
    /// Of which stream, bucket or consumer.
    pub fn name(&self) -> &str {
        match self {
            Self::Unanswered(name)
            | Self::Changed(name)
            | Self::Removed(name)
            | Self::Emptied(name) => name,
        }
    }
}

/// What the server answers to a change, of which only an error is read.
#[derive(Deserialize)]
struct Answer {
    #[serde(flatten)]
    _rest: IgnoredAny,
}

/// What the server says of the list of workers.
#[derive(Deserialize)]
struct Shown {
    /// When it says so, by its own clock.
    #[serde(rename = "ts", deserialize_with = "rfc3339")]
    at: DateTime,
    state: stream::State,
}

impl Shown {
    /// Who is alive is put on the list anew every few seconds, so one that nothing was put on for longer has only the dead. A list
    /// without an age, as older versions made it, may keep them for ever, and it is a change that ends this.
    fn alive(&self) -> u64 {
        let is_still = self.at - self.state.last_timestamp > PRESENCE_TTL;
        if is_still { 0 } else { self.state.messages }
    }
}

fn rfc3339<'de, D: Deserializer<'de>>(from: D) -> Result<DateTime, D::Error> {
    let text = String::deserialize(from)?;
    parse_rfc3339(&text).map_err(D::Error::custom)
}

impl Bus {
    /// Changes every stream, bucket and consumer that is there and differs; `changes` has which, after an error too. What is
    /// missing stays so: [`Bus::complete`] makes it.
    pub async fn change(&self, wanted: Wanted, changes: &mut Vec<Change>) -> Result<(), BusError> {
        let end = Instant::now() + PROVISION_RETRY_MAX;
        loop {
            match self.change_rest(wanted, changes).await {
                Err(error) if is_worth_a_try(&error, end) || owes(changes, end) => {
                    sleep(PROVISION_RETRY_DELAY).await;
                }
                changed => return changed,
            }
        }
    }

    /// How many processes have shown themselves, or said that they end, in the last [`PRESENCE_TTL`]: for who must know that
    /// nobody works.
    pub async fn processes_shown(&self) -> Result<u64, BusError> {
        let topology = topology_of(self.prefix(), Wanted::default());
        let config = bucket_config(&topology.workers);
        let subject = format!("STREAM.INFO.{}", config.name);
        let shown = self.api::<Shown>("the list of workers", subject, Bytes::new());
        Ok(shown.await?.map_or(0, |shown| shown.alive()))
    }

    /// What is as it should be already is passed over, so that a second try goes on where the first ended.
    async fn change_rest(&self, wanted: Wanted, changes: &mut Vec<Change>) -> Result<(), BusError> {
        let topology = topology_of(self.prefix(), wanted);
        let streams = topology.streams().into_iter().map(stream_config);
        let buckets = topology.buckets().into_iter().map(bucket_config);
        for config in streams.chain(buckets) {
            self.change_stream(config, &topology, wanted, changes)
                .await?;
        }
        for spec in topology.consumers() {
            self.change_consumer(spec, wanted, changes).await?;
        }
        Ok(())
    }

    async fn change_stream(
        &self,
        config: stream::Config,
        topology: &Topology,
        wanted: Wanted,
        changes: &mut Vec<Change>,
    ) -> Result<(), BusError> {
        let name = format!("stream {}", config.name);
        let stream = config.name.clone();
        let at = |verb: &str| format!("STREAM.{verb}.{stream}");
        let info = self.api::<stream::Info>(&name, at("INFO"), Bytes::new());
        let Some(stream::Info { config: found, .. }) = info.await? else {
            if changes.contains(&Change::Removed(name.clone())) {
                // By a try of ours that did not get as far as making it again.
                self.make_anew(name, config, changes).await?;
            }
            return Ok(());
        };
        let config = as_far_as_wanted(config.clone(), &found, topology, wanted);
        if differences_of(&config, &found, &free_of(wanted)).is_empty() {
            confirm(changes, &name);
            return Ok(());
        }
        let config = beside_the_site(config, found, wanted);
        // The server changes no persist mode, and has this one for a single copy only.
        if config.persist_mode == Some(PersistenceMode::Async) && config.num_replicas > 1 {
            note(changes, Change::Removed(name.clone()));
            let answer = self.api::<Answer>(&name, at("DELETE"), Bytes::new());
            if let Err(error) = answer.await {
                if is_refusal(&error) {
                    forget(changes, &name);
                }
                return Err(error);
            }
            return self.make_anew(name, config, changes).await;
        }
        let body = json!(config).to_string().into();
        self.update(name, at("UPDATE"), body, changes).await
    }

    /// Makes a stream again that was taken away.
    async fn make_anew(
        &self,
        name: String,
        config: stream::Config,
        changes: &mut Vec<Change>,
    ) -> Result<(), BusError> {
        let subject = format!("STREAM.CREATE.{}", config.name);
        // Of several copies, which the server writes in one way only.
        let config = stream::Config {
            persist_mode: None,
            ..config
        };
        let body = json!(config).to_string().into();
        self.api::<Answer>(&name, subject, body).await?;
        note(changes, Change::Emptied(name));
        Ok(())
    }

    /// Asks for a change of something that is there.
    async fn update(
        &self,
        name: String,
        subject: String,
        body: Bytes,
        changes: &mut Vec<Change>,
    ) -> Result<(), BusError> {
        note(changes, Change::Unanswered(name.clone()));
        let answer = self.api::<Answer>(&name, subject, body).await;
        match &answer {
            Ok(Some(_)) => note(changes, Change::Changed(name)),
            // Somebody has taken it away meanwhile.
            Ok(None) => forget(changes, &name),
            Err(error) if is_refusal(error) => forget(changes, &name),
            Err(_) => {}
        }
        answer.map(|_| ())
    }

    async fn change_consumer(
        &self,
        spec: &ConsumerSpec,
        wanted: Wanted,
        changes: &mut Vec<Change>,
    ) -> Result<(), BusError> {
        let name = format!("consumer {}/{}", spec.stream, spec.name);
        let Some(consumer::Info { config: found, .. }) = self.consumer_info(spec).await? else {
            return Ok(());
        };
        let mut config = consumer_config(spec);
        if wanted.ack_wait.is_none() {
            config.ack_wait = found.ack_wait;
        }
        if differences_of(&config, &found, &CONSUMER_FIELDS_FREE).is_empty() {
            confirm(changes, &name);
            return Ok(());
        }
        let subject = format!("CONSUMER.CREATE.{}.{}", spec.stream, spec.name);
        // "update" and not the default "create or update": one that somebody takes away meanwhile is missing.
        let request = json!({
            "stream_name": spec.stream, "config": config, "action": "update",
        });
        let body = request.to_string().into();
        self.update(name, subject, body, changes).await
    }
}

/// Notes `change` in the place of what was noted of the same thing before.
fn note(changes: &mut Vec<Change>, change: Change) {
    match changes
        .iter_mut()
        .find(|noted| noted.name() == change.name())
    {
        Some(noted) => *noted = change,
        None => changes.push(change),
    }
}

/// The server would not: it is as it was.
fn forget(changes: &mut Vec<Change>, name: &str) {
    changes.retain(|noted| noted.name() != name);
}

/// It is as it should be: what was asked for is done, though its answer was late.
fn confirm(changes: &mut Vec<Change>, name: &str) {
    let noted = changes.iter().find(|noted| noted.name() == name);
    let done = match noted {
        Some(Change::Unanswered(name)) => Change::Changed(name.clone()),
        Some(Change::Removed(name)) => Change::Emptied(name.clone()),
        Some(Change::Changed(_) | Change::Emptied(_)) | None => return,
    };
    note(changes, done);
}

fn is_refusal(error: &BusError) -> bool {
    matches!(error, BusError::Refused { .. })
}

/// Whether what was taken away still has to come back: then the server is asked again whatever it has said, such as that it has
/// no room for three copies while a node is away.
fn owes(changes: &[Change], end: Instant) -> bool {
    let is_away = |change: &Change| matches!(change, Change::Removed(_));
    changes.iter().any(is_away) && Instant::now() + PROVISION_RETRY_DELAY < end
}

/// With what is a site's own as it is there.
fn beside_the_site(
    config: stream::Config,
    found: stream::Config,
    wanted: Wanted,
) -> stream::Config {
    stream::Config {
        num_replicas: match wanted.replicas {
            Some(_) => config.num_replicas,
            None => found.num_replicas,
        },
        persist_mode: found.persist_mode,
        allow_message_ttl: found.allow_message_ttl,
        metadata: found.metadata,
        placement: found.placement,
        compression: found.compression,
        consumer_limits: found.consumer_limits,
        description: found.description,
        ..config
    }
}
