//! Hosts of a test: network namespaces of this machine, each with one cable to one switch. A cable can be pulled, the switch
//! can drop whatever a host sends and gets, and hosts can be kept from each other, two or several from all others. Nothing of
//! it touches the machine's own network, and whatever it is called like lives in namespaces of its own.
//!
//! Needs root and `ip` of iproute2; where that is not to be had, [`Network::start`] says why.

mod site;

use std::{
    fs::{self, File},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use nix::sched::{CloneFlags, setns};

pub use self::site::{AR, BROKER, BROKERS, GATEWAY, PAINT_A, PAINT_B, Site};

/// Where `ip netns` keeps its namespaces.
const NAMESPACES: &str = "/run/netns";

/// Of every namespace of ours; the process that made it follows, by which [`sweep`] knows what nobody needs any more.
const NAME: &str = "fresco-test";

/// How a host loses all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Its cable is pulled: its own kernel knows, and whoever sends or connects there is told at once.
    Pulled,
    /// Whatever goes to it and comes from it is dropped on the way: nobody is told, and connections hang.
    Dropped,
}

/// The hosts and their switch. Dropping it takes them away; the processes in them have to have ended.
pub struct Network {
    name: String,
    hosts: Vec<&'static str>,
}

impl Network {
    /// Connects these hosts, or tells why that cannot be done here.
    pub fn start(hosts: &[&'static str]) -> Result<Self, String> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        sweep();
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("{NAME}-{}-{number}", std::process::id());
        let hosts = hosts.to_vec();
        // Before anything is made, so that a half made one goes too.
        let network = Self { name, hosts };
        network.make_switch()?;
        for (host, number) in network.hosts.iter().zip(1..) {
            network.connect(host, address(number))?;
        }
        Ok(network)
    }

    fn make_switch(&self) -> Result<(), String> {
        ip(&["netns", "add", &self.namespace(SWITCH)])?;
        for bridge in [SWITCH, APART] {
            self.ip_in(SWITCH, &["link", "add", "name", bridge, "type", "bridge"])?;
            self.ip_in(SWITCH, &["link", "set", bridge, "up"])?;
        }
        Ok(())
    }

    fn connect(&self, host: &str, address: Ipv4Addr) -> Result<(), String> {
        let (inside, switch) = (self.namespace(host), self.namespace(SWITCH));
        ip(&["netns", "add", &inside])?;
        let port = [
            "link", "add", "name", host, "netns", &switch, "type", "veth",
        ];
        ip(&[&port[..], &["peer", "name", CABLE, "netns", &inside]].concat())?;
        self.ip_in(SWITCH, &["link", "set", "dev", host, "master", SWITCH])?;
        self.ip_in(SWITCH, &["link", "set", "dev", host, "up"])?;
        let address = format!("{address}/24");
        self.ip_in(host, &["addr", "add", &address, "dev", CABLE])?;
        self.ip_in(host, &["link", "set", CABLE, "up"])?;
        self.ip_in(host, &["link", "set", "lo", "up"])
    }

    /// Where the others find it.
    pub fn address(&self, host: &str) -> Ipv4Addr {
        let number = self.hosts.iter().position(|known| *known == host);
        let number = number.unwrap_or_else(|| panic!("no host {host}"));
        address(u8::try_from(number + 1).expect("a few hosts"))
    }

    /// Takes `host` from all others.
    pub fn cut(&self, host: &str, how: Cut) {
        match how {
            Cut::Pulled => self.set(host, &["link", "set", CABLE, "down"]),
            Cut::Dropped => self.set(SWITCH, &["link", "set", "dev", host, "nomaster"]),
        }
    }

    /// Undoes [`Network::cut`].
    pub fn heal(&self, host: &str, how: Cut) {
        match how {
            Cut::Pulled => self.set(host, &["link", "set", CABLE, "up"]),
            Cut::Dropped => self.set(SWITCH, &["link", "set", "dev", host, "master", SWITCH]),
        }
    }

    /// Drops whatever goes between these and the others; they still reach each other.
    pub fn split(&self, hosts: &[&str]) {
        self.move_to(APART, hosts);
    }

    /// Undoes [`Network::split`].
    pub fn unite(&self, hosts: &[&str]) {
        self.move_to(SWITCH, hosts);
    }

    fn move_to(&self, bridge: &str, hosts: &[&str]) {
        for host in hosts {
            self.set(SWITCH, &["link", "set", "dev", host, "master", bridge]);
        }
    }

    /// Drops whatever goes between these two, and nothing else.
    pub fn part(&self, hosts: [&str; 2]) {
        self.isolate(hosts, "on");
    }

    /// Undoes [`Network::part`].
    pub fn join(&self, hosts: [&str; 2]) {
        self.isolate(hosts, "off");
    }

    /// Runs `act` in `host`: the processes that it starts are there.
    pub fn inside<T>(&self, host: &str, act: impl FnOnce() -> T) -> T {
        let here = File::open("/proc/thread-self/ns/net").expect("a thread is somewhere");
        self.enter(host);
        let done = act();
        setns(here, CloneFlags::CLONE_NEWNET).expect("it came from there");
        done
    }

    /// Puts this thread there for good, and what runs on it: a test's own runtime has one thread.
    pub fn enter(&self, host: &str) {
        let there = Path::new(NAMESPACES).join(self.namespace(host));
        let there = File::open(there).expect("the host is there");
        setns(there, CloneFlags::CLONE_NEWNET).expect("who makes namespaces may enter them");
    }

    /// The switch forwards nothing from one isolated port to another.
    fn isolate(&self, hosts: [&str; 2], isolated: &str) {
        for host in hosts {
            let port = ["link", "set", "dev", host, "type", "bridge_slave"];
            self.set(SWITCH, &[&port[..], &["isolated", isolated]].concat());
        }
    }

    fn set(&self, host: &str, what: &[&str]) {
        self.ip_in(host, what)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    fn ip_in(&self, host: &str, what: &[&str]) -> Result<(), String> {
        ip(&[&["-n", &self.namespace(host)], what].concat())
    }

    fn namespace(&self, host: &str) -> String {
        format!("{}-{host}", self.name)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let hosts = self.hosts.iter().copied().chain([SWITCH]);
        hosts.for_each(|host| remove(&self.namespace(host)));
    }
}

/// The switch, its host and its bridge.
const SWITCH: &str = "switch";

/// The switch's other bridge, for those who are split from the others.
const APART: &str = "apart";

/// What each host calls its end of its cable.
const CABLE: &str = "eth0";

/// Of the `number`-th host. Each network is alone in its namespaces, so all can have the same ones.
fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number)
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let told = || format!("ip {}", arguments.join(" "));
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| format!("{}: {error}", told()))?;
    if output.status.success() {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}", told(), error.trim()))
}

/// A namespace that was not made, or is gone, needs no removal.
fn remove(namespace: &str) {
    let file = PathBuf::from(NAMESPACES).join(namespace);
    if file.exists() {
        drop(ip(&["netns", "del", namespace]));
    }
}

/// Removes what tests have left that were killed. Namespaces of others, and of tests that run, stay.
fn sweep() {
    let Ok(entries) = fs::read_dir(NAMESPACES) else {
        return;
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    for name in names.filter_map(|name| name.into_string().ok()) {
        let process = name
            .strip_prefix(NAME)
            .and_then(|rest| rest.split('-').nth(1));
        let Some(process) = process.and_then(|process| process.parse::<u32>().ok()) else {
            continue;
        };
        if !Path::new("/proc").join(process.to_string()).exists() {
            remove(&name);
        }
    }
}
