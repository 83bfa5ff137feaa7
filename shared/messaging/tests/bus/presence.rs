use messaging::{Bus, Presence};
use protocol::{
    CurrentWork, Role, WorkerId, WorkerPresence, WorkerState,
    limits::{PRESENCE_PERIOD, PRESENCE_TTL},
    topology::Topology,
};
use tokio::{runtime::Runtime, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::site::{Site, connect, output, prefix, until, within};

fn worker(worker: &WorkerId) -> WorkerPresence {
    WorkerPresence {
        worker: worker.clone(),
        role: Role::Denoiser,
        state: WorkerState::Loading,
        reason: None,
        host: "here".to_owned(),
        process: 1,
        device: Some("cpu".to_owned()),
        model_revision: None,
        health_address: None,
        held: Vec::new(),
        outputs_open: 0,
    }
}

async fn names(bus: &Bus) -> Vec<WorkerId> {
    let workers = bus.workers().await.expect("the broker answers");
    workers.into_iter().map(|worker| worker.worker).collect()
}

/// A worker whose process can be killed: it has its threads for itself.
struct Doomed {
    runtime: Runtime,
    /// Lives as long as it does.
    kept: (Bus, Presence),
}

impl Doomed {
    fn start(site: &Site, name: &WorkerId) -> Self {
        let runtime = Runtime::new().expect("a process may have threads");
        let kept = runtime.block_on(async {
            let bus = connect(&site.broker, Role::Denoiser).await;
            let (tracker, shutdown) = (TaskTracker::new(), CancellationToken::new());
            let presence = Presence::start(&bus, worker(name), &tracker, shutdown);
            (bus, presence)
        });
        Self { runtime, kept }
    }

    fn die(self) {
        self.runtime.shutdown_background();
        drop(self.kept);
    }
}

#[tokio::test]
async fn a_worker_appears_changes_and_leaves() {
    let site = Site::start().await;
    let id = WorkerId::generate(Role::Denoiser);
    let shutdown = CancellationToken::new();
    let presence = Presence::start(&site.bus, worker(&id), &site.tracker, shutdown.clone());
    until("it appears", || async {
        site.bus.workers().await.unwrap() == [worker(&id)]
    })
    .await;
    let current = CurrentWork {
        output: output(1),
        ack_subject: "$JS.ACK".to_owned(),
        since: 1,
    };
    presence.update(|now| {
        now.state = WorkerState::Busy;
        now.held = vec![current.clone()];
    });
    let busy = WorkerPresence {
        state: WorkerState::Busy,
        held: vec![current],
        ..worker(&id)
    };
    until("it is busy", || async {
        site.bus.workers().await.unwrap() == [busy.clone()]
    })
    .await;
    shutdown.cancel();
    site.tracker.close();
    within("it has said goodbye", site.tracker.wait()).await;
    assert_eq!(site.bus.workers().await.unwrap(), []);
}

#[test]
fn a_worker_that_dies_is_gone_after_its_time_to_live() {
    let runtime = Runtime::new().unwrap();
    let site = runtime.block_on(Site::start());
    let id = WorkerId::generate(Role::Denoiser);
    let alive = || async { site.bus.workers().await.unwrap() == [worker(&id)] };
    let doomed = Doomed::start(&site, &id);
    runtime.block_on(async {
        until("it appears", alive).await;
        // It has been refreshed at least twice when it is older than its time to live.
        tokio::time::sleep(PRESENCE_TTL + PRESENCE_PERIOD / 2).await;
        assert!(alive().await, "it is refreshed");
    });
    doomed.die();
    let since = Instant::now();
    runtime.block_on(until("it is gone", || async {
        site.bus.workers().await.unwrap().is_empty()
    }));
    println!("dead worker gone after {:?}", since.elapsed());
    assert!(since.elapsed() <= PRESENCE_TTL + PRESENCE_PERIOD / 2);
}

/// A server that is killed makes its index anew from its files, where what it had removed still is: whoever had left or run out
/// was on the list again, and its time to live did not run any more.
#[test]
fn who_is_gone_does_not_come_back_with_a_killed_broker() {
    let runtime = Runtime::new().unwrap();
    let mut site = runtime.block_on(Site::with(Topology::new(&prefix())));
    let [leaves, dies, stays] = [(); 3].map(|()| WorkerId::generate(Role::Denoiser));
    let doomed = Doomed::start(&site, &dies);
    runtime.block_on(async {
        let goodbye = CancellationToken::new();
        let first = worker(&leaves);
        let _presence = Presence::start(&site.bus, first, &site.tracker, goodbye.clone());
        until("both appear", || async {
            names(&site.bus).await.len() == 2
        })
        .await;
        goodbye.cancel();
        until("one leaves", || async {
            names(&site.bus).await == [dies.clone()]
        })
        .await;
    });
    doomed.die();
    // What a server has written of itself when it ends in order is where it starts from after it was killed.
    site.broker.stop();
    site.broker.start_again();
    runtime.block_on(async {
        until("nothing is stored of either", || async {
            site.stored("KV_t-workers").await == 0
        })
        .await;
        let first = worker(&stays);
        let lives = CancellationToken::new();
        let _presence = Presence::start(&site.bus, first, &site.tracker, lives);
        until("one appears", || async {
            names(&site.bus).await == [stays.clone()]
        })
        .await;
        site.broker.kill();
        site.broker.start_again();
        let bus = connect(&site.broker, Role::Operator).await;
        let listed = names(&bus).await;
        let dead: Vec<_> = listed.iter().filter(|name| **name != stays).collect();
        assert!(dead.is_empty(), "{dead:?} of {listed:?}");
        until("it is on the list", || async {
            names(&bus).await == [stays.clone()]
        })
        .await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_broker_learns_of_its_workers_again() {
    // A single server forgets a memory stream altogether when it restarts: the bucket is on disk.
    let mut site = Site::with(Topology::new(&prefix())).await;
    let id = WorkerId::generate(Role::Denoiser);
    let _presence = Presence::start(
        &site.bus,
        worker(&id),
        &site.tracker,
        CancellationToken::new(),
    );
    until("it appears", || async {
        site.bus.workers().await.unwrap() == [worker(&id)]
    })
    .await;
    site.broker.kill();
    site.broker.start_again();
    let since = Instant::now();
    until("it is back", || async {
        site.bus
            .workers()
            .await
            .is_ok_and(|workers| workers == [worker(&id)])
    })
    .await;
    println!(
        "worker known {:?} after the broker came back",
        since.elapsed()
    );
}

#[tokio::test]
async fn a_hundred_workers_are_listed_in_one_request() {
    let site = Site::start().await;
    let mut presences = Vec::new();
    for _ in 0..100 {
        let worker = worker(&WorkerId::generate(Role::Denoiser));
        presences.push(Presence::start(
            &site.bus,
            worker,
            &site.tracker,
            CancellationToken::new(),
        ));
    }
    until("all appear", || async {
        site.bus.workers().await.unwrap().len() == 100
    })
    .await;
    let since = Instant::now();
    site.bus.workers().await.unwrap();
    println!("100 workers listed in {:?}", since.elapsed());
}

#[tokio::test]
async fn of_all_who_find_a_worker_dead_one_gets_its_last_words() {
    let site = Site::start().await;
    let id = WorkerId::generate(Role::Denoiser);
    let doomed = CancellationToken::new();
    let _presence = Presence::start(&site.bus, worker(&id), &TaskTracker::new(), doomed);
    until("it appears", || async {
        site.bus.workers().await.unwrap() == [worker(&id)]
    })
    .await;
    let bury = || site.bus.bury_worker(&id);
    let (a, b, c) = futures::join!(bury(), bury(), bury());
    let found: Vec<_> = [a, b, c].into_iter().filter_map(Result::unwrap).collect();
    assert_eq!(found, [worker(&id)]);
    assert_eq!(site.bus.bury_worker(&id).await.unwrap(), None, "only once");
    let unknown = WorkerId::generate(Role::Denoiser);
    assert_eq!(site.bus.bury_worker(&unknown).await.unwrap(), None);
}

#[tokio::test]
async fn a_worker_of_tiny_jobs_tells_of_few_of_them_and_of_the_last() {
    let site = Site::start().await;
    let id = WorkerId::generate(Role::Denoiser);
    let presence = Presence::start(
        &site.bus,
        worker(&id),
        &site.tracker,
        CancellationToken::new(),
    );
    let started = Instant::now();
    for process in 0..300 {
        presence.update(|now| now.process = process);
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    until("the last is told", || async {
        let workers = site.bus.workers().await.unwrap();
        workers.iter().any(|worker| worker.process == 299)
    })
    .await;
    let bucket = site.raw().await.get_stream("KV_t-workers").await.unwrap();
    let told = bucket.get_info().await.unwrap().state.last_sequence;
    // One a tenth of a second, the first and the last.
    let tenths = u64::try_from(started.elapsed().as_millis() / 100).unwrap();
    assert!(
        (2..=tenths + 2).contains(&told),
        "{told} in {tenths} tenths"
    );
}
