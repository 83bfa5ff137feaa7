//! `GET /v1/workers`: who is there and how full the queues are, as the broker tells it. The subjects that settle a
//! worker's messages stay inside.

use std::{net::SocketAddr, sync::Arc};

use messaging::{QueueDepth, Queues};
use protocol::{CurrentWork, OutputId, Role, WorkerId, WorkerPresence, WorkerState};
use serde::Serialize;
use warp::{
    Filter,
    filters::BoxedFilter,
    http::{HeaderValue, header},
    reply::Response,
};

use super::{answer, ok, only, spanned, with};
use crate::{gateway::Gateway, job_answer::seconds, reply::ApiError};

/// The path, as a trace has it.
const WORKERS: &str = "/v1/workers";

pub(super) fn routes(gateway: &Arc<Gateway>) -> BoxedFilter<(Response,)> {
    let path = warp::path!("v1" / "workers");
    let list = path
        .and(warp::get())
        .and(spanned(WORKERS))
        .and(with(gateway))
        .and(warp::header::headers_cloned())
        .then(|span, gateway: Arc<Gateway>, headers| {
            answer(span, async move {
                gateway.caller(&headers)?;
                list(&gateway).await
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
    output: OutputId,
    /// Seconds.
    since: f64,
}

impl From<&CurrentWork> for Held {
    fn from(work: &CurrentWork) -> Self {
        Self {
            output: work.output,
            since: seconds(work.since),
        }
    }
}

impl<'a> From<&'a WorkerPresence> for WorkerAnswer<'a> {
    fn from(worker: &'a WorkerPresence) -> Self {
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
            held: worker.held.iter().map(Held::from).collect(),
            outputs_open: worker.outputs_open,
        }
    }
}

async fn list(gateway: &Gateway) -> Result<Response, ApiError> {
    let (workers, queues) = tokio::try_join!(gateway.bus.workers(), gateway.bus.queues())?;
    let Queues { ar, denoise } = queues;
    let body = WorkersAnswer {
        object: "list",
        queues: QueuesAnswer {
            ar: ar.into(),
            denoise: denoise.into(),
        },
        data: workers.iter().map(WorkerAnswer::from).collect(),
    };
    let mut response = ok(&body);
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
