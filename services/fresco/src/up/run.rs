//! Carries out what the supervisor decides: the thin loop around [`Supervisor::apply`], and the processes.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs::{self, File},
    io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use service::PLACE_VARIABLES;
use tokio::{
    process::{Child, Command},
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::task::TaskTracker;

use super::{
    log,
    supervisor::{Action, ChildId, Ending, Event, Exit, Layer, Limits, Supervisor},
};

/// Terminate, kill, and room for an impatient user; a signal beyond it would say nothing new.
const SIGNALS_QUEUED_MAX: usize = 4;

/// A program to keep running.
#[derive(Debug, Clone)]
pub struct ChildSpec {
    /// What people and log files call it.
    pub name: String,
    /// When it starts and stops.
    pub layer: Layer,
    /// Its file.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables that it gets beside ours.
    pub environment: Vec<(String, String)>,
}

/// What every child has in common.
#[derive(Debug)]
pub struct Launch {
    /// The `fresco` program, for `fresco leash`.
    pub fresco: PathBuf,
    /// Folder of the logs.
    pub logs: PathBuf,
    /// The lock that every child holds as its stdin.
    pub hold: File,
    /// How they start and stop.
    pub limits: Limits,
}

/// What the user should hear of.
#[derive(Debug, PartialEq, Eq)]
pub enum Report {
    /// It runs as this process.
    Started(u32),
    /// It died, and starts again after the pause.
    Died(Exit, Duration, Option<String>),
    /// It died, and is not started again.
    Ended(Exit, Option<String>),
    /// It does not answer, or never with yes, and is ended for it.
    Hangs,
    /// It never came to work, and is ended for it.
    HangsLoading,
    /// It cannot be made to work.
    GaveUp(Exit, Option<String>),
    /// It was killed in vain.
    Left,
}

/// Runs `children` until they are to stop and have stopped; says why.
///
/// Call it on the main thread of a current-thread runtime: a child ends when the thread that started it does.
pub async fn supervise(
    launch: Launch,
    children: &[ChildSpec],
    mut events: mpsc::Receiver<Event>,
    mut report: impl FnMut(ChildId, Report),
) -> Ending {
    let mut supervisor = Supervisor::new(children.iter().map(|child| child.layer), launch.limits);
    // One exit per child can be on its way.
    let (exits, mut exited) = mpsc::channel(children.len().max(1));
    let mut processes = Processes::new(launch, children, exits);
    let mut pending = VecDeque::from([Event::Begin]);
    loop {
        let event = match pending.pop_front() {
            Some(event) => event,
            None => tokio::select! {
                Some((id, exit)) = exited.recv() => Event::Exited(id, exit),
                Some(event) = events.recv() => event,
                () = timer(supervisor.next_timer()) => Event::Timer,
            },
        };
        for action in supervisor.apply(event, Instant::now()) {
            match action {
                Action::Start(id) => match processes.start(id) {
                    Ok(process) => report(id, Report::Started(process)),
                    Err(error) => {
                        tracing::error!(child = children[id.0].name, %error, "child cannot be started");
                        pending.push_back(Event::Exited(id, Exit::NotStarted));
                    }
                },
                Action::Terminate(id) => processes.signal(id, Signal::SIGTERM),
                Action::Kill(id) => processes.signal(id, Signal::SIGKILL),
                Action::ReportDeath(id, exit, pause) => {
                    report(id, Report::Died(exit, pause, processes.last_words(id)))
                }
                Action::ReportEnd(id, exit) => {
                    report(id, Report::Ended(exit, processes.last_words(id)))
                }
                Action::ReportHang(id) => report(id, Report::Hangs),
                Action::ReportLoadingHang(id) => report(id, Report::HangsLoading),
                Action::ReportGivingUp(id, exit) => {
                    report(id, Report::GaveUp(exit, processes.last_words(id)))
                }
                Action::ReportLeft(id) => report(id, Report::Left),
                Action::Finish(ending) => return ending,
            }
        }
    }
}

async fn timer(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The processes of the children.
struct Processes<'a> {
    launch: Launch,
    children: &'a [ChildSpec],
    handles: Vec<Option<Handle>>,
    exits: mpsc::Sender<(ChildId, Exit)>,
    tracker: TaskTracker,
}

/// One life of a child.
struct Handle {
    signals: mpsc::Sender<Signal>,
    /// Where its log began.
    log_from: u64,
}

impl<'a> Processes<'a> {
    fn new(
        launch: Launch,
        children: &'a [ChildSpec],
        exits: mpsc::Sender<(ChildId, Exit)>,
    ) -> Self {
        let handles = children.iter().map(|_| None).collect();
        Self {
            launch,
            children,
            handles,
            exits,
            tracker: TaskTracker::new(),
        }
    }

    /// Starts a life of the child; says as which process.
    fn start(&mut self, id: ChildId) -> io::Result<u32> {
        let spec = &self.children[id.0];
        let path = log::path(&self.launch.logs, &spec.name);
        let output = log::open(&path)?;
        let log_from = fs::metadata(&path)?.len();
        let mut command = Command::new(&self.launch.fresco);
        command
            .arg("leash")
            .arg("--parent")
            .arg(std::process::id().to_string())
            .arg("--");
        command.arg(&spec.program).args(&spec.arguments);
        for variable in PLACE_VARIABLES {
            command.env_remove(variable);
        }
        command.envs(spec.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::from(self.launch.hold.try_clone()?));
        command
            .stdout(Stdio::from(output.try_clone()?))
            .stderr(Stdio::from(output));
        // A terminal's Ctrl-C goes to its foreground group: only to us, who know the order.
        command.process_group(0);
        let child = command.spawn()?;
        let process = child
            .id()
            .ok_or_else(|| io::Error::other("it ended at once"))?;
        let (signals, wanted) = mpsc::channel(SIGNALS_QUEUED_MAX);
        let exits = self.exits.clone();
        self.tracker.spawn(async move {
            let exit = attend(child, wanted).await;
            // Nobody listens any more when the supervisor has been dropped.
            exits.send((id, exit)).await.ok();
        });
        self.handles[id.0] = Some(Handle { signals, log_from });
        Ok(process)
    }

    fn signal(&self, id: ChildId, signal: Signal) {
        if let Some(handle) = &self.handles[id.0]
            && let Err(error) = handle.signals.try_send(signal)
        {
            tracing::debug!(child = self.children[id.0].name, %signal, %error, "signal is not needed any more");
        }
    }

    fn last_words(&self, id: ChildId) -> Option<String> {
        let from = self.handles[id.0].as_ref()?.log_from;
        log::last_words(
            &log::path(&self.launch.logs, &self.children[id.0].name),
            from,
        )
    }
}

/// Waits for the end of `child` and passes signals on. It alone reaps and signals it, so that no signal can hit
/// another process that got the same number.
async fn attend(mut child: Child, mut signals: mpsc::Receiver<Signal>) -> Exit {
    let group = child.id().and_then(|id| i32::try_from(id).ok());
    let signal_group = |signal: Signal| {
        if let Some(Err(error)) = group.map(|id| killpg(Pid::from_raw(id), signal)) {
            tracing::debug!(%signal, %error, "child is gone already");
        }
    };
    loop {
        tokio::select! {
            status = child.wait() => {
                // What it has started itself, and leaves behind: an SRT server's processes hold the devices that its successor
                // needs. The number is theirs while there are any; if there are none, nobody has it again yet: the
                // kernel gives all others out before.
                signal_group(Signal::SIGKILL);
                return status.map_or(Exit::NotStarted, exit);
            }
            Some(signal) = signals.recv() => signal_group(signal),
        }
    }
}

fn exit(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::NotStarted,
    }
}
