//! A fake SRT server: it speaks the contract of SGLang's `/generate` byte for byte and has no model. Ids follow from
//! `sampling_seed`, times from a table by the step-rate model, faults from a script. It is stricter than the real one,
//! so that a request that passes here is the contract's; what it cannot show is how a real SRT behaves.

mod answer;
mod contract;
mod flight;
mod script;

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http_body_util::{BodyExt, Limited};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, body::Incoming, server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use replay::Times;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::{
    answer::prior,
    contract::{Asked, Call},
    script::{Fault, Rule, Script},
};
use self::{
    answer::{Body, item, refusal, stalled, whole},
    flight::{End, InFlight, Rows},
};

/// Of a request. A call of 128 rows of the longest prompts has less than a tenth.
const BODY_BYTES_MAX: usize = 64 << 20;
/// How late [`Fault::Slow`] is.
pub const SLOW: Duration = Duration::from_millis(300);

/// What kind of server it is.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Of the rows that it writes together.
    pub times: Times,
    /// Ids are below this.
    pub codebook_size: u32,
    /// Rows that it takes; more are refused as by a full queue.
    pub rows_max: usize,
    /// What `/server_info` says of `--enable-deterministic-inference`; nothing when `None`.
    pub is_deterministic: Option<bool>,
    /// A file with faults that is read at every call; a missing one is none. Its rules of so many times never end.
    pub script_file: Option<PathBuf>,
}

impl Setup {
    /// One that takes what anybody needs, and is deterministic.
    pub fn new(times: Times, codebook_size: u32) -> Self {
        Self {
            times,
            codebook_size,
            rows_max: 256,
            is_deterministic: Some(true),
            script_file: None,
        }
    }
}

/// What the server has seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Connections that were opened.
    pub connections: usize,
    /// `POST /generate`, also those that were refused.
    pub calls: usize,
    /// The seeds of the rows of all calls, in order.
    pub seeds: Vec<u64>,
    /// The names of the rows of all calls, in order.
    pub rids: Vec<String>,
    /// The header `traceparent` of each `POST /generate` that had one, in order.
    pub traceparents: Vec<String>,
    /// Most rows at once.
    pub rows_in_flight_max: usize,
    /// Names that were to be aborted, in order.
    pub aborts: Vec<String>,
    /// What was against the contract, in words.
    pub violations: Vec<String>,
}

/// A running server. It ends when it is dropped, and its connections with it.
pub struct FakeSrt {
    address: SocketAddr,
    server: Arc<Server>,
    tracker: TaskTracker,
    stop: CancellationToken,
}

struct Server {
    setup: Setup,
    rows: Rows,
    /// Rows that run on after [`Fault::BadGateway`].
    orphans: Mutex<Vec<InFlight>>,
    script: Mutex<Script>,
    is_up: Mutex<bool>,
    seen: Mutex<Seen>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection ends without an answer.
#[derive(Debug, thiserror::Error)]
#[error("scripted reset")]
struct Reset;

impl FakeSrt {
    /// Listens on a free port of this machine.
    pub async fn start_anywhere(setup: Setup) -> std::io::Result<Self> {
        Self::start(SocketAddr::from(([127, 0, 0, 1], 0)), setup).await
    }

    /// Listens on `address`; port 0 takes a free one.
    pub async fn start(address: SocketAddr, setup: Setup) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let server = Arc::new(Server {
            rows: Rows::new(setup.times.clone()),
            setup,
            orphans: Mutex::default(),
            script: Mutex::default(),
            is_up: Mutex::new(true),
            seen: Mutex::default(),
        });
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let rows = server.rows.clone();
        tracker.spawn(stop.clone().run_until_cancelled_owned(rows.run()));
        let accept = accept(listener, Arc::clone(&server), tracker.clone(), stop.clone());
        tracker.spawn(stop.clone().run_until_cancelled_owned(accept));
        Ok(Self {
            address,
            server,
            tracker,
            stop,
        })
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on these faults, and only these.
    pub fn script(&self, rules: &[Rule]) {
        *locked(&self.server.script) = Script(rules.to_vec());
    }

    /// What `/health` says from now on.
    pub fn set_up(&self, is_up: bool) {
        *locked(&self.server.is_up) = is_up;
    }

    /// What it has seen so far.
    pub fn seen(&self) -> Seen {
        locked(&self.server.seen).clone()
    }

    /// Rows that it writes now.
    pub fn rows_in_flight(&self) -> usize {
        self.server.rows.len()
    }

