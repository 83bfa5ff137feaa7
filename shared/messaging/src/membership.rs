//! A worker's place in a deployment: its connection, its queue and its sign of life.

use std::{net::SocketAddr, time::Duration};

use protocol::{
    Prefix, Role, WorkerId, WorkerPresence, WorkerState,
    topology::{ConsumerSpec, Topology},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Access, Bus, BusConfig, Ends, Presence, ProvisionError, WorkQueue, error::BusError};

/// Between two looks for the streams. A person waits for it at a first start, so it is short; a look costs the broker
/// some milliseconds.
const STREAMS_PERIOD: Duration = Duration::from_millis(250);

/// Who joins.
#[derive(Debug, Clone)]
pub struct Joining {
    /// Under which name.
    pub name: WorkerId,
    /// URLs of the broker.
    pub urls: Vec<String>,
    /// Who it is to the broker.
    pub access: Access,
    /// The deployment.
    pub prefix: Prefix,
    /// What it does there.
    pub role: Role,
    /// The device it computes on.
    pub device: String,
    /// Which model it has loaded.
    pub model_revision: String,
    /// The name of its machine.
    pub host: String,
    /// Where it answers probes.
    pub health_address: SocketAddr,
}

/// A worker that takes part.
#[derive(Debug)]
pub struct Membership {
    /// Its name.
    pub id: WorkerId,
    role: Role,
    /// Its connection.
    pub bus: Bus,
    /// Its sign of life.
    pub presence: Presence,
    leaving: CancellationToken,
}

impl Membership {
    /// Connects, waits for the streams and shows up as loading, until it opens a queue. `waiting` is told each new reason to
    /// wait. Waits for ever: a broker that is not there yet, or streams that nobody has made, are no failure.
    pub async fn join(
        joining: Joining,
        tracker: &TaskTracker,
        waiting: impl Fn(&ProvisionError),
    ) -> Result<Self, BusError> {
        let topology = Topology::new(&joining.prefix);
        let role = joining.role;
        let id = joining.name;
        let config = BusConfig {
            worker: id.clone(),
            access: joining.access,
            ..BusConfig::new(joining.urls, joining.prefix, role)
        };
        let bus = Bus::connect(&config).await?;
        let mut told = None;
        while let Err(error) = bus.verify(&topology).await {
            let reason = error.to_string();
            if told.as_ref() != Some(&reason) {
                waiting(&error);
                told = Some(reason);
            }
            tokio::time::sleep(STREAMS_PERIOD).await;
        }
        let first = WorkerPresence {
            worker: id.clone(),
            role,
            state: WorkerState::Loading,
            reason: None,
            host: joining.host,
            process: std::process::id(),
            device: Some(joining.device),
            model_revision: Some(joining.model_revision),
            health_address: Some(joining.health_address),
            held: Vec::new(),
            outputs_open: 0,
        };
        // A token of its own: a worker gives its messages back first and goes out of sight then.
        let leaving = CancellationToken::new();
        let presence = Presence::start(&bus, first, tracker, leaving.clone());
        Ok(Self {
            id,
            role,
            bus,
            presence,
            leaving,
        })
    }

    /// Opens a queue to take work from, and is idle from then on.
    pub async fn open(
        &self,
        spec: &ConsumerSpec,
        tracker: &TaskTracker,
    ) -> Result<WorkQueue, BusError> {
        let queue = WorkQueue::open(&self.bus, spec, tracker).await?;
        self.presence.update(|now| now.state = WorkerState::Idle);
        Ok(queue)
    }

    /// Listens for the ends of every output, for who works on many, until [`Membership::leave`].
    pub async fn ends(&self, tracker: &TaskTracker) -> Result<Ends, BusError> {
        Ends::start(&self.bus, tracker, self.leaving.clone()).await
    }

    /// Whether another worker of the same role takes work.
    pub async fn has_company(&self) -> Result<bool, BusError> {
        let workers = self.bus.workers().await?;
        Ok(workers.iter().any(|worker| {
            worker.role == self.role && worker.worker != self.id && worker.state.takes_work()
        }))
    }

    /// Tells of each loss and return of the broker, until [`Membership::leave`].
    pub fn on_connection(&self, tracker: &TaskTracker, tell: impl Fn(bool) + Send + 'static) {
        let (mut connection, leaving) = (self.bus.connection(), self.leaving.clone());
        tracker.spawn(async move {
            loop {
                tell(connection.borrow_and_update().up);
                let changed = leaving.run_until_cancelled(connection.changed()).await;
                if !matches!(changed, Some(Ok(()))) {
                    return;
                }
            }
        });
    }

    /// Goes out of sight; [`Bus::close`] follows when the tracker's tasks have ended.
    pub fn leave(&self) {
        self.leaving.cancel();
    }
}
