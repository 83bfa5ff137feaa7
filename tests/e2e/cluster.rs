//! Three brokers, of which any may die or be rolled: nothing is lost, and a copy that is behind tells no lies.

use std::time::Duration;

use integration::{
    chaos::{Config, Logs, Servers, run},
    cluster::{self, Cluster},
};
use messaging::{Bus, BusConfig};
use protocol::{
    ErrorCode, JobError, JobId, OutputIndex, OutputResult, OutputTimings, Prefix, Role,
    topology::{Topology, TopologyOptions},
};

fn error_of(job: u128) -> OutputResult {
    OutputResult {
        output: JobId::from_u128(job).output(OutputIndex::new(0).unwrap()),
        outcome: Err(JobError::new(ErrorCode::Cancelled, "no picture")),
        seed: None,
        usage: None,
        prior_id: None,
        timings: OutputTimings::default(),
        worker: None,
    }
}

#[tokio::test]
async fn what_is_stored_is_found_at_once_whichever_copy_is_asked() {
    let prefix: Prefix = "copies".parse().unwrap();
    let cluster = Cluster::start(3);
    let config = BusConfig::new(cluster.urls(), prefix.clone(), Role::Operator);
    let bus = Bus::connect(&config).await.unwrap();
    let options = TopologyOptions {
        replicas: Some(3),
        ..TopologyOptions::default()
    };
    cluster::provision(&bus, &Topology::with(&prefix, options)).await;
    cluster.healthy(&cluster::streams(&prefix)).await;

    let mut missed = 0;
    for job in 0..1_000 {
        let result = error_of(job);
        bus.put_result(&result).await.unwrap();
        let found = bus.result(result.output).await.unwrap();
        missed += u32::from(found.is_none());
    }
    assert_eq!(missed, 0);
}

#[tokio::test]
async fn every_job_ends_once_while_leaders_are_killed_and_nodes_are_rolled() {
    let report = run(&Config {
        seed: 20_261_130,
        requests: 150,
        faults: 0,
        broker_kills: 2,
        clients: 8,
        lasts: Duration::from_secs(20),
        servers: Servers::Cluster,
        logs: Logs::OfViolations,
    })
    .await;
    println!("{report}");
    assert!(report.violations.is_empty(), "{report}");
}