    /// Closes every connection and stops listening; returns when the port is free.
    pub async fn kill(self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

impl Drop for FakeSrt {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(
    listener: TcpListener,
    server: Arc<Server>,
    tracker: TaskTracker,
    stop: CancellationToken,
) {
    loop {
        // Out of file handles, at worst: the client tries again.
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        locked(&server.seen).connections += 1;
        let connection = serve(stream, Arc::clone(&server));
        tracker.spawn(stop.clone().run_until_cancelled_owned(connection));
    }
}

async fn serve(stream: TcpStream, server: Arc<Server>) {
    let service = service_fn(move |request| {
        let server = Arc::clone(&server);
        async move { server.answer(request).await }
    });
    // An error is a client that is gone, or a scripted reset.
    http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await
        .ok();
}

impl Server {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Reset> {
        let (head, body) = request.into_parts();
        let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else {
            return Err(Reset);
        };
        let body = body.to_bytes();
        let empty = |status| whole(status, String::new());
        Ok(match (head.method, head.uri.path()) {
            (Method::POST, "/generate") => {
                self.note_trace(&head.headers);
                return self.generate(&body).await;
            }
            (Method::POST, "/abort_request") => self.abort(&body),
            (Method::GET, "/health") if *locked(&self.is_up) => empty(StatusCode::OK),
            (Method::GET, "/health") => empty(StatusCode::SERVICE_UNAVAILABLE),
            (Method::GET, "/server_info") => match self.setup.is_deterministic {
                Some(is) => {
                    let info = json!({"enable_deterministic_inference": is, "version": "fake"});
                    whole(StatusCode::OK, info.to_string())
                }
                None => empty(StatusCode::NOT_FOUND),
            },
            _ => empty(StatusCode::NOT_FOUND),
        })
    }

    fn abort(&self, body: &[u8]) -> Response<Body> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Abort {
            rid: String,
        }
        match serde_json::from_slice::<Abort>(body) {
            Ok(Abort { rid }) if !rid.is_empty() => {
                self.rows.abort(&rid);
                locked(&self.seen).aborts.push(rid);
                whole(StatusCode::OK, String::new())
            }
            Ok(_) => self.violation("an abort of everything".to_owned()),
            Err(error) => self.violation(error.to_string()),
        }
    }

    fn violation(&self, what: String) -> Response<Body> {
        let refusal = refusal(StatusCode::BAD_REQUEST, &what);
        locked(&self.seen).violations.push(what);
        refusal
    }

    async fn generate(&self, body: &[u8]) -> Result<Response<Body>, Reset> {
        locked(&self.seen).calls += 1;
        let call = match contract::read(body) {
            Ok(call) => call,
            Err(what) => return Ok(self.violation(what)),
        };
        if let Some(row) = call.rows.iter().find(|row| self.rows.has(&row.rid)) {
            let what = format!("Duplicate request ID detected: {}", row.rid);
            return Ok(self.violation(what));
        }
        let faults = self.note(&call);
        let calls_fault = faults.iter().flatten().find(|fault| fault.is_calls());
        match calls_fault {
            Some(Fault::BadRequest) => {
                return Ok(refusal(StatusCode::BAD_REQUEST, "scripted refusal"));
            }
            Some(Fault::ServerError) => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                return Ok(refusal(status, "scripted failure"));
            }
            Some(Fault::Full) => return Ok(full()),
            Some(Fault::Reset) => return Err(Reset),
            Some(Fault::Slow) => tokio::time::sleep(SLOW).await,
            _ => {}
        }
        if self.rows.len() + call.rows.len() > self.setup.rows_max {
            return Ok(full());
        }
        let join = |row: &Asked| self.rows.join(&row.rid, row.new_tokens);
        let in_flight: Vec<InFlight> = call.rows.iter().map(join).collect();
        {
            let mut seen = locked(&self.seen);
            seen.rows_in_flight_max = seen.rows_in_flight_max.max(self.rows.len());
        }
        if let Some(Fault::BadGateway) = calls_fault {
            locked(&self.orphans).extend(in_flight);
            return Ok(refusal(StatusCode::BAD_GATEWAY, "scripted gateway"));
        }
        let mut items = Vec::new();
        for ((row, fault), in_flight) in call.rows.iter().zip(&faults).zip(in_flight) {
            let fault = match in_flight.end().await {
                End::Finished => *fault,
                End::Aborted => Some(Fault::Abort),
            };
            items.push(item(row, fault, self.setup.codebook_size));
        }
        match calls_fault {
            // Until its client is gone: then this future is dropped.
            Some(Fault::Hang) => {
                let never: Infallible = std::future::pending().await;
                match never {}
            }
            Some(Fault::StalledBody) => return Ok(stalled()),
            Some(Fault::WrongLength) => drop(items.pop()),
            _ => {}
        }
        let answer = match items.pop() {
            Some(item) if !call.is_batched => item,
            item => {
                items.extend(item);
                Value::Array(items)
            }
        };
        Ok(whole(StatusCode::OK, answer.to_string()))
    }

    fn note_trace(&self, headers: &HeaderMap) {
        let parent = headers.get("traceparent");
        let parent = parent.and_then(|parent| parent.to_str().ok());
        let mut seen = locked(&self.seen);
        seen.traceparents.extend(parent.map(str::to_owned));
    }

    /// Counts the call, and says what happens to each of its rows.
    fn note(&self, call: &Call) -> Vec<Option<Fault>> {
        let mut seen = locked(&self.seen);
        seen.seeds.extend(call.rows.iter().map(|row| row.seed));
        let rids = call.rows.iter().map(|row| row.rid.clone());
        seen.rids.extend(rids);
        let mut script = locked(&self.script);
        if let Some(file) = &self.setup.script_file {
            let text = std::fs::read(file).unwrap_or_default();
            *script = serde_json::from_slice(&text).unwrap_or_default();
        }
        call.rows.iter().map(|row| script.hit(row.seed)).collect()
    }
}

/// As SRT says it, with `--max-queued-requests`.
fn full() -> Response<Body> {
    let message = "The request queue is full.";
    let body =
        json!({"object": "error", "message": message, "type": "503", "param": null, "code": 503});
    whole(StatusCode::SERVICE_UNAVAILABLE, body.to_string())
}
