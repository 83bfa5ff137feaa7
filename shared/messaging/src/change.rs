//! Brings what differs on the broker to what is wanted: a person's step, while the deployment stands still. What a change drops, a
//! shorter age for one, is gone.

use async_nats::jetstream::{
    consumer,
    stream::{self, PersistenceMode},
};
use bytes::Bytes;
use protocol::topology::{ConsumerSpec, Topology};
use serde::{Deserialize, de::IgnoredAny};
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

/// What was done about something that differed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It has the wanted settings, and holds what it held.
    Changed(String),
    /// It has them, and is empty: the server could not change it. Only what is told again, or found out again, is kept so
    /// (`PersistMode::Async`).
    Emptied(String),
}

/// What the server answers to a change, of which only an error is read.
#[derive(Deserialize)]
struct Answer {
    #[serde(flatten)]
    _rest: IgnoredAny,
}

impl Bus {
    /// Changes every stream, bucket and consumer that is there and differs; `changes` has which, after an error too. What is
    /// missing stays so: [`Bus::complete`] makes it.
    pub async fn change(&self, wanted: Wanted, changes: &mut Vec<Change>) -> Result<(), BusError> {
        let end = Instant::now() + PROVISION_RETRY_MAX;
        loop {
            match self.change_rest(wanted, changes).await {
                Err(error) if is_worth_a_try(&error, end) => sleep(PROVISION_RETRY_DELAY).await,
                changed => return changed,
            }
        }
    }

    /// How many processes have shown themselves in the last [`PRESENCE_TTL`](protocol::limits::PRESENCE_TTL) and not said
    /// that they end: for who must know that nobody works.
    pub async fn processes_shown(&self) -> Result<u64, BusError> {
        let topology = topology_of(self.prefix(), Wanted::default());
        let config = bucket_config(&topology.workers);
        let subject = format!("STREAM.INFO.{}", config.name);
        let info = self.api::<stream::Info>("the list of workers", subject, Bytes::new());
        Ok(info.await?.map_or(0, |info| info.state.messages))
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
            changes.extend(self.change_consumer(spec, wanted).await?);
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
        let body = |config: &stream::Config| Bytes::from(json!(config).to_string());
        let create_anew = async |config| {
            let config = made_anew(config);
            self.api::<Answer>(&name, at("CREATE"), body(&config)).await
        };
        let emptied = Change::Emptied(name.clone());
        let info = self.api::<stream::Info>(&name, at("INFO"), Bytes::new());
        let Some(stream::Info { config: found, .. }) = info.await? else {
            if changes.contains(&emptied) {
                // By a try of ours that did not get as far as making it again.
                create_anew(config).await?;
            }
            return Ok(());
        };
        let config = as_far_as_wanted(config.clone(), &found, topology, wanted);
        if differences_of(&config, &found, &free_of(wanted)).is_empty() {
            return Ok(());
        }
        let config = beside_the_site(config, found, wanted);
        // The server changes no persist mode, and has this one for a single copy only.
        if config.persist_mode == Some(PersistenceMode::Async) && config.num_replicas > 1 {
            // Noted first: of a try whose answer is late the next one finds nothing.
            if !changes.contains(&emptied) {
                changes.push(emptied);
            }
            self.api::<Answer>(&name, at("DELETE"), Bytes::new())
                .await?;
            create_anew(config).await?;
            return Ok(());
        }
        self.api::<Answer>(&name, at("UPDATE"), body(&config))
            .await?;
        changes.push(Change::Changed(name));
        Ok(())
    }

    async fn change_consumer(
        &self,
        spec: &ConsumerSpec,
        wanted: Wanted,
    ) -> Result<Option<Change>, BusError> {
        let name = format!("consumer {}/{}", spec.stream, spec.name);
        let Some(consumer::Info { config: found, .. }) = self.consumer_info(spec).await? else {
            return Ok(None);
        };
        let mut config = consumer_config(spec);
        if wanted.ack_wait.is_none() {
            config.ack_wait = found.ack_wait;
        }
        if differences_of(&config, &found, &CONSUMER_FIELDS_FREE).is_empty() {
            return Ok(None);
        }
        let subject = format!("CONSUMER.CREATE.{}.{}", spec.stream, spec.name);
        // "update" and not the default "create or update": one that somebody takes away meanwhile is missing.
        let request = json!({
            "stream_name": spec.stream, "config": config, "action": "update",
        });
        let body = request.to_string().into();
        self.api::<Answer>(&name, subject, body).await?;
        Ok(Some(Change::Changed(name)))
    }
}

/// Of several copies, which the server writes in one way only.
fn made_anew(config: stream::Config) -> stream::Config {
    stream::Config {
        persist_mode: None,
        ..config
    }
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
        metadata: found.metadata,
        placement: found.placement,
        compression: found.compression,
        consumer_limits: found.consumer_limits,
        description: found.description,
        ..config
    }
}
