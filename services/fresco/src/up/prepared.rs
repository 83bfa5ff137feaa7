//! Everything that has to be there before the first child starts: the data folder, the programs, the addresses, the
//! broker's configuration.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use messaging::{Access, Bus, BusConfig};
use protocol::Role;
use service::exit::Failure;

use super::{
    cannot_write,
    fleet::{self, GatewayPlace, Surroundings},
    folder::DataFolder,
    log,
    nats_server::{self, Places},
    remove_if_there,
    run::{ChildSpec, Launch},
    site::Site,
    supervisor::{Layer, Limits},
};
use crate::{args::UpArgs, nats, secret::write_secret};

/// Everything that has to be there before the first child starts.
pub(crate) struct Prepared {
    pub(crate) folder: DataFolder,
    pub(crate) fresco: PathBuf,
    pub(crate) children: Vec<ChildSpec>,
    pub(crate) nats_urls: Vec<String>,
    /// Of the broker that we start, or whose credential the fleet's file has.
    pub(crate) system: Option<SystemAccount>,
    /// Where the broker that we start tells whether it is well.
    pub(crate) monitor: Option<SocketAddr>,
    pub(crate) gateway: Option<GatewayPlace>,
    limits: Limits,
}

impl Prepared {
    pub(crate) async fn new(args: &UpArgs, site: &Site) -> Result<Self, Failure> {
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
        let gateway = gateway_place(args, site)?;
        let mut children = Vec::new();
        let mut nats_urls = args.nats_urls.clone();
        let mut system = SystemAccount::of(site, &nats_urls);
        let mut monitor = None;
        if nats_urls.is_empty() {
            let broker = embedded_broker(args, &fresco, folder.path()).await?;
            children.push(broker.child);
            nats_urls.push(broker.url);
            monitor = Some(broker.monitor);
            system = Some(SystemAccount {
                urls: vec![broker.system_url],
                access: Access::default(),
            });
        }
        let surroundings = Surroundings {
            programs,
            nats_urls,
            gateway,
        };
        children.extend(fleet::services(args, site, &surroundings));
        // The others are no programs of ours.
        let is_missing = |child: &&ChildSpec| {
            !matches!(child.layer, Layer::Broker | Layer::Server) && !child.program.is_file()
        };
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
            system,
            monitor,
            gateway,
            limits: site.limits,
        };
        for path in prepared.log_paths() {
            fs::File::create(&path).map_err(|error| cannot_write(&path, &error))?;
        }
        Ok(prepared)
    }

    /// Starts to connect; the broker is there later.
    pub(crate) async fn connect(&self, args: &UpArgs, site: &Site) -> Result<Bus, Failure> {
        let urls = self.nats_urls.clone();
        let config = BusConfig::new(urls, args.prefix.clone(), Role::Operator);
        let config = config.with_inbox(nats::WATCHER);
        Bus::connect(&config.with_access(site.access(nats::WATCHER)))
            .await
            .map_err(|error| Failure::unusable(&error))
    }

    pub(crate) fn launch(&self) -> Result<Launch, Failure> {
        let hold = self
            .folder
            .hold()
            .map_err(|error| Failure::failed(&error))?;
        Ok(Launch {
            fresco: self.fresco.clone(),
            logs: self.folder.logs(),
            hold,
            limits: self.limits,
        })
    }

    pub(crate) fn log_paths(&self) -> Vec<PathBuf> {
        let logs = self.folder.logs();
        self.children
            .iter()
            .map(|child| log::path(&logs, &child.name))
            .collect()
    }

    pub(crate) fn names(&self) -> String {
        self.children
            .iter()
            .map(|child| child.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// Where it is told whose connection ends.
#[derive(Debug, Clone)]
pub(crate) struct SystemAccount {
    pub(crate) urls: Vec<String>,
    pub(crate) access: Access,
}

impl SystemAccount {
    /// Of others' brokers, with the credential that lies beside the roles'.
    fn of(site: &Site, urls: &[String]) -> Option<Self> {
        let access = site.access("system");
        access.credentials.is_some().then(|| Self {
            urls: urls.to_vec(),
            access,
        })
    }
}

/// A broker of our own.
struct Broker {
    child: ChildSpec,
    url: String,
    /// With the credentials of its system account.
    system_url: String,
    /// Where it tells whether it is well.
    monitor: SocketAddr,
}

async fn embedded_broker(args: &UpArgs, fresco: &Path, data: &Path) -> Result<Broker, Failure> {
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
    let ports = nats_server::ports(data).map_err(|error| Failure::failed(&error))?;
    let password = nats_server::system_password(data).map_err(|error| Failure::failed(&error))?;
    let config = data.join("nats.conf");
    write_secret(&config, &nats_server::config(data, ports, &password))
        .map_err(|error| cannot_write(&config, &error))?;
    let (user, port) = (nats_server::SYSTEM_USER, ports.clients);
    Ok(Broker {
        child: fleet::broker(program, &config),
        url: format!("nats://127.0.0.1:{port}"),
        system_url: format!("nats://{user}:{password}@127.0.0.1:{port}"),
        monitor: SocketAddr::from((Ipv4Addr::LOCALHOST, ports.monitor)),
    })
}

/// Where the gateway listens and answers probes, with real ports for port 0: a gateway that is restarted keeps them.
fn gateway_place(args: &UpArgs, site: &Site) -> Result<Option<GatewayPlace>, Failure> {
    let Some(gateway) = &site.gateway else {
        return Ok(None);
    };
    let (listen_name, probes_name) = match args.fleet {
        Some(_) => ("`gateway.listen`", "`gateway.health_listen`"),
        None => ("--listen", "the address of its probes"),
    };
    let listen = bound(listen_name, args.listen)?;
    // While the first one is held: they must not be the same.
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let health = bound(probes_name, gateway.health.unwrap_or(any))?;
    Ok(Some(GatewayPlace {
        listen: listen.0,
        health: health.0,
    }))
}

/// `wanted` with a real port, held; or what is wrong with the address of this name.
fn bound(name: &str, wanted: SocketAddr) -> Result<(SocketAddr, TcpListener), Failure> {
    let bind = || {
        let listener = TcpListener::bind(wanted)?;
        Ok((listener.local_addr()?, listener))
    };
    bind().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            let another = SocketAddr::new(wanted.ip(), 0);
            Failure::Unusable(format!("{name} {wanted}: address is in use: give another one, such as {another} for a free port"))
        }
        _ => Failure::Unusable(format!("{name} {wanted}: {error}")),
    })
}
