//! `barque hub node ...` and `barque hub join`: what can be typed.

use clap::{Args as ClapArgs, Subcommand};

use super::hub::{DataArgs, HubTargetArgs};

/// How a node meets the others of its hub.
#[derive(ClapArgs, Clone, Debug, Default)]
pub struct ClusterArgs {
    /// Address and port of the listener for other nodes; without one the hub is this node alone
    #[arg(long, env = "BARQUE_CLUSTER_LISTEN", value_name = "ADDR")]
    pub cluster_listen: Option<String>,
    /// Where other nodes reach it, if that is another address than it listens on
    #[arg(long, env = "BARQUE_CLUSTER_ADVERTISE", value_name = "ADDR")]
    pub cluster_advertise: Option<String>,
    /// Plain HTTP between nodes instead of mutual TLS; all nodes alike
    #[arg(long, env = "BARQUE_CLUSTER_PLAIN", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub cluster_plain: Option<bool>,
}

#[derive(ClapArgs, Debug)]
pub struct HubJoinArgs {
    /// What `barque hub node add` printed; `-` reads it from stdin
    pub token: String,
    #[command(flatten)]
    pub data: DataArgs,
    /// The address that this node's clients will use [default: the one served]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
}

#[derive(ClapArgs, Debug)]
pub struct HubRecoverArgs {
    #[command(flatten)]
    pub data: DataArgs,
    /// Do it; without this, only say what it would mean
    #[arg(long)]
    pub yes: bool,
}

#[derive(Subcommand, Debug)]
pub enum HubNodeVerb {
    /// Let one more node in; prints its one-use join token alone on stdout
    #[command(
        after_help = "Example:\n  barque hub node add --data ./a | barque hub join - --data ./b\n  barque hub serve --data ./b --listen 0.0.0.0:7172 --cluster-listen 10.0.0.2:7272"
    )]
    Add(HubNodeAddArgs),
    /// List the nodes: role, whether they live, how far they are, what they hold
    #[command(after_help = "Example:\n  barque hub node ls --data ./hub")]
    Ls(HubTargetArgs),
    /// Let a node take nothing new: it does not vote, and what it holds is still served
    #[command(after_help = "Example:\n  barque hub node drain 00f3a1b2c3d4e5f6 --data ./hub")]
    Drain(HubNodeDrainArgs),
    /// Print one digest over a node's manifest: nodes at one position have the same
    #[command(
        after_help = "Example:\n  barque hub node digest --data ./a; barque hub node digest --data ./b"
    )]
    Digest(HubTargetArgs),
    /// Give all nodes another cluster token; nothing that is under way fails
    #[command(after_help = "Example:\n  barque hub node rotate-token --data ./hub")]
    RotateToken(HubTargetArgs),
    /// Remove a node for good; its folder has to be emptied before it joins again
    #[command(after_help = "Example:\n  barque hub node remove 00f3a1b2c3d4e5f6 --data ./hub")]
    Remove(HubNodeRemoveArgs),
}

#[derive(ClapArgs, Debug)]
pub struct HubNodeAddArgs {
    /// It does not vote, for good: it takes pushes and serves reads
    #[arg(long)]
    pub reader: bool,
    /// How long the token may wait to be used, at most 7d
    #[arg(long, default_value = "1h", value_name = "DURATION")]
    pub expires: String,
    #[command(flatten)]
    pub target: HubTargetArgs,
}

#[derive(ClapArgs, Debug)]
pub struct HubNodeDrainArgs {
    /// The node's id, as `barque hub node ls` shows it
    pub node: String,
    /// The opposite: it takes part again
    #[arg(long)]
    pub undo: bool,
    #[command(flatten)]
    pub target: HubTargetArgs,
}

#[derive(ClapArgs, Debug)]
pub struct HubNodeRemoveArgs {
    /// The node's id, as `barque hub node ls` shows it
    pub node: String,
    /// Also when it holds the only copy of files: they are lost here, and asked of their spokes again
    #[arg(long)]
    pub abandon_files: bool,
    #[command(flatten)]
    pub target: HubTargetArgs,
}
