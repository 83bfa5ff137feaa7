//! Everything is killed and frozen under load, a minute long; `make chaos` is the long form.

use std::time::Duration;

use integration::chaos::{Config, Logs, Servers, run};

#[tokio::test]
async fn every_job_ends_once_whatever_is_killed_and_frozen() {
    let report = run(&Config {
        seed: 20_261_130,
        requests: 300,
        faults: 24,
        broker_kills: 1,
        clients: 12,
        lasts: Duration::from_secs(30),
        servers: Servers::One,
        logs: Logs::OfViolations,
    })
    .await;
    println!("{report}");
    assert!(report.violations.is_empty(), "{report}");
}
