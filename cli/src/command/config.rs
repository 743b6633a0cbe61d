//! `barque config show|example`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;

use super::Context;
use crate::args::{ConfigPart, ConfigShowArgs, ConfigVerb};
use crate::config::keys::{self, File, Key};
use crate::{exit, output};

pub fn run(context: &Context, verb: ConfigVerb) -> anyhow::Result<u8> {
    match verb {
        ConfigVerb::Show(args) => show(context, &args),
        ConfigVerb::Example { part } => {
            let (head, text) = match part {
                ConfigPart::Hub => (
                    "# barque.toml, looked for in ./ and /etc/barque/, or named by --config.",
                    keys::example(File::Barque),
                ),
                ConfigPart::Spoke => (
                    "# spoke.toml of a state folder. Put it there, then: barque enroll TOKEN --state DIR",
                    keys::example(File::Spoke),
                ),
            };
            let text = format!("{head}\n\n{}", text.trim_end());
            if context.global.json {
                output::json(&serde_json::json!({ "text": text }))?;
            } else {
                output::line(&text);
            }
            Ok(exit::OK)
        }
    }
}

/// A setting as it stands.
#[derive(Serialize)]
struct Setting {
    key: &'static str,
    /// As TOML; absent when it is not set and has no default.
    value: Option<String>,
    /// `flag --data`, `environment BARQUE_DATA`, the path of a file, or `default`.
    from: String,
}

/// A TOML file and where it lies.
struct Source {
    path: PathBuf,
    table: toml::Table,
}

fn show(context: &Context, args: &ConfigShowArgs) -> anyhow::Result<u8> {
    let machine = context.file.path.clone().map(read).transpose()?;
    let state = barque_spoke::StateFolder::new(context.file.state(args.state.state.clone()));
    let spoke = if state.config().exists() {
        // What `push` would refuse is refused here too.
        barque_spoke::SpokeConfig::load(&state)?;
        Some(read(state.config())?)
    } else {
        None
    };
    let mut settings = Vec::new();
    for key in &keys::KEYS {
        let flag = match key.name {
            // The flag holds its variable too: it is the flag's when the two differ.
            "spoke.state" => {
                let variable = std::env::var_os("BARQUE_STATE").map(PathBuf::from);
                let flag = args.state.state.as_deref().filter(|p| variable.as_deref() != Some(*p));
                flag.map(|p| ("--state", p))
            }
            "hub.data" => args.data.data.as_deref().map(|p| ("--data", p)),
            _ => None,
        };
        let file = if key.file == File::Spoke { &spoke } else { &machine };
        settings.push(setting(key, flag, file.as_ref()));
    }
    if context.global.json {
        output::json(&serde_json::json!({ "settings": settings }))?;
        return Ok(exit::OK);
    }
    for s in settings {
        let value = s.value.as_deref().unwrap_or("not set");
        output::line(&format!("{} = {value}    # {}", s.key, s.from));
    }
    Ok(exit::OK)
}

fn read(path: PathBuf) -> anyhow::Result<Source> {
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let table = text.parse().with_context(|| format!("{} is not understood", path.display()))?;
    Ok(Source { path, table })
}

fn setting(key: &Key, flag: Option<(&str, &Path)>, file: Option<&Source>) -> Setting {
    let found = |value: String, from: String| Setting { key: key.name, value: Some(value), from };
    if let Some((flag, value)) = flag {
        let value = toml::Value::String(value.display().to_string());
        return found(value.to_string(), format!("flag {flag}"));
    }
    // `source` counts from the environment for `enroll` alone; what `push` uses stands in the file.
    let variable = key.environment.filter(|_| key.name != "source");
    if let Some(value) = variable.and_then(|v| std::env::var(v).ok()) {
        let value = if key.default.starts_with('"') || key.example.starts_with('"') {
            toml::Value::String(value).to_string()
        } else {
            value
        };
        return found(value, format!("environment {}", variable.unwrap_or_default()));
    }
    if let Some((file, value)) = file.and_then(|f| Some((f, at(&f.table, key.name)?))) {
        return found(value.to_string(), file.path.display().to_string());
    }
    let value = (!key.default.is_empty()).then(|| key.default.to_owned());
    Setting { key: key.name, value, from: "default".to_owned() }
}

fn at<'a>(table: &'a toml::Table, name: &str) -> Option<&'a toml::Value> {
    match name.split_once('.') {
        None => table.get(name),
        Some((head, rest)) => at(table.get(head)?.as_table()?, rest),
    }
}
