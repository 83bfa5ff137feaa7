//! One broker, one deployment, gateways and make-believe workers: own processes, own ports, nothing fixed.

use std::{future::Future, time::Duration};

use clap::Parser;
use gateway::{Config, Running};
use messaging::{Bus, BusConfig, Delivery, Presence, WorkQueue};
use protocol::{
    ArJob, EncodedImage, ErrorCode, JobError, JobId, OutputIndex, OutputResult, OutputTimings,
    Prefix, PriorUsage, PriorityClass, Role, Subject, WorkerId, WorkerPresence, WorkerState,
    decode, topology::Topology,
};
use reqwest::{Method, StatusCode, header::HeaderMap};
use serde_json::Value;
use service::{Shutdown, metrics::Metrics};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::broker::Broker;

/// Nothing here takes seconds on an idle machine; a busy one gets some room.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `check` holds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    let checks = async {
        while !check().await {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, checks)
        .await
        .unwrap_or_else(|_| panic!("{what} did not come in time"));
}

/// JetStream's code for a stream at one of its limits.
const STREAM_FULL: u64 = 10_077;

pub(crate) struct Deployment {
    broker: Broker,
    pub(crate) bus: Bus,
    pub(crate) topology: Topology,
    nats: async_nats::Client,
    /// Of the make-believe workers.
    workers: Shutdown,
    presences: Vec<Presence>,
    folder: TempDir,
}

pub(crate) struct TestGateway {
    pub(crate) shutdown: Shutdown,
    pub(crate) running: Running,
    pub(crate) url: String,
}

pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json");
        serde_json::from_slice(&self.bytes).unwrap()
    }

    /// Code of an error, having checked its shape.
    pub(crate) fn error_code(&self) -> String {
        let body = self.json();
        let error = body["error"].as_object().unwrap();
        assert_eq!(
            error.keys().collect::<Vec<_>>(),
            ["code", "message", "param", "type"]
        );
        assert!(
            error["message"].is_string() && error["type"].is_string(),
            "{body}"
        );
        error["code"].as_str().unwrap().to_owned()
    }
}

impl Deployment {
    /// A broker without streams.
    pub(crate) async fn bare() -> Self {
        let broker = Broker::start();
        let prefix: Prefix = "t".parse().unwrap();
        let config = BusConfig::new(vec![broker.url()], prefix.clone(), Role::Operator);
        let bus = Bus::connect(&config).await.unwrap();
        let nats = async_nats::connect(broker.url()).await.unwrap();
        let topology = Topology::new(&prefix);
        let folder = tempfile::tempdir().unwrap();
        Self {
            broker,
            bus,
            topology,
            nats,
            workers: Shutdown::default(),
            presences: Vec::new(),
            folder,
        }
    }

    /// With streams and a worker of each role, present and idle; what they do, a test says.
    pub(crate) async fn start() -> Self {
        Self::bare().await.set_up().await
    }

    /// The same with room for so many bytes of results.
    pub(crate) async fn with_results_max(bytes_max: i64) -> Self {
        let mut deployment = Self::bare().await;
        deployment.topology.results.bytes_max = bytes_max;
        deployment.set_up().await
    }

    async fn set_up(self) -> Self {
        let mut deployment = self;
        deployment.bus.connected().await;
        deployment
            .bus
            .provision(&deployment.topology)
            .await
            .unwrap();
        deployment.join(Role::ArBatcher);
        deployment.join(Role::Denoiser);
        deployment
    }

    pub(crate) fn join(&mut self, role: Role) {
        let first = WorkerPresence {
            worker: WorkerId::generate(role),
            role,
            state: WorkerState::Idle,
            reason: None,
            host: "here".to_owned(),
            process: 1,
            device: Some("cpu".to_owned()),
            model_revision: None,
            health_address: None,
            held: Vec::new(),
            outputs_open: 0,
        };
        self.presences.push(Presence::start(
            &self.bus,
            first,
            &self.workers.tracker,
            self.workers.token.clone(),
        ));
    }

