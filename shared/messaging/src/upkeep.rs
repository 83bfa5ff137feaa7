//! Keeps a deployment's streams, consumers and buckets there: what somebody deleted comes back, what somebody changed
//! is told and left alone.

use protocol::topology::Topology;

use crate::{
    bus::Bus,
    error::BusError,
    provision::{Found, Policy, ProvisionError, StreamRule, bucket_config, stream_config},
};

/// What one look at the broker came to.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// Was missing and is there now.
    pub created: Vec<String>,
    /// Is there with other settings: what would be created in its place is not what is in force. Or is missing in a cluster, and
    /// nobody said how many copies to make.
    pub differing: Vec<ProvisionError>,
}

impl Upkeep {
    fn note(&mut self, found: Result<Found, ProvisionError>) -> Result<(), BusError> {
        match found {
            Ok(Found::AsWanted) => {}
            Ok(Found::Created(name)) => self.created.push(name),
            Err(ProvisionError::Bus(error)) => return Err(error),
            Err(differs) => self.differing.push(differs),
        }
        Ok(())
    }
}

impl Bus {
    /// Creates what is missing and tells what differs. Unlike [`Bus::provision`] it goes on after a difference: that
    /// one stream was changed is no reason to leave another one missing.
    pub async fn keep(&self, topology: &Topology) -> Result<Upkeep, BusError> {
        let mut upkeep = Upkeep::default();
        let streams = topology.streams().into_iter().map(stream_config);
        let buckets = topology.buckets().into_iter().map(bucket_config);
        for wanted in streams.chain(buckets) {
            let rule = StreamRule::of(&wanted.name, topology, Policy::Create);
            let found = self.conform_stream(wanted, rule).await;
            upkeep.note(found)?;
        }
        for spec in topology.consumers() {
            upkeep.note(self.conform_consumer(spec, Policy::Create).await)?;
        }
        Ok(upkeep)
    }
}
