//! `fresco up`: a whole deployment on one machine, from a broker to denoisers, started and stopped in order.
//!
//! `supervisor` decides, `run` carries out, `outside` watches the broker and the gateway and tells the supervisor; the rest is
//! preparation. This file puts them together and talks to the user.

mod fleet;
mod folder;
mod log;
mod nats_server;
mod outside;
mod ready;
pub mod run;
pub mod supervisor;

use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use service::{Shutdown, exit::Failure};
use tokio::sync::{mpsc, watch};

use self::{
    fleet::Surroundings,
    folder::DataFolder,
    nats_server::Places,
    outside::Outside,
    run::{ChildSpec, Launch, Report, supervise},
    supervisor::{ChildId, Ending, Event, Exit, Layer},
};
use crate::{args::UpArgs, terminal};

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

    let prepared = Prepared::new(&args).await?;
    let (workers, processes) = watch::channel(worker_names(&prepared.children));
    let keep_small = log::keep_small(prepared.log_paths());
    shutdown.tracker.spawn(until_stopped(&shutdown, keep_small));

    let (failed, failure) = mpsc::channel(1);
    let (nats_urls, listen) = (prepared.nats_urls.clone(), prepared.listen);
    let outside = Outside {
        args: args.clone(),
        nats_urls,
        listen,
        processes,
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
        let spec = &prepared.children[id.0];
        workers.send_modify(|workers| note_process(workers, &spec.name, &report));
        tell(&spec.name, &report);
    };
    let ending = supervise(prepared.launch()?, &prepared.children, received, report).await;
    if let Some(file) = &args.url_file {
        remove_if_there(file)?;
    }
    shutdown.finish(TASKS_STOP_MAX).await;
    conclude(ending, &prepared.children, failure)
}

/// Everything that has to be there before the first child starts.
struct Prepared {
    folder: DataFolder,
    fresco: PathBuf,
    children: Vec<ChildSpec>,
    nats_urls: Vec<String>,
    listen: SocketAddr,
}

impl Prepared {
    async fn new(args: &UpArgs) -> Result<Self, Failure> {
        if let Some(model) = &args.model
            && !model.is_dir()
        {
            let text = format!("--model {}: no such folder", model.display());
            return Err(Failure::Unusable(text));
        }
        let fresco = std::env::current_exe().map_err(|error| Failure::failed(&error))?;
        let programs = match &args.bin_dir {
            Some(folder) => folder.clone(),
            None => fresco.parent().unwrap_or(Path::new("/")).to_owned(),
        };
        let folder = DataFolder::take(&args.data)
            .await
            .map_err(|error| Failure::unusable(&error))?;
        if let Some(file) = &args.url_file {
            remove_if_there(file)?;
        }
        let listen = free_address(args.listen)?;
        let mut children = Vec::new();
        let mut nats_urls = args.nats_urls.clone();
        if nats_urls.is_empty() {
            let (broker, url) = embedded_broker(args, &fresco, folder.path()).await?;
            children.push(broker);
            nats_urls.push(url);
        }
        let surroundings = Surroundings {
            programs,
            nats_urls,
            listen,
        };
        children.extend(fleet::services(args, &surroundings));
        let is_missing =
            |child: &&ChildSpec| child.layer == Layer::Service && !child.program.is_file();
        if let Some(missing) = children.iter().find(is_missing) {
            let program = missing.program.display();
            let text = format!(
                "{program} is missing: build all services, for example with `cargo build --bins`"
            );
            return Err(Failure::Unusable(text));
        }
        let prepared = Self {
            folder,
            fresco,
            children,
            nats_urls: surroundings.nats_urls,
            listen,
        };
        for path in prepared.log_paths() {
            fs::File::create(&path).map_err(|error| cannot_write(&path, &error))?;
        }
        Ok(prepared)
    }

    fn launch(&self) -> Result<Launch, Failure> {
        let hold = self
            .folder
            .hold()
            .map_err(|error| Failure::failed(&error))?;
        Ok(Launch {
            fresco: self.fresco.clone(),
            logs: self.folder.logs(),
            hold,
        })
    }

    fn log_paths(&self) -> Vec<PathBuf> {
        let logs = self.folder.logs();
        self.children
            .iter()
            .map(|child| log::path(&logs, &child.name))
            .collect()
    }

    fn names(&self) -> String {
        self.children
            .iter()
            .map(|child| child.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// The child that is the broker, and its URL.
async fn embedded_broker(
    args: &UpArgs,
    fresco: &Path,
    data: &Path,
) -> Result<(ChildSpec, String), Failure> {
    let here = std::env::current_dir().ok();
    let cache = args
        .cache
        .clone()
        .or_else(|| Some(std::env::home_dir()?.join(".cache/fresco")));
    let near = fresco
        .parent()
        .map(Path::to_owned)
        .into_iter()
        .chain(here)
        .collect();
    let places = Places {
        given: args.nats_server.clone(),
        near,
        cache,
    };
    let program = nats_server::find(&places)
        .await
        .map_err(|error| Failure::unusable(&error))?;
    let port = nats_server::port(data).map_err(|error| Failure::failed(&error))?;
    let config = data.join("nats.conf");
    fs::write(&config, nats_server::config(data, port))
        .map_err(|error| cannot_write(&config, &error))?;
    Ok((
        fleet::broker(program, &config),
        format!("nats://127.0.0.1:{port}"),
    ))
}

/// `wanted`, with a real port for port 0: a gateway that is restarted keeps its address.
fn free_address(wanted: SocketAddr) -> Result<SocketAddr, Failure> {
    let bound = TcpListener::bind(wanted).and_then(|listener| listener.local_addr());
    bound.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            let another = SocketAddr::new(wanted.ip(), 0);
            Failure::Unusable(format!("--listen {wanted}: address is in use: give another one, such as {another} for a free port"))
        }
        _ => Failure::Unusable(format!("--listen {wanted}: {error}")),
    })
}

/// Passes every SIGTERM and SIGINT on as a wish to stop; a second one makes the supervisor hurry.
fn pass_signals_on(events: mpsc::Sender<Event>) -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    // The terminal is gone.
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hangup.recv() => {}
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

/// The services whose readiness their presence tells.
fn worker_names(children: &[ChildSpec]) -> Vec<(String, Option<u32>)> {
    let workers = children
        .iter()
        .filter(|child| child.layer == Layer::Service && child.name != "gateway");
    workers.map(|child| (child.name.clone(), None)).collect()
}

fn note_process(workers: &mut [(String, Option<u32>)], name: &str, report: &Report) {
    if let Some(worker) = workers.iter_mut().find(|worker| worker.0 == name) {
        worker.1 = match report {
            Report::Started(process) => Some(*process),
            Report::Died(..) | Report::GaveUp(..) => None,
        };
    }
}

fn tell(name: &str, report: &Report) {
    match report {
        Report::Started(process) => tracing::info!(child = name, process, "started"),
        Report::Died(exit, pause, words) => {
            let pause = pause.as_secs_f64();
            terminal::note(format_args!(
                "{name} {}, starts again in {pause} s{}",
                ended(*exit),
                quoted(words.as_deref())
            ));
        }
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
