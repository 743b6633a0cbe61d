//! `barque.toml`: defaults for flags. A flag wins over `BARQUE_*`, that over the file.
//!
//! Looked for at `--config`, else `./barque.toml`, else `/etc/barque/barque.toml`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    #[serde(default)]
    pub spoke: SpokeSection,
    #[serde(default)]
    pub hub: HubSection,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpokeSection {
    /// The spoke's state folder.
    pub state: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubSection {
    /// The hub's data folder.
    pub data: Option<PathBuf>,
    /// Address and port to listen on.
    pub listen: Option<String>,
    /// Serve plain HTTP.
    pub plain: Option<bool>,
    #[serde(default)]
    pub landing: LandingSection,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LandingSection {
    /// Where files land; its staging folder stands beside it.
    pub dir: Option<PathBuf>,
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
        Self::parse(&text).with_context(|| format!("{} is not understood", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_refused_with_the_ones_there_are() {
        let e = FileConfig::parse("[hub]\nlisen = \"x\"").unwrap_err().to_string();
        assert!(e.contains("lisen") && e.contains("listen"), "{e}");
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let file = FileConfig::parse("[spoke]\nstate = \"/s\"").unwrap();
        assert_eq!(file.state(Some("/flag".into())), PathBuf::from("/flag"));
        assert_eq!(file.state(None), PathBuf::from("/s"));
        assert_eq!(file.data(Some("/flag".into())), PathBuf::from("/flag"));
    }
}
