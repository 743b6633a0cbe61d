//! `barque.toml`: defaults for flags. A flag wins over `BARQUE_*`, that over the file.
//!
//! Looked for at `--config`, else `./barque.toml`, else `/etc/barque/barque.toml`.

pub mod keys;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use barque_bundle::ByteSize;
use barque_bundle::quantity::parse_duration;
use barque_hub::HubConfig;
use serde::Deserialize;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct FileConfig {
    /// The file that was read, if there is one.
    #[serde(skip)]
    pub path: Option<PathBuf>,
    #[serde(default)]
    pub spoke: SpokeSection,
    #[serde(default)]
    pub hub: HubSection,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct SpokeSection {
    pub state: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct HubSection {
    pub data: Option<PathBuf>,
    pub listen: Option<String>,
    pub plain: Option<bool>,
    #[serde(default)]
    pub landing: LandingSection,
    #[serde(default)]
    pub limits: LimitsSection,
    #[serde(default)]
    pub import: ImportSection,
    #[serde(default)]
    pub cluster: ClusterSection,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ClusterSection {
    pub listen: Option<String>,
    pub advertise: Option<String>,
    pub plain: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ImportSection {
    #[serde(default)]
    pub allowed_dirs: Vec<PathBuf>,
    pub only: Option<bool>,
    pub enabled: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct LandingSection {
    pub dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct LimitsSection {
    pub streams: Option<NonZeroUsize>,
    pub streams_per_spoke: Option<NonZeroUsize>,
    pub in_flight: Option<ByteSize>,
    pub in_flight_per_spoke: Option<ByteSize>,
    pub kept_per_spoke: Option<ByteSize>,
    pub connections: Option<NonZeroUsize>,
    pub requests: Option<NonZeroUsize>,
    pub reserve: Option<ByteSize>,
    #[serde(default, deserialize_with = "duration")]
    pub body_idle: Option<Duration>,
}

fn duration<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(d)?;
    parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}

const DEFAULT_STATE: &str = "/var/lib/barque/spoke";
const DEFAULT_DATA: &str = "/var/lib/barque/hub";

impl FileConfig {
    /// The file's settings, or none when there is no file and none was named.
    pub fn load(named: Option<&Path>) -> anyhow::Result<Self> {
        let found = match named {
            Some(path) => Some(path.to_owned()),
            None => ["barque.toml", "/etc/barque/barque.toml"]
                .map(PathBuf::from)
                .into_iter()
                .find(|p| p.exists()),
        };
        let Some(path) = found else {
            return Ok(Self::default());
        };
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let mut config =
            Self::parse(&text).with_context(|| format!("{} is not understood", path.display()))?;
        config.path = Some(path);
        Ok(config)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        if let Some((name, nearest)) = keys::unknown(&text.parse()?) {
            let hint = nearest.map_or(String::new(), |n| format!("; did you mean {n}?"));
            anyhow::bail!(
                "there is no setting {name}{hint} (`barque config example hub` lists them)"
            );
        }
        Ok(toml::from_str(text)?)
    }

    pub fn state(&self, flag: Option<PathBuf>) -> PathBuf {
        flag.or_else(|| self.spoke.state.clone()).unwrap_or_else(|| DEFAULT_STATE.into())
    }

    pub fn data(&self, flag: Option<PathBuf>) -> PathBuf {
        flag.or_else(|| std::env::var_os("BARQUE_DATA").map(PathBuf::from))
            .or_else(|| self.hub.data.clone())
            .unwrap_or_else(|| DEFAULT_DATA.into())
    }

    /// The hub that is to run: flags (which hold their variables), then the file, then defaults.
    pub fn hub(
        &self,
        data: Option<PathBuf>,
        listen: Option<String>,
        plain: Option<bool>,
    ) -> HubConfig {
        let file = &self.hub;
        let mut config = HubConfig::new(self.data(data));
        if let Some(listen) = listen.or_else(|| file.listen.clone()) {
            config.listen = listen;
        }
        config.plain = plain.or(file.plain).unwrap_or(false);
        config.landing_dir = file.landing.dir.clone();
        let limits = &file.limits;
        let count = |given: Option<NonZeroUsize>, default| given.map_or(default, NonZeroUsize::get);
        let bytes = |given: Option<ByteSize>, default| given.map_or(default, |b| b.0);
        let c = &mut config;
        c.limits.streams = count(limits.streams, c.limits.streams);
        c.limits.streams_per_spoke = count(limits.streams_per_spoke, c.limits.streams_per_spoke);
        c.limits.in_flight_bytes = bytes(limits.in_flight, c.limits.in_flight_bytes);
        c.limits.in_flight_bytes_per_spoke =
            bytes(limits.in_flight_per_spoke, c.limits.in_flight_bytes_per_spoke);
        c.kept_bytes_per_spoke = bytes(limits.kept_per_spoke, c.kept_bytes_per_spoke);
        c.connections_max = count(limits.connections, c.connections_max);
        c.requests_max = count(limits.requests, c.requests_max);
        config.reserve_bytes = limits.reserve.map_or(config.reserve_bytes, |r| r.0);
        config.import_dirs.clone_from(&file.import.allowed_dirs);
        config.import_only = file.import.only.unwrap_or(false);
        config.imports = file.import.enabled.unwrap_or(true);
        config.cluster_listen.clone_from(&file.cluster.listen);
        config.cluster_advertise.clone_from(&file.cluster.advertise);
        config.cluster_plain = file.cluster.plain.unwrap_or(false);
        config.body_idle = limits.body_idle.unwrap_or(config.body_idle);
        config
    }
}

#[cfg(test)]
mod tests {
    use super::keys::File;
    use super::*;

    #[test]
    fn an_unknown_key_is_refused_with_a_suggestion() {
        let e = FileConfig::parse("[hub]\nlisen = \"x\"").unwrap_err().to_string();
        assert!(e.contains("hub.lisen") && e.contains("did you mean hub.listen?"), "{e}");
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let file = FileConfig::parse("[spoke]\nstate = \"/s\"").unwrap();
        assert_eq!(file.state(Some("/flag".into())), PathBuf::from("/flag"));
        assert_eq!(file.state(None), PathBuf::from("/s"));
        assert_eq!(file.data(Some("/flag".into())), PathBuf::from("/flag"));
    }

    #[test]
    fn the_example_is_the_default_and_every_key_is_read() {
        let example = keys::example(File::Barque);
        let read = FileConfig::parse(&example).unwrap();
        assert_eq!(read.hub.data, Some(DEFAULT_DATA.into()));
        assert_eq!(read.spoke.state, Some(DEFAULT_STATE.into()));
        let both = example.clone() + &keys::example(File::Spoke);
        for key in &keys::KEYS {
            let name = key.name.rsplit('.').next().unwrap();
            assert!(both.contains(&format!("{name} = ")), "{}", key.name);
        }
        let (a, b) = (read.hub(None, None, None), FileConfig::default().hub(None, None, None));
        assert_eq!(format!("{a:?}"), format!("{b:?}"));
        let changed = example
            .replace("# dir = \"/srv/landing\"", "dir = \"/l\"")
            .replace("64MiB", "1MiB")
            .replace("= 64\n", "= 7\n")
            .replace("60s", "5s")
            .replace("false", "true")
            .replace("0.0.0.0:7171", "127.0.0.1:1");
        let c = FileConfig::parse(&changed).unwrap().hub(None, None, None);
        assert_eq!((c.reserve_bytes, c.limits.streams, c.plain), (1 << 20, 7, true));
        assert_eq!((c.body_idle, c.listen.as_str()), (Duration::from_secs(5), "127.0.0.1:1"));
        assert_eq!(c.landing(), PathBuf::from("/l"));
        assert!(FileConfig::parse("[hub.limits]\nreserve = \"64\"").is_err());
        let spoke = keys::example(File::Spoke);
        let spoke = spoke.replace("# source", "source").replace("# hubs", "hubs");
        let spoke: barque_spoke::SpokeConfig = toml::from_str(&spoke).unwrap();
        assert_eq!(spoke, barque_spoke::SpokeConfig::new("/srv/telemetry".into()));
    }
}
