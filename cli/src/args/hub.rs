//! `barque hub ...`: what can be typed.

use std::path::PathBuf;

use barque_bundle::SpokeId;
use barque_bundle::wire::Role;
use clap::{Args as ClapArgs, Subcommand};

use super::node::{ClusterArgs, HubJoinArgs, HubNodeVerb, HubRecoverArgs};

#[derive(Subcommand, Debug)]
pub enum HubVerb {
    /// Make a hub: its root key, TLS authority and data folder
    #[command(
        after_help = "Example:\n  barque hub init --data ./hub --url https://hub.example.org:7171"
    )]
    Init(HubInitArgs),
    /// Run the hub until it is told to stop
    #[command(after_help = "Example:\n  barque hub serve --data ./hub --listen 0.0.0.0:7171")]
    Serve(HubServeArgs),
    /// Take a bundle in from a drive, and write the hub's receipt back to it
    #[command(
        after_help = "Example:\n  barque hub import /media/usb/bundle-submarine-01-01HX... --data ./hub\n  BARQUE_TOKEN=... barque hub import ./bundle-submarine-01-01HX....tar.zst --url https://hub:7171\n\nExit codes: 0 imported, or imported before; 3 a file conflicts; 5 damaged; 6 not signed by a spoke of this hub; 75 another import runs."
    )]
    Import(HubImportArgs),
    /// Show which drives of a spoke were imported, and what has not arrived
    #[command(after_help = "Example:\n  barque hub history submarine-01 --data ./hub")]
    History(HubHistoryArgs),
    /// Announce and list spokes
    Spoke {
        #[command(subcommand)]
        verb: HubSpokeVerb,
    },
    /// Make, list and remove bearer tokens of operators and readers
    Token {
        #[command(subcommand)]
        verb: HubTokenVerb,
    },
    /// List landed files by name
    #[command(
        after_help = "Example:\n  barque hub files --prefix rocket-01/factory/ --data ./hub --json"
    )]
    Files(HubFilesArgs),
    /// List per measurement which schemas its files have, and the columns whose types differ
    #[command(
        after_help = "Example:\n  barque hub schemas factory/ --data ./hub\n  barque hub schemas --data ./hub --json"
    )]
    Schemas(HubSchemasArgs),
    /// Make a folder a node of a hub that runs elsewhere
    #[command(
        after_help = "Example:\n  barque hub join barque-join-eyJ... --data ./b\n  barque hub serve --data ./b --cluster-listen 10.0.0.2:7272"
    )]
    Join(HubJoinArgs),
    /// Let nodes in, list, drain and remove them
    Node {
        #[command(subcommand)]
        verb: HubNodeVerb,
    },
    /// Go on with this node alone, when most others are gone for good
    #[command(
        after_help = "Example:\n  barque hub recover --data ./hub        # says what it would mean\n  barque hub recover --data ./hub --yes\n\nThe hub must not run. What this node never heard of is lost here; spokes offer it again. Nodes of\nbefore are refused afterwards: empty their folders and let them join anew."
    )]
    Recover(HubRecoverArgs),
    /// Show how the hub stands
    #[command(after_help = "Example:\n  barque hub status --data ./hub --json")]
    Status(HubTargetArgs),
}