    /// A gateway that serves, ready or not.
    pub(crate) async fn gateway(&self, flags: &[&str]) -> TestGateway {
        let url = self.broker.url();
        let file = self
            .folder
            .path()
            .join(format!("address-{}", WorkerId::generate(Role::Gateway)));
        let fixed = [
            "gateway",
            "--listen=127.0.0.1:0",
            "--prefix=t",
            "--nats-url",
            &url,
            "--listen-file",
            file.to_str().unwrap(),
        ];
        let config = Config::try_parse_from(fixed.iter().chain(flags)).unwrap();
        let shutdown = Shutdown::default();
        let name = WorkerId::generate(Role::Gateway);
        let running = gateway::start(config, name, Metrics::new(Role::Gateway), shutdown.clone())
            .await
            .unwrap();
        let url = format!("http://{}", std::fs::read_to_string(&file).unwrap());
        assert_eq!(url, format!("http://{}", running.address));
        TestGateway {
            shutdown,
            running,
            url,
        }
    }

    pub(crate) async fn ready_gateway(&self, flags: &[&str]) -> TestGateway {
        let gateway = self.gateway(flags).await;
        until("readiness", || async {
            gateway.get("/readyz").await.status == StatusCode::OK
        })
        .await;
        gateway
    }

    /// Messages of `job` in the queues.
    pub(crate) async fn queued(&self, job: JobId) -> usize {
        let context = async_nats::jetstream::new(self.nats.clone());
        let mut found = 0;
        for stream in [&self.topology.ar.name, &self.topology.denoise.name] {
            let stream = context.get_stream(stream).await.unwrap();
            let subjects = stream.info_with_subjects(">").await.unwrap();
            let subjects: Vec<_> = futures::StreamExt::collect(subjects).await;
            let of_job = |subject: &Result<(String, usize), _>| {
                subject
                    .as_ref()
                    .is_ok_and(|(subject, _)| subject.contains(&job.to_string()))
            };
            found += subjects.iter().filter(|subject| of_job(subject)).count();
        }
        found
    }

    /// Messages in a stream.
    pub(crate) async fn stored(&self, stream: &str) -> u64 {
        let context = async_nats::jetstream::new(self.nats.clone());
        let stream = context.get_stream(stream).await.unwrap();
        stream.cached_info().state.messages
    }

    /// Requests queued and jobs recorded since the start.
    pub(crate) async fn accepted(&self) -> (u64, u64) {
        let records = format!("KV_{}", self.topology.jobs.name);
        (
            self.stored(&self.topology.ar.name).await,
            self.stored(&records).await,
        )
    }

    pub(crate) async fn delete_stream(&self, stream: &str) {
        async_nats::jetstream::new(self.nats.clone())
            .delete_stream(stream)
            .await
            .unwrap();
    }

    /// Fills the stream of requests to its last byte.
    pub(crate) async fn fill_ar_stream(&self) {
        for bytes in [250_000, 10_000, 100] {
            let mut full = false;
            while !full {
                let subject = Subject::Ar(PriorityClass::Standard, JobId::generate());
                let subject = self.bus.prefix().subject(&subject);
                let answer = self.nats.request(subject, vec![0; bytes].into()).await;
                let answer: Value = serde_json::from_slice(&answer.unwrap().payload).unwrap();
                full = answer["error"]["err_code"] == STREAM_FULL;
            }
        }
    }

    pub(crate) async fn empty(&self, stream: &str) {
        let context = async_nats::jetstream::new(self.nats.clone());
        let stream = context.get_stream(stream).await.unwrap();
        stream.purge().await.unwrap();
    }

    /// Changes what the last worker that joined tells of itself.
    pub(crate) fn change_last(&self, change: impl FnOnce(&mut WorkerPresence)) {
        self.presences.last().unwrap().update(change);
    }

    /// Takes requests of the usual class as an AR-batcher does.
    pub(crate) async fn ar_queue(&self) -> WorkQueue {
        self.ar_queue_of(PriorityClass::Standard).await
    }

    /// The same of any class.
    pub(crate) async fn ar_queue_of(&self, class: PriorityClass) -> WorkQueue {
        let mut classes = PriorityClass::ALL.into_iter();
        let place = classes.position(|one| one == class).unwrap();
        let spec = &self.topology.ar_consumers[place];
        let opened = WorkQueue::open(&self.bus, spec, &self.workers.tracker);
        opened.await.unwrap()
    }

    /// Kills the broker and starts it again after `meanwhile`.
    pub(crate) async fn restart_broker<T>(&mut self, meanwhile: impl Future<Output = T>) -> T {
        self.broker.kill();
        let value = meanwhile.await;
        self.broker.start_again();
        value
    }
}

