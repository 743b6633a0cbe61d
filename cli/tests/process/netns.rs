//! Network namespaces of a test's own: one for each node, all on one bridge, each cut off by itself.

use std::process::{Command, Stdio};

use barque_bundle::platform;

/// Why there can be no namespaces, if so.
pub fn lacks(tools: &[&str]) -> Option<String> {
    if platform::effective_uid() != 0 {
        return Some("needs root, for network namespaces".to_owned());
    }
    tools.iter().find_map(|tool| {
        let found =
            Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap();
        (!found.status.success()).then(|| format!("{tool} is absent"))
    })
}

pub fn must(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}

/// A command of ours inside a namespace.
pub fn inside(namespace: &str, ours: &Command) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(ours.get_program()).args(ours.get_args());
    for (name, value) in ours.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::null());
    command
}

/// Namespaces on a bridge, gone with this value.
pub struct Bridged {
    bridge: String,
    pub places: Vec<String>,
}

impl Bridged {
    pub fn new(count: usize) -> Self {
        let id = std::process::id();
        let bridge = format!("bq-b-{id}");
        let places = (0..count).map(|n| format!("bq-{n}-{id}")).collect();
        let net = Self { bridge, places };
        must("ip", &["netns", "add", &net.bridge]);
        must("ip", &["-n", &net.bridge, "link", "add", "br0", "type", "bridge"]);
        must("ip", &["-n", &net.bridge, "link", "set", "br0", "up"]);
        for (n, place) in net.places.iter().enumerate() {
            let port = format!("port{n}");
            must("ip", &["netns", "add", place]);
            let pair = ["link", "add", &port, "netns", &net.bridge, "type", "veth", "peer"];
            must("ip", &[&pair[..], &["name", "veth0", "netns", place]].concat());
            must("ip", &["-n", &net.bridge, "link", "set", &port, "master", "br0", "up"]);
            let address = format!("{}/24", Self::address(n));
            must("ip", &["-n", place, "address", "add", &address, "dev", "veth0"]);
            must("ip", &["-n", place, "link", "set", "veth0", "up"]);
            must("ip", &["-n", place, "link", "set", "lo", "up"]);
        }
        net
    }

    pub fn address(n: usize) -> String {
        format!("10.202.7.{}", n + 1)
    }

    /// Nothing goes to or from a place, and nobody is told.
    pub fn cut(&self, n: usize) {
        must("ip", &["-n", &self.bridge, "link", "set", &format!("port{n}"), "down"]);
    }

    pub fn mend(&self, n: usize) {
        must("ip", &["-n", &self.bridge, "link", "set", &format!("port{n}"), "up"]);
    }
}

impl Drop for Bridged {
    fn drop(&mut self) {
        for namespace in self.places.iter().chain([&self.bridge]) {
            let _ = Command::new("ip").args(["netns", "delete", namespace]).output();
        }
    }
}
