//! Every setting by name: what it means, its default, its environment variable. `config show`,
//! `config example` and the refusal of unknown keys all read this list.

use std::fmt::Write as _;

/// Which file a setting stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// `barque.toml`: of this machine.
    Barque,
    /// `spoke.toml` in a state folder: of one spoke, written by `enroll`.
    Spoke,
}

pub struct Key {
    pub file: File,
    /// With its tables: `hub.limits.streams`.
    pub name: &'static str,
    pub environment: Option<&'static str>,
    /// As TOML; empty when there is none and the key is optional.
    pub default: &'static str,
    /// What stands in the example in its place, when there is no default.
    pub example: &'static str,
    pub says: &'static str,
}

const fn key(
    file: File,
    name: &'static str,
    environment: Option<&'static str>,
    default: &'static str,
    says: &'static str,
) -> Key {
    Key { file, name, environment, default, example: "", says }
}

const fn optional(
    file: File,
    name: &'static str,
    environment: Option<&'static str>,
    example: &'static str,
    says: &'static str,
) -> Key {
    Key { file, name, environment, default: "", example, says }
}

pub const KEYS: [Key; 32] = [
    key(
        File::Barque,
        "spoke.state",
        Some("BARQUE_STATE"),
        "\"/var/lib/barque/spoke\"",
        "The spoke's state folder: ledger, identity, spoke.toml.",
    ),
    key(
        File::Barque,
        "hub.data",
        Some("BARQUE_DATA"),
        "\"/var/lib/barque/hub\"",
        "The hub's data folder: databases, keys, staging, landing.",
    ),
    key(
        File::Barque,
        "hub.listen",
        Some("BARQUE_LISTEN"),
        "\"0.0.0.0:7171\"",
        "Address and port that spokes and readers call.",
    ),
    key(
        File::Barque,
        "hub.plain",
        Some("BARQUE_PLAIN"),
        "false",
        "Plain HTTP instead of TLS; only behind something that does TLS.",
    ),
    optional(
        File::Barque,
        "hub.landing.dir",
        None,
        "\"/srv/landing\"",
        "Where files land, DATA/landing unless set; its staging folder is DIR.staging beside it.",
    ),
    key(
        File::Barque,
        "hub.import.allowed_dirs",
        None,
        "[]",
        "Folders of this machine below which hub import --on-node may name a bundle (--allow-dir).",
    ),
    key(
        File::Barque,
        "hub.import.only",
        Some("BARQUE_IMPORT_ONLY"),
        "false",
        "Take files by drive alone: nothing that spokes call is served to the network.",
    ),
    key(
        File::Barque,
        "hub.import.enabled",
        None,
        "true",
        "Whether this node takes drives; one that does not answers which nodes do.",
    ),
    optional(
        File::Barque,
        "hub.cluster.listen",
        Some("BARQUE_CLUSTER_LISTEN"),
        "\"10.0.0.1:7272\"",
        "Address and port of the listener for other nodes; without one the hub is this node alone.",
    ),
    optional(
        File::Barque,
        "hub.cluster.advertise",
        Some("BARQUE_CLUSTER_ADVERTISE"),
        "\"node-a.example:7272\"",
        "Where other nodes reach this one, if that is another address than it listens on.",
    ),
    key(
        File::Barque,
        "hub.cluster.plain",
        Some("BARQUE_CLUSTER_PLAIN"),
        "false",
        "Plain HTTP between nodes instead of mutual TLS; all nodes alike, on a network of their own.",
    ),
    key(
        File::Barque,
        "hub.limits.streams",
        None,
        "64",
        "Bodies taken at once; as many wait for a place, for 3 s; more get 429.",
    ),
    key(File::Barque, "hub.limits.streams_per_spoke", None, "8", "The same of one spoke."),
    key(
        File::Barque,
        "hub.limits.in_flight",
        None,
        "\"256GiB\"",
        "Bytes announced and not on disk yet; more get 429, except a spoke's only body, of any size.",
    ),
    key(
        File::Barque,
        "hub.limits.in_flight_per_spoke",
        None,
        "\"64GiB\"",
        "The same of one spoke.",
    ),
    key(
        File::Barque,
        "hub.limits.kept_per_spoke",
        None,
        "\"64GiB\"",
        "Bytes of unfinished files that are kept of one spoke; the oldest go first.",
    ),
    key(
        File::Barque,
        "hub.limits.connections",
        None,
        "1024",
        "Connections held at once; one more is closed.",
    ),
    key(
        File::Barque,
        "hub.limits.requests",
        None,
        "512",
        "Requests answered at once; one more gets 503.",
    ),
    key(
        File::Barque,
        "hub.limits.reserve",
        None,
        "\"64MiB\"",
        "Space that stays free where files are staged (at most a twentieth of it); then 507.",
    ),
    key(
        File::Barque,
        "hub.limits.body_idle",
        None,
        "\"60s\"",
        "Longest silence inside a request's body.",
    ),
    optional(
        File::Spoke,
        "source",
        Some("BARQUE_SOURCE"),
        "\"/srv/telemetry\"",
        "The tree of Parquet files to ship; it is only read. Needed.",
    ),
    key(
        File::Spoke,
        "settle",
        None,
        "\"2s\"",
        "How long a file must lie still before it is looked at.",
    ),
    key(
        File::Spoke,
        "upload_above",
        None,
        "\"32MiB\"",
        "Files over this size go in pieces, and go on where they broke off; at most 32MiB.",
    ),
    key(
        File::Spoke,
        "stall",
        None,
        "\"60s\"",
        "How long nothing may move on a connection before it is given up.",
    ),
    optional(
        File::Spoke,
        "include",
        None,
        "[\"alarms/**\"]",
        "Globs of paths to ship, all when there is none; `*` stays within a folder, `**` does not.",
    ),
    optional(
        File::Spoke,
        "exclude",
        None,
        "[\"**/debug/**\"]",
        "Globs of paths that are never shipped.",
    ),
    optional(
        File::Spoke,
        "bandwidth",
        Some("BARQUE_BANDWIDTH"),
        "\"2MB/s\"",
        "Send at most so fast; 5Mbit/s is fine, and by the week in UTC: \"08:00,512kB/s 18:00,off Sat-00:00,off\".",
    ),
    optional(
        File::Spoke,
        "max_duration",
        Some("BARQUE_MAX_DURATION"),
        "\"10m\"",
        "End a pass after so long; what is left waits for the next one.",
    ),
    optional(
        File::Spoke,
        "max_bytes",
        Some("BARQUE_MAX_BYTES"),
        "\"500MB\"",
        "Send at most so much in a pass.",
    ),
    optional(
        File::Spoke,
        "budget",
        Some("BARQUE_BUDGET"),
        "\"10GB/month\"",
        "Send at most so much in a day or month of UTC, over all passes.",
    ),
    optional(
        File::Spoke,
        "priority",
        None,
        "[{ match = \"alarms/**\", class = 1 }]",
        "What goes first: the class (0 to 1000) of the first glob that matches, 100 where none does.",
    ),
    optional(
        File::Spoke,
        "hubs",
        None,
        "[]",
        "Hubs that this spoke is enrolled at, with hub_id and urls; `barque enroll` writes it.",
    ),
];

