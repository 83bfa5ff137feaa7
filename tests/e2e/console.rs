//! What each role's tasks are at, over the protocol of tokio-console.

use std::{collections::BTreeSet, time::Duration};

use console_api::instrument::{InstrumentRequest, instrument_client::InstrumentClient};
use integration::{binary, fleet::Fleet};
use protocol::Role;
use tokio::process::Command;

/// Where the process that wrote this log serves its console.
fn address(log: &str) -> String {
    let line = log
        .lines()
        .find(|line| line.contains("tokio-console listens"));
    let (_, address) = line.unwrap().split_once("address=").unwrap();
    address.split_whitespace().next().unwrap().to_owned()
}

/// Waits until the console at `address` tells of a task that began in a source file below `wanted`.
async fn until_shown(address: &str, wanted: &str) {
    let mut client = InstrumentClient::connect(format!("http://{address}"))
        .await
        .unwrap();
    let updates = client.watch_updates(InstrumentRequest {}).await.unwrap();
    let (mut updates, mut files) = (updates.into_inner(), BTreeSet::<String>::new());
    let told = tokio::time::timeout(Duration::from_secs(10), async {
        while !files.iter().any(|file| file.contains(wanted)) {
            let update = updates.message().await.unwrap().unwrap();
            let tasks = update.task_update.unwrap_or_default().new_tasks;
            let locations = tasks.into_iter().filter_map(|task| task.location);
            files.extend(locations.filter_map(|location| location.file));
        }
    });
    let told = told.await;
    assert!(told.is_ok(), "no task of {wanted} among {files:?}");
}

#[tokio::test]
async fn each_roles_tasks_are_shown_by_where_they_began() {
    let fleet = Fleet::quick(&["--tokio-console", "127.0.0.1:0"]).await;
    for (log, own) in [
        (fleet.gateway_process.log(), "services/gateway/"),
        (fleet.ar_batcher.log(), "services/ar-batcher/"),
        // Its own work is the process's first future, which is no task.
        (fleet.denoisers[0].log(), "shared/messaging/src/work_queue"),
    ] {
        until_shown(&address(&log), own).await;
    }

    let taken = address(&fleet.gateway_process.log());
    let refused = Command::new(binary("fresco-gateway"))
        .args(fleet.broker.flags(Role::Gateway))
        .args(["--tokio-console", &taken])
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("--tokio-console: cannot listen"), "{said}");
}
