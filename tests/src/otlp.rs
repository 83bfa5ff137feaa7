//! An OTLP collector of a test's own: it takes spans over gRPC and over HTTP on one port, keeps them, and knows no more
//! of them than the official protocol does.

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
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
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

pub use self::trees::{Captured, Tree, hex, number, text, value};
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
struct Store(Arc<Mutex<Vec<Captured>>>);

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

    /// Waits until `look` finds what it wants in the spans.
    pub async fn until<T>(&self, what: &str, look: impl Fn(&[Captured]) -> Option<T>) -> T {
        until(what, || async { look(&self.store.lock()) }).await
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Vec<Captured>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    let grpc = format!("/{}/Export", TraceServiceServer::<Store>::NAME);
    if request.version() == Version::HTTP_2 && request.uri().path() == grpc {
        return TraceServiceServer::new(store).call(request).await;
    }
    let whole = |status, body: Bytes| {
        let mut response = Response::new(tonic::body::Body::new(Full::new(body)));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != "/v1/traces" {
        return Ok(whole(StatusCode::NOT_FOUND, Bytes::new()));
    }
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    let decoded = body
        .await
        .ok()
        .and_then(|body| ExportTraceServiceRequest::decode(body.to_bytes()).ok());
    Ok(match decoded {
        Some(spans) => {
            store.take(spans);
            let answer = ExportTraceServiceResponse::default().encode_to_vec();
            whole(StatusCode::OK, answer.into())
        }
        None => whole(StatusCode::BAD_REQUEST, Bytes::new()),
    })
}
