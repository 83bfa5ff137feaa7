//! An OTLP collector of a test's own: it takes spans and metrics over gRPC and over HTTP on one port, keeps them, and
//! knows no more of them than the official protocol does.

mod condition;
mod points;
mod trees;

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, Response, StatusCode, Version, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use opentelemetry_proto::tonic::{
    collector::{
        metrics::v1::{
            ExportMetricsServiceRequest, ExportMetricsServiceResponse,
            metrics_service_server::{MetricsService, MetricsServiceServer},
        },
        trace::v1::{
            ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    common::v1::KeyValue,
    trace::v1::Span,
};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tonic::{codegen::Service, server::NamedService};

pub use self::{
    condition::{Filter, Seen},
    points::{Pushed, samples_of_text},
    trees::{Captured, Tree, hex, number, text, value},
};
use crate::fleet::until;

/// Some thousand spans are a few hundred kilobytes.
const BODY_BYTES_MAX: usize = 16 << 20;

/// A running collector; it ends when it is dropped.
pub struct Collector {
    address: SocketAddr,
    store: Store,
    _stop: DropGuard,
}

/// What came, in the order it came.
#[derive(Clone, Default)]
struct Store {
    spans: Arc<Mutex<Vec<Captured>>>,
    pushed: Arc<Mutex<Vec<Pushed>>>,
}

impl Collector {
    /// Listens on a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (store, stop, tracker) = (
            Store::default(),
            CancellationToken::new(),
            TaskTracker::new(),
        );
        let accept = accept(listener, store.clone(), tracker.clone(), stop.clone());
        tracker.spawn(stop.clone().run_until_cancelled_owned(accept));
        Self {
            address,
            store,
            _stop: stop.drop_guard(),
        }
    }

    /// For `--otlp-endpoint`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Every span so far.
    pub fn spans(&self) -> Vec<Captured> {
        self.store.lock().clone()
    }

    /// What processes pushed of their metrics so far, one for each time.
    pub fn pushed(&self) -> Vec<Pushed> {
        let pushed = self.store.pushed.lock();
        pushed.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until `look` finds what it wants in the spans.
    pub async fn until<T>(&self, what: &str, look: impl Fn(&[Captured]) -> Option<T>) -> T {
        until(what, || async { look(&self.store.lock()) }).await
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Vec<Captured>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_metrics(&self, request: ExportMetricsServiceRequest) {
        let pushed = request.resource_metrics.into_iter().map(Pushed::new);
        let mut all = self.pushed.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(pushed);
    }

    fn take(&self, request: ExportTraceServiceRequest) {
        for of_process in request.resource_spans {
            let resource: Arc<[KeyValue]> = of_process
                .resource
                .map(|resource| resource.attributes)
                .unwrap_or_default()
                .into();
            let spans = of_process
                .scope_spans
                .into_iter()
                .flat_map(|scope| scope.spans);
            let captured = spans.map(|span: Span| Captured {
                span,
                resource: Arc::clone(&resource),
            });
            self.lock().extend(captured);
        }
    }
}

#[tonic::async_trait]
impl TraceService for Store {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.take(request.into_inner());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Store {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        self.take_metrics(request.into_inner());
        Ok(tonic::Response::new(ExportMetricsServiceResponse::default()))
    }
}

async fn accept(
    listener: TcpListener,
    store: Store,
    tracker: TaskTracker,
    stop: CancellationToken,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let connection = serve(stream, store.clone());
        tracker.spawn(stop.clone().run_until_cancelled_owned(connection));
    }
}

async fn serve(stream: TcpStream, store: Store) {
    let service = service_fn(move |request: Request<Incoming>| answer(store.clone(), request));
    // An error is a client that is gone.
    auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await
        .ok();
}

async fn answer(
    store: Store,
    request: Request<Incoming>,
) -> Result<Response<tonic::body::Body>, Infallible> {
    let path = request.uri().path().to_owned();
    if request.version() == Version::HTTP_2 {
        let export = |service: &str| path == format!("/{service}/Export");
        if export(TraceServiceServer::<Store>::NAME) {
            return TraceServiceServer::new(store).call(request).await;
        }
        if export(MetricsServiceServer::<Store>::NAME) {
            return MetricsServiceServer::new(store).call(request).await;
        }
    }
    let whole = |status, body: Bytes| {
        let mut response = Response::new(tonic::body::Body::new(Full::new(body)));
        *response.status_mut() = status;
        response
    };
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    let Ok(body) = body.await else {
        return Ok(whole(StatusCode::BAD_REQUEST, Bytes::new()));
    };
    let body = body.to_bytes();
    let answer = match &*path {
        "/v1/traces" => ExportTraceServiceRequest::decode(body).map(|spans| {
            store.take(spans);
            ExportTraceServiceResponse::default().encode_to_vec()
        }),
        "/v1/metrics" => ExportMetricsServiceRequest::decode(body).map(|metrics| {
            store.take_metrics(metrics);
            ExportMetricsServiceResponse::default().encode_to_vec()
        }),
        _ => return Ok(whole(StatusCode::NOT_FOUND, Bytes::new())),
    };
    Ok(match answer {
        Ok(answer) => whole(StatusCode::OK, answer.into()),
        Err(_) => whole(StatusCode::BAD_REQUEST, Bytes::new()),
    })
}
