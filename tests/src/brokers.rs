//! The brokers of a fleet: one server that asks nobody who he is, or the three of `infra/nats/cluster` with TLS, a
//! credential a role and three copies of everything. `FRESCO_TEST_BROKER` says which (`make secured`).
//!
//! On the secured ones every process has its role's credential and no more; the test itself has one that may do
//! everything, since it looks at what no single role may see. What a role was refused fails the test when it is over.

use std::{path::PathBuf, time::Duration};

use clap::{Parser, ValueEnum};
use messaging::{Access, Bus, BusConfig};
use protocol::{
    Prefix, Role,
    topology::{Topology, TopologyOptions},
};

use crate::{
    broker::Broker,
    cluster,
    secured::{Secrets, TESTER},
};

/// Read by clap like every other variable: a wrong value is an error, and the only place that knows it is here.
#[derive(Parser)]
struct Wanted {
    #[arg(long, env = "FRESCO_TEST_BROKER", default_value = "one")]
    broker: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    One,
    SecuredCluster,
}

/// One server, or three.
pub struct Brokers {
    nodes: Vec<Broker>,
    secrets: Option<Secrets>,
}

impl Brokers {
    /// Of the kind that is wanted.
    pub fn start() -> Self {
        let wanted = Wanted::try_parse_from(["tests"]).unwrap_or_else(|error| panic!("{error}"));
        match wanted.broker {
            Kind::One => Self {
                nodes: vec![Broker::start()],
                secrets: None,
            },
            Kind::SecuredCluster => {
                let secrets = Secrets::make_with_tester();
                Self {
                    nodes: secrets.cluster(),
                    secrets: Some(secrets),
                }
            }
        }
    }

    /// `roles.conf` is written for one name; where any will do it is another one, so that none is built in.
    pub fn prefix(&self) -> Prefix {
        let name = match self.secrets {
            None => "e2e",
            Some(_) => "fresco",
        };
        name.parse().expect("allowed characters")
    }

    /// What the streams are to be like.
    pub fn topology(&self, ack_wait: Duration) -> Topology {
        let options = TopologyOptions {
            ack_wait,
            replicas: Some(u8::try_from(self.nodes.len()).expect("1 or 3")),
            ..TopologyOptions::default()
        };
        Topology::with(&self.prefix(), options)
    }

    /// The test's own connection.
    pub async fn connect(&self) -> Bus {
        let config = BusConfig::new(self.urls(), self.prefix(), Role::Operator);
        let config = config.with_access(self.access(TESTER));
        Bus::connect(&config).await.expect("the files are there")
    }

    /// A connection past our own code, with the test's credential.
    pub async fn client(&self) -> async_nats::Client {
        let access = self.access(TESTER);
        cluster::client_with(&self.urls(), &access)
            .await
            .expect("the broker runs")
    }

    /// What a process of `role` is started with.
    pub fn flags(&self, role: Role) -> Vec<String> {
        let access = self.access(&role.to_string());
        let mut flags = vec!["--nats-url".to_owned(), self.urls().join(",")];
        flags.extend(["--prefix".to_owned(), self.prefix().to_string()]);
        let files = [
            ("--nats-credentials", access.credentials),
            ("--nats-ca", access.ca),
        ];
        let text = |file: PathBuf| file.to_str().expect("temporary paths are text").to_owned();
        for (flag, file) in files {
            flags.extend(
                file.map(|file| [flag.to_owned(), text(file)])
                    .into_iter()
                    .flatten(),
            );
        }
        flags
    }

    /// Ends them all at once, as a power cut would.
    pub fn kill(&mut self) {
        self.nodes.iter_mut().for_each(Broker::kill);
        self.check();
    }

    /// After [`Brokers::kill`].
    pub fn start_again(&mut self) {
        self.nodes.iter_mut().for_each(Broker::start_again);
    }

    fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Broker::url).collect()
    }

    fn access(&self, credential: &str) -> Access {
        let secrets = self.secrets.as_ref();
        secrets.map_or_else(Access::default, |secrets| secrets.access(credential))
    }

    /// Nobody was refused anything. Of brokers that have ended, so that all they said is there.
    fn check(&self) {
        let refused: Vec<_> = self
            .nodes
            .iter()
            .flat_map(Broker::last_violations)
            .collect();
        assert!(refused.is_empty(), "a role was refused: {refused:#?}");
    }
}

impl Drop for Brokers {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.kill();
        }
    }
}
