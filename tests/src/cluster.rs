//! Brokers that may be killed: one server, or three in a cluster on loopback. Real nats-servers, own ports and stores.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use async_nats::jetstream;
use messaging::{Access, Bus};
use protocol::{Prefix, topology::Topology};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::{broker::Broker, free_port};

/// Elections take 4 to 8 s, catching up with what was missed a few more.
const HEALTHY_WITHIN: Duration = Duration::from_secs(60);

/// As an operator sets it; the shortest that the server takes.
const LAME_DUCK: &str = "lame_duck_duration: \"30s\"\nlame_duck_grace_period: \"1s\"";

/// The servers, in the order of their names `n0`, `n1`, ….
pub struct Cluster {
    nodes: Vec<Broker>,
    clients: Vec<u16>,
}

impl Cluster {
    /// Starts `nodes` servers: 1, or 3. [`Cluster::healthy`] waits for the cluster's first election.
    pub fn start(nodes: usize) -> Self {
        let clients: Vec<u16> = (0..nodes).map(|_| free_port()).collect();
        let route = |_| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let routes: Vec<_> = (0..nodes).map(route).collect();
        let nodes = clients.iter().enumerate();
        let nodes = nodes.map(|(node, client)| Broker::start_at(*client, &config(node, &routes)));
        Self {
            nodes: nodes.collect(),
            clients,
        }
    }

    /// The servers of the cluster.
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// For clients: every node's address.
    pub fn urls(&self) -> Vec<String> {
        let url = |port: &u16| format!("nats://127.0.0.1:{port}");
        self.clients.iter().map(url).collect()
    }

    /// For a watcher: the same with the credentials of the system account.
    pub fn system_urls(&self) -> Vec<String> {
        self.nodes.iter().map(Broker::system_url).collect()
    }

    /// One server.
    pub fn node(&mut self, node: usize) -> &mut Broker {
        &mut self.nodes[node]
    }

    /// As [`leader`].
    pub async fn leader(&self, stream: &str) -> Option<usize> {
        leader(&self.urls(), stream).await
    }

    /// As [`healthy`].
    pub async fn healthy(&self, streams: &[String]) {
        healthy(&self.urls(), streams).await;
    }

    /// As [`is_healthy`].
    pub async fn is_healthy(&self, streams: &[String]) -> bool {
        is_healthy(&self.urls(), streams).await
    }
}

/// Of the nodes at `urls`, the one that leads `stream`; the only node where there is one. `None` into an election.
pub async fn leader(urls: &[String], stream: &str) -> Option<usize> {
    if urls.len() == 1 {
        return Some(0);
    }
    let client = client(urls).await?;
    let info = info(&client, stream, json!({})).await?;
    let leader = info["cluster"]["leader"].as_str()?;
    leader.strip_prefix('n')?.parse().ok()
}

/// Waits until every stream of the deployment has a leader and each copy is up to date.
pub async fn healthy(urls: &[String], streams: &[String]) {
    let end = Instant::now() + HEALTHY_WITHIN;
    while !is_healthy(urls, streams).await {
        assert!(
            Instant::now() < end,
            "the cluster is not healthy within {HEALTHY_WITHIN:?}"
        );
        sleep(Duration::from_millis(100)).await;
    }
}

/// Whether every stream has a leader and each copy is up to date.
pub async fn is_healthy(urls: &[String], streams: &[String]) -> bool {
    let Some(client) = client(urls).await else {
        return false;
    };
    for stream in streams {
        let Some(info) = info(&client, stream, json!({})).await else {
            return false;
        };
        let copies = info["cluster"]["replicas"].as_array();
        let copies = copies.map_or(&[][..], Vec::as_slice);
        let current = copies.iter().filter(|copy| copy["current"] == true).count();
        if current + 1 != urls.len() {
            return false;
        }
    }
    true
}

/// Makes the streams. A new cluster has no leader for its first seconds.
pub async fn provision(bus: &Bus, topology: &Topology) {
    let end = Instant::now() + HEALTHY_WITHIN;
    while let Err(error) = bus.provision(topology).await {
        assert!(Instant::now() < end, "the streams cannot be made: {error}");
        sleep(Duration::from_millis(200)).await;
    }
}

/// The streams of a deployment, buckets included.
pub fn streams(prefix: &Prefix) -> Vec<String> {
    let topology = Topology::new(prefix);
    let buckets = topology
        .buckets()
        .map(|bucket| format!("KV_{}", bucket.name));
    let streams = topology.streams().map(|stream| stream.name.clone());
    streams.into_iter().chain(buckets).collect()
}

/// The server's own words on a stream.
pub async fn info(
    client: &async_nats::Client,
    stream: &str,
    request: serde_json::Value,
) -> Option<serde_json::Value> {
    let subject = format!("$JS.API.STREAM.INFO.{stream}");
    let answer = client.request(subject, request.to_string().into());
    let answer = timeout(Duration::from_secs(2), answer).await.ok()?.ok()?;
    let info: serde_json::Value = serde_json::from_slice(&answer.payload).ok()?;
    info.get("error").is_none().then_some(info)
}

/// A connection past our own code: what checks it must not share its mistakes.
pub async fn client(urls: &[String]) -> Option<async_nats::Client> {
    client_with(urls, &Access::default()).await
}

/// The same with these files, of which the credential is an nkey's seed.
pub async fn client_with(urls: &[String], access: &Access) -> Option<async_nats::Client> {
    let mut options = async_nats::ConnectOptions::new().connection_timeout(Duration::from_secs(2));
    if let Some(file) = &access.credentials {
        options = options.nkey(fs::read_to_string(file).ok()?);
    }
    if let Some(file) = &access.ca {
        options = options
            .add_root_certificates(file.clone())
            .require_tls(true);
    }
    let connect = options.connect(urls);
    timeout(Duration::from_secs(5), connect).await.ok()?.ok()
}

/// The same with JetStream's own reads.
pub async fn jetstream(urls: &[String]) -> Option<jetstream::Context> {
    Some(jetstream::new(client(urls).await?))
}

/// What the `node`-th of those whose nodes find each other at `routes` is told.
pub(crate) fn config(node: usize, routes: &[SocketAddr]) -> String {
    if routes.len() == 1 {
        return LAME_DUCK.to_owned();
    }
    let own = routes[node];
    let routes: Vec<_> = routes
        .iter()
        .map(|address| format!("nats://{address}"))
        .collect();
    format!(
        "server_name: n{node}\n{LAME_DUCK}\ncluster {{ name: test, listen: \"{own}\", routes: {} }}",
        json!(routes)
    )
}