/// The next request, and the means to settle it.
pub(crate) async fn next_job(queue: &mut WorkQueue) -> (ArJob, Delivery) {
    let delivery = timeout(PATIENCE, queue.next())
        .await
        .expect("a request comes");
    (decode(&delivery.payload).unwrap(), delivery)
}

/// The picture that our workers paint: no PNG, but unmistakable.
pub(crate) fn picture(job: &ArJob, index: OutputIndex) -> Vec<u8> {
    format!(
        "picture {} {} of {}",
        index,
        job.outputs[usize::from(index.get())].seed,
        job.size
    )
    .into_bytes()
}

/// The result of one output.
pub(crate) fn result(job: &ArJob, index: OutputIndex, failure: Option<ErrorCode>) -> OutputResult {
    let at = job.accepted_at;
    let painted = EncodedImage {
        format: job.format,
        size: job.size,
        bytes: picture(job, index),
    };
    OutputResult {
        output: job.job.output(index),
        outcome: failure.map_or(Ok(painted), |code| Err(JobError::new(code, "made to fail"))),
        seed: Some(job.outputs[usize::from(index.get())].seed),
        usage: Some(PriorUsage {
            prompt_tokens: 40,
            generated_tokens: 60,
            cached: false,
        }),
        prior_id: None,
        timings: OutputTimings {
            accepted_at: at,
            ar_started_at: Some(at + 1),
            ar_finished_at: Some(at + 3),
            denoise_started_at: Some(at + 6),
            denoise_finished_at: Some(at + 10),
            finished_at: at + 15,
        },
        worker: Some(WorkerId::generate(Role::Denoiser)),
    }
}

/// Answers the next request, its outputs in reverse order; `failing` ones with an error.
pub(crate) async fn work_once(
    deployment: &Deployment,
    queue: &mut WorkQueue,
    failing: &[u8],
) -> ArJob {
    let (job, delivery) = next_job(queue).await;
    for output in job.outputs.iter().rev() {
        let failure = failing
            .contains(&output.index.get())
            .then_some(ErrorCode::DenoiseFailed);
        deployment
            .bus
            .put_result(&result(&job, output.index, failure))
            .await
            .unwrap();
    }
    delivery.lease.ack().await;
    job
}

impl TestGateway {
    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, &[], Vec::new()).await
    }

    pub(crate) async fn generate(&self, body: &Value) -> Reply {
        self.generate_with(body, &[]).await
    }

    pub(crate) async fn generate_with(&self, body: &Value, more: &[(&str, &str)]) -> Reply {
        let headers = [&[JSON], more].concat();
        self.send(Method::POST, GENERATIONS, &headers, body.to_string().into())
            .await
    }

    /// The state of a job.
    pub(crate) async fn job(&self, job: JobId) -> Value {
        let reply = self.get(&format!("/v1/images/jobs/{job}")).await;
        assert_eq!(reply.status, 200);
        reply.json()
    }

    pub(crate) async fn cancel(&self, job: JobId) -> Reply {
        let path = format!("/v1/images/jobs/{job}");
        self.send(Method::DELETE, &path, &[], Vec::new()).await
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Reply {
        send(&self.url, method, path, headers, body)
            .await
            .expect("the gateway answers")
    }

    /// The text of `/metrics`.
    pub(crate) async fn metrics(&self) -> String {
        let url = format!("http://{}", self.running.probes);
        let reply = send(&url, Method::GET, "/metrics", &[], Vec::new()).await;
        String::from_utf8(reply.unwrap().bytes).unwrap()
    }

    /// Ends the gateway in order.
    pub(crate) async fn stop(self) {
        self.shutdown.token.cancel();
        self.running.finish().await;
    }
}

pub(crate) const GENERATIONS: &str = "/v1/images/generations";
pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

pub(crate) async fn send(
    url: &str,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> reqwest::Result<Reply> {
    let mut request = reqwest::Client::new()
        .request(method, format!("{url}{path}"))
        .timeout(PATIENCE);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.body(body).send().await?;
    let (status, headers) = (response.status(), response.headers().clone());
    Ok(Reply {
        status,
        headers,
        bytes: response.bytes().await?.to_vec(),
    })
}
