//! `[probes]`: where the workers of a fleet file answer probes, for who asks from other machines.

use std::{
    net::{IpAddr, SocketAddr},
    ops::Range,
};

use serde::Deserialize;
use service::address::{self, AddressError};

use super::FleetFile;
use crate::up::site;

/// Each worker has a port of its own: the AR-batcher the first, then the denoisers in their order.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Probes {
    listen: IpAddr,
    from_port: u16,
    /// What others are told, where it is not what is listened on.
    advertise: Option<IpAddr>,
}

impl Probes {
    /// Of the worker in this place of the file's.
    pub(super) fn of(self, worker: u16) -> site::Probes {
        // `check` has seen to it that the last one has a port.
        let port = self.from_port.saturating_add(worker);
        site::Probes {
            listen: SocketAddr::new(self.listen, port),
            advertise: self.advertise,
        }
    }
}

/// Those of the workers; none without the table. They may go beyond what is a port.
pub(super) fn ports(file: &FleetFile) -> Range<usize> {
    let workers = file.denoisers().len() + usize::from(file.ar.is_some());
    let first = file.probes.map(|probes| usize::from(probes.from_port));
    first.map_or(0..0, |first| first..first + workers)
}

/// What workers would refuse, or tell others in vain.
pub(super) fn check(file: &FleetFile) -> Result<(), String> {
    let Some(probes) = &file.probes else {
        return Ok(());
    };
    if let Some(ip) = probes.advertise {
        address::callable(&ip.to_string())
            .map_err(|error| format!("`probes.advertise`: {error}"))?;
    }
    let Probes {
        listen, from_port, ..
    } = *probes;
    let told = address::advertised(SocketAddr::new(listen, from_port), probes.advertise);
    match told {
        Err(AddressError::NobodyListens { told, .. }) => {
            return Err(format!(
                "`probes.advertise` {told} is where nobody listens: `probes.listen` is {listen}"
            ));
        }
        Err(_) => {
            return Err(format!(
                "`probes.advertise` is missing: `probes.listen` {listen} is a wildcard, which nobody can call"
            ));
        }
        Ok(_) => {}
    }
    let ports = ports(file);
    if from_port == 0 || ports.end > usize::from(u16::MAX) + 1 {
        return Err(format!(
            "`probes.from_port` {from_port} leaves no port for each of {} workers",
            ports.len()
        ));
    }
    let gateway = file.gateway.as_ref();
    let gateway = gateway.map(|gateway| [Some(gateway.listen), gateway.health_listen]);
    let taken = gateway
        .into_iter()
        .flatten()
        .flatten()
        .map(|address| address.port());
    match taken
        .into_iter()
        .find(|port| ports.contains(&usize::from(*port)))
    {
        Some(port) => Err(format!(
            "port {port} of `gateway` is a worker's by `probes.from_port` {from_port}"
        )),
        None => Ok(()),
    }
}
