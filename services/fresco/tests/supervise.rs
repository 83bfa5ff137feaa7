//! Supervision of real processes: shell scripts under the real `fresco leash`.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use fresco::up::{
    run::{ChildSpec, Launch, Report, supervise},
    supervisor::{ChildId, Ending, Event, Exit, Layer, Limits},
};
use nix::{errno::Errno, sys::signal::kill, unistd::Pid};
use tempfile::TempDir;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

/// Runs in the background of a script, so that the shell hears its signals.
const FOREVER: &str = "while :; do sleep 0.05; done";

struct Fleet {
    folder: TempDir,
    children: Vec<ChildSpec>,
}

impl Fleet {
    fn new(children: &[(&str, Layer, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let spec = |(name, layer, script): &(&str, Layer, &str)| ChildSpec {
            name: (*name).to_owned(),
            layer: *layer,
            program: "/bin/sh".into(),
            arguments: vec![
                "-c".into(),
                script
                    .replace("$DIR", &folder.path().to_string_lossy())
                    .into(),
            ],
            environment: Vec::new(),
        };
        let children = children.iter().map(spec).collect();
        Self { folder, children }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn launch(&self) -> Launch {
        let hold = fs::File::create(self.file("lock")).expect("a writable folder");
        Launch {
            fresco: env!("CARGO_BIN_EXE_fresco").into(),
            logs: self.folder.path().to_owned(),
            hold,
            limits: Limits::default(),
        }
    }
}

fn gone(process: u32) -> bool {
    let process = Pid::from_raw(i32::try_from(process).expect("a process number"));
    kill(process, None) == Err(Errno::ESRCH)
}

async fn until_there(file: &Path) {
    while !file.exists() {
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_child_that_cannot_work_ends_the_start() {
    let unusable = "echo started; echo 'x: error: no such model' >&2; echo bye; exit 2";
    let fleet = Fleet::new(&[
        ("a", Layer::Service, FOREVER),
        ("b", Layer::Service, unusable),
    ]);
    let (events, received) = mpsc::channel(8);
    events.try_send(Event::BrokerReady).expect("there is room");
    let mut processes = Vec::new();
    let mut gave_up = None;
    let report = |_, report: Report| match report {
        Report::Started(process) => processes.push(process),
        report @ (Report::GaveUp(..) | Report::Died(..)) => gave_up = Some(report),
        Report::Ended(..) | Report::Hangs | Report::HangsLoading | Report::Left => {}
    };
    let ending = supervise(fleet.launch(), &fleet.children, received, report).await;
    assert_eq!(ending, Ending::GaveUp(ChildId(1), Exit::Code(2)));
    assert_eq!(
        gave_up,
        Some(Report::GaveUp(
            Exit::Code(2),
            Some("x: error: no such model".to_owned())
        ))
    );
    assert_eq!(processes.len(), 2);
    assert!(processes.into_iter().all(gone));
}

#[tokio::test]
async fn a_program_that_is_not_there_ends_the_start() {
    let mut fleet = Fleet::new(&[("a", Layer::Broker, "")]);
    fleet.children[0].program = "/nowhere/at-all".into();
    let (_events, received) = mpsc::channel(8);
    let mut words = None;
    let report = |_, report: Report| {
        if let Report::GaveUp(_, said) = report {
            words = said;
        }
    };
    let ending = supervise(fleet.launch(), &fleet.children, received, report).await;
    assert_eq!(ending, Ending::GaveUp(ChildId(0), Exit::Code(2)));
    assert!(words.is_some_and(|words| words.contains("/nowhere/at-all")));
}

#[tokio::test]
async fn a_child_that_hangs_while_it_loads_is_ended_and_started_again() {
    let fleet = Fleet::new(&[("a", Layer::Service, FOREVER)]);
    let launch = Launch {
        limits: Limits {
            loading_hang: Some(Duration::from_millis(200)),
            ..Limits::default()
        },
        ..fleet.launch()
    };
    let (events, received) = mpsc::channel(8);
    events.try_send(Event::BrokerReady).expect("there is room");
    events.try_send(Event::FleetReady).expect("there is room");
    let mut reports = Vec::new();
    let report = |_, report: Report| {
        reports.push(report);
        if reports.len() == 4 {
            let stop = Event::Stop(Ending::Asked);
            events.try_send(stop).expect("there is room");
        }
    };
    supervise(launch, &fleet.children, received, report).await;
    let kinds = reports.iter().take(4).map(|report| match report {
        Report::Started(_) => "started",
        Report::HangsLoading => "hangs",
        Report::Died(Exit::Signal(9), _, _) => "killed",
        _ => "else",
    });
    let kinds: Vec<_> = kinds.collect();
    assert_eq!(
        kinds,
        ["started", "hangs", "killed", "started"],
        "{reports:?}"
    );
}

#[tokio::test]
async fn a_child_that_dies_is_started_again_after_growing_pauses() {
    let fleet = Fleet::new(&[("a", Layer::Service, "kill -9 $$")]);
    let (events, received) = mpsc::channel(8);
    events.try_send(Event::BrokerReady).expect("there is room");
    events.try_send(Event::FleetReady).expect("there is room");
    let mut pauses = Vec::new();
    let mut starts = 0;
    let started_at = Instant::now();
    let report = |_, report: Report| match report {
        Report::Started(_) => {
            starts += 1;
            if starts == 3 {
                events
                    .try_send(Event::Stop(Ending::Asked))
                    .expect("there is room");
            }
        }
        Report::Died(exit, pause, _) => {
            assert_eq!(exit, Exit::Signal(9));
            pauses.push(pause.as_millis());
        }
        Report::Ended(..) => {}
        other @ (Report::GaveUp(..) | Report::Hangs | Report::HangsLoading | Report::Left) => {
            panic!("{other:?}")
        }
    };
    let ending = supervise(fleet.launch(), &fleet.children, received, report).await;
    assert_eq!(ending, Ending::Asked);
    assert!(pauses.starts_with(&[200, 400]), "{pauses:?}");
    assert!(started_at.elapsed() >= Duration::from_millis(600));
}

#[tokio::test]
async fn the_broker_stops_after_the_services() {
    let script = |name: &str| {
        format!("trap 'echo {name} >> $DIR/stopped; exit 0' TERM; touch $DIR/{name}; {FOREVER}")
    };
    let (broker, service) = (script("broker"), script("service"));
    let fleet = Fleet::new(&[
        ("broker", Layer::Broker, &broker),
        ("service", Layer::Service, &service),
    ]);
    let (events, received) = mpsc::channel(8);
    let drive = async {
        until_there(&fleet.file("broker")).await;
        events.send(Event::BrokerReady).await.expect("it runs");
        until_there(&fleet.file("service")).await;
        events
            .send(Event::Stop(Ending::Asked))
            .await
            .expect("it runs");
    };
    let (ending, ()) = tokio::join!(
        supervise(fleet.launch(), &fleet.children, received, |_, _| {}),
        drive
    );
    assert_eq!(ending, Ending::Asked);
    assert_eq!(
        fs::read_to_string(fleet.file("stopped")).expect("both wrote it"),
        "service\nbroker\n"
    );
}

#[tokio::test]
async fn what_a_child_leaves_behind_ends_before_it_is_started_again() {
    // The helper would hold a device or a port that the next life needs.
    let leaves = format!(
        "trap '' TERM; ({FOREVER}) & echo $! >> $DIR/helpers; \
         [ $(wc -l < $DIR/helpers) = 1 ] && kill -9 $$; exit 0"
    );
    let fleet = Fleet::new(&[("a", Layer::Service, &leaves)]);
    let (events, received) = mpsc::channel(8);
    events.try_send(Event::BrokerReady).expect("there is room");
    let report = |_, report: Report| {
        if let Report::Died(Exit::Code(0), ..) = report {
            let stop = Event::Stop(Ending::Asked);
            events.try_send(stop).expect("there is room");
        }
    };
    supervise(fleet.launch(), &fleet.children, received, report).await;
    let helpers = fs::read_to_string(fleet.file("helpers")).expect("both wrote it");
    let helpers: Vec<u32> = helpers
        .lines()
        .map(|line| line.parse().expect("a process number"))
        .collect();
    assert_eq!(helpers.len(), 2);
    let deadline = Instant::now() + Duration::from_secs(5);
    for helper in helpers {
        // A dead one without a parent may stay listed; then it has no command line.
        while fs::read(format!("/proc/{helper}/cmdline")).is_ok_and(|line| !line.is_empty()) {
            assert!(Instant::now() < deadline, "{helper} is left");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn children_that_do_not_listen_are_gone_within_5_s() {
    let script = |name: &str| format!("trap '' TERM INT; touch $DIR/{name}; {FOREVER}");
    let (broker, service) = (script("broker"), script("service"));
    let fleet = Fleet::new(&[
        ("broker", Layer::Broker, &broker),
        ("service", Layer::Service, &service),
    ]);
    let (events, received) = mpsc::channel(8);
    let drive = async {
        until_there(&fleet.file("broker")).await;
        events.send(Event::BrokerReady).await.expect("it runs");
        until_there(&fleet.file("service")).await;
        events
            .send(Event::Stop(Ending::Asked))
            .await
            .expect("it runs");
        Instant::now()
    };
    let mut processes = Vec::new();
    let report = |_, report: Report| {
        if let Report::Started(process) = report {
            processes.push(process);
        }
    };
    let (ending, asked_at) = tokio::join!(
        supervise(fleet.launch(), &fleet.children, received, report),
        drive
    );
    assert_eq!(ending, Ending::Asked);
    assert!(
        asked_at.elapsed() < Duration::from_secs(5),
        "{:?}",
        asked_at.elapsed()
    );
    assert!(processes.into_iter().all(gone));
}
