//! `fresco up`: a whole deployment on one machine, from a broker to denoisers, started and stopped in order.
//!
//! `supervisor` decides, `run` carries out, `outside`, `broker`, `checkup` and `servers` watch broker, services and SRT servers and tell
//! the supervisor; the rest is preparation. This file puts them together and talks to the user.

mod broker;
mod checkup;
mod file;
mod fleet;
mod folder;
mod loaded;
mod log;
mod named;
mod nats_server;
mod outside;
mod prepared;
mod pulse;
mod ready;
mod roster;
pub mod run;
mod servers;
mod site;
pub mod supervisor;
pub(crate) mod systemd;
mod ticks;

use std::{fs, io, path::Path, time::Duration};

use messaging::Bus;
use service::{Hangup, Shutdown, exit::Failure};
use tokio::sync::{mpsc, watch};

use self::{
    broker::Broker,
    checkup::Checkup,
    outside::Outside,
    prepared::Prepared,
    roster::Member,
    run::{ChildSpec, Report, supervise},
    servers::Servers,
    site::Site,
    supervisor::{ChildId, Ending, Event, Exit, Layer},
};
use crate::{
    args::UpArgs,
    terminal,
    watch::{give_back_for_process, watcher},
};

/// Two signals, and one of each event that comes from outside.
const EVENTS_QUEUED_MAX: usize = 8;

/// Our own tasks only wait; when told, they return.
const TASKS_STOP_MAX: Duration = Duration::from_millis(200);

/// Runs until it is told to stop; then everything it started has ended.
pub async fn run(args: UpArgs) -> Result<(), Failure> {
    let shutdown = Shutdown::default();
    let (events, received) = mpsc::channel(EVENTS_QUEUED_MAX);
    // First of all: a signal during the preparations must not kill us between two children.
    shutdown
        .tracker
        .spawn(pass_signals_on(events.clone()).map_err(|error| Failure::failed(&error))?);

    let (args, site) = match &args.fleet {
        Some(path) => file::read(path, &args)?,
        None => {
            let site = Site::plain(args.denoisers);
            (args, site)
        }
    };
    named::check(&args, &site)?;
    let prepared = Prepared::new(&args, &site).await?;
    let (roster, members) = watch::channel(roster::of(&prepared.children));
    let (deaths, died) = mpsc::channel(prepared.children.len());
    let (failed, failure) = mpsc::channel(1);
    let bus = prepared.connect(&args, &site).await?;
    look_after(&shutdown, &prepared, &bus, &members, &events, died);
    let (servers, servers_up) = Servers::new(site.servers, &members, &events);
    shutdown
        .tracker
        .spawn(until_stopped(&shutdown, servers.watch()));
    let outside = Outside {
        args: args.clone(),
        replicas: site.replicas,
        bus,
        nats_urls: prepared.nats_urls.clone(),
        start: site.limits.start,
        gateway: prepared.gateway.map(|gateway| gateway.listen),
        roster: members,
        servers: servers_up,
        events,
        failed,
    };
    shutdown
        .tracker
        .spawn(until_stopped(&shutdown, outside.watch()));

    terminal::note(format_args!(
        "starting {}; logs in {}",
        prepared.names(),
        prepared.folder.logs().display()
    ));
    let report = |id: ChildId, report: Report| {
        let mut ended = None;
        roster.send_modify(|members| ended = roster::note(members, id, &report));
        if let Some(process) = ended
            && deaths.try_send(process).is_err()
        {
            tracing::warn!(process, "what it held waits for its ack deadline");
        }
        tell(&prepared.children[id.0].name, &report);
    };
    let ending = supervise(prepared.launch()?, &prepared.children, received, report).await;
    if let Some(file) = &args.url_file {
        remove_if_there(file)?;
    }
    shutdown.finish(TASKS_STOP_MAX).await;
    conclude(ending, &prepared.children, failure)
}