/// The keys of one file, in order.
pub fn of(file: File) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |k| k.file == file)
}

/// The first key of a `barque.toml` that there is no such setting for, with the nearest name.
pub fn unknown(file: &toml::Table) -> Option<(String, Option<&'static str>)> {
    let known = |path: &str| of(File::Barque).any(|k| k.name == path);
    let is_table = |path: &str| {
        of(File::Barque).any(|k| k.name.strip_prefix(path).is_some_and(|r| r.starts_with('.')))
    };
    let mut waiting: Vec<(String, &toml::Table)> = vec![(String::new(), file)];
    while let Some((prefix, table)) = waiting.pop() {
        for (name, value) in table {
            let path = format!("{prefix}{name}");
            match value {
                toml::Value::Table(inner) if is_table(&path) => {
                    waiting.push((format!("{path}."), inner));
                }
                _ if known(&path) => {}
                _ => return Some((path.clone(), nearest(&path))),
            }
        }
    }
    None
}

fn nearest(path: &str) -> Option<&'static str> {
    let near = |name: &str| strsim::jaro_winkler(name, path);
    of(File::Barque)
        .map(|k| k.name)
        .max_by(|a, b| near(a).total_cmp(&near(b)))
        .filter(|name| near(name) > 0.8)
}

/// A file with every key at its default and a line of meaning; what has no default is a comment.
pub fn example(file: File) -> String {
    let mut out = String::new();
    let mut open = "";
    for key in of(file) {
        let (table, name) = key.name.rsplit_once('.').unwrap_or(("", key.name));
        if table != open {
            let _ = writeln!(out, "{}[{table}]", if out.is_empty() { "" } else { "\n" });
            open = table;
        }
        let variable = key.environment.map_or(String::new(), |v| format!(" Or {v}."));
        let _ = writeln!(out, "# {}{variable}", key.says);
        let _ = match key.default {
            "" => writeln!(out, "# {name} = {}", key.example),
            default => writeln!(out, "{name} = {default}"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_name() {
        let unknown = |text: &str| unknown(&text.parse().unwrap());
        assert_eq!(unknown("[hub]\nlisen = 1"), Some(("hub.lisen".into(), Some("hub.listen"))));
        assert_eq!(
            unknown("[hub.limits]\nstream = 1"),
            Some(("hub.limits.stream".into(), Some("hub.limits.streams")))
        );
        assert_eq!(unknown("[zzz]\nq = 1"), Some(("zzz".into(), None)));
        assert_eq!(unknown("[hub.landing]\ndir = 1"), None);
    }
}
