//! Three brokers: a copy that is behind tells no lies.

use integration::cluster::{self, Cluster};
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
        replicas: 3,
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
