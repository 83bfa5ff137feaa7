//! The metrics of a process to an OTLP collector, every so many seconds and once more at its end. A collector that is
//! slow or dead costs points and nothing else.

use std::time::Duration;

use opentelemetry_proto::tonic::{
    collector::metrics::v1::{
        ExportMetricsServiceRequest, metrics_service_client::MetricsServiceClient,
    },
    common::v1::InstrumentationScope,
    metrics::v1::{Metric, ResourceMetrics, ScopeMetrics},
    resource::v1::Resource,
};
use prost::Message;
use reqwest::{Client, StatusCode, header::CONTENT_TYPE};
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
    failing: bool,
}

impl Push {
    /// Begins, where `args` ask for it.
    pub(crate) fn start(
        identity: &Identity,
        args: &TraceArgs,
        metrics: &Metrics,
    ) -> Result<Option<Self>, Failure> {
        let (Some(endpoint), Some(period_s)) = (&args.otlp_endpoint, args.otlp_metrics_s) else {
            return Ok(None);
        };
        let unusable =
            |error: &dyn std::error::Error| Failure::Unusable(format!("--otlp-endpoint: {error}"));
        let collector = match args.otlp_protocol {
            OtlpProtocol::Grpc => {
                let endpoint = Endpoint::from_shared(endpoint.to_string());
                let endpoint = endpoint.map_err(|error| unusable(&error))?;
                let channel = endpoint.connect_timeout(EXPORT_MAX).connect_lazy();
                Collector::Grpc(MetricsServiceClient::new(channel))
            }
            OtlpProtocol::HttpProtobuf => {
                let client = Client::builder().no_proxy().build();
                Collector::Http {
                    client: client.map_err(|error| unusable(&error))?,
                    url: endpoint.at("/v1/metrics"),
                }
            }
        };
        let attributes = resource_attributes(identity);
        let pusher = Pusher {
            metrics: metrics.clone(),
            resource: Resource {
                attributes: attributes
                    .map(|(name, value)| attribute(name, value))
                    .into(),
                ..Resource::default()
            },
            collector,
            failing: false,
        };
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

impl Pusher {
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

    async fn push(&self) -> Result<(), PushError> {
        self.metrics.refresh().await;
        let metrics = self.metrics.otlp_now().map_err(PushError::Unwritable)?;
        self.send(metrics).await
    }

    async fn send(&self, metrics: Vec<Metric>) -> Result<(), PushError> {
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
        match self.collector.clone() {
            Collector::Grpc(mut client) => {
                let answer = client.export(request).await;
                answer.map_err(|status| PushError::Grpc(Box::new(status)))?;
            }
            Collector::Http { client, url } => {
                let request = client
                    .post(url)
                    .header(CONTENT_TYPE, "application/x-protobuf")
                    .body(request.encode_to_vec());
                let answer = request.send().await.map_err(PushError::Http)?;
                if !answer.status().is_success() {
                    return Err(PushError::Status(answer.status()));
                }
            }
        }
        Ok(())
    }

    /// Tells once when the collector takes none any more, and once when it does again.
    fn tell(&mut self, pushed: &Result<(), PushError>) {
        match pushed {
            Ok(()) if self.failing => tracing::info!("the collector takes metrics again"),
            Err(error) if !self.failing => {
                let error = chain(error);
                tracing::warn!(error, "the collector takes no metrics, going on without");
            }
            Ok(()) | Err(_) => {}
        }
        self.failing = pushed.is_err();
    }
}
