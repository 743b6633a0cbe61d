//! What can be typed: verbs, flags and their environment variables.

pub mod bundle;
mod hub;
mod node;

use std::path::PathBuf;
use std::time::Duration;

use barque_bundle::quantity::parse_duration;
use barque_bundle::{ByteSize, HubId};
use barque_spoke::budget::Budget;
use barque_spoke::timetable::Timetable;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

pub use hub::*;
pub use node::*;

/// Carries immutable Parquet files from edge machines to a central hub, and loses none.
#[derive(Parser, Debug)]
#[command(name = "barque", version, propagate_version = true, arg_required_else_help = true)]
pub struct Args {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(ClapArgs, Clone, Debug)]
pub struct Global {
    /// Print one JSON object on stdout
    #[arg(long, global = true)]
    pub json: bool,
    /// Say nothing but errors (for cron)
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Settings file [default: ./barque.toml, then /etc/barque/barque.toml]
    #[arg(long, global = true, env = "BARQUE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Which log lines to show, such as `debug` or `barque_hub=debug`
    #[arg(long, global = true, env = "BARQUE_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    /// Form of the log lines on stderr
    #[arg(long, global = true, env = "BARQUE_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Ship what the hub lacks: scan, offer, send, and keep the hub's receipts
    #[command(
        after_help = "Example (cron, every ten minutes):\n  */10 * * * *  barque push --quiet --splay 5m --state /var/lib/barque/spoke\nor as a daemon:\n  barque push --watch --state /var/lib/barque/spoke\n\nExit codes: 0 nothing needs a person, 3 a file does, 7 another pass runs, 75 hub not reached."
    )]
    Push(PushArgs),
    /// Show how this spoke stands with its hub; works without a network
    #[command(after_help = "Example:\n  barque status --state ./rocket --json")]
    Status(StateArgs),
    /// List the last passes: when, what came of them, and why one ended early
    #[command(after_help = "Example:\n  barque passes --limit 20 --state ./rocket")]
    Passes(PassesArgs),
    /// Make this machine a spoke of a hub
    #[command(
        after_help = "Example:\n  barque enroll \"$TOKEN\" --state ./rocket --source ./telemetry\n  ssh hub barque hub spoke add rocket-01 | barque enroll - --state ./rocket --source ./telemetry\nwithout a network, with a file there and one back:\n  barque enroll --offline submarine-01 --state ./submarine --source ./telemetry\n  barque enroll submarine-01.grant.json --state ./submarine"
    )]
    Enroll(EnrollArgs),
    /// Carry files on drives, where no network is
    Bundle {
        #[command(subcommand)]
        verb: bundle::BundleVerb,
    },
    /// Decide about files that wait for a person
    Ledger {
        #[command(subcommand)]
        verb: LedgerVerb,
    },
    /// Show the settings and where each comes from, or print a file to start from
    Config {
        #[command(subcommand)]
        verb: ConfigVerb,
    },
    /// Run a hub, and manage it
    Hub {
        #[command(subcommand)]
        verb: HubVerb,
    },
    /// Write plausible sensor Parquet files to try things with
    #[command(after_help = "Example:\n  barque sample ./telemetry --files 500")]
    Sample(SampleArgs),
    /// Show the main job: spokes push to a hub that is killed in between, and a drive goes there and back
    #[command(
        after_help = "Example:\n  barque demo\n  barque demo --nodes 3\n  barque demo --keep    # leaves the hub running and says how to query it"
    )]
    Demo(DemoArgs),
}

impl Command {
    pub fn default_log_level(&self) -> &'static str {
        match self {
            Self::Hub { verb: HubVerb::Serve(_) } => "info",
            _ => "warn",
        }
    }

    /// Whether the command ends in its own way on a signal.
    pub fn handles_signals(&self) -> bool {
        matches!(
            self,
            Self::Hub { verb: HubVerb::Serve(_) } | Self::Push(PushArgs { watch: true, .. })
        )
    }
}

#[derive(ClapArgs, Clone, Debug)]
pub struct StateArgs {
    /// The spoke's state folder
    #[arg(long, env = "BARQUE_STATE", value_name = "DIR")]
    pub state: Option<PathBuf>,
}

#[derive(ClapArgs, Debug)]
pub struct PushArgs {
    #[command(flatten)]
    pub state: StateArgs,
    /// Scan and say what would be sent; write and send nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Ship only paths that match this glob, such as 'alarms/**', in this pass; may come often
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
    /// Leave out paths that match this glob in this pass; may come often
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Send at most so fast, such as 2MB/s or 5Mbit/s, or by the week in UTC, such as
    /// '08:00,512kB/s 18:00,off Sat-00:00,off' [default: as spoke.toml says, else no limit]
    #[arg(long, env = "BARQUE_BANDWIDTH", value_name = "RATE")]
    pub bandwidth: Option<Timetable>,
    /// End after so long, such as 10m; what is left waits for the next pass
    #[arg(long, env = "BARQUE_MAX_DURATION", value_name = "DURATION", value_parser = parse_duration)]
    pub max_duration: Option<Duration>,
    /// Send at most so much, such as 500MB; what is left waits for the next pass
    #[arg(long, env = "BARQUE_MAX_BYTES", value_name = "SIZE")]
    pub max_bytes: Option<ByteSize>,
    /// Send at most so much in a day or month of UTC, such as 500MB/day or 10GB/month
    #[arg(long, env = "BARQUE_BUDGET", value_name = "BUDGET")]
    pub budget: Option<Budget>,
    /// Push to this hub only; else to each that the spoke is enrolled at
    #[arg(long, value_name = "HUB_ID")]
    pub hub: Option<HubId>,
    /// Wait for a random time up to this first, such as 10m, so that many do not come at once
    #[arg(long, env = "BARQUE_SPLAY", value_name = "DURATION", value_parser = parse_duration)]
    pub splay: Option<Duration>,
    /// Go on: push when something changes, and look through the whole tree every --rescan
    #[arg(long, conflicts_with = "dry_run")]
    pub watch: bool,
    /// How often a watching push looks through the whole tree
    #[arg(long, default_value = "10m", value_name = "DURATION", value_parser = parse_duration, requires = "watch")]
    pub rescan: Duration,
}