#[derive(ClapArgs, Clone, Debug)]
pub struct DataArgs {
    /// The hub's data folder [or BARQUE_DATA]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

#[derive(ClapArgs, Debug)]
pub struct HubInitArgs {
    #[command(flatten)]
    pub data: DataArgs,
    /// The address that spokes will use [default: the one served]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
}

#[derive(ClapArgs, Debug)]
pub struct HubServeArgs {
    #[command(flatten)]
    pub data: DataArgs,
    /// Address and port to listen on [default: 0.0.0.0:7171]
    #[arg(long, env = "BARQUE_LISTEN", value_name = "ADDR")]
    pub listen: Option<String>,
    /// Serve plain HTTP; only behind something that does TLS
    #[arg(long, env = "BARQUE_PLAIN", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub plain: Option<bool>,
    /// A folder of this machine below which `hub import --on-node` may name a bundle; may come often
    #[arg(long, value_name = "DIR")]
    pub allow_dir: Vec<PathBuf>,
    /// Take files by drive alone: nothing that spokes call is served to the network
    #[arg(long, env = "BARQUE_IMPORT_ONLY", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub import_only: Option<bool>,
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

#[derive(ClapArgs, Debug)]
pub struct HubImportArgs {
    /// A bundle on a drive: a folder, a .tar or a .tar.zst
    pub path: PathBuf,
    /// Write the receipt below this folder, for a drive that cannot be written
    #[arg(long, value_name = "DIR")]
    pub receipt_out: Option<PathBuf>,
    /// The path is one on the hub's node, below a folder of its --allow-dir; only the path is sent
    #[arg(long)]
    pub on_node: bool,
    /// For a bundle that was imported before: sign the present state of its files anew
    #[arg(long)]
    pub reissue_receipt: bool,
    #[command(flatten)]
    pub target: HubTargetArgs,
}

#[derive(ClapArgs, Debug)]
pub struct HubHistoryArgs {
    /// The spoke's name
    pub spoke: SpokeId,
    /// At most so many, newest first; 1000 at most
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
    #[command(flatten)]
    pub target: HubTargetArgs,
}

/// Which hub is meant: the one on this machine's folder, or one elsewhere.
#[derive(ClapArgs, Clone, Debug)]
pub struct HubTargetArgs {
    #[command(flatten)]
    pub data: DataArgs,
    /// A hub elsewhere; needs a token [or BARQUE_URL, which --data overrides]
    #[arg(long, value_name = "URL", conflicts_with = "data")]
    pub url: Option<String>,
    /// File that holds the bearer token [or the token itself in BARQUE_TOKEN]
    #[arg(long, env = "BARQUE_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The hub's tls/ca.pem, when the system does not trust it
    #[arg(long, env = "BARQUE_CACERT", value_name = "FILE")]
    pub cacert: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub enum HubSpokeVerb {
    /// Announce a spoke; prints its one-time enrollment token alone on stdout
    #[command(after_help = "Example:\n  TOKEN=$(barque hub spoke add rocket-01 --data ./hub)")]
    Add(HubSpokeAddArgs),
    /// Let a spoke in whose request came as a file (barque enroll --offline); writes the grant that
    /// is carried back to it
    #[command(
        after_help = "Example:\n  barque hub spoke approve submarine-01.request.json --data ./hub\n  # carry submarine-01.grant.json back, and there: barque enroll submarine-01.grant.json"
    )]
    Approve(HubSpokeApproveArgs),
    /// List spokes
    #[command(after_help = "Example:\n  barque hub spoke ls --data ./hub")]
    Ls(HubTargetArgs),
    /// Show one spoke: files and bytes received, last seen, backlog, key
    #[command(after_help = "Example:\n  barque hub spoke show rocket-01 --data ./hub")]
    Show(HubSpokeArgs),
    /// Refuse a spoke until it is enabled again; its files stay
    #[command(after_help = "Example:\n  barque hub spoke disable rocket-01 --data ./hub")]
    Disable(HubSpokeArgs),
    /// Let a disabled spoke in again
    #[command(after_help = "Example:\n  barque hub spoke enable rocket-01 --data ./hub")]
    Enable(HubSpokeArgs),
    /// Remove a spoke for good: its keys are dead, its files stay, its name stays taken
    #[command(after_help = "Example:\n  barque hub spoke rm rocket-01 --data ./hub")]
    Rm(HubSpokeArgs),
}

#[derive(ClapArgs, Debug)]
pub struct HubSpokeArgs {
    /// The spoke's name
    pub id: SpokeId,
    #[command(flatten)]
    pub target: HubTargetArgs,
}

#[derive(ClapArgs, Debug)]
pub struct HubSpokeApproveArgs {
    /// The request file; `-` reads it from stdin
    pub request: PathBuf,
    /// Where the grant goes [default: NAME.grant.json beside the request; `-` is stdout]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub target: HubTargetArgs,
}

#[derive(ClapArgs, Debug)]
pub struct HubSpokeAddArgs {
    /// The spoke's name: letters, digits, '.', '_' and '-'
    pub id: SpokeId,
    /// How long the token may wait to be used, at most 7d
    #[arg(long, default_value = "1h", value_name = "DURATION")]
    pub expires: String,
    #[command(flatten)]
    pub target: HubTargetArgs,
}

#[derive(Subcommand, Debug)]
pub enum HubTokenVerb {
    /// Make a token; it is printed once and kept as a hash
    #[command(after_help = "Example:\n  barque hub token add --role reader --name me --data ./hub")]
    Add(HubTokenAddArgs),
    /// List tokens by name
    #[command(after_help = "Example:\n  barque hub token ls --data ./hub")]
    Ls(HubTargetArgs),
    /// Remove a token; it stops to count at once
    #[command(after_help = "Example:\n  barque hub token rm me --data ./hub")]
    Rm(HubTokenRmArgs),
}

#[derive(ClapArgs, Debug)]
pub struct HubTokenAddArgs {
    /// Who it is for
    #[arg(long)]
    pub name: String,
    /// reader, operator or admin
    #[arg(long, default_value = "reader")]
    pub role: Role,
    #[command(flatten)]
    pub target: HubTargetArgs,
}

#[derive(ClapArgs, Debug)]
pub struct HubTokenRmArgs {
    pub name: String,
    #[command(flatten)]
    pub target: HubTargetArgs,
}

#[derive(ClapArgs, Debug)]
pub struct HubFilesArgs {
    /// Only names that start with this
    #[arg(long, default_value = "")]
    pub prefix: String,
    /// At most so many
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub target: HubTargetArgs,
}

#[derive(ClapArgs, Debug)]
pub struct HubSchemasArgs {
    /// Only measurements whose `database/measurement` starts with this
    #[arg(default_value = "")]
    pub prefix: String,
    #[command(flatten)]
    pub target: HubTargetArgs,
}
