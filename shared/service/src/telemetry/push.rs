//! The metrics of a process to an OTLP collector, every so many seconds and once more at its end. A collector that is
//! slow or dead costs points and nothing else.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use opentelemetry_proto::tonic::{
    collector::metrics::v1::{
        ExportMetricsServiceRequest, ExportMetricsServiceResponse,
        metrics_service_client::MetricsServiceClient,
    },
    common::v1::InstrumentationScope,
    metrics::v1::{Metric, ResourceMetrics, ScopeMetrics},
    resource::v1::Resource,
};
use prost::Message;
use reqwest::{Client, RequestBuilder, StatusCode, header::CONTENT_TYPE, redirect};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::transport::{Channel, Endpoint};

use super::{FLUSH_MAX, Identity, export::resource_attributes};
use crate::{
    TraceArgs,
    exit::{Failure, chain},
    metrics::{Metrics, otlp::attribute},
    trace_args::OtlpProtocol,
};

/// How long looking up, sending and the collector's answer may take together. What is then not sent is sent with the
/// next ones, because everything counts from the start of the process.
const EXPORT_MAX: Duration = Duration::from_secs(5);

/// Most bytes of an answer: a number and a sentence.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Most characters of what a collector says that are logged.
const SAID_CHARS_MAX: usize = 500;

/// What became of the pushes of this process so far.
static PUSHES: Pushes = Pushes::new();

/// Counted here, and told at each scrape: a push is one.
#[derive(Debug)]
struct Pushes {
    taken: AtomicU64,
    partial: AtomicU64,
    failed: AtomicU64,
    points_lost: AtomicU64,
}

/// What became of a process's pushes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PushState {
    /// The collector took every point.
    pub(crate) taken: u64,
    /// It took some.
    pub(crate) partial: u64,
    /// It took none, or nobody knows.
    pub(crate) failed: u64,
    /// Points that it refused of those that it took some of.
    pub(crate) points_lost: u64,
}

/// What became of this process's pushes so far.
pub(crate) fn push_state() -> PushState {
    PUSHES.state()
}

impl Pushes {
    const fn new() -> Self {
        Self {
            taken: AtomicU64::new(0),
            partial: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            points_lost: AtomicU64::new(0),
        }
    }

    fn state(&self) -> PushState {
        PushState {
            taken: self.taken.load(Ordering::Relaxed),
            partial: self.partial.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            points_lost: self.points_lost.load(Ordering::Relaxed),
        }
    }

    fn count(&self, outcome: Outcome) {
        let pushes = match outcome {
            Outcome::Taken => &self.taken,
            Outcome::Partial { lost } => {
                self.points_lost.fetch_add(lost, Ordering::Relaxed);
                &self.partial
            }
            Outcome::Failed => &self.failed,
        };
        pushes.fetch_add(1, Ordering::Relaxed);
    }
}

/// What became of one push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Taken,
    Partial { lost: u64 },
    Failed,
}

impl Outcome {
    /// Whether it is news after `other`.
    fn differs(self, other: Self) -> bool {
        std::mem::discriminant(&self) != std::mem::discriminant(&other)
    }
}

/// What a collector says of a push that it does not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    /// Points that it refuses.
    lost: u64,
    /// Why.
    said: String,
}

impl From<ExportMetricsServiceResponse> for Answer {
    fn from(answer: ExportMetricsServiceResponse) -> Self {
        let partial = answer.partial_success.unwrap_or_default();
        Self {
            lost: partial.rejected_data_points.try_into().unwrap_or_default(),
            said: partial.error_message.chars().take(SAID_CHARS_MAX).collect(),
        }
    }
}

/// Sends until it is ended.
#[derive(Debug)]
pub(crate) struct Push {
    stop: CancellationToken,
    tracker: TaskTracker,
}

