//! A gateway that is started with few files takes as many connections as the system lets it.

use std::{fs, net::TcpStream, path::Path};

use integration::{binary, fleet::until, http, process::Process};
use tempfile::TempDir;

/// As a shell or an engine of containers may start it, only less.
const SOFT_LIMIT: usize = 64;

#[tokio::test(flavor = "multi_thread")]
async fn more_clients_than_the_soft_limit_of_files_leave_a_gateway_its_probes() {
    let folder = TempDir::with_prefix("fresco-e2e-").unwrap();
    let file = folder.path().join("address");
    let limited = format!("ulimit -S -n {SOFT_LIMIT} && exec \"$0\" \"$@\"");
    let gateway = binary("fresco-gateway");
    // Nobody listens at that address: what is asked for needs no broker.
    let flags = [
        "-c",
        &limited,
        gateway.to_str().unwrap(),
        "--nats-url",
        "nats://127.0.0.1:1",
        "--listen",
        "127.0.0.1:0",
        "--listen-file",
        file.to_str().unwrap(),
    ];
    let _gateway = Process::start(Path::new("bash"), "gateway", &flags, folder.path());
    let address = until("the gateway listens", || async {
        fs::read_to_string(&file).ok()
    })
    .await;
    let clients: Vec<_> = (0..2 * SOFT_LIMIT)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    until("it answers beside them", || async {
        http::text(&format!("http://{address}/livez")).await
    })
    .await;
    assert_eq!(clients.len(), 2 * SOFT_LIMIT);
}