/// Starts what goes on beside the supervisor: logs are kept small, hung services found, the dead's jobs given back.
fn look_after(
    shutdown: &Shutdown,
    prepared: &Prepared,
    bus: &Bus,
    members: &watch::Receiver<Vec<Member>>,
    events: &mpsc::Sender<Event>,
    died: mpsc::Receiver<u32>,
) {
    let spawn = |work: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
        shutdown.tracker.spawn(until_stopped(shutdown, work));
    };
    spawn(Box::pin(log::keep_small(
        prepared.log_paths(),
        shutdown.tracker.clone(),
    )));
    spawn(Box::pin(give_back_for_the_dead(bus.clone(), died)));
    let host = service::host::name();
    spawn(Box::pin(loaded::watch(
        bus.clone(),
        host,
        members.clone(),
        events.clone(),
    )));
    if let Some(system) = prepared.system.clone() {
        let bus = bus.clone();
        spawn(Box::pin(async move {
            let tell = |line: &str| terminal::note(line);
            watcher::keep_watching(&bus, &system.urls, &system.access, tell).await;
        }));
    }
    if let Some(monitor) = prepared.monitor {
        spawn(Box::pin(Broker::new(monitor, members, events).watch()));
    }
    let checkup = Checkup {
        bus: bus.clone(),
        host: service::host::name(),
        gateway: prepared.gateway.map(|gateway| gateway.health),
        roster: members.clone(),
        events: events.clone(),
    };
    let services = members.borrow();
    for member in services
        .iter()
        .filter(|member| !matches!(member.layer, Layer::Broker | Layer::Server))
    {
        spawn(Box::pin(checkup.clone().watch(member.id)));
    }
}

/// At once, without waiting for the broker to notice.
async fn give_back_for_the_dead(bus: Bus, mut died: mpsc::Receiver<u32>) {
    let host = service::host::name();
    while let Some(process) = died.recv().await {
        if let Err(error) = give_back_for_process(&bus, &host, process).await {
            tracing::warn!(process, %error, "what it held waits for its ack deadline");
        }
    }
}

/// Passes every SIGTERM, SIGINT and SIGHUP on as a wish to stop; a second one makes the supervisor hurry.
fn pass_signals_on(events: mpsc::Sender<Event>) -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    // The terminal is gone.
    let mut hangup = Hangup::listen()?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = hangup.recv() => {}
                () = events.closed() => return,
            }
            terminal::note("stopping");
            if events.send(Event::Stop(Ending::Asked)).await.is_err() {
                return;
            }
        }
    })
}

/// `work`, ended by the shutdown.
fn until_stopped<W: Future<Output = ()>>(
    shutdown: &Shutdown,
    work: W,
) -> impl Future<Output = ()> + use<W> {
    let token = shutdown.token.clone();
    async move {
        token.run_until_cancelled(work).await;
    }
}

fn tell(name: &str, report: &Report) {
    match report {
        Report::Started(process) => tracing::info!(child = name, process, "started"),
        Report::Died(exit, pause, words) => {
            let pause = pause.as_secs_f64();
            // At the earliest: so many may load at once.
            terminal::note(format_args!(
                "{name} {}, starts again after {pause} s{}",
                ended(*exit),
                quoted(words.as_deref())
            ));
        }
        Report::Ended(exit, words) => {
            let words = quoted(words.as_deref());
            terminal::note(format_args!("{name} {}{words}", ended(*exit)));
        }
        Report::Hangs => terminal::note(format_args!("{name} hangs: it is ended")),
        Report::HangsLoading => terminal::note(format_args!(
            "{name} has loaded for twice the time that it may take: it is ended"
        )),
        Report::Left => terminal::note(format_args!(
            "{name} is still there although it was killed: it ends when the kernel lets go of it"
        )),
        Report::GaveUp(exit, words) => {
            terminal::note(format_args!(
                "{name} {}, cannot work{}",
                ended(*exit),
                quoted(words.as_deref())
            ));
        }
    }
}

fn ended(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("ended with code {code}"),
        Exit::Signal(signal) => format!("was killed by signal {signal}"),
        Exit::NotStarted => "did not start".to_owned(),
    }
}

fn quoted(words: Option<&str>) -> String {
    words.map_or_else(String::new, |words| format!(": {words}"))
}

fn conclude(
    ending: Ending,
    children: &[ChildSpec],
    mut failure: mpsc::Receiver<Failure>,
) -> Result<(), Failure> {
    match ending {
        Ending::Asked => Ok(()),
        Ending::Unusable => Err(failure
            .try_recv()
            .unwrap_or_else(|_| Failure::Failed("cannot start".to_owned()))),
        Ending::GaveUp(id, exit) => {
            let text = format!("{} {}", children[id.0].name, ended(exit));
            let unusable = exit == Exit::Code(i32::from(service::exit::UNUSABLE));
            Err(if unusable {
                Failure::Unusable(text)
            } else {
                Failure::Failed(text)
            })
        }
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot write {}: {error}", path.display()))
}

fn remove_if_there(file: &Path) -> Result<(), Failure> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot_write(file, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}
