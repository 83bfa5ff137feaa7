//! `GET /v1/workers`: who is there and how full the queues are, as the broker tells it. The subjects that settle a
//! worker's messages stay inside.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use futures::{StreamExt as _, stream};
use messaging::{QueueDepth, Queues};
use protocol::{CurrentWork, JobId, OutputId, Role, WorkerId, WorkerPresence, WorkerState};
use serde::Serialize;
use warp::{
    Filter,
    filters::BoxedFilter,
    http::{HeaderValue, header},
    reply::Response,
};

use super::{answer, ok, only, spanned, with};
use crate::{gateway::Gateway, job_answer::seconds, reply::ApiError, tenants::Caller};

/// The path, as a trace has it.
const WORKERS: &str = "/v1/workers";

/// Records that one request asks for, to see whose the jobs of other gateways are: 512 cards at work. What is beyond them is
/// told as that of others is.
const LOOKUPS_MAX: usize = 512;

/// Of them at once.
const LOOKUPS_AT_ONCE_MAX: usize = 16;

pub(super) fn routes(gateway: &Arc<Gateway>) -> BoxedFilter<(Response,)> {
    let path = warp::path!("v1" / "workers");
    let list = path
        .and(warp::get())
        .and(spanned(WORKERS))
        .and(with(gateway))
        .and(warp::header::headers_cloned())
        .then(|span, gateway: Arc<Gateway>, headers| {
            answer(span, async move {
                let caller = gateway.caller(&headers)?;
                list(&gateway, &caller).await
            })
        });
    list.or(path.map(only("GET"))).unify().boxed()
}

#[derive(Debug, Serialize)]
struct WorkersAnswer<'a> {
    object: &'static str,
    queues: QueuesAnswer,
    data: Vec<WorkerAnswer<'a>>,
}

/// In messages: requests, and outputs.
#[derive(Debug, Serialize)]
struct QueuesAnswer {
    ar: Depth,
    denoise: Depth,
}

#[derive(Debug, Serialize)]
struct Depth {
    queued: u64,
    held: u64,
    idle: u64,
}

impl From<QueueDepth> for Depth {
    fn from(depth: QueueDepth) -> Self {
        let QueueDepth { queued, held, idle } = depth;
        Self { queued, held, idle }
    }
}

#[derive(Debug, Serialize)]
struct WorkerAnswer<'a> {
    id: &'a WorkerId,
    role: Role,
    state: WorkerState,
    reason: Option<&'a str>,
    host: &'a str,
    process: u32,
    device: Option<&'a str>,
    model_revision: Option<&'a str>,
    health_address: Option<SocketAddr>,
    held: Vec<Held>,
    outputs_open: u32,
}

#[derive(Debug, Serialize)]
struct Held {
    /// None where it is another's, or could not be told to be the caller's.
    output: Option<OutputId>,
    /// Seconds.
    since: f64,
}

impl Held {
    fn of(work: &CurrentWork, seen: &Seen) -> Self {
        Self {
            output: seen.has(work.output.job).then_some(work.output),
            since: seconds(work.since),
        }
    }
}

impl<'a> WorkerAnswer<'a> {
    fn of(worker: &'a WorkerPresence, seen: &Seen) -> Self {
        let held = worker.held.iter().map(|work| Held::of(work, seen));
        Self {
            id: &worker.worker,
            role: worker.role,
            state: worker.state,
            reason: worker.reason.as_deref(),
            host: &worker.host,
            process: worker.process,
            device: worker.device.as_deref(),
            model_revision: worker.model_revision.as_deref(),
            health_address: worker.health_address,
            held: held.collect(),
            outputs_open: worker.outputs_open,
        }
    }
}

/// The jobs that somebody is told of; all of them without a list.
struct Seen(Option<BTreeSet<JobId>>);

impl Seen {
    fn has(&self, job: JobId) -> bool {
        self.0.as_ref().is_none_or(|jobs| jobs.contains(&job))
    }

    /// Of those that `workers` work on, by `caller`. A record that cannot be read is nobody's: the list is there for
    /// finding the workers too.
    async fn by(caller: &Caller, workers: &[WorkerPresence], gateway: &Gateway) -> Self {
        if *caller == Caller::Anybody {
            return Self(None);
        }
        let held = workers.iter().flat_map(|worker| &worker.held);
        let jobs: BTreeSet<_> = held.map(|work| work.output.job).collect();
        let (mut seen, mut elsewhere) = (BTreeSet::new(), Vec::new());
        for job in jobs {
            match gateway.jobs.open(job) {
                Some(open) if caller.may_see(&open.record) => drop(seen.insert(job)),
                Some(_) => {}
                None => elsewhere.push(job),
            }
        }
        elsewhere.truncate(LOOKUPS_MAX);
        let look = async |job: JobId| {
            let record = gateway.bus.job(job).await.ok().flatten();
            record.filter(|record| caller.may_see(record)).map(|_| job)
        };
        let looks = stream::iter(elsewhere).map(look);
        let looks = looks.buffer_unordered(LOOKUPS_AT_ONCE_MAX);
        let found: Vec<_> = looks.collect().await;
        seen.extend(found.into_iter().flatten());
        Self(Some(seen))
    }
}

async fn list(gateway: &Gateway, caller: &Caller) -> Result<Response, ApiError> {
    let (workers, queues) = tokio::try_join!(gateway.bus.workers(), gateway.bus.queues())?;
    let seen = Seen::by(caller, &workers, gateway).await;
    let workers = workers.iter().map(|worker| WorkerAnswer::of(worker, &seen));
    let Queues { ar, denoise } = queues;
    let body = WorkersAnswer {
        object: "list",
        queues: QueuesAnswer {
            ar: ar.into(),
            denoise: denoise.into(),
        },
        data: workers.collect(),
    };
    let mut response = ok(&body);
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
