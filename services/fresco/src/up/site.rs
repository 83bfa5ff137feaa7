//! What a fleet file says and the command line has no flags for: who is kept to which devices, as whom the processes come to
//! the broker, how they start and stop.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use messaging::Access;

use super::{fleet::AR_BATCHER, supervisor::Limits};

/// A worker, kept to its devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pinned {
    /// Of the process.
    pub(crate) name: String,
    /// Variables by which it sees only them.
    pub(crate) environment: Vec<(String, String)>,
    /// What others are told of them: the process itself calls them as every other does.
    pub(crate) label: Option<String>,
    /// Any free port of this machine without.
    pub(crate) probes: Option<Probes>,
}

/// Where a worker answers probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probes {
    pub(crate) listen: SocketAddr,
    /// What others are told, where it is another.
    pub(crate) advertise: Option<IpAddr>,
}

impl Pinned {
    /// To none in particular.
    pub(crate) fn nowhere(name: String) -> Self {
        Self {
            name,
            environment: Vec::new(),
            label: None,
            probes: None,
        }
    }
}

/// A gateway, beside the flags of `fresco up`.
#[derive(Debug, Clone, Default)]
pub(crate) struct GatewaySite {
    /// Where it answers probes; any free address without.
    pub(crate) health: Option<SocketAddr>,
    pub(crate) public_url: Option<String>,
}

/// Beside the flags of `fresco up`. What is not there is on other machines.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) gateway: Option<GatewaySite>,
    pub(crate) ar_batcher: Option<Pinned>,
    pub(crate) denoisers: Vec<Pinned>,
    /// Folder with a credential for each role.
    pub(crate) credentials: Option<PathBuf>,
    pub(crate) ca: Option<PathBuf>,
    /// Servers that keep a copy of what is created.
    pub(crate) replicas: Option<u8>,
    pub(crate) limits: Limits,
}

impl Site {
    /// What there is without a file: denoisers that share whatever there is, and start at once.
    pub(crate) fn plain(denoisers: u16) -> Self {
        let denoiser = |number| Pinned::nowhere(format!("denoiser-{number}"));
        Self {
            gateway: Some(GatewaySite::default()),
            ar_batcher: Some(Pinned::nowhere(AR_BATCHER.to_owned())),
            denoisers: (0..denoisers).map(denoiser).collect(),
            credentials: None,
            ca: None,
            replicas: None,
            limits: Limits::default(),
        }
    }

    /// Of `role`, as `fresco nats keys` names them.
    pub(crate) fn access(&self, role: &str) -> Access {
        let credentials = self.credentials.as_ref();
        Access {
            credentials: credentials.map(|folder| folder.join(format!("{role}.nk"))),
            ca: self.ca.clone(),
        }
    }
}
