//! What a spoke is told (`spoke.toml`) and where its files lie.

use std::path::{Path, PathBuf};
use std::time::Duration;

use barque_bundle::quantity::parse_duration;
use barque_bundle::{ByteSize, HubId, platform};
use serde::{Deserialize, Serialize};

use crate::budget::Limits;
use crate::error::Error;
use crate::priority::{Priorities, Priority};
use crate::select::Select;

/// `spoke.toml`: written by `enroll`, read by `push`, so that cron needs no flags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpokeConfig {
    /// The tree of Parquet files; only read.
    pub source: PathBuf,
    /// How long a file must lie still before it is looked at, such as `2s`.
    #[serde(default = "default_settle")]
    pub settle: String,
    /// Files over this size go in pieces and go on where they broke off, such as `32MiB`.
    #[serde(default = "default_upload_above")]
    pub upload_above: String,
    /// How long nothing may move on a connection before it is given up, such as `60s`.
    #[serde(default = "default_stall")]
    pub stall: String,
    /// Globs of paths to ship, such as `alarms/**`; all when there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Globs of paths that are never shipped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Pace of bodies, such as `2MB/s`, `5Mbit/s`, or a timetable `08:00,512kB/s 18:00,off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<String>,
    /// Longest time of a pass, such as `10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_duration: Option<String>,
    /// Most bytes of bodies in a pass, such as `500MB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<String>,
    /// Most bytes of bodies in a day or month, such as `10GB/month`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// What goes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub priority: Vec<Priority>,
    #[serde(default)]
    pub hubs: Vec<HubEntry>,
}

/// A hub that this spoke is enrolled at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubEntry {
    pub hub_id: HubId,
    /// Addresses of the hub, tried in order.
    pub urls: Vec<String>,
}

fn default_settle() -> String {
    "2s".to_owned()
}

fn default_stall() -> String {
    "60s".to_owned()
}

fn default_upload_above() -> String {
    "32MiB".to_owned()
}

impl SpokeConfig {
    pub fn new(source: PathBuf) -> Self {
        Self {
            source,
            settle: default_settle(),
            upload_above: default_upload_above(),
            stall: default_stall(),
            include: Vec::new(),
            exclude: Vec::new(),
            bandwidth: None,
            max_duration: None,
            max_bytes: None,
            budget: None,
            priority: Vec::new(),
            hubs: Vec::new(),
        }
    }

    /// Reads the file; unknown keys are refused by name.
    pub fn load(state: &StateFolder) -> Result<Self, Error> {
        let path = state.config();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NotEnrolled(format!(
                    "{} holds no spoke; make one with: barque enroll TOKEN --state {0} --source DIR",
                    state.path().display()
                )));
            }
            Err(e) => return Err(Error::io("cannot read", &path)(e)),
        };
        let config: Self = toml::from_str(&text)
            .map_err(|e| Error::Malformed { path: path.clone(), why: e.to_string() })?;
        config.check().map_err(|why| Error::Malformed { path, why })?;
        Ok(config)
    }

    /// Whether every value means something.
    fn check(&self) -> Result<(), String> {
        self.settle_time()?;
        self.stall_time()?;
        self.upload_above()?;
        self.limits()?;
        self.priorities()?;
        self.select(&[], &[]).map(drop)
    }

    pub fn save(&self, state: &StateFolder) -> Result<(), Error> {
        let path = state.config();
        let text = toml::to_string_pretty(self)
            .map_err(|e| Error::Malformed { path: path.clone(), why: e.to_string() })?;
        platform::write_durably(&path, text.as_bytes(), 0o600)
            .map_err(Error::io("cannot write", path))
    }

    /// At most what goes in one bundle: a larger file would be a bundle of its own.
    pub fn upload_above(&self) -> Result<ByteSize, String> {
        let size: ByteSize = self.upload_above.parse().map_err(|e| format!("upload_above: {e}"))?;
        Ok(size.min(ByteSize(crate::plan::BUNDLE_BYTES_MAX)))
    }

    pub fn limits(&self) -> Result<Limits, String> {
        fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
            name: &str,
            text: Option<&String>,
        ) -> Result<Option<T>, String> {
            text.map(|t| t.parse().map_err(|e| format!("{name}: {e}"))).transpose()
        }
        let duration = self.max_duration.as_deref().map(parse_duration).transpose();
        Ok(Limits {
            max_bytes: parsed("max_bytes", self.max_bytes.as_ref())?,
            max_duration: duration.map_err(|e| format!("max_duration: {e}"))?,
            bandwidth: parsed("bandwidth", self.bandwidth.as_ref())?,
            budget: parsed("budget", self.budget.as_ref())?,
        })
    }

    /// What is shipped: as the file says, or as a caller says for this once.
    pub fn select(&self, include: &[String], exclude: &[String]) -> Result<Select, String> {
        if include.is_empty() && exclude.is_empty() {
            return Select::new(&self.include, &self.exclude, false);
        }
        let include = if include.is_empty() { &self.include } else { include };
        Select::new(include, &[&self.exclude, exclude].concat(), true)
    }

    /// The hub that is asked for, or all of them.
    pub fn hubs_named(&self, only: Option<HubId>) -> Result<Vec<&HubEntry>, String> {
        let hubs: Vec<&HubEntry> =
            self.hubs.iter().filter(|h| only.is_none_or(|id| id == h.hub_id)).collect();
        match only {
            Some(id) if hubs.is_empty() => Err(format!(
                "this spoke is not enrolled at hub {id}; `barque status` names its hubs"
            )),
            _ => Ok(hubs),
        }
    }

    pub fn priorities(&self) -> Result<Priorities, String> {
        Priorities::new(&self.priority).map_err(|e| format!("priority: {e}"))
    }

    /// At least a second.
    pub fn stall_time(&self) -> Result<Duration, String> {
        let stall = parse_duration(&self.stall).map_err(|e| format!("stall: {e}"))?;
        Ok(stall.max(Duration::from_secs(1)))
    }

    pub fn settle_time(&self) -> Result<Duration, String> {
        parse_duration(&self.settle).map_err(|e| format!("settle: {e}"))
    }
}

/// A spoke's state folder: ledger, identity, configuration, lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFolder(PathBuf);

impl StateFolder {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn ledger(&self) -> PathBuf {
        self.0.join("ledger.db")
    }

    pub fn identity(&self) -> PathBuf {
        self.0.join("identity.json")
    }

    /// An identity that a hub is being asked to take in place of the present one.
    pub fn next_identity(&self) -> PathBuf {
        self.0.join("identity.next.json")
    }

    pub fn config(&self) -> PathBuf {
        self.0.join("spoke.toml")
    }

    pub fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_and_bare_numbers_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateFolder::new(dir.path());
        let load = |text: &str| {
            std::fs::write(state.config(), text).unwrap();
            SpokeConfig::load(&state).map_err(|e| e.to_string())
        };
        assert_eq!(load("source = \"/d\"").unwrap(), SpokeConfig::new("/d".into()));
        assert!(load("source = \"/d\"\nsetle = \"2s\"").unwrap_err().contains("setle"));
        assert!(load("source = \"/d\"\nsettle = \"2\"").unwrap_err().contains("unit"));
    }
}