#[derive(ClapArgs, Debug)]
pub struct PassesArgs {
    #[command(flatten)]
    pub state: StateArgs,
    /// At most so many, newest first; 1000 are kept
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub limit: u64,
}

#[derive(ClapArgs, Debug)]
pub struct EnrollArgs {
    /// The one-time token that `barque hub spoke add` printed, or the grant file that came back;
    /// `-` reads either from stdin. With --offline: the spoke's name
    pub token: String,
    /// Without a network: write a request file, for `barque hub spoke approve` on the hub
    #[arg(long, conflicts_with = "new_identity")]
    pub offline: bool,
    /// Where the request goes [default: ./NAME.request.json; `-` is stdout]
    #[arg(long, value_name = "FILE", requires = "offline")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub state: StateArgs,
    /// The tree of Parquet files to ship; it is only read
    #[arg(long, env = "BARQUE_SOURCE", value_name = "DIR")]
    pub source: Option<PathBuf>,
    /// Become another spoke, whose name the token says: for a machine whose state folder is a copy
    #[arg(long)]
    pub new_identity: bool,
}

#[derive(Subcommand, Debug)]
pub enum LedgerVerb {
    /// List what the ledger knows of files, by state and name; works without a network
    #[command(
        after_help = "Example:\n  barque ledger ls --state-is pending --state ./rocket\n  barque ledger ls --json --state ./rocket"
    )]
    Ls(LedgerLsArgs),
    /// Offer files again under a new number, after a person acted
    #[command(
        after_help = "Example:\n  barque ledger requeue factory/line1/2024/03/31/02/a.parquet --state ./rocket\n  barque ledger requeue --all modified --state ./rocket"
    )]
    Requeue(LedgerArgs),
    /// Set files aside; a requeue undoes it
    #[command(after_help = "Example:\n  barque ledger dismiss --all conflict --state ./rocket")]
    Dismiss(LedgerArgs),
    /// Set the ledger aside and begin a new one; the next push hashes the files and asks the hub
    #[command(
        after_help = "Example:\n  barque ledger rebuild --state ./rocket\n  barque push --state ./rocket    # sends nothing again that the hub holds"
    )]
    Rebuild(LedgerRebuildArgs),
}

#[derive(ClapArgs, Debug)]
pub struct LedgerRebuildArgs {
    #[command(flatten)]
    pub state: StateArgs,
    /// Say what would be done; change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(ClapArgs, Debug)]
pub struct LedgerLsArgs {
    #[command(flatten)]
    pub state: StateArgs,
    /// Only files in this state, such as pending, synced, conflict, failed, modified or skipped
    #[arg(long, value_name = "STATE")]
    pub state_is: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

#[derive(ClapArgs, Debug)]
pub struct LedgerArgs {
    #[command(flatten)]
    pub state: StateArgs,
    /// Paths below the source folder, as `barque push --json` names them
    #[arg(required_unless_present = "all")]
    pub paths: Vec<String>,
    /// All files in this state: conflict, failed, modified, dismissed, removed, skipped
    #[arg(long, value_name = "STATE", conflicts_with = "paths")]
    pub all: Option<String>,
    /// For this hub only; else for each that the spoke is enrolled at
    #[arg(long, value_name = "HUB_ID")]
    pub hub: Option<HubId>,
    /// Say what would be done; change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Subcommand, Debug)]
pub enum ConfigVerb {
    /// Every setting, its value, and where that comes from
    #[command(after_help = "Example:\n  barque config show --state ./rocket")]
    Show(ConfigShowArgs),
    /// Print a settings file with every key, its default and one line of meaning
    #[command(
        after_help = "Example:\n  barque config example hub > barque.toml\n  barque config example spoke > ./rocket/spoke.toml"
    )]
    Example {
        /// Whose settings
        part: ConfigPart,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ConfigPart {
    Spoke,
    Hub,
}

#[derive(ClapArgs, Debug)]
pub struct ConfigShowArgs {
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub data: DataArgs,
}

#[derive(ClapArgs, Debug)]
pub struct SampleArgs {
    /// Where to write; made if it does not exist
    pub dir: PathBuf,
    /// How many files
    #[arg(long, default_value_t = 100)]
    pub files: u64,
    /// Rows of each file
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: u32,
    /// Also write one file of at least this size
    #[arg(long, value_name = "SIZE")]
    pub large: Option<ByteSize>,
    /// The same seed writes the same files
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

#[derive(ClapArgs, Debug)]
pub struct DemoArgs {
    /// Leave the folders and the hub running, and print how to query it
    #[arg(long)]
    pub keep: bool,
    /// So many nodes, with a balancer in front; the leader is killed in a push and in an import
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=7))]
    pub nodes: u8,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// Every verb at the ends of the tree.
    fn verbs(command: &clap::Command, out: &mut Vec<clap::Command>) {
        let mut below = command.get_subcommands().filter(|c| c.get_name() != "help").peekable();
        if below.peek().is_none() {
            out.push(command.clone());
        }
        below.for_each(|c| verbs(c, out));
    }

    #[test]
    fn every_verb_has_an_example_in_its_help() {
        let mut found = Vec::new();
        verbs(&Args::command(), &mut found);
        assert!(found.len() >= 24, "{}", found.len());
        for verb in found {
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{} has no example", verb.get_name());
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