/// Why the collector has no metrics.
#[derive(Debug, thiserror::Error)]
enum PushError {
    #[error("they did not get there within {} s", EXPORT_MAX.as_secs())]
    TooSlow,
    #[error("metrics cannot be written")]
    Unwritable(#[source] std::fmt::Error),
    #[error("the collector cannot be reached")]
    Http(#[source] reqwest::Error),
    #[error("the collector answers {0}")]
    Status(StatusCode),
    // Boxed: it is large, and rare.
    #[error("the collector refuses them")]
    Grpc(#[source] Box<tonic::Status>),
    #[error("the collector answers more than {ANSWER_BYTES_MAX} bytes")]
    TooMuch,
    #[error("what the collector answers is not of OTLP")]
    Unreadable(#[source] prost::DecodeError),
}

fn outcome(pushed: &Result<Answer, PushError>) -> Outcome {
    match *pushed {
        Ok(Answer { lost: 0, .. }) => Outcome::Taken,
        Ok(Answer { lost, .. }) => Outcome::Partial { lost },
        Err(_) => Outcome::Failed,
    }
}

#[derive(Debug, Clone)]
enum Collector {
    Http { client: Client, url: String },
    Grpc(MetricsServiceClient<Channel>),
}

struct Pusher {
    metrics: Metrics,
    resource: Resource,
    collector: Collector,
    last: Outcome,
}

impl Push {
    /// Begins, where `args` ask for it.
    pub(crate) fn start(
        identity: &Identity,
        args: &TraceArgs,
        metrics: &Metrics,
    ) -> Result<Option<Self>, Failure> {
        let (Some(collector), Some(period_s)) = (Collector::of(args)?, args.otlp_metrics_s) else {
            return Ok(None);
        };
        let pusher = Pusher::new(identity, collector, metrics);
        let (stop, tracker) = (CancellationToken::new(), TaskTracker::new());
        tracker.spawn(pusher.run(Duration::from_secs(period_s), stop.clone()));
        Ok(Some(Self { stop, tracker }))
    }

    /// Sends what is left, for [`FLUSH_MAX`] at most.
    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

impl Collector {
    /// The one that `args` name.
    fn of(args: &TraceArgs) -> Result<Option<Self>, Failure> {
        let Some(endpoint) = &args.otlp_endpoint else {
            return Ok(None);
        };
        let unusable =
            |error: &dyn std::error::Error| Failure::Unusable(format!("--otlp-endpoint: {error}"));
        Ok(Some(match args.otlp_protocol {
            OtlpProtocol::Grpc => {
                let endpoint = Endpoint::from_shared(endpoint.to_string());
                let endpoint = endpoint.map_err(|error| unusable(&error))?;
                let channel = endpoint.connect_timeout(EXPORT_MAX).connect_lazy();
                Self::Grpc(MetricsServiceClient::new(channel))
            }
            OtlpProtocol::HttpProtobuf => {
                // A redirected POST becomes a GET, which succeeds and brings nothing.
                let client = Client::builder()
                    .no_proxy()
                    .redirect(redirect::Policy::none())
                    .build();
                Self::Http {
                    client: client.map_err(|error| unusable(&error))?,
                    url: endpoint.at("/v1/metrics"),
                }
            }
        }))
    }

    async fn take(&self, request: ExportMetricsServiceRequest) -> Result<Answer, PushError> {
        match self.clone() {
            Self::Grpc(mut client) => {
                let answer = client.export(request).await;
                let answer = answer.map_err(|status| PushError::Grpc(Box::new(status)))?;
                Ok(answer.into_inner().into())
            }
            Self::Http { client, url } => {
                let request = client
                    .post(url)
                    .header(CONTENT_TYPE, "application/x-protobuf")
                    .body(request.encode_to_vec());
                posted(request).await
            }
        }
    }
}

async fn posted(request: RequestBuilder) -> Result<Answer, PushError> {
    let mut answer = request.send().await.map_err(PushError::Http)?;
    if !answer.status().is_success() {
        return Err(PushError::Status(answer.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(PushError::Http)? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err(PushError::TooMuch);
        }
        body.extend_from_slice(&chunk);
    }
    let answer = ExportMetricsServiceResponse::decode(&*body).map_err(PushError::Unreadable)?;
    Ok(answer.into())
}

impl Pusher {
    fn new(identity: &Identity, collector: Collector, metrics: &Metrics) -> Self {
        let attributes = resource_attributes(identity);
        Self {
            metrics: metrics.clone(),
            resource: Resource {
                attributes: attributes
                    .map(|(name, value)| attribute(name, value))
                    .into(),
                ..Resource::default()
            },
            collector,
            last: Outcome::Taken,
        }
    }

    async fn run(mut self, period: Duration, stop: CancellationToken) {
        let mut every = interval(period);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let going_on = async {
            loop {
                every.tick().await;
                let pushed = timeout(EXPORT_MAX, self.push()).await;
                self.tell(&pushed.unwrap_or(Err(PushError::TooSlow)));
            }
        };
        let stopped: Option<std::convert::Infallible> = stop.run_until_cancelled(going_on).await;
        debug_assert!(stopped.is_none());
        // What is looked up at a scrape is left as it was: the broker is gone by now.
        let last = timeout(FLUSH_MAX, async {
            self.send(self.metrics.otlp_now().map_err(PushError::Unwritable)?)
                .await
        });
        let last = last.await.unwrap_or(Err(PushError::TooSlow));
        self.tell(&last);
    }

    async fn push(&self) -> Result<Answer, PushError> {
        self.metrics.refresh().await;
        let metrics = self.metrics.otlp_now().map_err(PushError::Unwritable)?;
        self.send(metrics).await
    }

    async fn send(&self, metrics: Vec<Metric>) -> Result<Answer, PushError> {
        let request = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(InstrumentationScope {
                        name: "fresco".to_owned(),
                        version: env!("CARGO_PKG_VERSION").to_owned(),
                        ..InstrumentationScope::default()
                    }),
                    metrics,
                    ..ScopeMetrics::default()
                }],
                ..ResourceMetrics::default()
            }],
        };
        self.collector.take(request).await
    }

    /// Counts it, and tells where it went otherwise than the one before.
    fn tell(&mut self, pushed: &Result<Answer, PushError>) {
        let outcome = outcome(pushed);
        PUSHES.count(outcome);
        let before = std::mem::replace(&mut self.last, outcome);
        if !outcome.differs(before) {
            return;
        }
        match pushed {
            Ok(Answer { lost: 0, .. }) => tracing::info!("the collector takes metrics again"),
            Ok(Answer { lost, said }) => {
                tracing::warn!(lost, said, "the collector refuses some points of metrics");
            }
            Err(error) => {
                let error = chain(error);
                tracing::warn!(error, "the collector takes no metrics, going on without");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsPartialSuccess;
    use protocol::Role;
    use tokio::net::TcpListener;
    use warp::{
        Filter as _,
        http::{Response, header::LOCATION},
    };

    use super::*;

    /// What is made of a push that a collector at `/v1/metrics` answers so; at any other path it takes everything.
    async fn pushed(status: u16, body: Vec<u8>) -> Result<Answer, PushError> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let metrics = warp::path!("v1" / "metrics").map(move || {
            let answer = Response::builder().status(status);
            let answer = answer.header(LOCATION, "/elsewhere");
            answer.body(body.clone()).unwrap()
        });
        let elsewhere = warp::path!("elsewhere").map(|| Response::new(Vec::new()));
        let server = warp::serve(metrics.or(elsewhere)).incoming(listener).run();
        let args = TraceArgs {
            otlp_endpoint: endpoint.parse().ok(),
            ..TraceArgs::default()
        };
        let identity = Identity {
            service: "fresco-test",
            deployment: "t".to_owned(),
            instance: "t-1".to_owned(),
        };
        let collector = Collector::of(&args).unwrap().unwrap();
        let pusher = Pusher::new(&identity, collector, &Metrics::new(Role::Gateway));
        tokio::select! {
            pushed = pusher.push() => pushed,
            () = server => panic!("the server ended"),
        }
    }

    /// With so many points refused.
    fn partial(rejected_data_points: i64) -> Vec<u8> {
        let partial_success = Some(ExportMetricsPartialSuccess {
            rejected_data_points,
            error_message: "too old".to_owned(),
        });
        ExportMetricsServiceResponse { partial_success }.encode_to_vec()
    }

    /// That takes everything, in so many bytes.
    fn taken_in(bytes: usize) -> Vec<u8> {
        /// Two tags, and two lengths of three bytes each.
        const AROUND_TEXT: usize = 8;
        let partial_success = Some(ExportMetricsPartialSuccess {
            rejected_data_points: 0,
            error_message: "x".repeat(bytes - AROUND_TEXT),
        });
        let body = ExportMetricsServiceResponse { partial_success }.encode_to_vec();
        assert_eq!(body.len(), bytes);
        body
    }

    #[tokio::test]
    async fn a_push_is_what_the_collector_answers() {
        for (status, body, wanted) in [
            (200, Vec::new(), Outcome::Taken),
            (200, partial(0), Outcome::Taken),
            (200, partial(-1), Outcome::Taken),
            (200, partial(3), Outcome::Partial { lost: 3 }),
            (200, b"<html>welcome</html>".to_vec(), Outcome::Failed),
            (200, taken_in(ANSWER_BYTES_MAX), Outcome::Taken),
            (200, taken_in(ANSWER_BYTES_MAX + 1), Outcome::Failed),
            (302, Vec::new(), Outcome::Failed),
            (307, Vec::new(), Outcome::Failed),
            (400, Vec::new(), Outcome::Failed),
            (503, Vec::new(), Outcome::Failed),
        ] {
            let answer = pushed(status, body).await;
            assert_eq!(outcome(&answer), wanted, "{status}: {answer:?}");
        }
        let answer = pushed(200, partial(3)).await.unwrap();
        assert_eq!((answer.lost, &*answer.said), (3, "too old"));
    }

    #[test]
    fn every_push_is_counted_and_its_points_that_are_lost() {
        let pushes = Pushes::new();
        for outcome in [
            Outcome::Taken,
            Outcome::Partial { lost: 3 },
            Outcome::Failed,
            Outcome::Partial { lost: 4 },
            Outcome::Failed,
            Outcome::Failed,
        ] {
            pushes.count(outcome);
        }
        let state = PushState {
            taken: 1,
            partial: 2,
            failed: 3,
            points_lost: 7,
        };
        assert_eq!(pushes.state(), state);
    }

    #[test]
    fn another_number_of_lost_points_is_no_news() {
        let [few, many] = [1, 9].map(|lost| Outcome::Partial { lost });
        assert!(!few.differs(many) && few.differs(Outcome::Taken) && few.differs(Outcome::Failed));
    }
}
